"""The statements of a commit, a fork and a purge. Each function runs inside the transaction that its caller opened."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from moryflow_sdk import Event

from moryflow.base.events import now
from moryflow.store.protocol import Outdated, StaleEpoch, invalid
from moryflow.store.records import CALL_STATES, KINDS, ApprovalRow, Commit, Committed, NewNode, Node, SessionRow
from moryflow.store.sqlite.schema import decode, encode, estimate_tokens, node_hash, random_id

from .queries import approval_of, labels_of, live_path_of, path_of, session_row
from .schema import APPROVALS, ARTIFACTS, CALLS, HOOK_CALLS, NODES, RUNS, SESSIONS, TableSpec, decode_stored, execute, write_all

_SETTABLE = frozenset({"title", "mode", "agent", "model", "vault", "grants"})
_USED = "(SELECT coalesce(max(used), 0) + 1 FROM sessions)"


class Written(NamedTuple):
    """The result of a transaction: the commit's values, the new session row, and the live path if it did not just grow."""

    committed: Committed
    session: SessionRow
    path: list[Node] | None = None


def insert_session(connection: sqlite3.Connection, row: SessionRow) -> None:
    """Add a session and mark it as the last used one."""
    statement = SESSIONS.insert.replace("epoch)", "epoch, used)").replace("?)", f"?, {_USED})")
    execute(connection, statement, SESSIONS.values(row))


def begin_hold(connection: sqlite3.Connection, session: str) -> SessionRow:
    """Make the caller the session's newest holder and return the session with its new epoch."""
    execute(connection, f"UPDATE sessions SET epoch = epoch + 1, used = {_USED} WHERE id = ?", (session,))
    return session_row(connection, session)


def apply(connection: sqlite3.Connection, session: str, epoch: int, commit: Commit, known: str | None) -> Written:
    """Store `commit` for the holder of `epoch`.

    :param known: the active node as the holder knows it. If the database has another one, the result has the whole path: a
        commit whose sync failed may have reached the disk after all.
    :raises StaleEpoch: another holder took the session meanwhile.
    :raises Outdated: the active node is not the one that the commit expects.
    """
    held = require_epoch(connection, session, epoch)
    if commit.after is not None and held.active != commit.after:
        raise Outdated("another node is active now; nothing was stored", where=f"session {session}")
    nodes = append(connection, held, commit.nodes)
    last = nodes[-1].id if nodes else held.active
    active = last if commit.active is None else commit.active or None
    if active != last:
        _require_node(connection, session, active)
    row = _update_session(connection, held, commit, active, prompted=any(node.kind == "user" for node in nodes))
    _write_rows(connection, session, commit)
    events = [_insert_event(connection, session, event) for event in commit.events]
    grew = active == last and held.active == known and not any(node.kind == "compaction" or node.voids for node in nodes)
    path = None if grew else live_path_of(connection, session, active)
    return Written(Committed(nodes, events), row, path)


def switch(connection: sqlite3.Connection, session: str, epoch: int, node: str | None) -> Written:
    """Make `node` the active one; ``None`` is the place before the first node."""
    require_epoch(connection, session, epoch)
    _require_node(connection, session, node)
    execute(connection, "UPDATE sessions SET active = ?, updated = ? WHERE id = ?", (node, now(), session))
    path = live_path_of(connection, session, node)
    return Written(Committed([], []), session_row(connection, session), path)


def require_epoch(connection: sqlite3.Connection, session: str, epoch: int) -> SessionRow:
    """Return the session if `epoch` is its newest.

    :raises StaleEpoch: another holder has taken the session.
    """
    row = session_row(connection, session)
    if row.epoch != epoch:
        message = f"session {session} was taken over by another process while this one was stopped; nothing was stored"
        raise StaleEpoch(message, next_step=f"moryflow run --resume {session}")
    return row


def set_plugin_state(connection: sqlite3.Connection, session: str, plugin: str, scope: str, value: Any) -> None:
    """Store a plugin's state; ``None`` removes it."""
    if value is None:
        statement = "DELETE FROM plugin_state WHERE session = ? AND plugin = ? AND scope = ?"
        execute(connection, statement, (session, plugin, scope))
        return
    statement = """INSERT INTO plugin_state (session, plugin, scope, value) VALUES (?, ?, ?, ?)
        ON CONFLICT (session, plugin, scope) DO UPDATE SET value = excluded.value"""
    execute(connection, statement, (session, plugin, scope, encode(value)))


def append(connection: sqlite3.Connection, held: SessionRow, new: Sequence[NewNode]) -> list[Node]:
    """Append `new` below the active node as the database, not the caller's memory, has it."""
    if not new:
        return []
    parent, above = held.active, _require_node(connection, held.id, held.active)
    seq = execute(connection, "SELECT coalesce(max(seq), 0) FROM nodes WHERE session = ?", (held.id,)).fetchone()[0]
    created, nodes = now(), list[Node]()
    for draft in new:
        _check_draft(draft)
        seq, payload = seq + 1, encode(draft.payload)
        tokens = estimate_tokens(draft.payload) if draft.tokens is None else draft.tokens
        above = node_hash(above, draft.kind, payload)
        node = Node(draft.id or random_id(), held.id, seq, parent, draft.kind, decode(payload), tokens, above, created)
        values = (node.id, held.id, seq, parent, node.kind, payload, tokens, above, created)
        execute(connection, NODES.insert, values)
        parent = node.id
        nodes.append(node)
    return nodes


def _check_draft(draft: NewNode) -> None:
    if draft.kind not in KINDS:
        raise invalid(f"there is no node kind {draft.kind!r}; the kinds are {', '.join(sorted(KINDS))}")
    if not (draft.id.isascii() and draft.id.isprintable()):
        raise invalid(f"a node id must be printable ASCII, not {draft.id!r}")


def _require_node(connection: sqlite3.Connection, session: str, node: str | None) -> str:
    """Return the hash of a node that must exist, or ``""`` for the place before the first node."""
    if node is None:
        return ""
    found = execute(connection, "SELECT hash FROM nodes WHERE session = ? AND id = ?", (session, node)).fetchone()
    if found is None:
        raise invalid(f"session {session} has no node {node!r}", next_step=f"moryflow session tree {session}")
    return found[0]


def _update_session(
    connection: sqlite3.Connection, held: SessionRow, commit: Commit, active: str | None, *, prompted: bool
) -> SessionRow:
    """Update the session's own row and return the new row."""
    unknown = sorted(commit.session.keys() - _SETTABLE)
    if unknown:
        raise invalid(f"a session has no field {unknown[0]!r} to set; there are {', '.join(sorted(_SETTABLE))}")
    changes = {key: encode(list(value)) if key == "grants" else value for key, value in commit.session.items()}
    moment = now()
    changes |= {"active": active, "updated": moment}
    columns = ", ".join(f"{name} = ?" for name in changes) + (f", used = {_USED}" if prompted else "")
    execute(connection, f"UPDATE sessions SET {columns} WHERE id = ?", (*changes.values(), held.id))
    if not commit.session:
        return held._replace(active=active, updated=moment)
    _forget_held_back(connection, held.id, commit.session.keys() & {"mode", "grants"})
    return session_row(connection, held.id)


def _forget_held_back(connection: sqlite3.Connection, session: str, names: set[str]) -> None:
    """Drop values of an import that had no effect, now that the user has set the same fields."""
    if not names:
        return
    found = execute(connection, "SELECT held_back FROM sessions WHERE id = ?", (session,)).fetchone()[0]
    if found is None:
        return
    left = {key: value for key, value in decode_stored(found).items() if key not in names}
    execute(connection, "UPDATE sessions SET held_back = ? WHERE id = ?", (encode(left) if left else None, session))


def _write_rows(connection: sqlite3.Connection, session: str, commit: Commit) -> None:
    for call in commit.calls:
        if call.state not in CALL_STATES:
            raise invalid(f"there is no call state {call.state!r}; the states are {', '.join(CALL_STATES)}")
    _upsert(connection, session, CALLS, list({(call.node, call.id): call for call in commit.calls}.values()))
    _upsert(connection, session, APPROVALS, commit.approvals)
    _upsert(connection, session, RUNS, commit.runs)
    _upsert(connection, session, ARTIFACTS, commit.artifacts)
    if commit.hook_calls:
        write_all(connection, HOOK_CALLS.insert, (HOOK_CALLS.values(_checked_row(session, row)) for row in commit.hook_calls))
    for (plugin, scope), value in commit.plugin_state.items():
        set_plugin_state(connection, session, plugin, scope, value)


def _upsert(connection: sqlite3.Connection, session: str, table: TableSpec[Any], rows: Sequence[Any]) -> None:
    if rows:
        write_all(connection, table.upsert, (table.values(_checked_row(session, row)) for row in rows))


def _checked_row(session: str, row: Any) -> Any:
    if row.session != session:
        raise invalid(f"a record of session {row.session} cannot be stored with session {session}")
    return row


def _insert_event(connection: sqlite3.Connection, session: str, event: Event) -> Event:
    values = (session, event.type, event.ts, encode(event_body(_checked_row(session, event))))
    cursor = execute(connection, "INSERT INTO events (session, type, ts, body) VALUES (?, ?, ?, ?)", values)
    return Event.model_construct(**{**vars(event), "seq": cursor.lastrowid})


def event_body(event: Event) -> Mapping[str, Any]:
    """Return the content of an event without its type, time and session; fields that are ``None`` are left out."""
    place = {"parent": event.parent, "agent": event.agent, "turn": event.turn, "step": event.step}
    known = {key: value for key, value in place.items() if value is not None}
    return {**known, "data": event.data, "v": event.v}


def answer(connection: sqlite3.Connection, approval: str, reply: str, message: str, by: str) -> ApprovalRow:
    """Answer a question if it is still open; return its row."""
    row = approval_of(connection, approval)
    if row.state != "pending":
        return row
    statement = """UPDATE approvals SET state = 'replied', reply = ?, message = ?, by = ?, replied_at = ?
        WHERE session = ? AND id = ?"""
    execute(connection, statement, (reply, message, by, now(), row.session, row.id))
    return approval_of(connection, approval)


def update_artifact(connection: sqlite3.Connection, artifact: str, changes: Mapping[str, Any]) -> None:
    """Set fields of an output's record."""
    unknown = sorted(changes.keys() - {"state", "expires", "path"})
    if unknown:
        raise invalid(f"the field {unknown[0]!r} of an artifact cannot be changed")
    columns = ", ".join(f"{name} = ?" for name in changes)
    execute(connection, f"UPDATE artifacts SET {columns} WHERE id = ? AND imported = 0", (*changes.values(), artifact))


def fork(connection: sqlite3.Connection, session: str, node: str | None, title: str) -> SessionRow:
    """Copy the path to `node` into a new session; nodes keep their ids, and the user's permissions are not copied.

    The copy keeps the path's calls, so that it can be resumed, and the plugins' session state; it has no grants, no open
    questions and mode ``agent``. Sub-agents stay with the original; a copy of a sub-agent's session is a main session.
    """
    source = session_row(connection, session)
    _require_node(connection, session, node)
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


def _copy_nodes(connection: sqlite3.Connection, source: str, copy: str, path: Iterable[Node]) -> None:
    ids = [(node.id,) for node in path]
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS copied (id TEXT PRIMARY KEY)")
    connection.execute("DELETE FROM copied")
    connection.executemany("INSERT INTO copied VALUES (?)", ids)
    for table, key, order in ((NODES, "id", "seq"), (CALLS, "node", "number")):
        columns = ", ".join(name for name in table.columns if name != "session")
        statement = f"""INSERT INTO {table.name} (session, {columns}) SELECT ?, {columns} FROM {table.name}
            WHERE session = ? AND {key} IN (SELECT id FROM copied) ORDER BY {order}"""
        execute(connection, statement, (copy, source))


def _with_labels(connection: sqlite3.Connection, source: str, copy: SessionRow, path: Sequence[Node]) -> SessionRow:
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


def purge(connection: sqlite3.Connection, sessions: Iterable[str]) -> None:
    """Remove whole sessions; a row of ``purges`` records their ids and the time.

    Inserting that row is what removes a session: a trigger deletes all of its rows, so no program can delete only a part.
    """
    from .search import forget, rewind

    for session in sessions:
        forget(connection, session)
        execute(connection, "INSERT INTO purges (session, started) VALUES (?, ?)", (session, now()))
    rewind(connection)
