"""How the program reports errors: one sentence, where, the next command, and the right exit code; no traceback without -v.

The last part reports exceptions of foreign code that no caller catches (in threads, tasks, ``__del__``, at exit) and warnings.
"""

from __future__ import annotations

import errno
import logging
import re
import shlex
import sys
import threading
import traceback
import warnings
from collections.abc import Iterable
from traceback import walk_tb
from typing import TYPE_CHECKING

import click

from moryflow.base.builtins import BUILTINS

from .terminal import folded, plain
from .terminal.streams import NAME as STDOUT
from .terminal.streams import restore, stderr

if TYPE_CHECKING:
    from moryflow_sdk import MoryflowError


_NEXT = {
    errno.ENOSPC: "free some space, then try again",
    errno.EDQUOT: "free some space, then try again",
    errno.EMFILE: "ulimit -n 1024, then try again",
    errno.ENFILE: "end other programs, then try again",
    errno.ENOLCK: "the file system has no locks: set MORYFLOW_HOME to a folder on a disk of this machine",
}
_CHECKED = frozenset({"does_not_load"})
_USAGE = frozenset({"config", "usage", "not_found", "ambiguous", "invalid"})


def report(error: BaseException) -> int:
    """Print `error` for the user and return the exit code."""
    restore()
    match error:
        case click.exceptions.Exit():
            return error.exit_code
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.ctx.get_help() if error.ctx else error.format_message(), err=True)
            return 2
        case click.UsageError():
            message = " ".join(error.format_message().split())  # click puts each of several choices on a line of its own
            message = re.sub(r" is not a valid (\w+) range\.", r" is not a valid \1.", message)
            _say(message[:1].lower() + message[1:], "", f"{error.ctx.command_path if error.ctx else 'moryflow'} --help")
            return 2
        case click.ClickException():
            _say(error.format_message(), "", "")
            return error.exit_code
        case KeyboardInterrupt() | click.Abort():
            pressed = KeyboardInterrupt | EOFError
            if (isinstance(error, pressed) or isinstance(error.__context__, pressed)) and stderr().isatty():
                click.echo(err=True)  # ends the line that shows ^C, or the question that Ctrl-C answered
            return 130
        case SystemExit():
            _say("sys.exit() was called while the command ran, perhaps by a task of a plugin", "", "moryflow plugin list")
            return error.code if isinstance(error.code, int) else 1
        case _:
            from moryflow_sdk import MoryflowError

            code = 1
            if isinstance(error, OSError) and error.strerror:
                _say(*_system_error(error, error.strerror))
            elif isinstance(error, MoryflowError):
                _say(error.message, error.where, next_of(error))
                code = _exit_code(error)
            else:
                _say(f"{type(error).__name__}: {error}", "", "run the same command with -v and report what it prints")
            if _is_verbose():
                traceback.print_exception(error)
            return code


def _is_verbose() -> bool:
    """Whether ``-v`` was given; behind ``--`` it is a word of another program."""
    words = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv
    return not {"-v", "--verbose"}.isdisjoint(words)


def _system_error(error: OSError, reason: str) -> tuple[str, str, str]:
    if error.filename == STDOUT:
        kept = "; what was done is kept: moryflow session show" if sys.argv[1:2] == ["run"] else ""
        return f"could not be written: {reason}", STDOUT, f"free some space, or send the output elsewhere{kept}"
    return reason, str(error.filename or ""), _NEXT.get(error.errno or 0, "moryflow doctor")


def next_of(error: MoryflowError) -> str:
    """Return the next command that `error` names, or else one that looks for the cause."""
    from moryflow_sdk import ConfigError, ModelError

    if isinstance(error, ModelError):  # the fault lies with the service: the doctor would find nothing
        return error.next_step or "ask again, or choose another model with -m"
    return error.next_step or ("moryflow config check" if type(error) is ConfigError else "moryflow doctor")


def _exit_code(error: MoryflowError) -> int:
    from moryflow_sdk import ConfigError, ModelError, PluginError

    match error:
        case ModelError():
            return 7
        case PluginError():
            return 6
        case ConfigError():
            return 2
        case _:
            return 2 if error.code in _USAGE else 3 if error.code in _CHECKED else 1


def _say(message: str, where: str, next_step: str) -> None:
    place = f"{where}: " if where else ""
    lines = [f"moryflow: {place}{message}", *([f"  next: {next_step}"] if next_step else [])]
    try:
        click.echo(folded("\n".join(map(plain, lines))), err=True)
    except BrokenPipeError:
        raise
    except OSError:
        return  # standard error cannot be written; the exit code still says that the command failed


# The most commands that a hint names; more are no help.
MAX_RULES = 3


def allowing(rules: Iterable[tuple[str, str]]) -> str:
    """Return one line of shell that stores an allow rule for each (domain, pattern); empty if there are none or too many."""
    each = [f"moryflow permission allow {domain} {shlex.quote(pattern)}" for domain, pattern in dict.fromkeys(rules)]
    return " && ".join(each) if len(each) <= MAX_RULES else ""


# ---------------------------------------------------------------- Exceptions of foreign code that no caller catches


# The prefix of the modules of the user's own files; `moryflow.plugins.sources` is too big to import for it.
_PLUGINS = "moryflow_plugins."


def install_excepthooks() -> None:
    """Print one line for each uncaught exception, where Python prints a traceback. Errors of a command go to :func:`report`."""
    sys.unraisablehook = lambda found: _print_error(found.err_msg or "an exception is ignored", found.exc_value)
    threading.excepthook = lambda found: _print_error("a thread has ended", found.exc_value)
    warnings.showwarning = _warning
    if not sys.warnoptions:  # syntax warnings are for the code's author: plugin check, tool check
        warnings.simplefilter("ignore", SyntaxWarning)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Line())


class _Line(logging.Formatter):
    """Formats log records without a handler, including our own notices; names the plugin unless it is built in."""

    def format(self, record: logging.LogRecord) -> str:
        plugin = record.name.removeprefix("moryflow.plugin.")
        foreign = plugin != record.name and f"moryflow_builtins.{plugin}" not in BUILTINS
        message = f"moryflow: {plugin}: {record.getMessage()}" if foreign else f"moryflow: {record.getMessage()}"
        error = record.exc_info[1] if record.exc_info else None
        return folded(message) if error is None else _described(message.split("\n", 1)[0], error)


def _warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
    _write(f"moryflow: {category.__name__}: {' '.join(str(message).split())} ({filename}:{lineno})")


def _print_error(what: str, error: BaseException | None) -> None:
    if error is not None and not isinstance(error, SystemExit | KeyboardInterrupt):
        _write(_described(f"moryflow: {what[:1].lower()}{what[1:].removesuffix(':')}", error))


def _write(text: str) -> None:
    stream = stderr()
    if stream is not None and not stream.closed:
        stream.write(plain(text) + "\n")


def _described(what: str, error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except BaseException as another:  # its `__str__` is foreign code
        text = f"(its text cannot be shown: {type(another).__name__})"
    trace = walk_tb(error.__traceback__)
    frames = [(frame.f_code.co_filename, line, str(frame.f_globals.get("__name__", ""))) for frame, line in trace]
    own = [frame for frame in frames if frame[2].startswith(_PLUGINS)]
    file, line, module = (own or frames or [("", 0, "")])[-1]
    name = module.removeprefix(_PLUGINS).partition("__g")[0].partition(".")[0]
    hint = f"moryflow plugin info {name}" if own else "-v shows where it comes from"
    place = f" ({file}:{line})" if file else ""
    more = ["".join(traceback.format_exception(error)).rstrip()] if _is_verbose() else []
    return "\n".join([folded(f"{what}: {type(error).__name__}{f': {text}' if text else ''}{place}; {hint}"), *more])
