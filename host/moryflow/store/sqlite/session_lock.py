"""The lock that allows one process to append to a session."""

from __future__ import annotations

from pathlib import Path

from moryflow.store.patience import PatientLock
from moryflow.store.protocol import SessionBusy
from moryflow.store.records import Commit, Committed, Node, SessionRow
from moryflow.store.statements import Written, switch

from .commit import apply
from .database import Database
from .locks import FileLock


class SqliteSessionLock(PatientLock):
    """:class:`moryflow.store.SessionLock` for a session in SQLite; the interface documents each method."""

    def __init__(self, database: Database, lock: FileLock, session: SessionRow, path: list[Node]) -> None:
        self.session = session
        self.path = path
        self.epoch = session.epoch
        self._database = database
        self._lock = lock

    async def commit(self, commit: Commit) -> Committed:
        self._require_held()
        id, known = self.session.id, self.session.active
        written = await self._database.write(lambda to: apply(to, id, self.epoch, commit, known), self._update)
        return written.committed

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


def session_lock(home: Path, session: str) -> FileLock:
    """Return the lock of a session, without acquiring it."""
    return FileLock(home / "locks" / f"{session}.lock")


def busy_error(session: str, lock: FileLock) -> SessionBusy:
    """Return the error for a session that another holder has."""
    next_step = f"wait for it to end, or work on a copy: moryflow session fork {session}"
    return SessionBusy(f"session {session} is in use by {lock.holder()}", where=str(lock.path), next_step=next_step)
