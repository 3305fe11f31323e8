"""Read what is readable of a damaged database: table by table, stepping over the rows that are not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .encoding import decode, node_hash, now
from .opening import connect
from .records import SessionRow
from .writing import insert_session

_TABLES = ("sessions", "nodes", "runs", "calls", "hook_calls", "events", "artifacts", "approvals", "plugin_state", "purges")
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


def _copy(source: sqlite3.Connection, target: sqlite3.Connection, table: str) -> None:
    columns = [row[1] for row in target.execute(f"PRAGMA table_info({table})")]
    marks = ", ".join("?" * len(columns))
    statement = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({marks})"
    for row in readable_rows(source, table, columns):
        if table == "nodes" and not _is_genuine(target, dict(zip(columns, row, strict=True))):
            continue
        try:
            target.execute(statement, row)
        except _BAD_ROW:
            continue


def readable_rows(source: sqlite3.Connection, table: str, columns: list[str]) -> Iterator[Row]:
    """Yield the rows of a table by their key; where a page is damaged, read up to it from both sides.

    The first of `columns` is the key.
    """
    position = 0
    while True:
        for row in _until_damage(source, table, columns, f"> {position}", "ASC"):
            if row is None:
                break
            position = row[0]
            yield row
        else:
            return
        beyond = _next_readable(source, table, columns[0], position + 1)
        if beyond is None:
            return
        for row in _until_damage(source, table, columns, f"BETWEEN {position + 1} AND {beyond - 1}", "DESC"):
            if row is None:
                break
            yield row
        position = beyond - 1


def _until_damage(source: sqlite3.Connection, table: str, columns: list[str], where: str, order: str) -> Iterator[Row | None]:
    """Yield rows, then ``None`` if damage ended the reading."""
    statement = f"SELECT {', '.join(columns)} FROM {table} NOT INDEXED WHERE {columns[0]} {where} ORDER BY {columns[0]} {order}"
    last: int | None = None
    try:
        for row in source.execute(statement):
            if not isinstance(row[0], int) or (last is not None and (row[0] <= last) == (order == "ASC")):
                yield None  # a page that leads back to itself
                return
            last = row[0]
            yield row
    except (sqlite3.DatabaseError, ValueError):
        yield None


def _next_readable(source: sqlite3.Connection, table: str, key: str, start: int) -> int | None:
    """Return the next key after the damage at `start`, searched in growing steps."""
    statement = f"SELECT {key} FROM {table} NOT INDEXED WHERE {key} > ? ORDER BY {key} LIMIT 1"
    step = 0
    while step < _FARTHEST:
        try:
            found = source.execute(statement, (start + step,)).fetchone()
        except sqlite3.DatabaseError:
            step = step * 2 or 1
            continue
        return found[0] if found else None
    return None


def _is_genuine(target: sqlite3.Connection, node: dict[str, Any]) -> bool:
    """Tell whether a node is what was stored: its hash, where its parent was saved, else at least its form."""
    try:
        decode(node["payload"])
        if node["parent"] is None:
            above: str | None = ""
        else:
            statement = "SELECT hash FROM nodes WHERE session = ? AND id = ?"
            found = target.execute(statement, (node["session"], node["parent"])).fetchone()
            above = found[0] if found else None
        return above is None or node_hash(above, node["kind"], node["payload"]) == node["hash"]
    except (ValueError, TypeError, RecursionError, sqlite3.Error):
        return False


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
