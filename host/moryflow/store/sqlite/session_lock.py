"""The lock that allows one process to append to a session, and how a commit is written."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from moryflow_sdk import Event

from moryflow.base.events import now
from moryflow.store.protocol import Outdated, SessionBusy
from moryflow.store.queries import live_path_of, session_row
from moryflow.store.records import Commit, Committed, Node, SessionRow
from moryflow.store.sql_store import PatientLock
from moryflow.store.statements import (
    USED,
    Written,
    append,
    checked_row,
    event_body,
    forget_held_back,
    records_of,
    require_epoch,
    require_node,
    session_changes,
    set_plugin_state,
    switch,
)
from moryflow.store.tables import encode, execute, write_all

from .database import Database
from .locks import FileLock


def begin_hold(connection: sqlite3.Connection, session: str) -> SessionRow:
    """Make the caller the session's newest holder and return the session with its new epoch."""
    execute(connection, f"UPDATE sessions SET epoch = epoch + 1, used = {USED} WHERE id = ?", (session,))
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
        require_node(connection, session, active)
    row = _update_session(connection, held, commit, active, prompted=any(node.kind == "user" for node in nodes))
    _write_rows(connection, session, commit)
    events = [_insert_event(connection, session, event) for event in commit.events]
    grew = active == last and held.active == known and not any(node.kind == "compaction" or node.voids for node in nodes)
    path = None if grew else live_path_of(connection, session, active)
    return Written(Committed(nodes, events), row, path)


def _update_session(
    connection: sqlite3.Connection, held: SessionRow, commit: Commit, active: str | None, *, prompted: bool
) -> SessionRow:
    moment = now()
    changes = {**session_changes(commit), "active": active, "updated": moment}
    columns = ", ".join(f"{name} = ?" for name in changes) + (f", used = {USED}" if prompted else "")
    execute(connection, f"UPDATE sessions SET {columns} WHERE id = ?", (*changes.values(), held.id))
    if not commit.session:
        return held._replace(active=active, updated=moment)
    forget_held_back(connection, held.id, commit.session.keys() & {"mode", "grants"})
    return session_row(connection, held.id)


def _write_rows(connection: sqlite3.Connection, session: str, commit: Commit) -> None:
    for table, rows in records_of(session, commit).items():
        write_all(connection, table.upsert if table.key else table.insert, map(table.values, rows))
    for (plugin, scope), value in commit.plugin_state.items():
        set_plugin_state(connection, session, plugin, scope, value)


def _insert_event(connection: sqlite3.Connection, session: str, event: Event) -> Event:
    values = (session, event.type, event.ts, encode(event_body(checked_row(session, event))))
    cursor = connection.execute("INSERT INTO events (session, type, ts, body) VALUES (?, ?, ?, ?)", values)
    return Event.model_construct(**{**vars(event), "seq": cursor.lastrowid})


class SqliteSessionLock(PatientLock):
    """:class:`moryflow.store.SessionLock` for a session in SQLite; the interface documents each method."""

    def __init__(self, database: Database, lock: FileLock, session: SessionRow, path: list[Node]) -> None:
        self.session = session
        self.path = path
        self.epoch = session.epoch
        self._database = database
        self._lock = lock

    async def commit(self, commit: Commit) -> Committed:
        self._require_held()
        id, known = self.session.id, self.session.active
        written = await self._database.write(lambda to: apply(to, id, self.epoch, commit, known), self._update)
        return written.committed

    async def switch(self, node_id: str | None) -> None:
        self._require_held()
        await self._database.write(lambda to: switch(to, self.session.id, self.epoch, node_id), self._update)

    def release(self) -> None:
        self._released = True
        self._lock.release()

    def _update(self, written: Written) -> None:
        self.session = written.session
        if written.path is None:
            self.path.extend(written.committed.nodes)
        else:
            self.path[:] = written.path


def session_lock(home: Path, session: str) -> FileLock:
    """Return the lock of a session, without acquiring it."""
    return FileLock(home / "locks" / f"{session}.lock")


def busy_error(session: str, lock: FileLock) -> SessionBusy:
    """Return the error for a session that another holder has."""
    next_step = f"wait for it to end, or work on a copy: moryflow session fork {session}"
    return SessionBusy(f"session {session} is in use by {lock.holder()}", where=str(lock.path), next_step=next_step)
