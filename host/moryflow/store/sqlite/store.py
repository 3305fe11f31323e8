"""The session store in SQLite: an append-only node tree, with one process that may append to a session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Self

from moryflow_sdk import Artifact

from moryflow.base.events import now
from moryflow.store import queries as reading
from moryflow.store import statements as writing
from moryflow.store.protocol import StoreError
from moryflow.store.records import Hit, Node, SessionRow
from moryflow.store.sql_store import SqlStore
from moryflow.store.tables import random_id

from .database import BACKUP, Database, beside, remove
from .failures import store_error
from .locks import FileLock
from .session_lock import SqliteSessionLock, begin_hold, busy_error, session_lock

_POLL = 0.05
_EVENT_SPAN = """SELECT coalesce((SELECT min(seq) FROM events), 0),
    coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)"""
_LONGEST_SEARCH = 1000
_WITHOUT_INDEX = frozenset({"invalid", "readonly", "locked", "no_space"})


class SqliteStore(SqlStore):
    """:class:`moryflow.store.Store` in one SQLite file; the interface documents each method."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._database = database

    @classmethod
    def open(cls, path: Path, *, patience: float = 5.0) -> Self:
        """Open the database at `path`; create or migrate it if necessary.

        :param patience: seconds to wait for another process's lock before raising ``locked``.
        :raises StoreError: the file is of a newer version or of another program, or cannot be used.
        """
        database = Database(path, _restore, _back_up, patience=patience)
        database.open()
        return cls(database)

    @property
    def notices(self) -> list[str]:
        return self._database.notices

    def news(self) -> list[str]:
        news, self._database.news = self._database.news, []
        return news

    def close(self) -> None:
        self._database.close()

    async def damages(self) -> AsyncIterator[tuple[str, str]]:
        from .backup import damages

        async for damage in self._database.stream(damages):
            yield damage

    async def repair(self) -> bool:
        return await asyncio.to_thread(self._database.repair)

    async def begin_child(
        self, parent: SessionRow, *, agent: str, mode: str, title: str, origin: Mapping[str, Any]
    ) -> SqliteSessionLock:
        moment = now()
        row = SessionRow(
            random_id(), title, parent.vault, agent, "", mode, parent.id, "child", None, moment, moment, origin, epoch=1
        )
        lock = session_lock(self._database.path.parent, row.id)
        await self._acquire(lock, row.id, 0)
        try:
            await self._database.write(lambda to: writing.insert_session(to, row))
        except BaseException:
            lock.release()
            raise
        return SqliteSessionLock(self._database, lock, row, [])

    async def hold(self, session_id: str, *, wait: float = 0) -> SqliteSessionLock:
        session = await self.session(session_id)
        lock = session_lock(self._database.path.parent, session.id)
        await self._acquire(lock, session.id, wait)
        try:
            row, path = await self._begin_hold(session.id)
        except BaseException:
            lock.release()
            raise
        return SqliteSessionLock(self._database, lock, row, path)

    async def _begin_hold(self, session: str) -> tuple[SessionRow, list[Node]]:
        """Make this process the newest holder in the database; return the session with its live path."""

        def work(db: Any) -> tuple[SessionRow, list[Node]]:
            row = reading.session_row(db, session)
            return row, reading.live_path_of(db, session, row.active)

        while True:
            taken = await self._database.write(lambda to: begin_hold(to, session))
            row, path = await self._database.read(work)
            if row.epoch == taken.epoch:  # otherwise the read found damage, and the repair ended every hold, this one too
                return row, path

    async def _acquire(self, lock: FileLock, session: str, wait: float) -> None:
        deadline = time.monotonic() + wait
        try:
            while not lock.acquire():
                if time.monotonic() >= deadline:
                    raise busy_error(session, lock)
                await asyncio.sleep(_POLL)
        except OSError as error:
            raise store_error(error, lock.path) from error

    async def event_span(self) -> tuple[int, int]:
        return await self._database.read(lambda db: db.execute(_EVENT_SPAN).fetchone())

    async def wait_for_events(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def identity(self) -> object:
        try:
            found = self._database.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def seems_held(self, session: str) -> bool:
        return session_lock(self._database.path.parent, session).seems_held()

    async def keep_output(self, artifact: Artifact) -> None:
        pass  # its file is on this machine, as is everybody who reads it

    async def output(self, artifact: Artifact, offset: int, limit: int) -> bytes | None:
        return None

    async def delete(self, session: str) -> None:
        from .search import forget, rewind

        def work(to: Any) -> None:
            for id in ids:
                forget(to, id)
            writing.purge(to, ids)
            rewind(to)

        locks: list[FileLock] = []
        try:
            ids = await self.family(session)
            for id in ids:
                lock = session_lock(self._database.path.parent, id)
                await self._acquire(lock, id, 0)
                locks.append(lock)
            await self._database.write(work)
            await asyncio.to_thread(remove, beside(self._database.path, BACKUP))  # what is deleted is in no copy either
        finally:
            for lock in locks:
                lock.release()

    async def search(self, text: str, limit: int = 20) -> list[Hit]:
        from moryflow.store.search import scan, words_of

        from .search import DamagedIndex, drop_index, find

        wanted = text.strip()[:_LONGEST_SEARCH]
        words = words_of(wanted)
        if words and await self._index_is_ready():
            try:
                return await self._database.read(lambda db: find(db, words, limit))
            except DamagedIndex:
                await self._database.write(drop_index)
        return await self._database.read(lambda db: scan(db, words or [wanted], limit)) if wanted else []

    async def _index_is_ready(self) -> bool:
        """Bring the index up to date; return ``False`` if SQLite has no FTS5 or the file cannot be written now."""
        from .search import DamagedIndex, drop_index, extend_index

        try:
            while await self._database.write(extend_index):
                pass
        except DamagedIndex:
            await self._database.write(drop_index)
            return False
        except StoreError as error:
            if error.code in _WITHOUT_INDEX:
                return False
            raise
        return True


def _restore(path: Path) -> str | None:
    from .backup import restore

    return restore(path)


def _back_up(path: Path) -> None:
    from .backup import back_up

    back_up(path)
