"""A spinner on standard error after a second of silence, with the last words of the coming text."""

from __future__ import annotations

import asyncio
import sys

from moryflow_sdk import Event

from .text import ending, first_line, fitting, plain, terminal_width

_FRAMES, _ASCII_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
_USUAL, _FOLLOWED = 80, 70
_SILENT = ("permission.asked", "turn.finish")


class Spinner:
    """One line that is taken away before anything else is printed."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._words = ""
        self._shown = False

    def expect(self, event: Event) -> None:
        """Start over after `event`; a turn that waits for a person or has ended shows nothing."""
        self.stop()
        if event.type not in _SILENT and event.data.get("status") not in ("waiting", "idle"):
            self._task = asyncio.get_running_loop().create_task(self._spin())

    def keep(self, event: Event) -> None:
        """Go on, because `event` is more of what is coming already."""
        if self._task is None:
            self.expect(event)

    def say(self, text: str) -> None:
        """Show the last line of `text` beside the spinner, without starting over."""
        if last := text.strip().rsplit("\n", 1)[-1]:
            self._words = fitting(plain(first_line(last, 70)), _room())

    def follow(self, text: str) -> None:
        """Show the end of `text` beside the spinner, as it grows."""
        last = text[-_FOLLOWED:].rstrip().rsplit("\n", 1)[-1]
        self._words = ending(plain(last), min(_FOLLOWED, _room()))

    def stop(self) -> None:
        """Stop and clear the line."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._words = ""
        self.clear()

    def clear(self) -> None:
        """Take the spinner off the line."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False

    async def _spin(self) -> None:
        await asyncio.sleep(1.0)
        number = 0
        frames = _FRAMES if "utf" in (sys.stderr.encoding or "").lower() else _ASCII_FRAMES
        while True:
            sys.stderr.write(f"\r\x1b[K{frames[number % len(frames)]} {self._words}")
            sys.stderr.flush()
            self._shown = True
            number += 1
            await asyncio.sleep(0.1)


def _room() -> int:
    """Return how many columns there are beside the spinner; a line that wraps could not be taken away again."""
    return max(0, (terminal_width() or _USUAL) - 3)
