"""The statements that change sessions. Each function runs inside the transaction that its caller opened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from moryflow_sdk import Event

from moryflow.base.events import now

from .protocol import StaleEpoch, invalid
from .queries import approval_of, labels_of, live_path_of, path_of, session_row
from .records import CALL_STATES, KINDS, ApprovalRow, Commit, Committed, NewNode, Node, SessionRow
from .tables import (
    APPROVALS,
    ARTIFACTS,
    CALLS,
    HOOK_CALLS,
    NODES,
    RUNS,
    SESSIONS,
    SqlConnection,
    TableSpec,
    decode,
    decode_stored,
    encode,
    estimate_tokens,
    execute,
    node_hash,
    random_id,
)

_SETTABLE = frozenset({"title", "mode", "agent", "model", "vault", "grants"})
# When a session was used last, as a number; two that begin at once may share one.
USED = "(SELECT coalesce(max(used), 0) + 1 FROM sessions)"


class Written(NamedTuple):
    """The result of a transaction: the commit's values, the new session row, and the live path if it did not just grow."""

    committed: Committed
    session: SessionRow
    path: list[Node] | None = None


def insert_session(connection: SqlConnection, row: SessionRow) -> None:
    """Add a session and mark it as the last used one."""
    statement = SESSIONS.insert.replace("epoch)", "epoch, used)").replace("?)", f"?, {USED})")
    execute(connection, statement, SESSIONS.values(row))


def switch(connection: SqlConnection, session: str, epoch: int, node: str | None) -> Written:
    """Make `node` the active one; ``None`` is the place before the first node."""
    require_epoch(connection, session, epoch)
    require_node(connection, session, node)
    execute(connection, "UPDATE sessions SET active = ?, updated = ? WHERE id = ?", (node, now(), session))
    path = live_path_of(connection, session, node)
    return Written(Committed([], []), session_row(connection, session), path)


def require_epoch(connection: SqlConnection, session: str, epoch: int) -> SessionRow:
    """Return the session if `epoch` is its newest.

    :raises StaleEpoch: another holder has taken the session.
    """
    row = session_row(connection, session)
    if row.epoch != epoch:
        message = f"session {session} was taken over by another process while this one was stopped; nothing was stored"
        raise StaleEpoch(message, next_step=f"moryflow run --resume {session}")
    return row


def set_plugin_state(connection: SqlConnection, session: str, plugin: str, scope: str, value: Any) -> None:
    """Store a plugin's state; ``None`` removes it."""
    if value is None:
        statement = "DELETE FROM plugin_state WHERE session = ? AND plugin = ? AND scope = ?"
        execute(connection, statement, (session, plugin, scope))
        return
    statement = """INSERT INTO plugin_state (session, plugin, scope, value) VALUES (?, ?, ?, ?)
        ON CONFLICT (session, plugin, scope) DO UPDATE SET value = excluded.value"""
    execute(connection, statement, (session, plugin, scope, encode(value)))


def append(connection: SqlConnection, held: SessionRow, new: Sequence[NewNode]) -> list[Node]:
    """Append `new` below the active node as the database, not the caller's memory, has it."""
    if not new:
        return []
    above = require_node(connection, held.id, held.active)
    seq = execute(connection, "SELECT coalesce(max(seq), 0) FROM nodes WHERE session = ?", (held.id,)).fetchone()[0]
    nodes = list[Node]()
    for node, payload in made_nodes(held, above, seq, new):
        values = (node.id, held.id, node.seq, node.parent, node.kind, payload, node.tokens, node.hash, node.created)
        execute(connection, NODES.insert, values)
        nodes.append(node)
    return nodes


def made_nodes(held: SessionRow, above: str, seq: int, new: Iterable[NewNode]) -> Iterator[tuple[Node, str]]:
    """Yield each of `new` as the node that follows the active one, with its payload as it is stored.

    :param above: the hash of the active node; `seq`: the highest one of the session.
    """
    parent, created = held.active, now()
    for draft in new:
        check_draft(draft)
        seq, payload = seq + 1, encode(draft.payload)
        tokens = estimate_tokens(draft.payload) if draft.tokens is None else draft.tokens
        above = node_hash(above, draft.kind, payload)
        node = Node(draft.id or random_id(), held.id, seq, parent, draft.kind, decode(payload), tokens, above, created)
        yield node, payload
        parent = node.id


def session_changes(commit: Commit) -> dict[str, Any]:
    """Return the columns of the session's own row that a commit sets."""
    unknown = sorted(commit.session.keys() - _SETTABLE)
    if unknown:
        raise invalid(f"a session has no field {unknown[0]!r} to set; there are {', '.join(sorted(_SETTABLE))}")
    return {key: encode(list(value)) if key == "grants" else value for key, value in commit.session.items()}


def records_of(session: str, commit: Commit) -> dict[TableSpec[Any], Sequence[Any]]:
    """Return the rows that a commit stores beside its nodes, by table."""
    for call in commit.calls:
        if call.state not in CALL_STATES:
            raise invalid(f"there is no call state {call.state!r}; the states are {', '.join(CALL_STATES)}")
    records: dict[TableSpec[Any], Sequence[Any]] = {
        CALLS: list({(call.node, call.id): call for call in commit.calls}.values()),
        APPROVALS: commit.approvals, RUNS: commit.runs, ARTIFACTS: commit.artifacts, HOOK_CALLS: commit.hook_calls,
    }  # fmt: skip
    return {table: [checked_row(session, row) for row in rows] for table, rows in records.items() if rows}


def check_draft(draft: NewNode) -> None:
    if draft.kind not in KINDS:
        raise invalid(f"there is no node kind {draft.kind!r}; the kinds are {', '.join(sorted(KINDS))}")
    if not (draft.id.isascii() and draft.id.isprintable()):
        raise invalid(f"a node id must be printable ASCII, not {draft.id!r}")


def require_node(connection: SqlConnection, session: str, node: str | None) -> str:
    """Return the hash of a node that must exist, or ``""`` for the place before the first node."""
    if node is None:
        return ""
    found = execute(connection, "SELECT hash FROM nodes WHERE session = ? AND id = ?", (session, node)).fetchone()
    if found is None:
        raise invalid(f"session {session} has no node {node!r}", next_step=f"moryflow session tree {session}")
    return found[0]


def forget_held_back(connection: SqlConnection, session: str, names: set[str]) -> None:
    """Drop values of an import that had no effect, now that the user has set the same fields."""
    if not names:
        return
    found = execute(connection, "SELECT held_back FROM sessions WHERE id = ?", (session,)).fetchone()[0]
    if found is None:
        return
    left = {key: value for key, value in decode_stored(found).items() if key not in names}
    execute(connection, "UPDATE sessions SET held_back = ? WHERE id = ?", (encode(left) if left else None, session))


def checked_row(session: str, row: Any) -> Any:
    if row.session != session:
        raise invalid(f"a record of session {row.session} cannot be stored with session {session}")
    return row


def event_body(event: Event) -> Mapping[str, Any]:
    """Return the content of an event without its type, time and session; fields that are ``None`` are left out."""
    place = {"parent": event.parent, "agent": event.agent, "turn": event.turn, "step": event.step}
    known = {key: value for key, value in place.items() if value is not None}
    return {**known, "data": event.data, "v": event.v}


def answer(connection: SqlConnection, approval: str, reply: str, message: str, by: str) -> ApprovalRow:
    """Answer a question if it is still open; return its row."""
    row = approval_of(connection, approval)
    if row.state != "pending":
        return row
    statement = """UPDATE approvals SET state = 'replied', reply = ?, message = ?, by = ?, replied_at = ?
        WHERE session = ? AND id = ? AND state = 'pending'"""
    execute(connection, statement, (reply, message, by, now(), row.session, row.id))
    return approval_of(connection, approval)


def update_artifact(connection: SqlConnection, artifact: str, changes: Mapping[str, Any]) -> None:
    """Set fields of an output's record."""
    unknown = sorted(changes.keys() - {"state", "expires", "path"})
    if unknown:
        raise invalid(f"the field {unknown[0]!r} of an artifact cannot be changed")
    columns = ", ".join(f"{name} = ?" for name in changes)
    execute(connection, f"UPDATE artifacts SET {columns} WHERE id = ? AND imported = 0", (*changes.values(), artifact))


def fork(connection: SqlConnection, session: str, node: str | None, title: str) -> SessionRow:
    """Copy the path to `node` into a new session; nodes keep their ids, and the user's permissions are not copied.

    The copy keeps the path's calls, so that it can be resumed, and the plugins' session state; it has no grants, no open
    questions and mode ``agent``. Sub-agents stay with the original; a copy of a sub-agent's session is a main session.
    """
    source = session_row(connection, session)
    require_node(connection, session, node)
    path = path_of(connection, session, node or source.active)
    active, moment = path[-1].id if path else None, now()
    origin = {"session": source.id, "node": active}
    row = SessionRow(
        random_id(), title or source.title, source.vault, source.agent, source.model, "agent", None, "main", active,
        moment, moment, origin,
    )  # fmt: skip
    insert_session(connection, row)
    _copy_nodes(connection, source.id, row.id, path)
    row = _with_labels(connection, source.id, row, path)
    statement = """INSERT INTO plugin_state (session, plugin, scope, value)
        SELECT ?, plugin, scope, value FROM plugin_state WHERE session = ? AND scope = 'session' ORDER BY number"""
    execute(connection, statement, (row.id, source.id))
    return row


def _copy_nodes(connection: SqlConnection, source: str, copy: str, path: Iterable[Node]) -> None:
    ids = [(node.id,) for node in path]
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS copied (id TEXT PRIMARY KEY)")
    connection.execute("DELETE FROM copied")
    connection.executemany("INSERT INTO copied VALUES (?)", ids)
    for table, key, order in ((NODES, "id", "seq"), (CALLS, "node", "number")):
        columns = ", ".join(name for name in table.columns if name != "session")
        statement = f"""INSERT INTO {table.name} (session, {columns}) SELECT ?, {columns} FROM {table.name}
            WHERE session = ? AND {key} IN (SELECT id FROM copied) ORDER BY {order}"""
        execute(connection, statement, (copy, source))


def _with_labels(connection: SqlConnection, source: str, copy: SessionRow, path: Sequence[Node]) -> SessionRow:
    """Give the copied nodes the labels they have in the original, even if their markers were not copied; return the session."""
    copied = {node.id for node in path}
    wanted = {label: node for label, node in labels_of(connection, source, skip_damaged=True).items() if node in copied}
    there = labels_of(connection, copy.id)
    markers = [{"label": label, "node": node} for label, node in wanted.items() if there.get(label) != node]
    markers += [{"label": label, "node": None} for label in there.keys() - wanted.keys()]
    if not markers:
        return copy
    active = append(connection, copy, [NewNode("marker", marker) for marker in markers])[-1].id
    execute(connection, "UPDATE sessions SET active = ? WHERE id = ?", (active, copy.id))
    return copy._replace(active=active)


def purge(connection: SqlConnection, sessions: Iterable[str]) -> None:
    """Remove whole sessions; a row of ``purges`` records their ids and the time.

    Inserting that row is what removes a session: a trigger deletes all of its rows, so no program can delete only a part.
    """
    for session in sessions:
        execute(connection, "INSERT INTO purges (session, started) VALUES (?, ?)", (session, now()))
