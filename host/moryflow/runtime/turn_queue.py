"""One turn at a time in a session: a second one is refused, or queued if it asks for that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from moryflow.store import SessionBusy


class TurnQueue:
    """Who may work in a session of this process now; the others come in the order in which they asked."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._lock = asyncio.Lock()
        self._waiting = 0

    @property
    def empty(self) -> bool:
        """Whether nobody works and nobody waits."""
        return not (self._lock.locked() or self._waiting)

    @asynccontextmanager
    async def place(self, *, wait: bool) -> AsyncIterator[None]:
        """Be the one who works for the length of a block.

        :raises SessionBusy: somebody else is, and `wait` is false.
        """
        if not (wait or self.empty):
            raise SessionBusy(
                f"session {self._session} is working on another prompt",
                where=f"session {self._session}",
                next_step="wait for its result, or queue this one: session.prompt(text, queue=True)",
            )
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()
