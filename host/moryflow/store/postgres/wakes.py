"""Says at once, over the database, that something was stored, and what is never stored; who misses it finds it by looking.

The message is sent after a commit, never in it: PostgreSQL lets only one transaction with messages commit at a time. Waiting
for it needs a connection of its own that PgBouncer does not share; where none can be had, looking is all there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

import psycopg

from moryflow.store.protocol import StoreError

from .database import PostgresDatabase

CHANNEL, LIVE = "moryflow_stored", "moryflow_live"
# Seconds in which the commits of a process share one message.
_GATHER = 0.01
_FIRST_PAUSE, _MAX_PAUSE = 0.5, 30.0


class Wakes:
    """The messages of one store."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._sending = False
        self._listening: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stored = asyncio.Event()
        self._lock, self._told, self._telling = threading.Lock(), deque[str](), False
        self.heard: Callable[[str], None] = lambda _: None
        """Called on the loop with each text that another process sent."""

    def send(self) -> None:
        """Tell all processes, soon, that something was stored."""
        if not self._sending and not self._database.closed:
            self._sending = True
            self._database.submit(self._send)

    def _send(self) -> None:
        time.sleep(_GATHER)
        self._sending = False
        with contextlib.suppress(StoreError):  # others look by themselves
            self._database.run(lambda to: to.execute(f"NOTIFY {CHANNEL}"))

    def tell(self, text: str) -> None:
        """Send a text of at most 7,999 bytes to all processes that wait; nothing of it is stored."""
        with self._lock:
            self._told.append(text)
            if self._telling or self._database.closed:
                return
            self._telling = True
        self._database.submit(self._tell)

    def _tell(self) -> None:
        """Send what waits, one after another: each connection for itself would let them overtake each other."""
        while True:
            with self._lock:
                if not self._told:
                    self._telling = False
                    return
                text = self._told.popleft()
            with contextlib.suppress(StoreError):
                self._database.run(lambda to, text=text: to.execute("SELECT pg_notify(?, ?)", (LIVE, text)))

    async def wait(self, seconds: float) -> None:
        """Wait until somebody says that something was stored, at most `seconds`."""
        if self._listening is None:
            self._loop = asyncio.get_running_loop()
            self._listening = threading.Thread(target=self._listen, name="store-listen", daemon=True)
            self._listening.start()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stored.wait(), seconds)
        self._stored.clear()

    def _listen(self) -> None:
        pause = _FIRST_PAUSE
        while not self._database.closed:
            with contextlib.suppress(psycopg.Error), self._database.connect() as connection:
                connection.execute(f"LISTEN {CHANNEL}; LISTEN {LIVE}".encode())
                pause = _FIRST_PAUSE
                while not self._database.closed:
                    for told in connection.notifies(timeout=1.0, stop_after=1):
                        with contextlib.suppress(RuntimeError):  # the loop has ended
                            assert self._loop is not None
                            if told.channel == LIVE:
                                self._loop.call_soon_threadsafe(self.heard, told.payload)
                            else:
                                self._loop.call_soon_threadsafe(self._stored.set)
            time.sleep(0.0 if self._database.closed else pause)
            pause = min(pause * 2, _MAX_PAUSE)
