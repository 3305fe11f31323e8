"""Replaces a damaged database by a new one with the rows that can still be read; the damaged file is kept beside it.

The new file is complete before it takes the old one's place. A crash in between costs nothing: the next start finds the
damaged file and begins again. The new file is filled table by table, skipping the rows that cannot be read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moryflow.base.events import now
from moryflow.store.records import SessionRow

from .damaged_pages import leaf_rows
from .database import (
    PARTS,
    SALVAGED,
    beside,
    connect,
    make_database,
    newer_error,
    put_in_place,
    remove,
    require_tables,
    store_lock,
)
from .failures import FAILURES, Damaged, code_of
from .queries import each_hook_call, event_of
from .schema import (
    APPROVALS,
    ARTIFACTS,
    CALLS,
    HOOK_CALLS,
    MIGRATIONS,
    NODES,
    RUNS,
    SESSIONS,
    TableSpec,
    decode_stored,
    has_its_arguments,
    node_hash,
    text,
    version_of,
)
from .statements import insert_session

_PAGE = 4096
_LENGTH = slice(28, 32)
_TABLES = ("sessions", "nodes", "runs", "calls", "hook_calls", "events", "artifacts", "approvals", "plugin_state", "purges")
_SPECS: tuple[TableSpec[Any], ...] = (SESSIONS, NODES, RUNS, CALLS, HOOK_CALLS, ARTIFACTS, APPROVALS)
_ROWS = {table.name: table for table in _SPECS}
_FARTHEST = 1 << 40
_MOST_NAMED = 3
_BAD_ROW = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError, OverflowError)
Row = tuple[Any, ...]


def recover(path: Path) -> str | None:
    """Repair the database at `path` and return a notice for the person, or ``None`` if the database is sound.

    :raises StoreError: the database is of a newer version, or another process is repairing it and does not finish.
    :raises OSError: the repaired file cannot be written.
    """
    salvaged, saved = beside(path, SALVAGED), None
    with store_lock(path), _locked(path):
        if path.exists() or not salvaged.exists():
            if _is_sound(path):
                return None
            saved = _rebuild(path, beside(path, ".salvaging"))
            put_in_place(beside(path, ".salvaging"), salvaged)
        aside = _move_aside(path)
        put_in_place(salvaged, path)
    result = saved.sentence if saved else "what could be read of it was saved."
    return f"{path} was damaged. It is kept as {aside.name}; {result}"


def _is_sound(path: Path) -> bool:
    """Return whether the database is undamaged; another process may have repaired it already."""
    if not path.exists() or path.stat().st_size == 0:
        return not beside(path, "-wal").exists()
    try:
        with closing(connect(path, writes=False)) as connection:
            version = version_of(connection)
            if version > len(MIGRATIONS):
                raise newer_error(path, version)
            require_tables(connection)
            whole = connection.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
            return whole and next(damaged_rows(connection), None) is None
    except FAILURES as error:
        if code_of(error) != "corrupt":
            raise
        return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes from committing to the damaged file while it is copied, if it can still be locked."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(*FAILURES):
            if path.stat().st_size:
                stack.enter_context(closing(connect(path))).execute("BEGIN IMMEDIATE")
        yield


def _rebuild(path: Path, new: Path) -> Saved:
    """Fill a new database with the rows that can be read from the one at `path`."""
    with closing(connect(make_database(new))) as target, _without_log(path) as readable:
        return salvage(readable, target)


@contextmanager
def _without_log(path: Path) -> Iterator[Path]:
    """Yield a database that has no log and lists its tables: the one at `path`, or else a repaired copy of it.

    A lost list of tables is taken from a new, empty database, in which each table has the same root page.
    """
    log = beside(path, "-wal")
    listed = path.exists() and path.stat().st_size > 0 and lists_tables(path)
    if listed and not (log.exists() and log.stat().st_size):
        yield path
        return
    copy, empty = beside(path, ".copy"), beside(path, ".empty")
    try:
        remove(copy)
        copy.touch(0o600)
        for part in ("", "-wal"):
            if beside(path, part).exists():
                shutil.copyfile(beside(path, part), beside(copy, part))
        if not listed:
            _transplant_schema(make_database(empty), copy)
        with contextlib.suppress(*FAILURES), closing(connect(copy)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        yield copy
    finally:
        remove(copy)
        remove(empty)


def _transplant_schema(empty: Path, copy: Path) -> None:
    data = bytearray(empty.read_bytes())
    data[_LENGTH] = bytes(4)  # 0: SQLite takes the length of the file instead
    with closing(connect(empty, writes=False)) as connection:
        roots = {row[0] for row in connection.execute("SELECT rootpage FROM sqlite_master WHERE rootpage")}
    with copy.open("r+b") as file:
        length = file.seek(0, os.SEEK_END)
        file.write(data[length:])
        for page in set(range(1, len(data) // _PAGE + 1)) - roots:
            file.seek((page - 1) * _PAGE)
            file.write(data[(page - 1) * _PAGE : page * _PAGE])


def _move_aside(path: Path) -> Path:
    """Rename the damaged file and its log to a free name with the current time; return that path."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside, number = beside(path, f".corrupt-{stamp}"), 1
    while aside.exists():
        number += 1
        aside = beside(path, f".corrupt-{stamp}-{number}")
    for part in PARTS:
        with contextlib.suppress(FileNotFoundError):
            beside(path, part).rename(beside(aside, part))
    return aside


@dataclass(frozen=True)
class Saved:
    """How much a repair saved.

    :ivar cut: a sentence for each session that has lost the end of its conversation.
    :ivar lost: a sentence for each row of another table than ``nodes`` that was lost.
    """

    sessions: int
    nodes: int
    cut: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The result as a sentence for the person."""
        if not self.nodes and not self.sessions:
            return "nothing in it could be read."
        more = [f"and {len(self.cut) - _MOST_NAMED} more sessions have lost nodes"] if len(self.cut) > _MOST_NAMED else []
        saved = f"saved from it: {self.sessions} sessions with {self.nodes} nodes"
        rows = [f"and {len(self.lost) - _MOST_NAMED} more rows"] if len(self.lost) > _MOST_NAMED else []
        return "; ".join((saved, *self.cut[:_MOST_NAMED], *more, *self.lost[:_MOST_NAMED], *rows)) + "."


def salvage(path: Path, target: sqlite3.Connection) -> Saved:
    """Copy the readable rows of the database at `path`, a file without a log, into the empty one `target`; make it consistent.

    Tables are read through SQLite first, and then directly from their leaf pages, which damage may have cut off.
    """
    target.execute("BEGIN IMMEDIATE")
    target.execute(f"CREATE TEMP TABLE found AS SELECT {', '.join(_columns(target, 'nodes'))} FROM nodes")
    with closing(connect(path, writes=False)) as source:
        # With this, SQLite reads even a file that is shorter than its header says, or whose list of tables has errors.
        source.execute("PRAGMA writable_schema = ON")
        lost: list[str] = []
        for table in _TABLES:
            columns = _columns(target, table)
            _add(target, table, columns, readable_rows(source, table, columns), lost)
    _add_leaves(target, path)
    _add_nodes(target)
    _recreate_sessions(target)
    cut = _repair_sessions(target)
    target.execute("COMMIT")
    target.execute("DROP TABLE found")
    sessions, nodes = (target.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("sessions", "nodes"))
    return Saved(sessions, nodes, tuple(cut), tuple(lost))


def lists_tables(path: Path) -> bool:
    """Return whether a database lists all our tables; their root pages may still be wrong."""
    try:
        with closing(connect(path, writes=False)) as connection:
            return {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}.issuperset(_TABLES)
    except FAILURES:
        return False


def damages(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield a sentence for each damaged page, each damaged row and each incomplete path."""
    for (line,) in connection.execute(f"PRAGMA integrity_check({_MOST_NAMED})"):
        if line != "ok":
            yield f"the file itself is damaged: {line}"
    for _, sentence in damaged_rows(connection):
        yield sentence


def damaged_rows(connection: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """Yield ``(session, sentence)`` for each damaged row and each session whose path is incomplete.

    :raises sqlite3.DatabaseError: the database cannot be read.
    """
    for table in _TABLES:
        columns = _columns(connection, table)
        for values in connection.execute(f"SELECT {', '.join(columns)} FROM {table}"):
            row = dict(zip(columns, values, strict=True))
            if _row_is_valid(table, row) and (table != "nodes" or _node_is_valid(connection, "nodes", row)):
                continue
            yield _damage_of_row(table, row, values[0])
    for session, active in connection.execute("SELECT id, active FROM sessions WHERE active IS NOT NULL").fetchall():
        missing = _gap_above(connection, session, active)
        if missing:
            yield session, f"node {missing} of session {session} is missing"


def _damage_of_row(table: str, row: dict[str, Any], number: Any) -> tuple[str, str]:
    """Return the session of a damaged row, and a sentence that names the row."""
    session = str(text(row["id"] if table == "sessions" else row["session"]))
    names = {"nodes": f"node {row.get('id')} (no. {row.get('seq')})", "calls": f"call {row.get('id')}"}
    return session, f"{names.get(table) or f'row {number} of {table}'} of session {session} is not what was stored"


def _gap_above(connection: sqlite3.Connection, session: str, node: str) -> str:
    """Return the node that is missing on the path to `node`, or ``""`` if the path reaches a root."""
    statement = "SELECT parent, seq FROM nodes WHERE session = ? AND id = ?"
    above: str | None = node
    below = _FARTHEST
    while above is not None:
        found = connection.execute(statement, (session, above)).fetchone()
        if found is None or not isinstance(found[1], int) or found[1] >= below:
            return above
        above, below = found
    return ""


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def _add(
    target: sqlite3.Connection, table: str, columns: list[str], rows: Iterable[Row], lost: list[str] | None = None
) -> None:
    """Add the valid ones of `rows`; nodes go into the temporary table ``found`` until all of them are read.

    :param lost: receives a sentence for each invalid row, except nodes, which the session's cut path reports.
    """
    marks = ", ".join("?" * len(columns))
    into = "temp.found" if table == "nodes" else table
    statement = f"INSERT OR IGNORE INTO {into} ({', '.join(columns)}) VALUES ({marks})"
    for row in rows:
        fields = dict(zip(columns, row, strict=True))
        if not _row_is_valid(table, fields):
            if lost is not None and table not in ("nodes", "purges"):
                lost.append(_damage_of_row(table, fields, row[0])[1])
            continue
        try:
            target.execute(statement, row)
        except _BAD_ROW:
            continue


def _add_leaves(target: sqlite3.Connection, file: Path) -> None:
    """Add rows that only the leaf pages have; the number of their columns and their values show which table they are of."""
    columns = {table: _columns(target, table) for table in _TABLES}
    known = {
        table: {row[0] for row in target.execute(f"SELECT {names[0]} FROM {'temp.found' if table == 'nodes' else table}")}
        for table, names in columns.items()
    }
    purged = {row[0] for row in target.execute("SELECT session FROM purges")}
    purged -= {row[0] for row in target.execute("SELECT id FROM sessions")}
    for number, *values in leaf_rows(file):
        row = (number, *values[1:])
        if values[:1] != [None] or not 0 < number < _FARTHEST:
            continue
        for table, names in columns.items():
            if len(names) != len(row) or number in known[table] or not _can_be_of(table, dict(zip(names, row, strict=True))):
                continue
            if row[names.index("id" if table == "sessions" else "session")] in purged:
                continue
            _add(target, table, names, [row])


def _can_be_of(table: str, row: dict[str, Any]) -> bool:
    """Return whether a row fits `table`; needed because ``plugin_state`` and ``events`` have equally many columns."""
    place = str(row["scope"] if table == "plugin_state" else row["ts"]) if table in ("plugin_state", "events") else ""
    is_state = place == "session" or place.startswith("turn:")
    return is_state if table == "plugin_state" else not is_state


def _add_nodes(target: sqlite3.Connection) -> None:
    """Copy the nodes that match their hash, in order; a node whose parent was lost is kept, but is on no path."""
    target.execute("CREATE INDEX temp.found_by_id ON found (session, id)")
    columns = _columns(target, "nodes")
    rows = target.execute(f"SELECT {', '.join(columns)} FROM temp.found ORDER BY session, seq").fetchall()
    marks = ", ".join("?" * len(columns))
    for row in rows:
        if _node_is_valid(target, "temp.found", dict(zip(columns, row, strict=True))):
            with contextlib.suppress(*_BAD_ROW):
                target.execute(f"INSERT INTO nodes ({', '.join(columns)}) VALUES ({marks})", row)


def readable_rows(source: sqlite3.Connection, table: str, columns: list[str]) -> Iterator[Row]:
    """Yield the rows of a table in the order of their key; around a damaged page, read up to it from both sides.

    The first of `columns` is the key. Every step must go forward, because damaged pages may form a circle.
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
        # Yield in order: a node is checked against its parent, which must come first.
        yield from reversed([row for row in behind if row is not None])
        position = beyond - 1


def _until_damage(
    source: sqlite3.Connection, table: str, columns: list[str], low: int, high: int, *, backwards: bool = False
) -> Iterator[Row | None]:
    """Yield the rows with keys between `low` and `high`, then ``None`` if damage ended the read."""
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


def _row_is_valid(table: str, row: dict[str, Any]) -> bool:
    """Return whether a row has the form in which the store writes it."""
    try:
        match table:
            case "events":
                event_of([row[name] for name in ("seq", "session", "type", "ts", "body")])
            case "plugin_state":
                decode_stored(row["value"])
            case "purges":
                return row["finished"] is not None  # no purge is left open, and inserting an open one would delete rows
            case "calls" if not has_its_arguments(text(row["args"]), text(row["hash"])):
                return False
            case "hook_calls":
                each = each_hook_call([row[name] for name in HOOK_CALLS.columns])
                return not any(map(HOOK_CALLS.problem, (_fields(table, row), *(call._asdict() for call in each))))
            case _ if table in _ROWS:
                return not _ROWS[table].problem(_fields(table, row))
    except (Damaged, ValueError):
        return False
    return True


def _fields(table: str, row: dict[str, Any]) -> dict[str, Any]:
    return _ROWS[table].fields([row[name] for name in _ROWS[table].columns])


def _node_is_valid(connection: sqlite3.Connection, table: str, node: dict[str, Any]) -> bool:
    """Return whether a node matches its hash and comes after its parent; ``True`` if the parent is not in the table."""
    above = ""
    if node["parent"] is not None:
        statement = f"SELECT hash, seq FROM {table} WHERE session = ? AND id = ?"
        found = connection.execute(statement, (node["session"], node["parent"])).fetchone()
        if found is None:
            return True
        if found[1] >= node["seq"]:
            return False
        above = found[0]
    return node_hash(above, node["kind"], text(node["payload"])) == node["hash"]


def _recreate_sessions(target: sqlite3.Connection) -> None:
    """Create a session row for nodes whose own could not be read."""
    lost = "SELECT DISTINCT session FROM nodes WHERE session NOT IN (SELECT id FROM sessions)"
    for (session,) in target.execute(lost).fetchall():
        moment = now()
        row = SessionRow(session, "(recovered)", "", "", "", "agent", None, "main", None, moment, moment)
        insert_session(target, row)
        target.execute("UPDATE sessions SET active = '' WHERE id = ?", (session,))


def _repair_sessions(target: sqlite3.Connection) -> list[str]:
    """End every hold of a session, and make a node with a complete path the active one of each session.

    :returns: a sentence for each session whose active node changed.
    """
    target.execute("UPDATE sessions SET epoch = epoch + 1")
    cut: list[str] = []
    for session, active in target.execute("SELECT id, active FROM sessions WHERE active IS NOT NULL").fetchall():
        whole = _nodes_with_whole_path(target, session)
        if active not in whole:
            last, sentence = _before_gap(target, session, active, whole)
            target.execute("UPDATE sessions SET active = ? WHERE id = ?", (last, session))
            cut.append(sentence)
    return cut


def _before_gap(target: sqlite3.Connection, session: str, active: str, whole: dict[str, None]) -> tuple[str | None, str]:
    """Return the new active node and a sentence about it: the node before the gap in the path, or else the last whole one."""
    parents = dict(target.execute("SELECT id, parent FROM temp.found WHERE session = ?", (session,)).fetchall())
    saved = {row[0] for row in target.execute("SELECT id FROM nodes WHERE session = ?", (session,))}
    lost, kept = list[str](), set[str]()
    above: str | None = active
    while above is not None and above not in whole:
        if above in saved:
            kept.add(above)
        elif above:
            lost.append(above)
        above = parents.pop(above, None)
    last = above if above in whole else next(reversed(whole), None)
    nodes = ", ".join(reversed(lost[-3:])) if lost else "the newest node"
    after = f"; later ones that are kept beside it: {len(kept)} (moryflow session tree {session})" if kept else ""
    were = "are" if len(lost) > 1 else "is"
    return last, f"{nodes} of session {session} {were} lost, so it goes on after {last or 'its beginning'}{after}"


def _nodes_with_whole_path(target: sqlite3.Connection, session: str) -> dict[str, None]:
    whole: dict[str, None] = {}
    for node, parent in target.execute("SELECT id, parent FROM nodes WHERE session = ? ORDER BY seq", (session,)):
        if parent is None or parent in whole:
            whole[node] = None
    return whole
