"""Exceptions of plugin code: their text, the line that raised them, and exits turned into errors.

None of them may end the turn or the program.
"""

from __future__ import annotations

import asyncio
import os
from inspect import unwrap
from pathlib import Path
from typing import Any, cast

from moryflow_sdk.support.secrets import hide

# Characters of an exception's text that are kept.
MAX_SAID = 4000


def contain_exit(error: BaseException) -> Exception:
    """Return `error`, or a ``RuntimeError`` with its traceback in its place if it would end the program or the turn."""
    match error:
        case Exception():
            return error
        case SystemExit():
            code = repr(error.code) if isinstance(error.code, str | int | None) else "…"
            contained = RuntimeError(f"the plugin called sys.exit({code})")
        case _:
            text = text_of(error)
            contained = RuntimeError(f"the plugin raised {class_name(error)}{f': {text}' if text else ''}")
    return contained.with_traceback(error.__traceback__)


def plugin_error(error: BaseException) -> Exception:
    """Return what a plugin's code raised on the loop as an :class:`Exception`, which ends neither turn nor program.

    While this task is being cancelled, a cancellation or a Ctrl-C comes from the user, not from the plugin: it is raised
    again.
    """
    task = asyncio.current_task()
    if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)) and (task is None or task.cancelling()):
        raise error
    return contain_exit(error)


def text_of(error: BaseException) -> str:
    """Return the text of an exception, whose ``__str__`` is foreign code and may raise."""
    try:
        return hide(str(error))[:MAX_SAID]
    except BaseException as another:
        return f"(its text cannot be shown: {class_name(another)})"


def class_name(value: object) -> str:
    """Return the name of the class of `value`, also if a plugin's metaclass makes ``__name__`` raise."""
    return vars(type)["__name__"].__get__(type(value))


def describe(error: BaseException, root: str = "") -> tuple[str, str, int]:
    """Return the text of `error`, and file and line of the last frame of its traceback in the plugin's own code.

    :param root: the plugin's file, or the folder of its package.
    """
    message = text_of(error)
    name = class_name(error)
    text = f"{name}: {message}" if message else name
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
    """Return file and line of a function's code, or ``("", 0)`` if they are not known."""
    code = getattr(unwrap(cast("Any", function)), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code else ("", 0)


def root_of(file: str) -> str:
    """Return the root of the plugin whose code starts in `file`: the folder of a package, else the file itself."""
    path = Path(file)
    return str(path.parent) if path.name == "__init__.py" else file


def within(file: str, root: str) -> bool:
    """Whether `file` is `root` or lies below it."""
    return bool(root) and (file == root or file.startswith(root + os.sep))
