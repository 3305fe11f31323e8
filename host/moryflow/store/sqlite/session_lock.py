"""The one appender of a session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from moryflow.store.errors import SessionBusy, StaleEpoch
from moryflow.store.json_text import random_id
from moryflow.store.records import Commit, Committed, Node, SessionRow

from . import unstored as spool
from .database import Database
from .locks import FileLock
from .statements import Written, apply, switch


class Hold:
    """A session held for writing, until :meth:`release` or the end of the process.

    :ivar session: the session as it stands on the disk.
    :ivar path: its active path, root first, without what a compaction stands for; never ahead of the disk.
    :ivar epoch: which holder this is; a commit of an older one is refused.
    """

    def __init__(self, database: Database, lock: FileLock, session: SessionRow, path: list[Node]) -> None:
        self.session = session
        self.path = path
        self.epoch = session.epoch
        self._database = database
        self._lock = lock
        self._released = False
        self._spool = spool.spool_file(database.path.parent, session.id)
        self._spooled = False

    async def commit(self, commit: Commit) -> Committed:
        """Make `commit` true in one synced transaction; afterwards, and only then, `path` and `session` show it.

        :raises StaleEpoch: another holder took the session.
        :raises StoreError: nothing was stored.
        """
        self._require_held()
        id, known = self.session.id, self.session.active
        written = await self._database.write(lambda to: apply(to, id, self.epoch, commit, known), self._show)
        if self._spooled:
            self._spooled = False
            spool.remove(self._spool)
        return written.committed

    def keep_aside(self, commit: Commit) -> Path | None:
        """Keep the results of a commit that the database did not take yet in a file; return the file, if there are any.

        :raises OSError: the file cannot be written.
        """
        if not commit.nodes:
            return None
        commit.nodes = [node if node.id else replace(node, id=random_id()) for node in commit.nodes]
        spool.write(self._spool, commit, self.session.active)
        self._spooled = True
        return self._spool

    async def take_up(self) -> int:
        """Store what was kept aside and never stored, by this holder or one before it; return how many nodes that were.

        :raises StoreError: it still cannot be stored, or not be read; the file stays.
        """
        found = spool.read(self._spool)
        if found is None:
            return 0
        known = {node.id for node in self.path}
        if any(node.id in known for node in found.commit.nodes):  # the database had taken it after all
            spool.remove(self._spool)
            return 0
        if found.after != self.session.active:
            self._spool.replace(self._spool.with_suffix(".outdated"))
            return 0
        await self.commit(found.commit)
        spool.remove(self._spool)
        return len(found.commit.nodes)

    async def switch(self, node_id: str | None) -> None:
        """Make another node the active one; ``None`` is the place before the first. Nothing is appended."""
        self._require_held()
        await self._database.write(lambda to: switch(to, self.session.id, self.epoch, node_id), self._show)

    def release(self) -> None:
        """Let others hold the session."""
        self._released = True
        self._lock.release()

    def _show(self, written: Written) -> None:
        self.session = written.session
        if written.path is None:
            self.path.extend(written.committed.nodes)
        else:
            self.path[:] = written.path

    def _require_held(self) -> None:
        if self._released:
            message = f"session {self.session.id} was already given back"
            raise StaleEpoch(message, next_step=f"moryflow run --resume {self.session.id}")


def session_lock(home: Path, session: str) -> FileLock:
    """Return the lock of a session, not yet taken."""
    return FileLock(home / "locks" / f"{session}.lock")


def busy(session: str, lock: FileLock) -> SessionBusy:
    """Return the refusal of a session that someone holds."""
    next_step = f"wait for it to end (moryflow run --wait does), or work on a copy: moryflow session fork {session}"
    return SessionBusy(f"session {session} is in use by {lock.holder()}", where=str(lock.path), next_step=next_step)
