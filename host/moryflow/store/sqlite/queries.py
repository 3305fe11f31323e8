"""The queries. Each function reads from the snapshot that its caller opened."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import Any, TypeVar

from moryflow_sdk import Artifact, Event

from moryflow.store.protocol import StoreError
from moryflow.store.records import CALL_STATES, ApprovalRow, CallRow, HookCallRow, Node, SessionRow, labels, nodes_for_view
from moryflow.store.sqlite.schema import has_its_arguments, node_hash

from .failures import Damaged
from .schema import APPROVALS, ARTIFACTS, CALLS, HOOK_CALLS, NODES, SESSIONS, TableSpec, decode_stored, execute, text

R = TypeVar("R")

_NODE_COLUMNS = ", ".join(NODES.columns)
_PARENT, _KIND, _PAYLOAD, _HASH = map(NODES.columns.index, ("parent", "kind", "payload", "hash"))
_SELECT_WITH_PARENT = f"""SELECT {", ".join(f"n.{name}" for name in NODES.columns)}, n.number, p.hash
    FROM nodes AS n LEFT JOIN nodes AS p ON p.session = n.session AND p.id = n.parent"""
_HASH_OF = "SELECT hash FROM nodes WHERE session = ? AND id = ?"
_SELECT_SESSION = f"{SESSIONS.select} WHERE id = ?"

# A parent comes before its child, so one walk over the rows from the newest to the oldest finds them all, whatever damage
# there is.
_UPWARDS = f"""SELECT {_NODE_COLUMNS} FROM nodes
    WHERE session = ? AND seq <= (SELECT seq FROM nodes WHERE session = ? AND id = ?) ORDER BY seq DESC"""


def session_row(connection: sqlite3.Connection, session: str) -> SessionRow:
    """Return a session by its whole id.

    :raises StoreError: ``not_found``.
    """
    found = execute(connection, _SELECT_SESSION, (session,)).fetchone()
    if found is None:
        message = f"there is no session {session!r}"
        raise StoreError(message, code="not_found", next_step="moryflow session list")
    return SESSIONS.load(found)


def find_session(connection: sqlite3.Connection, name: str) -> SessionRow:
    """Return a session by its id or by the beginning of it.

    :raises StoreError: ``not_found`` or ``ambiguous``.
    """
    condition = "WHERE id >= ? AND id < ? || char(0x10FFFF) ORDER BY id = ? DESC, id LIMIT 4"
    rows = execute(connection, f"{SESSIONS.select} {condition}", (name,) * 3).fetchall() if name else []
    found = [SESSIONS.load(row) for row in rows]
    if len(found) > 1 and found[0].id != name:
        message = f"{name!r} is the beginning of several sessions: {', '.join(row.id for row in found)}"
        raise StoreError(message, code="ambiguous", next_step="give more of the id")
    return found[0] if found else session_row(connection, name)


def list_sessions(
    connection: sqlite3.Connection, limit: int, *, vault: str | None, purpose: str | None, parent: str | None
) -> list[SessionRow]:
    """Return sessions, the last used first."""
    wanted = {"vault": vault, "purpose": purpose, "parent": parent}
    return query(connection, SESSIONS, wanted, f"ORDER BY used DESC LIMIT {int(limit)}")


def descendants(connection: sqlite3.Connection, session: str) -> list[str]:
    """Return a session and the child sessions below it, each behind its parent, in the order in which they began."""
    found, waiting = list[str](), [session_row(connection, session).id]
    while waiting:
        found.append(waiting.pop())
        rows = execute(connection, "SELECT id FROM sessions WHERE parent = ? ORDER BY number DESC", (found[-1],))
        waiting += [row[0] for row in rows]
    return found


def path_of(connection: sqlite3.Connection, session: str, node: str | None) -> list[Node]:
    """Return the nodes from the root to `node`, root first.

    :raises Damaged: one of them is not what was stored.
    """
    path = list(_upwards(connection, session, node))
    path.reverse()
    return path


def live_path_of(connection: sqlite3.Connection, session: str, node: str | None) -> list[Node]:
    """Return of :func:`path_of` what the view needs: without what a compaction stands for.

    :raises Damaged: a node that is read is not what was stored, or one is missing.
    """
    with closing(_upwards(connection, session, node, whole=True)) as upwards:
        return nodes_for_view(upwards)


def _upwards(connection: sqlite3.Connection, session: str, node: str | None, *, whole: bool = False) -> Generator[Node]:
    """Yield the nodes from `node` to the root; those of other branches are passed over.

    Each is compared with its hash, for which its parent's is needed: so the parent is read first.

    :param whole: the path must lead to its root; one of a database that was damaged may end before.
    """
    if node is None:
        return
    child: Sequence[Any] | None = None
    with closing(execute(connection, _UPWARDS, (session, session, node))) as rows:
        for row in rows:
            if row[0] != node:
                continue
            if child is not None:
                yield _verified(child, row[_HASH])
            child, node = row, row[_PARENT]
            if node is None:
                yield _verified(row, "")
                return
    above = execute(connection, _HASH_OF, (session, node)).fetchone()
    if above is not None:  # a node that is stored behind its child
        raise Damaged(_not_genuine(child) if child else f"node {node} of session {session} cannot be read")
    if whole:
        raise Damaged(f"node {node} of session {session} is missing")
    if child is not None:
        yield node_of(child)


def call_ids_of(connection: sqlite3.Connection, session: str) -> set[str]:
    """Return the ids of all tool calls of a session, whichever branch they are on."""
    return {text(row[0]) for row in execute(connection, "SELECT DISTINCT id FROM calls WHERE session = ?", (session,))}


def node_of(row: Sequence[Any]) -> Node:
    """Return the node of a row in the order of ``NODES.columns``."""
    id, session, seq, parent, kind, payload, tokens, hash, created = row
    return Node(id, session, seq, parent, kind, decode_stored(payload), tokens, hash, created)


def nodes_of(connection: sqlite3.Connection, session: str) -> Iterator[Node]:
    """Yield all nodes of a session, in their order.

    :raises Damaged: one is not what was stored.
    """
    hashes: dict[str | None, str] = {None: ""}
    for row in execute(connection, f"{NODES.select} WHERE session = ? ORDER BY seq", (session,)):
        above = hashes.get(row[_PARENT])
        hashes[row[0]] = row[_HASH]
        yield node_of(row) if above is None else _verified(row, above)  # the parent may have been lost in a damage


def nodes_where(connection: sqlite3.Connection, condition: str, values: Sequence[Any] = ()) -> Iterator[tuple[int, Node]]:
    """Yield the row number of each node `n` that a condition names, and the node.

    :raises Damaged: one is not what was stored.
    """
    for *row, number, above in execute(connection, f"{_SELECT_WITH_PARENT} {condition}", values):
        if row[_PARENT] is None:
            above = ""
        yield number, node_of(row) if above is None else _verified(row, above)


def _verified(row: Sequence[Any], above: str) -> Node:
    """Return the node of a row.

    :param above: the hash of its parent.
    :raises Damaged: it is not what was stored.
    """
    if node_hash(above, text(row[_KIND]), text(row[_PAYLOAD])) != row[_HASH]:
        raise Damaged(_not_genuine(row))
    return node_of(row)


def _not_genuine(row: Sequence[Any]) -> str:
    return f"node {row[0]} (no. {row[2]}) of session {row[1]} is not what was stored"


def labels_of(connection: sqlite3.Connection, session: str) -> dict[str, str]:
    """Return label -> node id of all branches; what an import brought may name a node that is not there."""
    markers = nodes_where(connection, "WHERE n.session = ? AND n.kind = 'marker' ORDER BY n.seq", (session,))
    named = labels(node for _, node in markers)
    there = "SELECT 1 FROM nodes WHERE session = ? AND id = ?"
    return {label: node for label, node in named.items() if execute(connection, there, (session, node)).fetchone()}


def calls_of(
    connection: sqlite3.Connection, session: str | None, since: str | None, states: Collection[str] | None
) -> list[CallRow]:
    """Return tool calls, oldest first."""
    if session is not None:
        condition, values = "session = ?", [session]
    else:
        condition, values = "state IN ({})".format(", ".join(f"'{state}'" for state in CALL_STATES)), []
    if states is not None:
        condition += " AND state IN ({})".format(", ".join("?" * len(states)))
        values += list(states)
    if since is not None:
        condition, values = f"{condition} AND created >= ?", [*values, since]
    rows = execute(connection, f"{CALLS.select} WHERE {condition} ORDER BY number", values)
    return [call_of(row) for row in rows]


def call_of(row: Sequence[Any]) -> CallRow:
    """Return the call of a row in the order of ``CALLS.columns``.

    :raises Damaged: its arguments are not those that were judged.
    """
    call = CALLS.load(row)
    if not has_its_arguments(call.args, call.hash):
        raise Damaged(f"the arguments of call {call.id} of session {call.session} are not what was stored")
    return call


def approvals_of(connection: sqlite3.Connection, *, state: str | None = None, **wanted: str | None) -> list[ApprovalRow]:
    """Return questions, oldest first. One that an import brought was never answered here, so it counts as expired."""
    rows = _seen(connection, APPROVALS, state, wanted, "ORDER BY +number")
    return [row._replace(state="expired", reply=None, by=None) if imported else row for imported, row in rows]


def approval_of(connection: sqlite3.Connection, approval: str) -> ApprovalRow:
    """Return a question by its id; one asked here comes before a copy that an import brought.

    :raises StoreError: ``not_found``.
    """
    found = approvals_of(connection, id=approval)
    if not found:
        message = f"there is no question {approval!r}"
        raise StoreError(message, code="not_found", next_step="moryflow approval list")
    return min(found, key=lambda row: row.state == "expired")


def artifacts_of(
    connection: sqlite3.Connection, *, state: str | None = None, limit: int = 100, **wanted: str | None
) -> list[Artifact]:
    """Return records of outputs, newest first. One that an import brought names no file of ours, so it counts as expired."""
    rows = _seen(connection, ARTIFACTS, state, wanted, f"ORDER BY number DESC LIMIT {int(limit)}")
    return [row.replace(state="expired") if imported else row for imported, row in rows]


def _seen(
    connection: sqlite3.Connection, table: TableSpec[R], state: str | None, wanted: dict[str, str | None], tail: str
) -> list[tuple[bool, R]]:
    """Return ``(imported, row)``: what a file from elsewhere says about answers and files is shown, never believed."""
    asked = {name: value for name, value in wanted.items() if value is not None}
    conditions = [f"{name} = ?" for name in asked]
    if state == "pending":  # literally, so that the index of open questions serves
        conditions.append("state = 'pending' AND imported = 0")
    elif state is not None:
        conditions.append("CASE WHEN imported THEN 'expired' ELSE state END = ?")
        asked["state"] = state
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    statement = f"SELECT imported, {', '.join(table.columns)} FROM {table.name}{where} {tail}"
    rows = execute(connection, statement, list(asked.values()))
    return [(bool(row[0]), table.load(row[1:])) for row in rows]


def query(connection: sqlite3.Connection, table: TableSpec[Any], wanted: dict[str, Any], tail: str = "") -> list[Any]:
    """Return the rows of `table` whose columns have the `wanted` values; ``None`` asks for nothing."""
    asked = {name: value for name, value in wanted.items() if value is not None}
    condition = " AND ".join(f"{name} = ?" for name in asked)
    where = f" WHERE {condition}" if condition else ""
    rows = execute(connection, f"{table.select}{where} {tail}", list(asked.values()))
    return [table.load(row) for row in rows]


def hook_calls_of(
    connection: sqlite3.Connection, session: str | None, turn: str | None, plugin: str | None, newest: int | None
) -> list[HookCallRow]:
    """Return the ledger of a session, or of all, oldest first; with `newest` that many of the last rows, newest first."""
    asked = {"session = ?": (session,), "turn = ?": (turn,), "(plugin = ? OR hook = '' AND instr(delta, ?))": (plugin, plugin)}
    asked = {condition: values for condition, values in asked.items() if values[0] is not None}
    where = f" WHERE {' AND '.join(asked)}" if asked else ""
    order = "" if newest is None else " DESC"
    statement = f"{HOOK_CALLS.select}{where} ORDER BY number{order}"
    stored = execute(connection, statement, list(chain.from_iterable(asked.values())))
    rows = (row for line in stored for row in each_hook_call(line)[:: -1 if order else 1] if plugin in (None, row.plugin))
    return list(islice(rows, newest))


def each_hook_call(row: Sequence[Any]) -> list[HookCallRow]:
    """Return the hook calls that a row of the database holds.

    :raises Damaged: it is not what was stored.
    """
    try:
        return HOOK_CALLS.load(row).each()
    except (TypeError, ValueError) as error:
        raise Damaged(f"a stored row of hook calls is invalid ({error})") from error


def events_of(
    connection: sqlite3.Connection, session: str | None, after: int, limit: int, types: Collection[str] = ()
) -> list[Event]:
    """Return stored events with a larger `seq` than `after`."""
    where = "seq > ?" if session is None else "seq > ? AND session = ?"
    where += f" AND type IN ({', '.join('?' * len(types))})" if types else ""
    values = (after, *(() if session is None else (session,)), *types)
    statement = f"SELECT seq, session, type, ts, body FROM events WHERE {where} ORDER BY seq LIMIT {int(limit)}"
    return [event_of(row) for row in execute(connection, statement, values)]


def event_span(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the first number of the table, 0 when it is empty, and the last one that was given out."""
    last = "(SELECT seq FROM sqlite_sequence WHERE name = 'events')"
    return execute(connection, f"SELECT coalesce((SELECT min(seq) FROM events), 0), coalesce({last}, 0)").fetchone()


def event_of(row: Sequence[Any]) -> Event:
    """Return the event of a row."""
    seq, session, kind, ts, body = row
    try:
        return Event(type=text(kind), session=text(session), ts=text(ts), seq=seq, **decode_stored(body))
    except (ValueError, TypeError) as error:
        raise Damaged(f"event {seq} is not what was stored ({error})") from error
