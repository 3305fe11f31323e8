"""Exceptions of foreign code that no caller catches: in threads, tasks and ``__del__``, at exit, and warnings.

Python prints a traceback for each. A person is told in one line what, where and what helps; ``-v`` shows the rest.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
import warnings
from types import TracebackType

from moryflow.base.builtins import BUILTINS

_PLUGINS = "moryflow_plugins."
"""How the modules of a person's own files begin (:mod:`moryflow.plugins.sources`, too much to import for a word)."""
_ENDS = (SystemExit, KeyboardInterrupt)


def install() -> None:
    """Take over from Python; the program's own last error does not come this way."""
    sys.unraisablehook = _unraisable
    threading.excepthook = _in_thread
    warnings.showwarning = _warning
    if not sys.warnoptions:  # what Python says of somebody's code is for its author: plugin check, tool check, dev
        warnings.simplefilter("ignore", SyntaxWarning)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Line())


def show_slips() -> None:
    """Say from here on what Python warns of in code that is loaded: its author sits here."""
    warnings.simplefilter("default", SyntaxWarning)
    warnings.filterwarnings("default", "invalid (escape|octal)", DeprecationWarning)  # the same on Python 3.11


class _Line(logging.Formatter):
    """Log records without a handler, including our own notices; those of a plugin that is not built in name it."""

    def format(self, record: logging.LogRecord) -> str:
        from .text import folded

        plugin = record.name.removeprefix("moryflow.plugin.")
        theirs = plugin != record.name and f"moryflow_builtins.{plugin}" not in BUILTINS
        whose = f"moryflow: {plugin}" if theirs else "moryflow"
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return folded(f"{whose}: {record.getMessage()}")
        said = record.getMessage().split("\n", 1)[0]
        return "\n".join([folded(f"{whose}: {said}: {_one_line(error)}"), *_more(error)])


def _unraisable(found: sys.UnraisableHookArgs) -> None:
    """Say what was raised in a ``__del__`` or at exit, of which Python only says that it is ignored."""
    if found.exc_value is not None and not isinstance(found.exc_value, _ENDS):
        said = (found.err_msg or "an exception is ignored").removesuffix(":")
        _tell(said[:1].lower() + said[1:], found.exc_value)


def _in_thread(found: threading.ExceptHookArgs) -> None:
    if found.exc_value is not None and not isinstance(found.exc_value, _ENDS):
        _tell(f"a thread has ended ({found.thread.name if found.thread else '?'})", found.exc_value)


def _warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
    said = " ".join(str(message).split())
    slip = issubclass(category, SyntaxWarning) or said.startswith("invalid ")
    _write(f"moryflow: {filename}:{lineno}: {said}" if slip else f"moryflow: {category.__name__}: {said} ({filename}:{lineno})")


def _tell(what: str, error: BaseException) -> None:
    _write("\n".join([f"moryflow: {what}: {_one_line(error)}", *_more(error)]))


def _write(text: str) -> None:
    from .text import plain

    stream = sys.stderr
    if stream is not None and not stream.closed:
        stream.write(plain(text) + "\n")


def _one_line(error: BaseException) -> str:
    """Return what was raised, where, and the command that shows more of whose code it is."""
    try:
        said = " ".join(str(error).split())
    except BaseException as another:  # its `__str__` is foreign code
        said = f"(its text cannot be made: {type(another).__name__})"
    file, line, module = _place(error.__traceback__)
    place = f" ({file}:{line})" if file else ""
    name = module.removeprefix(_PLUGINS).partition("__g")[0].partition(".")[0]
    hint = f"moryflow plugin info {name}" if module.startswith(_PLUGINS) else "-v shows where it comes from"
    return f"{type(error).__name__}{f': {said}' if said else ''}{place}; {hint}"


def _place(trace: TracebackType | None) -> tuple[str, int, str]:
    """Return file, line and module of the last place in a person's own code, else of the last one at all."""
    found = last = ("", 0, "")
    while trace is not None:
        names = trace.tb_frame.f_globals
        last = (trace.tb_frame.f_code.co_filename, trace.tb_lineno, str(names.get("__name__", "")))
        found = last if last[2].startswith(_PLUGINS) else found
        trace = trace.tb_next
    return found if found[0] else last


def _more(error: BaseException) -> list[str]:
    if not {"-v", "--verbose"} & set(sys.argv):
        return []
    return ["".join(traceback.format_exception(error)).rstrip()]
