"""Exceptions of plugin code: their text, and the line that raised them. They end neither the turn nor the program."""

from __future__ import annotations

import asyncio
import os
from inspect import unwrap
from pathlib import Path
from typing import Any, cast

from moryflow_sdk.support.secrets import hide

MOST_SAID = 4000
"""Letters of an exception's text that are kept."""


def contain_exit(error: BaseException) -> Exception:
    """Return `error`, or one that ends neither the program nor the turn in place of one that would."""
    match error:
        case Exception():
            return error
        case SystemExit():
            code = repr(error.code) if isinstance(error.code, str | int | None) else "…"
            return RuntimeError(f"the plugin called sys.exit({code})")
        case _:
            said = text_of(error)
            return RuntimeError(f"the plugin raised {class_name(error)}{f': {said}' if said else ''}")


def plugin_error(error: BaseException) -> Exception:
    """Return what other people's code raised on the loop as an error; what stops the turn or the program goes on.

    Only while this task is being cancelled is a cancellation, or a Ctrl-C, a person's and not the plugin's.
    """
    task = asyncio.current_task()
    if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)) and (task is None or task.cancelling()):
        raise error
    return contain_exit(error)


def text_of(error: BaseException) -> str:
    """Return the text of an exception. Its ``__str__`` is foreign code and may raise."""
    try:
        return hide(str(error))[:MOST_SAID]
    except BaseException as another:
        return f"(its text cannot be shown: {class_name(another)})"


def class_name(value: object) -> str:
    """Return the name of the class of `value`; a metaclass of a plugin's own may have made one that raises."""
    return vars(type)["__name__"].__get__(type(value))


def describe(error: BaseException, root: str = "") -> tuple[str, str, int]:
    """Return what `error` says, and the last place in the plugin's own code that it passed through.

    :param root: the plugin's file, or the folder of its package.
    """
    said = text_of(error)
    name = class_name(error)
    text = f"{name}: {said}" if said else name
    if isinstance(error, SyntaxError) and error.filename and within(error.filename, root):
        column = f" (column {error.offset})" if (error.offset or 0) > 0 else ""
        return (f"{name}: {error.msg}{column}", error.filename, error.lineno or 0)
    file, line, trace = "", 0, error.__traceback__
    while trace is not None:
        place = trace.tb_frame.f_code.co_filename
        if within(place, root):
            file, line = place, trace.tb_lineno
        trace = trace.tb_next
    return (text, file, line)


def place_of(function: object) -> tuple[str, int]:
    """Return file and line of a function's code, as far as they are known."""
    code = getattr(unwrap(cast("Any", function)), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else ("", 0)


def root_of(file: str) -> str:
    """Return what belongs to the plugin whose code starts in `file`: the folder of a package, else the file."""
    path = Path(file)
    return str(path.parent) if path.name == "__init__.py" else file


def within(file: str, root: str) -> bool:
    """Whether `file` is `root` or lies below it."""
    return bool(root) and (file == root or file.startswith(root + os.sep))
