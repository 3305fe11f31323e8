"""Time that passes when a test says so, for what waits on the host's loop."""

from __future__ import annotations

import asyncio


class MovableLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be set ahead.

    Everything that waits through asyncio follows it: pauses before a retry, deadlines of asynchronous functions and of
    programs. The wall clock, and with it time stamps and ages of files, and deadlines of plain functions on their
    threads do not: nothing pretends that those have passed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ahead = 0.0

    def time(self) -> float:
        """Return the loop's time."""
        return super().time() + self._ahead

    def advance(self, seconds: float) -> None:
        """Set the clock ahead; from another thread through :meth:`call_soon_threadsafe`."""
        if seconds < 0:
            raise ValueError("time does not go back")
        self._ahead += seconds
