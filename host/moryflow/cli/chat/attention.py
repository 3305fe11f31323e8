"""The terminal's title and bell, for a person who does something else meanwhile; both are off unless they are wanted."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from moryflow_sdk import Event

from moryflow.cli.terminal.text import first_line, plain

LONG = 10.0
"""Seconds after which the end of a turn rings, too."""
_PUSH, _POP = "\x1b[22;2t", "\x1b[23;2t"
"""Have the terminal remember its title, and take it back."""


class Attention:
    """Hears of a conversation, writes the title and rings.

    :param settings: ``chat`` of the configuration: ``title`` and ``bell``.
    :param name: returns what the conversation is called by now.
    """

    def __init__(self, settings: Mapping[str, Any], name: Callable[[], str]) -> None:
        self._title, self._bell, self._name = bool(settings.get("title")), bool(settings.get("bell")), name
        self._began = 0.0
        if self._title:
            self._write(_PUSH)
            self._show("")

    def __call__(self, event: Event) -> None:
        match event.type:
            case "turn.start" if event.parent is None:
                self._began = time.monotonic()
                self._show("… ")
            case "permission.asked":
                self._show("? ")
                self._ring()
            case "permission.replied":
                self._show("… ")
            case "turn.finish" if event.parent is None:
                self._show("")
                if time.monotonic() - self._began > LONG:
                    self._ring()

    def close(self) -> None:
        """Give the terminal its own title back."""
        if self._title:
            self._write(_POP)

    def _show(self, mark: str) -> None:
        if self._title:
            self._write(f"\x1b]2;{mark}{plain(first_line(self._name(), 60))}\x07")

    def _ring(self) -> None:
        if self._bell:
            self._write("\a")

    @staticmethod
    def _write(sequence: str) -> None:
        """Write past what stands for standard error while the input is shown: nothing of this takes a place on a line."""
        stream = sys.__stderr__
        if stream is not None and stream.isatty():
            stream.write(sequence)
            stream.flush()
