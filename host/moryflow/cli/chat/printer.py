"""What is printed while the input of a conversation is shown appears above it."""

from __future__ import annotations

import asyncio
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prompt_toolkit.application import run_in_terminal

from moryflow.cli.terminal.debugger import ASIDES

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

BUNDLE = 0.02
"""Seconds for which texts are collected before they are printed."""


class Printer:
    """Stands for standard output and standard error while the input is shown: what is written appears above it.

    Texts that come close together are printed at once, so that the input is not drawn anew for each.
    """

    def __init__(self, session: PromptSession[str]) -> None:
        self._app = session.app
        self._loop = asyncio.get_running_loop()
        self._streams = sys.stdout, sys.stderr
        self.encoding, self.errors = sys.stderr.encoding, sys.stderr.errors
        self._waiting: list[str] = []
        self._lock = threading.Lock()
        self._printing: asyncio.Future[None] | None = None

    def install(self) -> None:
        """Take the place of both streams; one that leads to a file stays."""
        stream: Any = self
        sys.stderr = stream
        if self._streams[0].isatty():
            sys.stdout = stream
        ASIDES.append(self._aside)

    async def remove(self) -> None:
        """Print what waits, and give both streams back."""
        sys.stdout, sys.stderr = self._streams
        ASIDES.remove(self._aside)
        self._print()
        if self._printing is not None:
            await asyncio.wait((self._printing,))

    def write(self, text: str, /) -> int:
        """Print `text` soon; from any thread.

        :raises TypeError: it is bytes, by which libraries find out what kind of stream this is.
        """
        if not isinstance(text, str):
            raise TypeError(f"write() takes text, not {type(text).__name__}")
        with self._lock:
            self._waiting.append(text)
            first = len(self._waiting) == 1
        if first:
            self._loop.call_soon_threadsafe(self._loop.call_later, BUNDLE, self._print)
        return len(text)

    def isatty(self) -> bool:
        """Say yes: only a terminal has an input."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of standard error."""
        return self._streams[1].fileno()

    def flush(self) -> None:
        """Do nothing: what was written is printed soon."""

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Take the input off the screen while a debugger has the terminal, which must read no answer that is ours."""
        drawn = self._app.is_running
        if drawn and self._app.renderer.waiting_for_cpr:
            select.select([sys.stdin], [], [], 0.5)
        if drawn:
            self._app.renderer.erase()
        self._put(self._taken())
        yield
        if drawn:
            self._app.renderer.request_absolute_cursor_position()
            self._app.invalidate()

    def _taken(self) -> str:
        with self._lock:
            text, self._waiting = "".join(self._waiting), []
        return text

    def _print(self) -> None:
        text = self._taken()
        if not text:
            return
        if not self._app.is_running:
            self._put(text)
        elif self._app._running_in_terminal:  # pyright: ignore[reportPrivateUsage]  # an editor, or a pager
            self._printing = asyncio.ensure_future(run_in_terminal(lambda: self._put(text)))
        else:
            # Not by run_in_terminal(): that lets the terminal edit lines meanwhile, and an Enter would become a Ctrl-J.
            self._app.renderer.erase()
            self._put(text)
            self._app.renderer.request_absolute_cursor_position()
            self._app.invalidate()

    def _put(self, text: str) -> None:
        self._streams[1].write(text)
        self._streams[1].flush()
