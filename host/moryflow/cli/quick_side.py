"""What :mod:`moryflow.attach.quick` leaves to the command line: to say what went wrong, and how a turn ended."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from moryflow.attach.wire import ServerRefusal
from moryflow.runtime.turn_result import TurnResult

from .attached import error_of, event_of
from .commands.run import show_result
from .failures import report
from .options import Flags
from .terminal.render import TerminalView
from .terminal.stdout import NAME

READER_GONE = 141


class QuickSide:
    """The command line, imported when it is needed."""

    def view(self, output: str, *, quiet: bool) -> QuickView:
        """Return what says what goes wrong in a turn, and how it ended."""
        return QuickView(output, quiet=quiet)

    def refused(self, error: ServerRefusal) -> int:
        """Say why the server refused, and return the exit code."""
        return report(error_of(error))

    def unwritten(self, error: OSError) -> int:
        """Say that standard output cannot be written, and return the exit code."""
        return READER_GONE if error.errno == errno.EPIPE else report(OSError(error.errno, error.strerror, NAME))


class QuickView:
    """Shows a turn where no terminal is."""

    def __init__(self, output: str, *, quiet: bool) -> None:
        self._output, self._quiet = output, quiet
        self._view = TerminalView(quiet=quiet, answers=output == "text")

    def __call__(self, document: dict[str, Any]) -> None:
        self._view(event_of(document))

    def finish(self, result: Mapping[str, Any]) -> int:
        """Print the result and return the exit code."""
        found = TurnResult.of_json(result)
        show_result(found, self._view, Flags(quiet=self._quiet), self._output)
        return found.exit_code
