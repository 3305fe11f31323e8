"""The session store in SQLite: an append-only node tree, with one process that may append to a session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from moryflow_sdk import Artifact, Event

from moryflow.base.events import now
from moryflow.store.protocol import StoreError, invalid
from moryflow.store.records import REPLIES, ApprovalRow, CallRow, Hit, HookCallRow, Node, RunRow, SessionRow, is_session_id

from . import queries as reading
from . import statements as writing
from .database import BACKUP, Database, beside, remove
from .failures import store_error
from .locks import FileLock
from .schema import HOOK_CALLS, RUNS, decode_stored, execute, random_id, text
from .session_lock import SqliteSessionLock, busy_error, session_lock

_POLL = 0.05
_EVERY = 1 << 31
_LONGEST_SEARCH = 1000
_WITHOUT_INDEX = frozenset({"invalid", "readonly", "locked", "no_space"})


class SqliteStore:
    """:class:`moryflow.store.Store` in one SQLite file; the interface documents each method."""

    def __init__(self, database: Database) -> None:
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
        from .damage import damages

        async for damage in self._database.stream(damages):
            yield damage

    async def repair(self) -> bool:
        return await asyncio.to_thread(self._database.repair)

    async def create(
        self,
        *,
        vault: str,
        agent: str,
        mode: str,
        model: str = "",
        parent: str | None = None,
        purpose: str = "main",
        id: str | None = None,
    ) -> SessionRow:
        moment = now()
        row = SessionRow(id or random_id(), "", vault, agent, model, mode, parent, purpose, None, moment, moment)
        if not is_session_id(row.id):
            raise invalid(f"{row.id!r} cannot be the id of a session", next_step="use letters, digits, '-', '_' and '.'")
        await self._database.write(lambda to: writing.insert_session(to, row))
        return row

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
            taken = await self._database.write(lambda to: writing.begin_hold(to, session))
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

    async def sessions(
        self, limit: int = 50, *, vault: str | None = None, purpose: str | None = "main", parent: str | None = None
    ) -> list[SessionRow]:
        return await self._database.read(
            lambda db: reading.list_sessions(db, limit, vault=vault, purpose=purpose, parent=parent)
        )

    async def session(self, name: str) -> SessionRow:
        return await self._database.read(lambda db: reading.find_session(db, name))

    async def latest(self, vault: str) -> SessionRow | None:
        found = await self.sessions(1, vault=vault)
        return found[0] if found else None

    async def path(self, session: str, node: str | None = None) -> list[Node]:
        def work(db: Any) -> list[Node]:
            return reading.path_of(db, session, node or reading.session_row(db, session).active)

        return await self._database.read(work)

    async def nodes(self, session: str) -> list[Node]:
        return await self._database.read(lambda db: list(reading.nodes_of(db, session)))

    async def labels(self, session: str) -> dict[str, str]:
        return await self._database.read(lambda db: reading.labels_of(db, session))

    async def calls(
        self, session: str | None = None, since: str | None = None, states: Collection[str] | None = None
    ) -> list[CallRow]:
        return await self._database.read(lambda db: reading.calls_of(db, session, since, states))

    async def call_ids(self, session: str) -> set[str]:
        statement = "SELECT DISTINCT id FROM calls WHERE session = ?"
        return await self._database.read(lambda db: {text(id) for (id,) in execute(db, statement, (session,))})

    async def approvals(self, session: str | None = None, state: str | None = None) -> list[ApprovalRow]:
        return await self._database.read(lambda db: reading.approvals_of(db, session=session, state=state))

    async def approval(self, approval_id: str) -> ApprovalRow:
        return await self._database.read(lambda db: reading.approval_of(db, approval_id))

    async def offered(self, vault: str) -> bool:
        statement = """SELECT 1 FROM sessions JOIN approvals ON approvals.session = sessions.id
            WHERE sessions.vault = ? AND CASE WHEN json_valid(request) THEN json_extract(request, '$.preset') END IS NOT NULL"""
        return bool(await self._database.read(lambda db: execute(db, f"{statement} LIMIT 1", (vault,)).fetchall()))

    async def reply(self, approval_id: str, reply: str, *, message: str = "", by: str = "user") -> ApprovalRow:
        if reply not in REPLIES:
            raise invalid(f"{reply!r} is not an answer", next_step=f"use one of {', '.join(sorted(REPLIES))}")
        return await self._database.write(lambda to: writing.answer(to, approval_id, reply, message, by))

    async def runs(self, session: str) -> list[RunRow]:
        return await self._database.read(lambda db: reading.query(db, RUNS, {"session": session}, "ORDER BY number"))

    async def events(self, session: str | None, after: int = 0, limit: int = -1, *, types: Collection[str] = ()) -> list[Event]:
        return await self._database.read(lambda db: reading.events_of(db, session, after, limit, types))

    async def event_span(self) -> tuple[int, int]:
        return await self._database.read(reading.event_span)

    async def hook_calls(
        self, session: str | None, turn: str | None = None, plugin: str | None = None, *, newest: int | None = None
    ) -> list[HookCallRow]:
        return await self._database.read(lambda db: reading.hook_calls_of(db, session, turn, plugin, newest))

    async def hook_effects(self, session: str) -> list[HookCallRow]:
        tail = "AND call_id IS NOT NULL AND outcome IN ('changed', 'failed', 'timeout', 'withheld') ORDER BY number"
        return await self._database.read(lambda db: reading.query(db, HOOK_CALLS, {"session": session}, tail))

    async def first_prompt(self, session: str) -> str:
        first = "WHERE n.session = ? AND n.kind = 'user' ORDER BY n.seq LIMIT 1"
        nodes = await self._database.read(lambda db: [node for _, node in reading.nodes_where(db, first, (session,))])
        return str(nodes[0].payload.get("text") or "") if nodes else ""

    async def quarantined_plugins(self, newest: int) -> list[str]:
        lines = "SELECT plugin, outcome FROM hook_calls ORDER BY number DESC LIMIT ?"
        statement = f"SELECT DISTINCT plugin FROM ({lines}) WHERE outcome = 'quarantined'"
        return await self._database.read(lambda db: [text(plugin) for (plugin,) in execute(db, statement, (newest,))])

    async def artifacts(self, session: str | None = None, *, state: str | None = None, limit: int = 100) -> list[Artifact]:
        return await self._database.read(lambda db: reading.artifacts_of(db, session=session, state=state, limit=limit))

    async def artifact(self, artifact_id: str) -> Artifact | None:
        found = await self._database.read(lambda db: reading.artifacts_of(db, id=artifact_id, limit=1))
        return found[0] if found else None

    async def update_artifact(self, artifact_id: str, **changes: Any) -> None:
        await self._database.write(lambda to: writing.update_artifact(to, artifact_id, changes))

    async def plugin_state(self, session: str) -> dict[tuple[str, str], Any]:
        statement = "SELECT plugin, scope, value FROM plugin_state WHERE session = ?"

        def work(db: Any) -> dict[tuple[str, str], Any]:
            rows = execute(db, statement, (session,))
            return {(text(plugin), text(scope)): decode_stored(value) for plugin, scope, value in rows}

        return await self._database.read(work)

    async def fork(self, session: str, node: str | None = None, *, title: str = "") -> SessionRow:
        return await self._database.write(lambda to: writing.fork(to, session, node, title))

    def identity(self) -> object:
        try:
            found = self._database.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def seems_held(self, session: str) -> bool:
        return session_lock(self._database.path.parent, session).seems_held()

    async def family(self, session: str) -> list[str]:
        return await self._database.read(lambda db: reading.descendants(db, session))

    async def heirs(self, sessions: Collection[str]) -> list[SessionRow]:
        every = await self.sessions(_EVERY, purpose=None)
        origins = {row.id: (row.origin or {}).get("session") for row in every}
        found = set(sessions)
        while new := {id for id, origin in origins.items() if origin in found} - found:
            found |= new
        return [row for row in every if row.id in found and row.id not in sessions]

    async def delete(self, session: str) -> None:
        locks: list[FileLock] = []
        try:
            ids = await self.family(session)
            for id in ids:
                lock = session_lock(self._database.path.parent, id)
                await self._acquire(lock, id, 0)
                locks.append(lock)
            await self._database.write(lambda to: writing.purge(to, ids))
            await asyncio.to_thread(remove, beside(self._database.path, BACKUP))  # what is deleted is in no copy either
        finally:
            for lock in locks:
                lock.release()

    async def export(self, session: str) -> AsyncIterator[str]:
        from .import_export import export_lines

        async for line in self._database.stream(lambda db: export_lines(db, session)):
            yield line

    async def import_(self, lines: Iterable[str | bytes], vault: str | None = None) -> SessionRow:
        from .import_export import read_lines, store_lines

        checked = await asyncio.to_thread(read_lines, lines)
        return await self._database.write(lambda to: store_lines(to, checked, vault))

    async def search(self, text: str, limit: int = 20) -> list[Hit]:
        from .search import DamagedIndex, drop_index, find, scan, words_of

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
