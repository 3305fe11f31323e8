"""The queries. Each function reads in the transaction that its caller opened."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import Any, TypeVar

from moryflow_sdk import Artifact, Event

from .protocol import StoreError
from .records import CALL_STATES, ApprovalRow, CallRow, HookCallRow, Node, SessionRow, labels, nodes_for_view
from .tables import (
    APPROVALS,
    ARTIFACTS,
    CALLS,
    HOOK_CALLS,
    NODES,
    SESSIONS,
    DamagedRow,
    SqlConnection,
    TableSpec,
    decode_stored,
    execute,
    has_its_arguments,
    node_hash,
    text,
)

R = TypeVar("R")

# About how many bytes of events are read at a time for a client.
MAX_BYTES = 1 << 16

_NODE_COLUMNS = ", ".join(NODES.columns)
_PARENT, _KIND, _PAYLOAD, _HASH = map(NODES.columns.index, ("parent", "kind", "payload", "hash"))
_SELECT_WITH_PARENT = f"""SELECT {", ".join(f"n.{name}" for name in NODES.columns)}, n.number, p.hash
    FROM nodes AS n LEFT JOIN nodes AS p ON p.session = n.session AND p.id = n.parent"""
_HASH_OF = "SELECT hash FROM nodes WHERE session = ? AND id = ?"
_SELECT_SESSION = f"{SESSIONS.select} WHERE id = ?"

# A parent has a smaller seq than its child, so one pass from the newest row to the oldest finds the whole path. It also ends
# on a damaged tree, where following parents one by one might not.
_UPWARDS = f"""SELECT {_NODE_COLUMNS} FROM nodes
    WHERE session = ? AND seq <= (SELECT seq FROM nodes WHERE session = ? AND id = ?) ORDER BY seq DESC"""


def session_row(connection: SqlConnection, session: str) -> SessionRow:
    """Return a session by its whole id.

    :raises StoreError: ``not_found``.
    """
    found = execute(connection, _SELECT_SESSION, (session,)).fetchone()
    if found is None:
        message = f"there is no session {session!r}"
        raise StoreError(message, code="not_found", next_step="moryflow session list")
    return SESSIONS.load(found)


def find_session(connection: SqlConnection, name: str) -> SessionRow:
    """Return a session by its id or by a unique beginning of it.

    :raises StoreError: ``not_found`` or ``ambiguous``.
    """
    condition = "WHERE id >= ? AND id < ? ORDER BY id = ? DESC, id LIMIT 4"
    values = (name, f"{name}\U0010ffff", name)
    rows = execute(connection, f"{SESSIONS.select} {condition}", values).fetchall() if name else []
    found = [SESSIONS.load(row) for row in rows]
    if len(found) > 1 and found[0].id != name:
        message = f"{name!r} is the beginning of several sessions: {', '.join(row.id for row in found)}"
        raise StoreError(message, code="ambiguous", next_step="give more of the id")
    return found[0] if found else session_row(connection, name)


def list_sessions(
    connection: SqlConnection, limit: int, *, vault: str | None, purpose: str | None, parent: str | None
) -> list[SessionRow]:
    wanted = {"vault": vault, "purpose": purpose, "parent": parent}
    return query(connection, SESSIONS, wanted, f"ORDER BY used DESC LIMIT {int(limit)}")


def descendants(connection: SqlConnection, session: str) -> list[str]:
    """Return the ids of a session and of the child sessions below it, each after its parent, in the order they began."""
    found, waiting = list[str](), [session_row(connection, session).id]
    while waiting:
        found.append(waiting.pop())
        rows = execute(connection, "SELECT id FROM sessions WHERE parent = ? ORDER BY number DESC", (found[-1],))
        waiting += [row[0] for row in rows]
    return found


def path_of(connection: SqlConnection, session: str, node: str | None) -> list[Node]:
    """Return the nodes from the root to `node`, root first.

    :raises DamagedRow: a node does not match its hash.
    """
    path = list(_upwards(connection, session, node))
    path.reverse()
    return path


def live_path_of(connection: SqlConnection, session: str, node: str | None) -> list[Node]:
    """Return the nodes of :func:`path_of` that the view needs: without those that a compaction covers.

    :raises DamagedRow: a node that was read does not match its hash, or a node is missing.
    """
    with closing(_upwards(connection, session, node)) as upwards:
        return nodes_for_view(upwards)


def _upwards(connection: SqlConnection, session: str, node: str | None) -> Generator[Node]:
    """Yield the nodes from `node` to the root; nodes of other branches are skipped.

    Each node is checked against its hash. This needs the parent's hash, so a node is yielded after its parent was read.
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
    if above is not None and child is not None:  # the parent exists, but with a larger seq than its child
        raise _damaged_node(child)
    raise DamagedRow(f"node {node} of session {session} is missing", session)


def node_of(row: Sequence[Any]) -> Node:
    """Return the node of a row whose columns are in the order of ``NODES.columns``."""
    id, session, seq, parent, kind, payload, tokens, hash, created = row
    return Node(id, session, seq, parent, kind, decode_stored(payload), tokens, hash, created)


def nodes_of(connection: SqlConnection, session: str) -> Iterator[Node]:
    """Yield all nodes of a session in the order of `seq`.

    :raises DamagedRow: a node does not match its hash.
    """
    hashes: dict[str | None, str] = {None: ""}
    for row in execute(connection, f"{NODES.select} WHERE session = ? ORDER BY seq", (session,)):
        above = hashes.get(row[_PARENT])
        hashes[row[0]] = row[_HASH]
        yield _verified(row, above or "")


def nodes_where(
    connection: SqlConnection, condition: str, values: Sequence[Any] = (), *, skip_damaged: bool = False
) -> Iterator[tuple[int, Node]]:
    """Yield the row number and the node of each row that satisfies an SQL `condition` on the table ``n``.

    :param skip_damaged: leave out nodes that do not match their hash.
    :raises DamagedRow: a node does not match its hash.
    """
    for *row, number, above in execute(connection, f"{_SELECT_WITH_PARENT} {condition}", values):
        try:
            yield number, _verified(row, above or "")
        except DamagedRow:
            if not skip_damaged:
                raise


def _verified(row: Sequence[Any], above: str) -> Node:
    """Return the node of a row.

    :param above: the hash of its parent, empty for a root.
    """
    if node_hash(above, text(row[_KIND]), text(row[_PAYLOAD])) != row[_HASH]:
        raise _damaged_node(row)
    return node_of(row)


def _damaged_node(row: Sequence[Any]) -> DamagedRow:
    return DamagedRow(f"node {row[0]} (no. {row[2]}) of session {row[1]} is not what was stored", row[1], row[_PARENT])


def labels_of(connection: SqlConnection, session: str, *, skip_damaged: bool = False) -> dict[str, str]:
    """Return label → node id for all branches, without labels of missing nodes, which an import may contain."""
    condition = "WHERE n.session = ? AND n.kind = 'marker' ORDER BY n.seq"
    markers = nodes_where(connection, condition, (session,), skip_damaged=skip_damaged)
    named = labels(node for _, node in markers)
    there = "SELECT 1 FROM nodes WHERE session = ? AND id = ?"
    return {label: node for label, node in named.items() if execute(connection, there, (session, node)).fetchone()}


def calls_of(
    connection: SqlConnection, session: str | None, since: str | None, states: Collection[str] | None
) -> list[CallRow]:
    if session is not None:
        condition, values = "session = ?", [session]
    else:
        condition, values = "state IN ({})".format(", ".join(f"'{state}'" for state in CALL_STATES)), []
    if states is not None:
        condition += " AND state IN ({})".format(", ".join("?" * len(states)) or "NULL")
        values += list(states)
    if since is not None:
        condition, values = f"{condition} AND created >= ?", [*values, since]
    rows = execute(connection, f"{CALLS.select} WHERE {condition} ORDER BY number", values)
    return [call_of(row) for row in rows]


def call_of(row: Sequence[Any]) -> CallRow:
    """Return the call of a row whose columns are in the order of ``CALLS.columns``.

    :raises DamagedRow: the arguments do not match the hash of those that were judged.
    """
    call = CALLS.load(row)
    if not has_its_arguments(call.args, call.hash):
        message = f"the arguments of call {call.id} of session {call.session} are not what was stored"
        raise DamagedRow(message, call.session)
    return call


def approvals_of(connection: SqlConnection, *, state: str | None = None, **wanted: str | None) -> list[ApprovalRow]:
    """Return questions, oldest first. An imported question was never answered here, so it counts as expired."""
    rows = _imported_and_rows(connection, APPROVALS, state, wanted, "ORDER BY +number")
    return [row._replace(state="expired", reply=None, by=None) if imported else row for imported, row in rows]


def approval_of(connection: SqlConnection, approval: str) -> ApprovalRow:
    """Return a question by its id; a question asked here is preferred to an imported copy.

    :raises StoreError: ``not_found``.
    """
    found = approvals_of(connection, id=approval)
    if not found:
        message = f"there is no question {approval!r}"
        raise StoreError(message, code="not_found", next_step="moryflow approval list")
    return min(found, key=lambda row: row.state == "expired")


def artifacts_of(
    connection: SqlConnection, *, state: str | None = None, limit: int = 100, **wanted: str | None
) -> list[Artifact]:
    """Return records of outputs, newest first. An imported record names no file of ours, so it counts as expired."""
    rows = _imported_and_rows(connection, ARTIFACTS, state, wanted, f"ORDER BY number DESC LIMIT {int(limit)}")
    return [row.replace(state="expired") if imported else row for imported, row in rows]


def _imported_and_rows(
    connection: SqlConnection, table: TableSpec[R], state: str | None, wanted: dict[str, str | None], tail: str
) -> list[tuple[bool, R]]:
    """Return ``(imported, row)``, so that callers can show the answers and files of an import without trusting them."""
    asked = {name: value for name, value in wanted.items() if value is not None}
    conditions = [f"{name} = ?" for name in asked]
    if state == "pending":  # as a literal, so that SQLite can use the partial index of open questions
        conditions.append("state = 'pending' AND imported = 0")
    elif state is not None:
        conditions.append("CASE WHEN imported = 1 THEN 'expired' ELSE state END = ?")
        asked["state"] = state
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    statement = f"SELECT imported, {', '.join(table.columns)} FROM {table.name}{where} {tail}"
    rows = execute(connection, statement, list(asked.values()))
    return [(bool(row[0]), table.load(row[1:])) for row in rows]


def query(connection: SqlConnection, table: TableSpec[Any], wanted: dict[str, Any], tail: str = "") -> list[Any]:
    """Return the rows of `table` whose columns have the `wanted` values; a value of ``None`` is not compared."""
    asked = {name: value for name, value in wanted.items() if value is not None}
    condition = " AND ".join(f"{name} = ?" for name in asked)
    where = f" WHERE {condition}" if condition else ""
    rows = execute(connection, f"{table.select}{where} {tail}", list(asked.values()))
    return [table.load(row) for row in rows]


def hook_calls_of(
    connection: SqlConnection, session: str | None, turn: str | None, plugin: str | None, newest: int | None
) -> list[HookCallRow]:
    """Return ledger rows of a session or of all, oldest first; with `newest`, only that many, newest first."""
    # The pattern may find too many shared rows; the names in them are compared below.
    named = (plugin and f"%{plugin}%",)
    asked = {"session = ?": (session,), "turn = ?": (turn,), "(plugin = ? OR hook = '' AND delta LIKE ?)": (plugin, *named)}
    asked = {condition: values for condition, values in asked.items() if values[0] is not None}
    where = f" WHERE {' AND '.join(asked)}" if asked else ""
    order = "" if newest is None else " DESC"
    statement = f"{HOOK_CALLS.select}{where} ORDER BY number{order}"
    stored = execute(connection, statement, list(chain.from_iterable(asked.values())))
    rows = (row for line in stored for row in each_hook_call(line)[:: -1 if order else 1] if plugin in (None, row.plugin))
    return list(islice(rows, newest))


def each_hook_call(row: Sequence[Any]) -> list[HookCallRow]:
    """Return the hook calls that a row of the database holds.

    :raises DamagedRow: the row does not have the form of a stored one.
    """
    try:
        return HOOK_CALLS.load(row).each()
    except (TypeError, ValueError) as error:
        raise DamagedRow(f"a stored row of hook calls is invalid ({error})", str(row[0])) from error


def events_of(
    connection: SqlConnection, table: str, session: str | None, after: int, limit: int, types: Collection[str] = ()
) -> list[Event]:
    """Return stored events with a larger `seq` than `after`; with a limit, also no more than some :data:`MAX_BYTES`.

    :param table: the table or view of the events that no later commit can precede.
    """
    where = "seq > ?" if session is None else "seq > ? AND session = ?"
    where += f" AND type IN ({', '.join('?' * len(types))})" if types else ""
    values = (after, *(() if session is None else (session,)), *types)
    statement = f"SELECT seq, session, type, ts, body FROM {table} WHERE {where} ORDER BY seq"
    statement += f" LIMIT {int(limit)}" if limit >= 0 else ""
    found, size = list[Event](), 0
    with closing(execute(connection, statement, values)) as rows:
        for row in rows:
            found.append(event_of(row))
            size += len(row[4])
            if limit >= 0 and size >= MAX_BYTES:
                break
    return found


def event_of(row: Sequence[Any]) -> Event:
    """Return the event of a row.

    :raises DamagedRow: the row does not have the form of a stored one.
    """
    seq, session, kind, ts, body = row
    try:
        return Event(type=text(kind), session=text(session), ts=text(ts), seq=seq, **decode_stored(body))
    except (ValueError, TypeError) as error:
        raise DamagedRow(f"event {seq} is not what was stored ({error})", str(session)) from error
