"""The lines of a conversation that come from a pipe, or from a terminal that shows nothing but plain text."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from moryflow.cli.terminal import cut, plain, terminal_width
from moryflow.cli.terminal.approval_prompt import read_answer

from . import LineSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .picker import PickItem


NUMBERED = 20
"""Items of a list that are offered by number."""


class PipedInput(LineSource):
    """Lines of standard input, read by a daemon thread so that nothing waits for a pipe that never speaks."""

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

    async def answer(self, keys: str) -> str:
        """Return the next line as the answer to what was asked; nothing at the end."""
        sys.stderr.write(keys)
        sys.stderr.flush()
        return await self.line(str) or ""

    def _read(self) -> None:
        for raw in sys.stdin.buffer:
            self._put(raw.decode("utf-8", "replace"))
        self._put(None)

    def _put(self, line: str | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)


class PlainInput(LineSource):
    """Lines of a terminal that cannot move its cursor (``TERM=dumb``), as a screen reader or an editor's shell wants them.

    The terminal itself shows and edits what is typed, between two turns; a list is picked from by number.
    """

    interactive = True

    async def line(self, prompt: Callable[[], str]) -> str | None:
        line = await read_answer(prompt())
        if not line:
            sys.stderr.write("\n")
        return line or None

    async def answer(self, keys: str) -> str:
        return await read_answer(keys)

    async def pick(
        self, title: str, items: Sequence[PickItem], preview: Callable[[str], Awaitable[str]] | None = None, chosen: str = ""
    ) -> str:
        """Let a person pick one of `items` by its number; return its key, an empty text when they leave."""
        lines = [cut(f"{number:>3}  {item.text}", terminal_width() or 80) for number, item in enumerate(items[:NUMBERED], 1)]
        typed = await self.answer(plain("\n".join([title, *lines, "number, or Enter to leave > "])))
        number = int(typed) if typed.strip().isdecimal() else 0
        return items[number - 1].key if 0 < number <= len(items) else ""

    def propose(self, text: str) -> None:
        """Show `text`: a plain terminal edits only what is typed at it."""
        sys.stderr.write(f"{plain(text)}\n")
