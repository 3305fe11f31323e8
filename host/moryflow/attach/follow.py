"""What happens in a session between its turns, and in the server: followed over broken connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .wire import RunningServer, ServerRefusal, find

PAUSE = 1.0
"""Seconds between two tries to reach a server that is away."""


class SessionFollower:
    """Follows a session and its server until it is closed; what is read after that is told nobody.

    :param tell: called with each event, in the thread that :meth:`run` blocks.
    """

    def __init__(self, server: RunningServer, session: str, tell: Callable[[dict[str, Any]], None]) -> None:
        self._server, self._session, self._tell = server, session, tell
        self._place: int | None = None
        self._closed = False

    def close(self) -> None:
        """Tell nothing more. The thread ends at the next word of the server, a heartbeat at the latest."""
        self._closed = True

    def run(self) -> None:
        """Follow."""
        while not self._closed:
            with suppress(OSError, ServerRefusal):
                self._follow()
            if not self._closed:
                time.sleep(PAUSE)
                self._find_again()

    def _follow(self) -> None:
        events = self._server.events(self._session, self._place, of_server=True, ended=lambda: self._closed)
        for number, document in events:
            self._place = self._place if number is None else number
            self._tell(document)

    def _find_again(self) -> None:
        for url in (self._server.url, ""):
            with suppress(ServerRefusal):  # it is away; the next try may find it
                self._server = find(self._server.home, url)
                return
