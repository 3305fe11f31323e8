"""Errors on their way out: one sentence, where, the next command, and the right exit code; no traceback without -v."""

from __future__ import annotations

import errno
import shlex
import sys
import traceback
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from moryflow.cli.terminal.streams import NAME as STDOUT

from .terminal.text import plain

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
    """Print `error` for a person and return the exit code."""
    match error:
        case click.exceptions.Exit():
            return error.exit_code
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.ctx.get_help() if error.ctx else error.format_message(), err=True)
            return 2
        case click.UsageError():
            message = " ".join(error.format_message().split())  # click puts each of several choices on a line of its own
            _say(message[:1].lower() + message[1:], "", f"{error.ctx.command_path if error.ctx else 'moryflow'} --help")
            return 2
        case click.ClickException():
            _say(error.format_message(), "", "")
            return error.exit_code
        case KeyboardInterrupt() | click.Abort():
            return 130
        case SystemExit():
            return error.code if isinstance(error.code, int) else 1
        case _:
            return _unexpected(error)


def _unexpected(error: BaseException) -> int:
    known = _known(error)
    if known is not None:
        message, where, next_step, code = known
        _say(message, where, next_step)
    else:
        _say(f"{type(error).__name__}: {error}", "", "run the same command with -v and report what it prints")
        code = 1
    if {"-v", "--verbose"} & set(sys.argv):
        traceback.print_exception(error)
    return code


def _known(error: BaseException) -> tuple[str, str, str, int] | None:
    """Return what one of our own errors says; the SDK is loaded already if one was raised."""
    if isinstance(error, OSError) and error.strerror:
        return *_of_system(error, error.strerror), 1
    if "moryflow_sdk" not in sys.modules:
        return None
    from moryflow_sdk import MoryflowError

    if isinstance(error, MoryflowError):
        return error.message, error.where, next_of(error), _exit_code(error)
    return None


def _of_system(error: OSError, reason: str) -> tuple[str, str, str]:
    """Return what the system said, of which file, and what to do."""
    if error.filename == STDOUT:
        kept = "; what was done is kept: moryflow session show" if sys.argv[1:2] == ["run"] else ""
        return f"could not be written: {reason}", STDOUT, f"free some space, or send the output elsewhere{kept}"
    return reason, str(error.filename or ""), _NEXT.get(error.errno or 0, "moryflow doctor")


def next_of(error: MoryflowError) -> str:
    """Return the next command that `error` names, or the one that looks for what is wrong."""
    from moryflow_sdk import ConfigError, ModelError

    if isinstance(error, ModelError):  # nothing is wrong here that the doctor could find
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
        click.echo("\n".join(map(plain, lines)), err=True)
    except BrokenPipeError:
        raise
    except OSError:
        return  # where nobody can be told, the exit code still tells


MOST = 3
"""More commands than that are no help to anybody."""


def allowing(rules: Iterable[tuple[str, str]]) -> str:
    """Return one line of shell that stores an allow rule for each (domain, pattern); empty where no rule would help."""
    each = [f"moryflow permission allow {domain} {shlex.quote(pattern)}" for domain, pattern in dict.fromkeys(rules)]
    return " && ".join(each) if len(each) <= MOST else ""
