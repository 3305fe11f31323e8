"""A session and those it started as JSON Lines: nothing left out, and the same bytes again after an import.

Each session is a block: its first line is the session, the last one counts the lines; between them stand all nodes of all
branches and the records beside them. The blocks of child sessions follow, each behind its parent; the last line of the first
block says how many. `epoch` and the event numbers stay at home: they belong to the database, not to the session.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from moryflow.store.json_text import encode

from .queries import call_of, descendants, nodes_of, session_row
from .tables import APPROVALS, ARTIFACTS, CALLS, HOOK_CALLS, NODES, RUNS, SESSIONS, Table, decode_stored, execute, text

FORMAT = 1
TABLES: dict[str, Table[Any]] = {
    "node": NODES, "run": RUNS, "call": CALLS, "approval": APPROVALS, "hook_call": HOOK_CALLS, "artifact": ARTIFACTS,
}  # fmt: skip
_BREAKS = str.maketrans({"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"})


def export_lines(connection: sqlite3.Connection, session: str) -> Iterator[str]:
    """Yield the lines of a session and of those below it, without their newlines."""
    root, *below = descendants(connection, session)
    yield from _block(connection, root, {"sessions": len(below)} if below else {})
    for child in below:
        yield from _block(connection, child, {})


def _block(connection: sqlite3.Connection, session: str, about: Mapping[str, int]) -> Iterator[str]:
    count = 0
    for value in _values(connection, session):
        count += 1
        # Some readers end a line at these too.
        yield encode(value).translate(_BREAKS)
    yield encode({"type": "end", "lines": count + 1, **about})


def _values(connection: sqlite3.Connection, session: str) -> Iterator[dict[str, Any]]:
    yield _header(connection, session)
    for node in nodes_of(connection, session):
        yield {"type": "node", **{name: getattr(node, name) for name in NODES.columns if name != "session"}}
    for kind, table in TABLES.items():
        if table is NODES:
            continue
        for row in execute(connection, f"{table.select} WHERE session = ? ORDER BY number", (session,)):
            fields = call_of(row)._asdict() if table is CALLS else table.fields(row)
            del fields["session"]
            yield {"type": kind, **fields}
    for row in execute(connection, "SELECT type, ts, body FROM events WHERE session = ? ORDER BY seq", (session,)):
        yield {"type": "event", "name": text(row[0]), "ts": text(row[1]), "body": decode_stored(row[2])}
    statement = "SELECT plugin, scope, value FROM plugin_state WHERE session = ? ORDER BY number"
    for row in execute(connection, statement, (session,)):
        yield {"type": "plugin_state", "plugin": text(row[0]), "scope": text(row[1]), "value": decode_stored(row[2])}


def _header(connection: sqlite3.Connection, session: str) -> dict[str, Any]:
    row = session_row(connection, session)
    fields = {name: getattr(row, name) for name in SESSIONS.columns if name != "epoch"}
    held_back = execute(connection, "SELECT held_back FROM sessions WHERE id = ?", (session,)).fetchone()[0]
    return {"type": "session", "format": FORMAT, **fields, **(decode_stored(held_back) if held_back else {})}
