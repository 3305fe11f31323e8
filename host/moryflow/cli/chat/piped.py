"""The lines of a conversation that come from a pipe."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .port import TurnView


class PipedInput:
    """Lines of standard input, read by a daemon thread so that nothing waits for a pipe that never speaks."""

    interactive = False

    def __init__(self) -> None:
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, name="moryflow-stdin", daemon=True).start()

    async def line(self, prompt: Callable[[], str]) -> str | None:
        """Return the next line, ``None`` at the end, however often that is asked for."""
        line = await self._lines.get()
        if line is None:
            self._lines.put_nowait(None)
        return line

    async def ask(self, question: str) -> str:
        """Return nothing: nobody sees a question of ours."""
        return ""

    async def answer(self, keys: str) -> str:
        """Return the next line as the answer to what was asked; nothing at the end."""
        sys.stderr.write(keys)
        sys.stderr.flush()
        return await self.line(str) or ""

    async def pick(self, *_: object) -> str:
        """Return nothing: nobody sees a list."""
        return ""

    def propose(self, text: str) -> None:
        """Do nothing: nobody edits what a pipe says."""

    async def close(self) -> None:
        """Do nothing: the pipe is read by a thread that nobody waits for."""

    def during(self, view: TurnView, stop: Callable[[], None]) -> AbstractContextManager[None]:
        """Do nothing: a pipe is read between turns."""
        return nullcontext()

    def _read(self) -> None:
        for raw in sys.stdin.buffer:
            self._put(raw.decode("utf-8", "replace"))
        self._put(None)

    def _put(self, line: str | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
