"""Copies the database once a day, and puts the copy in the place of a damaged file, which is kept beside it.

Nothing is saved from the damaged file here: `.recover` of SQLite's own shell does that better.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
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

from .database import (
    BACKUP,
    BACKUP_INTERVAL,
    PARTS,
    RESTORED,
    beside,
    connect,
    make_database,
    newer_error,
    put_in_place,
    remove,
    require_tables,
    store_lock,
)
from .failures import FAILURES, REPAIR, code_of
from .locks import FileLock
from .schema import MIGRATIONS, version_of

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
    above = ""
    if node["parent"] is not None:
        statement = "SELECT hash, seq FROM nodes WHERE session = ? AND id = ?"
        found = connection.execute(statement, (node["session"], node["parent"])).fetchone()
        if found is None or found[1] >= node["seq"]:
            return False
        above = found[0]
    return node_hash(above, node["kind"], text(node["payload"])) == node["hash"]


_EPOCHS_AHEAD = 1_000_000


def back_up(path: Path) -> None:
    """Copy the database at `path` if the last copy is older than :data:`BACKUP_INTERVAL` seconds.

    A copy that is not sound, or cannot be written, is dropped: the one before it stays, and the next call tries again.
    """
    copy, new = beside(path, BACKUP), beside(path, ".backup-new")
    with contextlib.suppress(FileNotFoundError):
        if 0 <= time.time() - copy.stat().st_mtime < BACKUP_INTERVAL:
            return
    lock = FileLock(path.parent / "locks" / "store.lock")
    with contextlib.suppress(*FAILURES):
        if not lock.acquire():
            return
        try:
            remove(new)
            os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            with closing(connect(path, writes=False)) as source, closing(connect(new)) as target:
                source.backup(target)
                sound = target.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok"
            if sound:
                put_in_place(new, copy)
        finally:
            remove(new)
            lock.release()


def restore(path: Path) -> str | None:
    """Put the last backup in the place of the database at `path` if that is damaged; return a notice, or ``None``.

    The new file is complete before the old one is moved, so a process killed in between loses nothing: the next goes on.

    :raises StoreError: the database is of a newer version, or another process is restoring it and does not finish.
    :raises OSError: the new file cannot be written.
    """
    restored, copy = beside(path, RESTORED), beside(path, BACKUP)
    with store_lock(path), _locked(path):
        if path.exists() or not restored.exists():
            if _is_sound(path):
                return None
            put_in_place(_copy_of(copy, beside(path, ".restoring")), restored)
        aside = _move_aside(path)
        put_in_place(restored, path)
    began = "a new one begins, because there is no sound backup"
    if _has_sound(copy):
        began = time.strftime("the backup of %Y-%m-%d %H:%M took its place", time.localtime(copy.stat().st_mtime))
    return f"{path} was damaged. It is kept as {aside.name}; {began}; sqlite3 {aside} .recover reads what is left in it"


def _copy_of(copy: Path, new: Path) -> Path:
    if not _has_sound(copy):
        return make_database(new)
    remove(new)
    shutil.copyfile(copy, new)
    new.chmod(0o600)
    with closing(connect(new)) as connection:
        # Whoever held a session of the damaged file must take it again: their epochs are long past.
        connection.execute("UPDATE sessions SET epoch = epoch + ?", (_EPOCHS_AHEAD,))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return new


def _is_sound(path: Path) -> bool:
    """Return whether the file is undamaged; another process may have restored it already."""
    if not path.exists() or path.stat().st_size == 0:
        return not beside(path, "-wal").exists()
    try:
        with closing(connect(path, writes=False)) as connection:
            version = version_of(connection)
            if version > len(MIGRATIONS):
                raise newer_error(path, version)
            require_tables(connection)
            return connection.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok"
    except FAILURES as error:
        if code_of(error) != "corrupt":
            raise
        return False


def _has_sound(copy: Path) -> bool:
    return copy.exists() and _is_sound(copy)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes from committing to the damaged file while it is replaced, if it can still be locked."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(*FAILURES):
            if path.stat().st_size:
                stack.enter_context(closing(connect(path))).execute("BEGIN IMMEDIATE")
        yield


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
