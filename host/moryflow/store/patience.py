"""What the locks of both databases do alike: patience with a locked database, and no commit after the release."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from .protocol import StaleEpoch, StoreError, WaitForLock
from .records import Commit, Committed, SessionRow

# Seconds between tries while the database is locked or away; each try waits for it too.
FIRST_PAUSE, MAX_PAUSE = 0.5, 15.0
LOCK_TIMEOUT = 600.0


class PatientLock(ABC):
    """The part of :class:`moryflow.store.SessionLock` that needs nothing of one database alone."""

    session: SessionRow
    _released = False

    @abstractmethod
    async def commit(self, commit: Commit) -> Committed: ...

    async def commit_patiently(self, commit: Commit, wait: WaitForLock) -> Committed:
        begun, attempt = time.monotonic(), 1
        while True:
            try:
                return await self.commit(commit)
            except StoreError as error:
                if error.code != "locked":
                    raise
                pause = min(FIRST_PAUSE * 2 ** (attempt - 1), MAX_PAUSE)
                if time.monotonic() - begun > LOCK_TIMEOUT or not await wait(error, attempt, pause):
                    raise
                attempt += 1

    def _require_held(self) -> None:
        if self._released:
            message = f"session {self.session.id} was already released"
            raise StaleEpoch(message, next_step=f"moryflow run --resume {self.session.id}")
