"""The lock that allows one process to append to a session."""

from __future__ import annotations

import time
from pathlib import Path

from moryflow.store.protocol import SessionBusy, StaleEpoch, StoreError, WaitForLock
from moryflow.store.records import Commit, Committed, Node, SessionRow
from moryflow.store.statements import Written, switch

from .commit import apply
from .database import Database
from .locks import FileLock

# Seconds between tries while another program keeps the database locked; each try waits for the lock itself too.
FIRST_PAUSE, MAX_PAUSE = 0.5, 15.0
LOCK_TIMEOUT = 600.0


class SqliteSessionLock:
    """:class:`moryflow.store.SessionLock` for a session in SQLite; the interface documents each method."""

    def __init__(self, database: Database, lock: FileLock, session: SessionRow, path: list[Node]) -> None:
        self.session = session
        self.path = path
        self.epoch = session.epoch
        self._database = database
        self._lock = lock
        self._released = False

    async def commit(self, commit: Commit) -> Committed:
        self._require_held()
        id, known = self.session.id, self.session.active
        written = await self._database.write(lambda to: apply(to, id, self.epoch, commit, known), self._update)
        return written.committed

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

    async def switch(self, node_id: str | None) -> None:
        self._require_held()
        await self._database.write(lambda to: switch(to, self.session.id, self.epoch, node_id), self._update)

    def release(self) -> None:
        self._released = True
        self._lock.release()

    def _update(self, written: Written) -> None:
        self.session = written.session
        if written.path is None:
            self.path.extend(written.committed.nodes)
        else:
            self.path[:] = written.path

    def _require_held(self) -> None:
        if self._released:
            message = f"session {self.session.id} was already released"
            raise StaleEpoch(message, next_step=f"moryflow run --resume {self.session.id}")


def session_lock(home: Path, session: str) -> FileLock:
    """Return the lock of a session, without acquiring it."""
    return FileLock(home / "locks" / f"{session}.lock")


def busy_error(session: str, lock: FileLock) -> SessionBusy:
    """Return the error for a session that another holder has."""
    next_step = f"wait for it to end (run and chat do with --wait), or work on a copy: moryflow session fork {session}"
    return SessionBusy(f"session {session} is in use by {lock.holder()}", where=str(lock.path), next_step=next_step)
