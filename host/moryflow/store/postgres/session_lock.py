"""The lease that allows one process to append to a session, and the commit that carries its epoch."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import socket
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from moryflow_sdk import Event

from moryflow.base.events import now
from moryflow.store.protocol import Outdated, StaleEpoch, StoreError, invalid
from moryflow.store.queries import live_path_of, session_row
from moryflow.store.records import Commit, Committed, Node, SessionRow
from moryflow.store.search import SEARCHED
from moryflow.store.sql_store import PatientLock
from moryflow.store.statements import (
    Written,
    checked_row,
    event_body,
    made_nodes,
    records_of,
    session_changes,
    switch,
)
from moryflow.store.tables import encode, execute, random_id, text_of

from .database import PostgresConnection, PostgresDatabase, storable
from .wakes import Wakes

# Seconds after which a session whose holder says nothing may be taken over. It is renewed at a third of that, and by commits.
LEASE = 30.0
_MAX_TEXT, _MAX_WORD = 64 * 1024, 200
_WORD = re.compile(r"[^\W_]+")
_APPEND = "SELECT outcome, first_event FROM append_commit(?, ?, ?, ?, make_interval(secs => ?), ?::json)"
_RENEW = "UPDATE sessions SET until = clock_timestamp() + make_interval(secs => ?) WHERE id = ? AND epoch = ? RETURNING 1"
_RELEASE = "UPDATE sessions SET until = NULL, worker = NULL WHERE id = ? AND epoch = ?"
_END = "SELECT coalesce(max(seq), 0), (SELECT hash FROM nodes WHERE session = ? AND id = ?) FROM nodes WHERE session = ?"


class TreeEnd(NamedTuple):
    """Where the next node goes: the highest `seq` of the session, and the hash of its active node."""

    seq: int
    hash: str


def tree_end(connection: PostgresConnection, row: SessionRow) -> TreeEnd:
    found = connection.execute(_END, (row.id, row.active, row.id)).fetchone()
    assert found is not None  # an aggregate always has one row
    return TreeEnd(found[0], found[1] or "")


class PostgresSessionLock(PatientLock):
    """:class:`moryflow.store.SessionLock` for a session in PostgreSQL; the interface documents each method.

    :param on_release: called once, when the lease has been given back.
    """

    def __init__(
        self,
        database: PostgresDatabase,
        session: SessionRow,
        path: list[Node],
        end: TreeEnd,
        on_release: Callable[[str, Callable[[], None]], None],
        wakes: Wakes,
        *,
        lease: float = LEASE,
    ) -> None:
        self.session = session
        self.path = path
        self.epoch = session.epoch
        self._database = database
        self._end = end
        self._on_release = on_release
        self._wakes = wakes
        self._lease = lease
        self._one_by_one = asyncio.Lock()
        # The commit being tried and its id: if it is tried again after its answer was lost, it is recognised.
        self._trying: tuple[Commit, str] | None = None
        self._timer = asyncio.create_task(self._renew())

    async def commit(self, commit: Commit) -> Committed:
        async with self._one_by_one:
            self._require_held()
            if self._trying is None or self._trying[0] is not commit:
                self._trying = commit, random_id()
            id = self._trying[1]
            committed = await self._database.statement(lambda to: self._append(to, commit, id))
            self._trying = None
            if commit.events:
                self._wakes.send()
            return committed

    async def switch(self, node_id: str | None) -> None:
        self._require_held()

        def work(to: PostgresConnection) -> tuple[Written, TreeEnd]:
            execute(to, "SELECT 1 FROM sessions WHERE id = ? FOR UPDATE", (self.session.id,))
            written = switch(to, self.session.id, self.epoch, node_id)
            return written, tree_end(to, written.session)

        written, self._end = await self._database.write(work)
        self.session = written.session
        self.path[:] = written.path or []

    def release(self) -> None:
        if self._released:
            return
        self._released = True
        self._timer.cancel()
        give_back = (self.session.id, self.epoch)
        self._on_release(self.session.id, lambda: self._database.run(lambda to: to.execute(_RELEASE, give_back)) and None)

    def _append(self, to: PostgresConnection, commit: Commit, id: str) -> Committed:
        while True:
            if commit.after is not None and self.session.active != commit.after:
                raise Outdated("another node is active now; nothing was stored", where=f"session {self.session.id}")
            made = list(made_nodes(self.session, self._end.hash, self._end.seq, commit.nodes))
            nodes = [node for node, _ in made]
            last = nodes[-1].id if nodes else self.session.active
            active = last if commit.active is None else commit.active or None
            document = self._document(commit, [_node_columns(node, payload) for node, payload in made], active)
            values = (self.session.id, self.epoch, id, self.session.active, self._lease, document)
            try:
                outcome, first = to.execute(_APPEND, values).fetchone()  # type: ignore[misc]
            except to.IntegrityError as error:
                said = error.diag.message_primary or "the commit does not fit"
                message = "nodes are append-only; there is one with this id" if "nodes_" in said else said
                raise invalid(message, next_step=f"moryflow session tree {self.session.id}") from error
            if outcome == "stored":
                break
            self._raise_unless_moved(outcome)
            self._update(to)  # an earlier commit whose answer was lost has reached the database
        grew = active == last and not any(node.kind == "compaction" or node.voids for node in nodes)
        events = [_numbered(event, first + place) for place, event in enumerate(commit.events)]
        self._end = TreeEnd(self._end.seq + len(nodes), nodes[-1].hash if nodes else self._end.hash)
        if commit.session or not grew:
            self._update(to)
        else:
            self.session = self.session._replace(active=active, updated=json.loads(document)["updated"])
            self.path.extend(nodes)
        return Committed(nodes, events)

    def _raise_unless_moved(self, outcome: str) -> None:
        if outcome == "moved":
            return
        message = f"session {self.session.id} was taken over by another process while this one was stopped; nothing was stored"
        raise StaleEpoch(message, next_step=f"moryflow run --resume {self.session.id}")

    def _update(self, to: PostgresConnection) -> None:
        with to.raw.transaction():
            self.session = session_row(to, self.session.id)
            self.path[:] = live_path_of(to, self.session.id, self.session.active)
            self._end = tree_end(to, self.session)

    def _document(self, commit: Commit, nodes: list[dict[str, Any]], active: str | None) -> str:
        session = self.session.id
        document: dict[str, Any] = {
            "nodes": nodes,
            "active": active,
            "updated": now(),
            "prompted": any(draft.kind == "user" for draft in commit.nodes),
            "session": session_changes(commit),
            "plugin_state": [
                {"plugin": plugin, "scope": scope, "value": None if value is None else encode(value)}
                for (plugin, scope), value in commit.plugin_state.items()
            ],
            "events": [
                {"type": event.type, "ts": event.ts, "body": encode(event_body(checked_row(session, event)))}
                for event in commit.events
            ],
        }
        for table, rows in records_of(session, commit).items():
            document[table.name] = [dict(zip(table.columns, table.values(row), strict=True)) for row in _last(table, rows)]
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        if text.isascii() and "\\u00" not in text:
            return text
        return json.dumps(_storable(document), ensure_ascii=False, separators=(",", ":"))

    async def _renew(self) -> None:
        """Renew the lease at a third of its time, on the loop of the turn: what hangs there loses the session."""
        while True:
            await asyncio.sleep(self._lease / 3)
            values = (self._lease, self.session.id, self.epoch)
            try:
                if not await self._database.statement(lambda to: to.execute(_RENEW, values).fetchone()):  # noqa: B023
                    return  # another holder has it; the next commit says so
            except StoreError:
                continue  # the epoch, not the lease, protects the session


def _last(table: Any, rows: Any) -> list[Any]:
    """Return the last row for each key: one statement may not change a row twice."""
    if not table.key:
        return list(rows)
    return list({tuple(getattr(row, name) for name in table.key): row for row in rows}.values())


def _node_columns(node: Node, payload: str) -> dict[str, Any]:
    return {
        "id": node.id, "seq": node.seq, "parent": node.parent, "kind": node.kind, "payload": payload, "tokens": node.tokens,
        "hash": node.hash, "created": node.created,
        "words": searched_words(node),
    }  # fmt: skip


def searched_words(node: Node) -> list[str]:
    """Return the words under which a search finds a node."""
    return plain_words(text_of(node.payload)) if node.kind in SEARCHED else []


def plain_words(text: str) -> list[str]:
    """Return the words of `text` once each, in small letters and without accents, for the index and its queries."""
    text = text[:_MAX_TEXT].lower()
    if not text.isascii():
        text = "".join(part for part in unicodedata.normalize("NFKD", text) if not unicodedata.combining(part))
    return sorted({word[:_MAX_WORD] for word in _WORD.findall(text)})


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {key: _storable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_storable(item) for item in value]
    return value


def _numbered(event: Event, seq: int) -> Event:
    return Event.model_construct(**{**vars(event), "seq": seq})


@cache
def _machine() -> str:
    """Return a mark of this start of this machine and of this container, in which a process has a number of its own."""
    boot, pids = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    try:
        found = f"{socket.gethostname()} {boot.read_text()} {pids.readlink()}"
    except OSError:  # not Linux: nobody's end is noticed, and each lease runs out
        return os.urandom(6).hex()
    return hashlib.sha256(found.encode()).hexdigest()[:12]


def worker_name() -> str:
    """Return a name for this process that no other one has, or had."""
    return f"{socket.gethostname()}:{os.getpid()}:{_machine()}:{os.urandom(3).hex()}"


def has_ended(worker: str) -> bool:
    """Return whether `worker` was a process of this machine that is no more, so that nobody needs to wait for its lease."""
    _, pid, machine, _ = _parts(worker)
    if not pid.isdigit() or machine != _machine():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    with suppress(OSError):  # a killed process stays listed until its parent has asked for its end
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


def process_of(worker: str | None) -> str:
    """Return who holds a session, for use in a sentence."""
    host, pid, machine, _ = _parts(worker or "")
    if not pid:
        return worker or "another process"
    if machine != _machine():
        return f"process {pid} on {host}"
    return "this process" if pid == str(os.getpid()) else f"process {pid}"


def _parts(worker: str) -> tuple[str, str, str, str]:
    parts = worker.rsplit(":", 3)
    return (parts[0], parts[1], parts[2], parts[3]) if len(parts) == 4 else (worker, "", "", "")
