"""Copy a path into a session of its own, and remove a session as a whole."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from moryflow.store.errors import invalid
from moryflow.store.json_text import now, random_id
from moryflow.store.records import NewNode, Node, SessionRow

from .fulltext import forget, rewind
from .queries import labels_of, path_of, session_row
from .statements import append, insert_session
from .tables import CALLS, NODES, execute


def fork(connection: sqlite3.Connection, session: str, node: str | None, title: str) -> SessionRow:
    """Copy the path to `node` with the same ids; what a person allowed the original does not come along.

    The copy keeps the path's calls, so that it can be resumed, and the plugins' session state; it has no grants, no open
    questions and mode ``agent``. Sub-agents stay with the original; a copy of one's session is a session like any other.
    """
    source = session_row(connection, session)
    path = path_of(connection, session, node or source.active)
    if node is not None and not path:
        raise invalid(f"session {session} has no node {node!r}", next_step=f"moryflow session tree {session}")
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
    """Give the nodes of a copied path the labels they have in the original, wherever it was said; return the session."""
    copied = {node.id for node in path}
    wanted = {label: node for label, node in labels_of(connection, source).items() if node in copied}
    there = labels_of(connection, copy.id)
    markers = [{"label": label, "node": node} for label, node in wanted.items() if there.get(label) != node]
    markers += [{"label": label, "node": None} for label in there.keys() - wanted.keys()]
    if not markers:
        return copy
    active = append(connection, copy, [NewNode("marker", marker) for marker in markers])[-1].id
    execute(connection, "UPDATE sessions SET active = ? WHERE id = ?", (active, copy.id))
    return copy._replace(active=active)


def purge(connection: sqlite3.Connection, sessions: Iterable[str]) -> None:
    """Remove whole sessions; that they were there, and when they went, stays.

    The record of a purge is what removes: a trigger takes all of the session with it, so that nobody can take a part.
    """
    for session in sessions:
        forget(connection, session)
        execute(connection, "INSERT INTO purges (session, started) VALUES (?, ?)", (session, now()))
    rewind(connection)
