"""Read what is readable of a damaged database: table by table, stepping over the rows that are not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .encoding import node_hash, now
from .errors import Damaged
from .opening import connect
from .reading import event_of
from .records import SessionRow
from .tables import APPROVALS, ARTIFACTS, CALLS, HOOK_CALLS, NODES, RUNS, SESSIONS, Table, decode_stored
from .writing import insert_session

_TABLES = ("sessions", "nodes", "runs", "calls", "hook_calls", "events", "artifacts", "approvals", "plugin_state", "purges")
_SPECS: tuple[Table[Any], ...] = (SESSIONS, NODES, RUNS, CALLS, HOOK_CALLS, ARTIFACTS, APPROVALS)
_ROWS = {table.name: table for table in _SPECS}
_FARTHEST = 1 << 40
_BAD_ROW = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError, OverflowError)
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Saved:
    """How much was read."""

    sessions: int
    nodes: int

    @property
    def sentence(self) -> str:
        """What a person should know."""
        if not self.nodes and not self.sessions:
            return "nothing in it could be read."
        return f"saved from it: {self.sessions} sessions with {self.nodes} nodes."


def salvage(path: Path, target: sqlite3.Connection) -> Saved:
    """Copy what can be read of the database at `path` into the empty database `target`, and make it fit together."""
    target.execute("BEGIN IMMEDIATE")
    with closing(connect(path, writes=False)) as source:
        # Reads on although the file is shorter than it says, or lists tables that make no sense.
        source.execute("PRAGMA writable_schema = ON")
        for table in _TABLES:
            _copy(source, target, table)
    _give_back_sessions(target)
    _repair_sessions(target)
    target.execute("COMMIT")
    counts = (target.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("sessions", "nodes"))
    return Saved(*counts)


def unsound_row(connection: sqlite3.Connection) -> str:
    """Return a sentence about the first row that is not what was stored; empty when all are.

    :raises sqlite3.DatabaseError: the database cannot be read.
    """
    for table in _TABLES:
        columns = _columns(connection, table)
        for row in connection.execute(f"SELECT {', '.join(columns)} FROM {table}"):
            if not _is_genuine(connection, table, dict(zip(columns, row, strict=True))):
                return f"row {row[0]} of {table} is not what was stored"
    return ""


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def _copy(source: sqlite3.Connection, target: sqlite3.Connection, table: str) -> None:
    columns = _columns(target, table)
    marks = ", ".join("?" * len(columns))
    statement = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({marks})"
    for row in readable_rows(source, table, columns):
        if not _is_genuine(target, table, dict(zip(columns, row, strict=True))):
            continue
        try:
            target.execute(statement, row)
        except _BAD_ROW:
            continue


def readable_rows(source: sqlite3.Connection, table: str, columns: list[str]) -> Iterator[Row]:
    """Yield the rows of a table by their key; where a page is damaged, read up to it from both sides.

    The first of `columns` is the key. Every step goes forward, for damaged pages may lead in circles.
    """
    position = 0
    while position < _FARTHEST:
        for row in _until_damage(source, table, columns, position, _FARTHEST):
            if row is None:
                break
            position = row[0]
            yield row
        else:
            return
        beyond = _next_readable(source, table, columns[0], position + 1)
        if beyond is None:
            return
        behind = _until_damage(source, table, columns, position, beyond, backwards=True)
        # In order, for a node is checked against its parent, which comes first.
        yield from reversed([row for row in behind if row is not None])
        position = beyond - 1


def _until_damage(
    source: sqlite3.Connection, table: str, columns: list[str], low: int, high: int, *, backwards: bool = False
) -> Iterator[Row | None]:
    """Yield the rows between `low` and `high`, then ``None`` if damage ended the reading."""
    key = columns[0]
    statement = f"""SELECT {", ".join(columns)} FROM {table} NOT INDEXED
        WHERE {key} > {low} AND {key} < {high} ORDER BY {key} {"DESC" if backwards else "ASC"}"""
    try:
        for row in source.execute(statement):
            if not isinstance(row[0], int) or not low < row[0] < high:
                yield None
                return
            low, high = (low, row[0]) if backwards else (row[0], high)
            yield row
    except (sqlite3.DatabaseError, ValueError):
        yield None


def _next_readable(source: sqlite3.Connection, table: str, key: str, start: int) -> int | None:
    """Return the next key after the damage at `start`, searched in growing steps."""
    statement = f"SELECT {key} FROM {table} NOT INDEXED WHERE {key} > ? ORDER BY {key} LIMIT 1"
    step = 0
    while start + step < _FARTHEST:
        try:
            found = source.execute(statement, (start + step,)).fetchone()
        except (sqlite3.DatabaseError, ValueError):
            found = (0,)
        if found is None:
            return None
        if isinstance(found[0], int) and found[0] > start + step:
            return found[0]
        step = step * 2 or 1
    return None


def _is_genuine(connection: sqlite3.Connection, table: str, row: dict[str, Any]) -> bool:
    """Tell whether a row has the form of what was stored; a node, also whether its hash fits below the saved parent."""
    try:
        match table:
            case "nodes":
                return not _ROWS[table].problem(_fields(table, row)) and _hash_fits(connection, row)
            case "events":
                event_of([row[name] for name in ("seq", "session", "type", "ts", "body")])
            case "plugin_state":
                decode_stored(row["value"])
            case "purges":
                return row["finished"] is not None  # none is ever left open, and to store one again would purge
            case _ if table in _ROWS:
                return not _ROWS[table].problem(_fields(table, row))
    except (Damaged, ValueError):
        return False
    return True


def _fields(table: str, row: dict[str, Any]) -> dict[str, Any]:
    return _ROWS[table].fields([row[name] for name in _ROWS[table].columns])


def _hash_fits(connection: sqlite3.Connection, node: dict[str, Any]) -> bool:
    if node["parent"] is None:
        return node_hash("", node["kind"], node["payload"]) == node["hash"]
    statement = "SELECT hash FROM nodes WHERE session = ? AND id = ?"
    found = connection.execute(statement, (node["session"], node["parent"])).fetchone()
    return found is None or node_hash(found[0], node["kind"], node["payload"]) == node["hash"]


def _give_back_sessions(target: sqlite3.Connection) -> None:
    """Make a session for nodes whose own could not be read."""
    lost = "SELECT DISTINCT session FROM nodes WHERE session NOT IN (SELECT id FROM sessions)"
    for (session,) in target.execute(lost).fetchall():
        moment = now()
        row = SessionRow(session, "(recovered)", "", "", "", "agent", None, "main", None, moment, moment)
        insert_session(target, row)
        target.execute("UPDATE sessions SET active = '' WHERE id = ?", (session,))


def _repair_sessions(target: sqlite3.Connection) -> None:
    """Let no holder of before go on, and let each session be active at a node whose whole path was saved."""
    target.execute("UPDATE sessions SET epoch = epoch + 1")
    for session, active in target.execute("SELECT id, active FROM sessions WHERE active IS NOT NULL").fetchall():
        whole = _nodes_with_whole_path(target, session)
        if active not in whole:
            target.execute("UPDATE sessions SET active = ? WHERE id = ?", (next(reversed(whole), None), session))


def _nodes_with_whole_path(target: sqlite3.Connection, session: str) -> dict[str, None]:
    whole: dict[str, None] = {}
    for node, parent in target.execute("SELECT id, parent FROM nodes WHERE session = ? ORDER BY seq", (session,)):
        if parent is None or parent in whole:
            whole[node] = None
    return whole
