"""Markdown as it streams, on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TextIO

from .text import plain


def use_colour(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that wants colour."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


class Blocks:
    """Markdown as it streams: a paragraph, list or fenced block is printed once it is complete.

    :param before: called before anything is printed.
    :ivar pending: what has come of the next block.
    """

    def __init__(self, before: Callable[[], None]) -> None:
        from rich.console import Console

        self._console = Console(no_color=not use_colour(sys.stdout), highlight=False)
        self._before = before
        self.pending = ""

    def feed(self, text: str) -> None:
        """Add `text`; print the blocks it completes."""
        self.pending += text
        while (cut := self._boundary()) > 0:
            self._print(self.pending[:cut])
            self.pending = self.pending[cut:].lstrip("\n")

    def flush(self) -> None:
        """Print what is left."""
        self._print(self.pending)
        self.pending = ""

    def _boundary(self) -> int:
        """Return where the first complete block ends, or 0: an empty line outside a fenced block."""
        start = 0
        while (found := self.pending.find("\n\n", start)) >= 0:
            if self.pending[:found].count("```") % 2 == 0:
                return found
            start = found + 2
        return 0

    def _print(self, text: str) -> None:
        if text.strip():
            from rich.markdown import Markdown

            self._before()
            self._console.print(Markdown(plain(text)))
