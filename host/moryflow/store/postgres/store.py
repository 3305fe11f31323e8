"""The session store in PostgreSQL: the same tree and the same queries, with a lease in place of a lock file."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Self

from moryflow_sdk import Artifact

from moryflow.base.events import now
from moryflow.store import queries as reading
from moryflow.store import statements as writing
from moryflow.store.protocol import SessionBusy, StoreError
from moryflow.store.records import Hit, Node, SessionRow
from moryflow.store.search import hit, scan, words_of
from moryflow.store.sql_store import SqlStore
from moryflow.store.tables import execute, random_id

from .database import PostgresConnection, PostgresDatabase
from .inbox import Inbox
from .outputs import Outputs
from .session_lock import (
    LEASE,
    PostgresSessionLock,
    TreeEnd,
    has_ended,
    plain_words,
    process_of,
    searched_words,
    tree_end,
    worker_name,
)
from .wakes import Wakes

_POLL = 0.1
# For how many seconds an answer about who holds which session is used again.
_HELD_FOR = 0.05
# Not the last number that was handed out: a transaction that has one below it may still be open.
_EVENT_SPAN = """SELECT coalesce((SELECT min(seq) FROM events), 0), coalesce((SELECT max(seq) FROM settled_events), 0)"""
_TAKE = f"""UPDATE sessions SET epoch = epoch + 1, used = {writing.USED}, worker = ?,
    until = clock_timestamp() + make_interval(secs => ?)
    WHERE id = ? AND (until IS NULL OR until < clock_timestamp() OR worker = ?) RETURNING epoch"""
_RELEASE_ALL = "UPDATE sessions SET until = NULL, worker = NULL WHERE worker = ?"
_HOLDER = "SELECT worker, ceil(extract(epoch FROM until - clock_timestamp()))::int FROM sessions WHERE id = ?"
_LONGEST_SEARCH = 1000


class PostgresStore(SqlStore):
    """:class:`moryflow.store.Store` in PostgreSQL; the interface documents each method.

    :param worker: the name under which this process holds sessions.
    """

    _EVENTS = "settled_events"

    def __init__(self, database: PostgresDatabase, identity: str, worker: str, lease: float, outputs: str) -> None:
        super().__init__(database)
        self._database = database
        self._identity = identity
        self._worker = worker
        self._lease = lease
        self._outputs = Outputs(database, outputs)
        self.wakes = Wakes(database)
        self._held: tuple[float, frozenset[str]] = (0.0, frozenset())
        self._releasing: dict[str, Future[None]] = {}

    @classmethod
    def open(cls, url: str, *, patience: float = 5.0, lease: float = LEASE, outputs: str = "") -> Self:
        """Open the store that `url` names; create or migrate its tables if necessary.

        :param lease: seconds after which a session whose holder says nothing may be taken over.
        :param outputs: the object store for large outputs.
        :raises StoreError: the database cannot be reached, refuses the user, or is of a newer version.
        """
        database = PostgresDatabase(url, patience=patience)
        return cls(database, database.open(), worker_name(), lease, outputs)

    @property
    def notices(self) -> list[str]:
        return []

    def news(self) -> list[str]:
        return []

    def close(self) -> None:
        if self._database.closed:
            return
        with contextlib.suppress(StoreError):  # a lease that cannot be given back runs out
            self._database.run(lambda to: to.execute(_RELEASE_ALL, (self._worker,)))
        self._database.close()

    async def damages(self) -> AsyncIterator[tuple[str, str]]:
        def work(db: PostgresConnection) -> Any:
            for (session,) in db.execute("SELECT id FROM sessions ORDER BY number"):
                try:
                    for _ in reading.nodes_of(db, session):
                        pass
                    reading.calls_of(db, session, None, None)
                except reading.DamagedRow as error:
                    yield error.message, error.next_step

        async for damage in self._database.stream(work):
            yield damage

    async def repair(self) -> bool:
        return False  # a server is restored by whoever runs it

    async def begin_child(
        self, parent: SessionRow, *, agent: str, mode: str, title: str, origin: Mapping[str, Any]
    ) -> PostgresSessionLock:
        moment = now()
        row = SessionRow(
            random_id(), title, parent.vault, agent, "", mode, parent.id, "child", None, moment, moment, origin, epoch=0
        )

        def work(to: PostgresConnection) -> SessionRow:
            writing.insert_session(to, row)
            to.execute(_TAKE, (self._worker, self._lease, row.id, None))
            return reading.session_row(to, row.id)

        taken = await self._database.write(work)
        return PostgresSessionLock(
            self._database, taken, [], TreeEnd(0, ""), self._when_released, self.wakes, lease=self._lease
        )

    async def hold(self, session_id: str, *, wait: float = 0) -> PostgresSessionLock:
        session = (await self.session(session_id)).id
        await self._given_back()
        deadline = time.monotonic() + wait
        ended: str | None = None
        while not await self._take(session, ended):
            worker, _ = await self._holder(session)
            if worker is not None and has_ended(worker):
                ended = worker
            elif time.monotonic() >= deadline:
                raise await self._busy(session)
            await asyncio.sleep(_POLL)

        def work(db: PostgresConnection) -> tuple[SessionRow, list[Node], TreeEnd]:
            row = reading.session_row(db, session)
            return row, reading.live_path_of(db, session, row.active), tree_end(db, row)

        row, path, end = await self._database.read(work)
        return PostgresSessionLock(self._database, row, path, end, self._when_released, self.wakes, lease=self._lease)

    async def _given_back(self) -> None:
        """Wait until the leases that this process has let go are free in the database too."""
        if jobs := [asyncio.wrap_future(job) for job in self._releasing.values()]:
            await asyncio.wait(jobs)

    async def _take(self, session: str, ended: str | None) -> bool:
        values = (self._worker, self._lease, session, ended)
        return bool(await self._database.statement(lambda to: to.execute(_TAKE, values).fetchone()))

    async def _busy(self, session: str) -> SessionBusy:
        worker, left = await self._holder(session)
        message = f"session {session} is in use by {process_of(worker)}"
        if left is not None:
            message += f", whose lease ends in {max(left, 0)} s unless it is renewed"
        next_step = f"wait for it to end, or work on a copy: moryflow session fork {session}"
        return SessionBusy(message, where=self._database.where, next_step=next_step)

    async def _holder(self, session: str) -> tuple[str | None, int | None]:
        found = await self._database.statement(lambda db: db.execute(_HOLDER, (session,)).fetchone())
        return found or (None, None)

    def _when_released(self, session: str, give_back: Callable[[], None]) -> None:
        """Give a lease back in a thread; a hold of the same session waits for it."""
        if self._database.closed:
            return  # closing gave all of them back
        job = self._releasing[session] = self._database.submit(give_back)
        job.add_done_callback(lambda job: self._releasing.pop(session, None) if self._releasing.get(session) is job else None)

    async def event_span(self) -> tuple[int, int]:
        return await self._database.read(lambda db: db.execute(_EVENT_SPAN).fetchone())  # type: ignore[arg-type]

    async def wait_for_events(self, seconds: float) -> None:
        await self.wakes.wait(seconds)

    def identity(self) -> object:
        return self._identity

    def seems_held(self, session: str) -> bool:
        moment = time.monotonic()
        if moment - self._held[0] > _HELD_FOR:
            statement = "SELECT id, worker FROM sessions WHERE until > clock_timestamp()"
            rows = self._database.run(lambda db: db.execute(statement).fetchall())
            self._held = moment, frozenset(id for id, worker in rows if not has_ended(worker))
        return session in self._held[1]

    async def keep_output(self, artifact: Artifact) -> None:
        await self._outputs.keep(artifact)

    async def output(self, artifact: Artifact, offset: int, limit: int) -> bytes | None:
        return await self._outputs.read(artifact, offset, limit)

    async def update_artifact(self, artifact_id: str, **changes: Any) -> None:
        await super().update_artifact(artifact_id, **changes)
        if changes.get("state") == "expired":
            await self._outputs.forget(artifact_id)

    async def delete(self, session: str) -> None:
        held = "SELECT id FROM sessions WHERE id = ? AND until > clock_timestamp()"

        def work(to: PostgresConnection) -> str | None:
            ids = reading.descendants(to, session)
            for id in ids:
                execute(to, "SELECT 1 FROM sessions WHERE id = ? FOR UPDATE", (id,))
                if execute(to, held, (id,)).fetchone():
                    return id
            writing.purge(to, ids)
            return None

        await self._given_back()
        if (busy := await self._database.write(work)) is not None:
            raise await self._busy(busy)

    async def import_(self, lines: Iterable[str | bytes], vault: str | None = None) -> SessionRow:
        from moryflow.store.import_export import number_events, read_lines, store_lines

        checked = await asyncio.to_thread(read_lines, lines)

        def work(to: PostgresConnection) -> SessionRow:
            count = number_events(checked, 0)
            if count:  # before anything is written, see :mod:`.schema`
                number_events(checked, to.execute("SELECT reserve_events(?)", (count,)).fetchone()[0])  # type: ignore[index]
            row = store_lines(to, checked, vault)
            for session in reading.descendants(to, row.id):
                _index(to, session)
            return row

        return await self._database.write(work)

    async def fork(self, session: str, node: str | None = None, *, title: str = "") -> SessionRow:
        def work(to: PostgresConnection) -> SessionRow:
            copy = writing.fork(to, session, node, title)
            _index(to, copy.id)
            return copy

        return await self._database.write(work)

    async def search(self, text: str, limit: int = 20) -> list[Hit]:
        wanted = text.strip()[:_LONGEST_SEARCH]
        words = words_of(wanted)
        if not wanted:
            return []

        def work(db: PostgresConnection) -> list[Hit]:
            if not words:
                return scan(db, [wanted], limit)
            query = " & ".join(f"'{word}'" for word in plain_words(" ".join(words[:-1])))
            last = " & ".join(f"'{word}':*" for word in plain_words(words[-1]))
            found = "SELECT session, id FROM node_words WHERE words @@ ?::tsquery"
            condition = f"WHERE (n.session, n.id) IN ({found}) ORDER BY n.number DESC LIMIT {int(limit)}"
            values = (" & ".join(filter(None, (query, last))),)
            return [hit(node, words) for _, node in reading.nodes_where(db, condition, values, skip_damaged=True)]

        return await self._database.read(work)


def _index(to: PostgresConnection, session: str) -> None:
    """Add the nodes of a copied or imported session to the full-text index; a commit does so itself."""
    rows = [(session, node.id, words) for node in reading.nodes_of(to, session) if (words := searched_words(node))]
    to.executemany("INSERT INTO node_words VALUES (?, ?, array_to_tsvector(?::text[])) ON CONFLICT DO NOTHING", rows)


def inbox_of(store: object) -> Inbox | None:
    """Return the inbox of a store, or ``None`` if it is not in PostgreSQL."""
    return Inbox(store._database, store.wakes) if isinstance(store, PostgresStore) else None
