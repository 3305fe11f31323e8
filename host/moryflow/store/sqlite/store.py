"""The session store: the node tree in SQLite, append-only, one appender per session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from moryflow_sdk import Artifact, Event

from moryflow.store.errors import invalid, store_error
from moryflow.store.json_text import now, random_id
from moryflow.store.records import REPLIES, ApprovalRow, CallRow, Hit, HookCallRow, Node, RunRow, SessionRow, is_session_id

from . import queries as reading
from . import statements as writing
from .database import Database
from .locks import FileLock
from .session_lock import Hold, busy, session_lock
from .tables import HOOK_CALLS, RUNS, decode_stored, execute, text

_POLL = 0.05
_EVERY = 1 << 31


class Store:
    """All sessions of one home. Readers take no lock; to append, :meth:`hold` a session.

    :ivar notices: what a person should be told about the file, for example that it was damaged.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, path: Path, *, patience: float = 5.0) -> Self:
        """Open the database at `path`, making or migrating it if need be.

        :param patience: seconds to wait for a lock of another process before ``locked``.
        :raises StoreError: it is of a newer version, of another program, or cannot be used.
        """
        database = Database(path, patience=patience)
        database.open()
        return cls(database)

    @property
    def notices(self) -> list[str]:
        """Sentences about the file."""
        return self._database.notices

    def news(self) -> list[str]:
        """Return the notices that no turn has told yet."""
        news, self._database.news = self._database.news, []
        return news

    def close(self) -> None:
        """Finish what was begun and close the file."""
        self._database.close()

    async def damages(self) -> AsyncIterator[str]:
        """Read all of the file, every hash too, and yield a sentence for whatever is not what was stored."""
        from .salvage import damages

        async for sentence in self._database.stream(damages):
            yield sentence

    async def repair(self) -> bool:
        """Keep a damaged file aside and go on with what is sound in it; ``notices`` says what was lost.

        :returns: whether it was damaged.
        """
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
        """Begin an empty session and return it."""
        moment = now()
        row = SessionRow(id or random_id(), "", vault, agent, model, mode, parent, purpose, None, moment, moment)
        _require_id(row.id)
        await self._database.write(lambda to: writing.insert_session(to, row))
        return row

    async def begin_child(self, parent: SessionRow, *, agent: str, mode: str, title: str, origin: Mapping[str, Any]) -> Hold:
        """Begin a child session of `parent` and hold it, in one transaction."""
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
        return Hold(self._database, lock, row, [])

    async def hold(self, session_id: str, *, wait: float = 0) -> Hold:
        """Become the session's one appender.

        :param wait: seconds to wait for another holder to end.
        :raises SessionBusy: someone else holds it.
        :raises StoreError: ``corrupt``: it is damaged, and even the repair did not help.
        """
        session = await self.session(session_id)
        lock = session_lock(self._database.path.parent, session.id)
        await self._acquire(lock, session.id, wait)
        try:
            row, path = await self._take(session.id)
        except BaseException:
            lock.release()
            raise
        return Hold(self._database, lock, row, path)

    async def _take(self, session: str) -> tuple[SessionRow, list[Node]]:
        """Make a session ours in the database; return it with its live path."""

        def work(db: Any) -> tuple[SessionRow, list[Node]]:
            row = reading.session_row(db, session)
            return row, reading.live_path_of(db, session, row.active)

        while True:
            taken = await self._database.write(lambda to: writing.take(to, session))
            row, path = await self._database.read(work)
            if row.epoch == taken.epoch:  # else what was read was damaged: the repair ended every hold, also this one
                return row, path

    async def _acquire(self, lock: FileLock, session: str, wait: float) -> None:
        deadline = time.monotonic() + wait
        while not self._try(lock):
            if time.monotonic() >= deadline:
                raise busy(session, lock)
            await asyncio.sleep(_POLL)

    def _try(self, lock: FileLock) -> bool:
        try:
            return lock.acquire()
        except OSError as error:
            raise store_error(error, lock.path) from error

    async def sessions(
        self, limit: int = 50, *, vault: str | None = None, purpose: str | None = "main", parent: str | None = None
    ) -> list[SessionRow]:
        """Return sessions, the last used first."""
        return await self._database.read(
            lambda db: reading.list_sessions(db, limit, vault=vault, purpose=purpose, parent=parent)
        )

    async def session(self, name: str) -> SessionRow:
        """Return a session by its id or a unique beginning of it.

        :raises StoreError: ``not_found`` or ``ambiguous``.
        """
        return await self._database.read(lambda db: reading.find_session(db, name))

    async def latest(self, vault: str) -> SessionRow | None:
        """Return the main session of `vault` that was used last."""
        found = await self.sessions(1, vault=vault)
        return found[0] if found else None

    async def path(self, session: str, node: str | None = None) -> list[Node]:
        """Return the path from the root to `node`, or to the active node."""

        def work(db: Any) -> list[Node]:
            return reading.path_of(db, session, node or reading.session_row(db, session).active)

        return await self._database.read(work)

    async def nodes(self, session: str) -> list[Node]:
        """Return all nodes of all branches, in their order."""
        return await self._database.read(lambda db: list(reading.nodes_of(db, session)))

    async def labels(self, session: str) -> dict[str, str]:
        """Return label -> node id, of all branches."""
        return await self._database.read(lambda db: reading.labels_of(db, session))

    async def calls(
        self, session: str | None = None, since: str | None = None, states: Collection[str] | None = None
    ) -> list[CallRow]:
        """Return tool calls, oldest first."""
        return await self._database.read(lambda db: reading.calls_of(db, session, since, states))

    async def call_ids(self, session: str) -> set[str]:
        """Return the ids of all tool calls of a session."""
        return await self._database.read(lambda db: reading.call_ids_of(db, session))

    async def approvals(self, session: str | None = None, state: str | None = None) -> list[ApprovalRow]:
        """Return stored questions, oldest first."""
        return await self._database.read(lambda db: reading.approvals_of(db, session=session, state=state))

    async def approval(self, approval_id: str) -> ApprovalRow:
        """Return a stored question.

        :raises StoreError: ``not_found``.
        """
        return await self._database.read(lambda db: reading.approval_of(db, approval_id))

    async def reply(self, approval_id: str, reply: str, *, message: str = "", by: str = "user") -> ApprovalRow:
        """Answer a stored question and return how it stands; the first answer stands. Needs no hold.

        :raises StoreError: ``not_found``, or ``invalid`` for an unknown reply.
        """
        if reply not in REPLIES:
            raise invalid(f"{reply!r} is not an answer", next_step=f"use one of {', '.join(sorted(REPLIES))}")
        return await self._database.write(lambda to: writing.answer(to, approval_id, reply, message, by))

    async def runs(self, session: str) -> list[RunRow]:
        """Return the turns of a session, oldest first."""
        return await self._database.read(lambda db: reading.query(db, RUNS, {"session": session}, "ORDER BY number"))

    async def events(self, session: str | None, after: int = 0, limit: int = -1) -> list[Event]:
        """Return stored events after a `seq`, of one session or, with ``None``, of all."""
        return await self._database.read(lambda db: reading.events_of(db, session, after, limit))

    async def hook_calls(
        self, session: str | None, turn: str | None = None, plugin: str | None = None, *, newest: int | None = None
    ) -> list[HookCallRow]:
        """Return the ledger of a session, or of all, oldest first; with `newest` only that many of the last rows."""
        wanted = {"session": session, "turn": turn, "plugin": plugin}
        tail = "ORDER BY number" if newest is None else f"ORDER BY number DESC LIMIT {int(newest)}"
        return await self._database.read(lambda db: reading.query(db, HOOK_CALLS, wanted, tail))

    async def hook_effects(self, session: str) -> list[HookCallRow]:
        """Return the lines of the ledger where a hook did something to a call, or failed at it."""
        tail = "AND call_id IS NOT NULL AND outcome IN ('changed', 'failed', 'timeout', 'withheld') ORDER BY number"
        return await self._database.read(lambda db: reading.query(db, HOOK_CALLS, {"session": session}, tail))

    async def first_prompt(self, session: str) -> str:
        """Return the text of a session's first prompt; empty when it has none."""
        first = "WHERE n.session = ? AND n.kind = 'user' ORDER BY n.seq LIMIT 1"
        nodes = await self._database.read(lambda db: [node for _, node in reading.nodes_where(db, first, (session,))])
        return str(nodes[0].payload.get("text") or "") if nodes else ""

    async def quarantined_plugins(self, newest: int) -> list[str]:
        """Return the plugins of which, in that many of the last lines of the ledger, something was skipped."""
        lines = "SELECT plugin, outcome FROM hook_calls ORDER BY number DESC LIMIT ?"
        statement = f"SELECT DISTINCT plugin FROM ({lines}) WHERE outcome = 'quarantined'"
        return await self._database.read(lambda db: [text(plugin) for (plugin,) in execute(db, statement, (newest,))])

    async def artifacts(self, session: str | None = None, *, state: str | None = None, limit: int = 100) -> list[Artifact]:
        """Return records of stored outputs, newest first."""
        return await self._database.read(lambda db: reading.artifacts_of(db, session=session, state=state, limit=limit))

    async def artifact(self, artifact_id: str) -> Artifact | None:
        """Return the record of a stored output."""
        found = await self._database.read(lambda db: reading.artifacts_of(db, id=artifact_id, limit=1))
        return found[0] if found else None

    async def update_artifact(self, artifact_id: str, **changes: Any) -> None:
        """Change a record's `state`, `expires` or `path`; the row itself stays."""
        await self._database.write(lambda to: writing.update_artifact(to, artifact_id, changes))

    async def plugin_state(self, session: str) -> dict[tuple[str, str], Any]:
        """Return ``(plugin, scope) -> JSON`` of a session."""
        statement = "SELECT plugin, scope, value FROM plugin_state WHERE session = ?"

        def work(db: Any) -> dict[tuple[str, str], Any]:
            rows = execute(db, statement, (session,))
            return {(text(plugin), text(scope)): decode_stored(value) for plugin, scope, value in rows}

        return await self._database.read(work)

    async def fork(self, session: str, node: str | None = None, *, title: str = "") -> SessionRow:
        """Copy the path to `node` (or to the active node) into a new session; nodes keep their ids."""
        from . import fork as forking

        return await self._database.write(lambda to: forking.fork(to, session, node, title))

    def seems_held(self, session: str) -> bool:
        """Tell whether a living process works in a session. Takes no lock."""
        return session_lock(self._database.path.parent, session).seems_held()

    async def family(self, session: str) -> list[str]:
        """Return a session and the child sessions below it, each behind its parent."""
        return await self._database.read(lambda db: reading.descendants(db, session))

    async def heirs(self, sessions: Collection[str]) -> list[SessionRow]:
        """Return the sessions that stem from one of `sessions`, by forks or imports, and are none of them."""
        every = await self.sessions(_EVERY, purpose=None)
        origins = {row.id: (row.origin or {}).get("session") for row in every}
        found = set(sessions)
        while new := {id for id, origin in origins.items() if origin in found} - found:
            found |= new
        return [row for row in every if row.id in found and row.id not in sessions]

    async def delete(self, session: str) -> None:
        """Purge a session and the child sessions below it, in one transaction.

        The files of its outputs are the caller's to remove.

        :raises SessionBusy: someone holds one of them.
        """
        from . import fork as forking

        locks: list[FileLock] = []
        try:
            ids = await self.family(session)
            for id in ids:
                lock = session_lock(self._database.path.parent, id)
                await self._acquire(lock, id, 0)
                locks.append(lock)
            await self._database.write(lambda to: forking.purge(to, ids))
        finally:
            for lock in locks:
                lock.release()

    async def export(self, session: str) -> AsyncIterator[str]:
        """Yield a session and those it started as JSON Lines, without their newlines, from one snapshot."""
        from .export import export_lines

        async for line in self._database.stream(lambda db: export_lines(db, session)):
            yield line

    async def import_(self, lines: Iterable[str | bytes]) -> SessionRow:
        """Store an exported session and those it started; each gets a new id where its own is taken.

        Their mode and grants have no effect here, and their questions and outputs count as expired.

        :raises StoreError: ``invalid``, with the number of the wrong line; nothing was imported.
        """
        from .import_ import read_lines, store_lines

        checked = await asyncio.to_thread(read_lines, lines)
        return await self._database.write(lambda to: store_lines(to, checked))

    async def search(self, text: str, limit: int = 20) -> list[Hit]:
        """Return the nodes of all sessions in which people, models or tools wrote `text`."""
        from .search import search

        return await search(self._database, text, limit)


def _require_id(session: str) -> None:
    if not is_session_id(session):
        raise invalid(f"{session!r} cannot be the id of a session", next_step="use letters, digits, '-', '_' and '.'")
