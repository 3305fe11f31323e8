"""What the store does alike in every SQL database: queries, answers, forks, exports and imports; and its locks: patience,
and no commit after the release.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from moryflow_sdk import Artifact, Event

from moryflow.base.events import now

from . import queries as reading
from . import statements as writing
from .protocol import StaleEpoch, StoreError, WaitForLock, invalid
from .records import REPLIES, ApprovalRow, CallRow, Commit, Committed, HookCallRow, Node, RunRow, SessionRow, is_session_id
from .tables import HOOK_CALLS, RUNS, SqlConnection, decode_stored, execute, random_id, text

T = TypeVar("T")
_EVERY = 1 << 31


class Transactions(Protocol):
    """How a database runs work: each in one transaction, outside the event loop."""

    async def read(self, work: Callable[[SqlConnection], T], /) -> T: ...
    async def write(self, work: Callable[[SqlConnection], T], /) -> T: ...
    def stream(self, work: Callable[[SqlConnection], Iterator[T]], /) -> AsyncIterator[T]: ...


class SqlStore:
    """The methods of :class:`moryflow.store.Store` that need nothing of one database alone.

    :cvar _EVENTS: the table or view of the events that no later commit can precede.
    """

    _EVENTS = "events"

    def __init__(self, transactions: Transactions) -> None:
        self._sql = transactions

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
        await self._sql.write(lambda to: writing.insert_session(to, row))
        return row

    async def sessions(
        self, limit: int = 50, *, vault: str | None = None, purpose: str | None = "main", parent: str | None = None
    ) -> list[SessionRow]:
        return await self._sql.read(lambda db: reading.list_sessions(db, limit, vault=vault, purpose=purpose, parent=parent))

    async def session(self, name: str) -> SessionRow:
        return await self._sql.read(lambda db: reading.find_session(db, name))

    async def latest(self, vault: str) -> SessionRow | None:
        found = await self.sessions(1, vault=vault)
        return found[0] if found else None

    async def path(self, session: str, node: str | None = None) -> list[Node]:
        def work(db: SqlConnection) -> list[Node]:
            return reading.path_of(db, session, node or reading.session_row(db, session).active)

        return await self._sql.read(work)

    async def nodes(self, session: str) -> list[Node]:
        return await self._sql.read(lambda db: list(reading.nodes_of(db, session)))

    async def labels(self, session: str) -> dict[str, str]:
        return await self._sql.read(lambda db: reading.labels_of(db, session))

    async def calls(
        self, session: str | None = None, since: str | None = None, states: Collection[str] | None = None
    ) -> list[CallRow]:
        return await self._sql.read(lambda db: reading.calls_of(db, session, since, states))

    async def call_ids(self, session: str) -> set[str]:
        statement = "SELECT DISTINCT id FROM calls WHERE session = ?"
        return await self._sql.read(lambda db: {text(id) for (id,) in execute(db, statement, (session,))})

    async def approvals(self, session: str | None = None, state: str | None = None) -> list[ApprovalRow]:
        return await self._sql.read(lambda db: reading.approvals_of(db, session=session, state=state))

    async def approval(self, approval_id: str) -> ApprovalRow:
        return await self._sql.read(lambda db: reading.approval_of(db, approval_id))

    async def offered(self, vault: str) -> bool:
        statement = """SELECT request FROM sessions JOIN approvals ON approvals.session = sessions.id
            WHERE sessions.vault = ? AND request LIKE '%"preset"%'"""

        def work(db: SqlConnection) -> bool:
            return any(decode_stored(request).get("preset") is not None for (request,) in execute(db, statement, (vault,)))

        return await self._sql.read(work)

    async def reply(self, approval_id: str, reply: str, *, message: str = "", by: str = "user") -> ApprovalRow:
        if reply not in REPLIES:
            raise invalid(f"{reply!r} is not an answer", next_step=f"use one of {', '.join(sorted(REPLIES))}")
        return await self._sql.write(lambda to: writing.answer(to, approval_id, reply, message, by))

    async def runs(self, session: str) -> list[RunRow]:
        return await self._sql.read(lambda db: reading.query(db, RUNS, {"session": session}, "ORDER BY number"))

    async def spent(
        self, *, session: str | None = None, agent: str | None = None, folder: str | None = None, since: str = ""
    ) -> float:
        # A turn's cost holds those of its sub-agents and summaries.
        conditions = {
            "runs.started >= ?": [since], "runs.state = 'ended'": [], "runs.purpose IN ('main', 'child', 'direct')": [],
            "sessions.parent IS NULL": [] if agent is None else None, "runs.agent = ?": None if agent is None else [agent],
            "sessions.id = ?": None if session is None else [session],
            "(sessions.vault = ? OR substr(sessions.vault, 1, ?) = ?)":
                None if folder is None else [folder, len(folder.rstrip("/")) + 1, f"{folder.rstrip('/')}/"],
        }  # fmt: skip
        wanted = {text: values for text, values in conditions.items() if values is not None}
        statement = f"""SELECT coalesce(sum(runs.cost), 0) FROM runs JOIN sessions ON sessions.id = runs.session
            WHERE {" AND ".join(wanted)}"""
        values = tuple(value for part in wanted.values() for value in part)
        return await self._sql.read(lambda db: float(execute(db, statement, values).fetchone()[0]))

    async def events(self, session: str | None, after: int = 0, limit: int = -1, *, types: Collection[str] = ()) -> list[Event]:
        return await self._sql.read(lambda db: reading.events_of(db, self._EVENTS, session, after, limit, types))

    async def hook_calls(
        self, session: str | None, turn: str | None = None, plugin: str | None = None, *, newest: int | None = None
    ) -> list[HookCallRow]:
        return await self._sql.read(lambda db: reading.hook_calls_of(db, session, turn, plugin, newest))

    async def hook_effects(self, session: str) -> list[HookCallRow]:
        tail = "AND call_id IS NOT NULL AND outcome IN ('changed', 'failed', 'timeout', 'withheld') ORDER BY number"
        return await self._sql.read(lambda db: reading.query(db, HOOK_CALLS, {"session": session}, tail))

    async def first_prompt(self, session: str) -> str:
        first = "WHERE n.session = ? AND n.kind = 'user' ORDER BY n.seq LIMIT 1"
        nodes = await self._sql.read(lambda db: [node for _, node in reading.nodes_where(db, first, (session,))])
        return str(nodes[0].payload.get("text") or "") if nodes else ""

    async def artifacts(self, session: str | None = None, *, state: str | None = None, limit: int = 100) -> list[Artifact]:
        return await self._sql.read(lambda db: reading.artifacts_of(db, session=session, state=state, limit=limit))

    async def artifact(self, artifact_id: str) -> Artifact | None:
        found = await self._sql.read(lambda db: reading.artifacts_of(db, id=artifact_id, limit=1))
        return found[0] if found else None

    async def update_artifact(self, artifact_id: str, **changes: Any) -> None:
        await self._sql.write(lambda to: writing.update_artifact(to, artifact_id, changes))

    async def plugin_state(self, session: str) -> dict[tuple[str, str], Any]:
        statement = "SELECT plugin, scope, value FROM plugin_state WHERE session = ?"

        def work(db: SqlConnection) -> dict[tuple[str, str], Any]:
            rows = execute(db, statement, (session,))
            return {(text(plugin), text(scope)): decode_stored(value) for plugin, scope, value in rows}

        return await self._sql.read(work)

    async def fork(self, session: str, node: str | None = None, *, title: str = "") -> SessionRow:
        return await self._sql.write(lambda to: writing.fork(to, session, node, title))

    async def family(self, session: str) -> list[str]:
        return await self._sql.read(lambda db: reading.descendants(db, session))

    async def heirs(self, sessions: Collection[str]) -> list[SessionRow]:
        every = await self.sessions(_EVERY, purpose=None)
        origins = {row.id: (row.origin or {}).get("session") for row in every}
        found = set(sessions)
        while new := {id for id, origin in origins.items() if origin in found} - found:
            found |= new
        return [row for row in every if row.id in found and row.id not in sessions]

    async def export(self, session: str) -> AsyncIterator[str]:
        from .import_export import export_lines

        async for line in self._sql.stream(lambda db: export_lines(db, session)):
            yield line

    async def import_(self, lines: Iterable[str | bytes], vault: str | None = None) -> SessionRow:
        from .import_export import read_lines, store_lines

        checked = await asyncio.to_thread(read_lines, lines)
        return await self._sql.write(lambda to: store_lines(to, checked, vault))


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
