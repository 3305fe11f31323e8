"""Compares every stored row with its hash and its form: SQLite does not notice a byte that has changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

from moryflow.store.queries import each_hook_call, event_of
from moryflow.store.tables import (
    APPROVALS,
    ARTIFACTS,
    CALLS,
    HOOK_CALLS,
    NODES,
    RUNS,
    SESSIONS,
    DamagedRow,
    TableSpec,
    decode_stored,
    has_its_arguments,
    node_hash,
    text,
)

from .failures import REPAIR

_TABLES = ("sessions", "nodes", "runs", "calls", "hook_calls", "events", "artifacts", "approvals", "plugin_state")
_SPECS: tuple[TableSpec[Any], ...] = (SESSIONS, NODES, RUNS, CALLS, HOOK_CALLS, ARTIFACTS, APPROVALS)
_ROWS = {table.name: table for table in _SPECS}
_WITHOUT_ACTIVE_NODE = """SELECT id, active FROM sessions WHERE active IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM nodes WHERE session = sessions.id AND id = sessions.active)"""
_MAX_NAMED = 3


class Damage(NamedTuple):
    """What is damaged, as a sentence, and the next command."""

    sentence: str
    next_step: str


def damages(connection: sqlite3.Connection) -> Iterator[Damage]:
    """Yield each damaged page, each damaged row, and each session whose active node is missing.

    :raises sqlite3.DatabaseError: the database cannot be read.
    """
    for (line,) in connection.execute(f"PRAGMA integrity_check({_MAX_NAMED})"):
        if line != "ok":
            yield Damage(f"the file itself is damaged: {line}", REPAIR)
    for table in _TABLES:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        for values in connection.execute(f"SELECT {', '.join(columns)} FROM {table}"):
            row = dict(zip(columns, values, strict=True))
            if not _row_is_valid(table, row) or (table == "nodes" and not _node_is_valid(connection, row)):
                yield _damage_of_row(table, row, values[0])
    for session, active in connection.execute(_WITHOUT_ACTIVE_NODE):
        yield Damage(f"node {active} of session {session} is missing", DamagedRow("", session).next_step)


def _damage_of_row(table: str, row: dict[str, Any], number: Any) -> Damage:
    session = str(text(row["id"] if table == "sessions" else row["session"]))
    names = {"nodes": f"node {row.get('id')} (no. {row.get('seq')})", "calls": f"call {row.get('id')}"}
    named = names.get(table) or f"row {number} of {table}"
    error = DamagedRow(f"{named} of session {session} is not what was stored", session, row.get("parent"))
    return Damage(error.message, error.next_step)


def _row_is_valid(table: str, row: dict[str, Any]) -> bool:
    """Return whether a row has the form in which the store writes it."""
    try:
        match table:
            case "events":
                event_of([row[name] for name in ("seq", "session", "type", "ts", "body")])
            case "plugin_state":
                decode_stored(row["value"])
            case "calls" if not has_its_arguments(text(row["args"]), text(row["hash"])):
                return False
            case "hook_calls":
                each = each_hook_call([row[name] for name in HOOK_CALLS.columns])
                return not any(map(HOOK_CALLS.problem, (_fields(table, row), *(call._asdict() for call in each))))
            case _ if table in _ROWS:
                return not _ROWS[table].problem(_fields(table, row))
    except (DamagedRow, ValueError):
        return False
    return True


def _fields(table: str, row: dict[str, Any]) -> dict[str, Any]:
    return _ROWS[table].fields([row[name] for name in _ROWS[table].columns])


def _node_is_valid(connection: sqlite3.Connection, node: dict[str, Any]) -> bool:
    """Return whether a node matches its hash and comes after its parent."""
    above = ""
    if node["parent"] is not None:
        statement = "SELECT hash, seq FROM nodes WHERE session = ? AND id = ?"
        found = connection.execute(statement, (node["session"], node["parent"])).fetchone()
        if found is None or found[1] >= node["seq"]:
            return False
        above = found[0]
    return node_hash(above, node["kind"], text(node["payload"])) == node["hash"]
