"""Errors on their way out: one sentence, where, the next command, and the right exit code; no traceback without -v."""

from __future__ import annotations

import sys
import traceback

import click

_CODES = {"config": 2, "usage": 2, "check": 3}


def report(error: BaseException) -> int:
    """Print `error` for a person and return the exit code."""
    match error:
        case click.exceptions.Exit():
            return error.exit_code
        case click.UsageError():
            _say(error.format_message(), "", f"{error.ctx.command_path if error.ctx else 'moryflow'} --help")
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
    if "moryflow_sdk" not in sys.modules:
        return None
    from moryflow_sdk import ConfigError, ModelError, MoryflowError

    if isinstance(error, MoryflowError):
        code = 2 if isinstance(error, ConfigError) else 7 if isinstance(error, ModelError) else 1
        return error.message, error.where, error.next_step, _CODES.get(error.code, code)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror, str(error.filename or ""), "moryflow doctor", 1
    return None


def _say(message: str, where: str, next_step: str) -> None:
    place = f"{where}: " if where else ""
    click.echo(f"moryflow: {place}{message}", err=True)
    if next_step:
        click.echo(f"  next: {next_step}", err=True)
