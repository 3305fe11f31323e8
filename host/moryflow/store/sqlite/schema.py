"""The tables in SQLite and their migrations.

A migration is one function and one transaction: a process killed in the middle of it leaves the previous version.
``number`` is the row's place on disk; ``seq`` is the order that callers may rely on. Rows are identified by
``(session, id)``, so that a fork can keep its nodes' ids.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

APPLICATION_ID = 0x4D4F5259  # "MORY", so that `file` and we can tell the database from another program's
Migration = Callable[[sqlite3.Connection], None]

_VERSION_1 = (
    """CREATE TABLE sessions (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, vault TEXT NOT NULL, agent TEXT NOT NULL,
        model TEXT NOT NULL, mode TEXT NOT NULL, parent TEXT, purpose TEXT NOT NULL, active TEXT, created TEXT NOT NULL,
        updated TEXT NOT NULL, origin TEXT, grants TEXT NOT NULL, epoch INTEGER NOT NULL,
        used INTEGER NOT NULL, held_back TEXT)""",
    """CREATE TABLE nodes (
        number INTEGER PRIMARY KEY, session TEXT NOT NULL, id TEXT NOT NULL, seq INTEGER NOT NULL, parent TEXT,
        kind TEXT NOT NULL, payload TEXT NOT NULL, tokens INTEGER NOT NULL, hash TEXT NOT NULL, created TEXT NOT NULL,
        UNIQUE (session, id), UNIQUE (session, seq))""",
    """CREATE TABLE runs (
        number INTEGER PRIMARY KEY, session TEXT NOT NULL, id TEXT NOT NULL, purpose TEXT NOT NULL, agent TEXT NOT NULL,
        model TEXT NOT NULL, plugin_set TEXT NOT NULL, state TEXT NOT NULL, end_reason TEXT, usage TEXT, cost REAL,
        steps INTEGER NOT NULL, started TEXT NOT NULL, ended TEXT, UNIQUE (session, id))""",
    """CREATE TABLE calls (
        number INTEGER PRIMARY KEY, session TEXT NOT NULL, node TEXT NOT NULL, id TEXT NOT NULL, turn TEXT NOT NULL,
        step INTEGER NOT NULL, tool TEXT NOT NULL, args TEXT NOT NULL, hash TEXT NOT NULL, state TEXT NOT NULL, decision TEXT,
        cause TEXT, ruling TEXT, created TEXT NOT NULL, updated TEXT NOT NULL, UNIQUE (session, node, id))""",
    """CREATE TABLE hook_calls (
        number INTEGER PRIMARY KEY, session TEXT NOT NULL, turn TEXT NOT NULL, step INTEGER NOT NULL, hook TEXT NOT NULL,
        plugin TEXT NOT NULL, plugin_hash TEXT NOT NULL, position INTEGER NOT NULL, outcome TEXT NOT NULL,
        us INTEGER NOT NULL, call_id TEXT, delta TEXT, count INTEGER NOT NULL)""",
    # AUTOINCREMENT: a client resumes from the last number it saw, so the number of a purged event must not be used again.
    """CREATE TABLE events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, type TEXT NOT NULL, ts TEXT NOT NULL,
        body TEXT NOT NULL)""",
    """CREATE TABLE artifacts (
        number INTEGER PRIMARY KEY, session TEXT NOT NULL, id TEXT NOT NULL, call_id TEXT NOT NULL, tool TEXT NOT NULL,
        path TEXT NOT NULL, size INTEGER NOT NULL, sha256 TEXT NOT NULL, created TEXT NOT NULL, expires TEXT,
        state TEXT NOT NULL, imported INTEGER NOT NULL DEFAULT 0, UNIQUE (session, id))""",
    """CREATE TABLE approvals (
        number INTEGER PRIMARY KEY, session TEXT NOT NULL, id TEXT NOT NULL, call_id TEXT NOT NULL, turn TEXT NOT NULL,
        kind TEXT NOT NULL, request TEXT NOT NULL, state TEXT NOT NULL, reply TEXT, message TEXT NOT NULL, by TEXT,
        created TEXT NOT NULL, replied_at TEXT, imported INTEGER NOT NULL DEFAULT 0, UNIQUE (session, id))""",
    """CREATE TABLE plugin_state (
        number INTEGER PRIMARY KEY, session TEXT NOT NULL, plugin TEXT NOT NULL, scope TEXT NOT NULL, value TEXT NOT NULL,
        UNIQUE (session, plugin, scope))""",
    """CREATE TABLE purges (
        number INTEGER PRIMARY KEY, session TEXT NOT NULL, started TEXT NOT NULL, finished TEXT)""",
    "CREATE TABLE search_progress (until INTEGER NOT NULL)",
    "INSERT INTO search_progress VALUES (0)",
    "CREATE INDEX sessions_used ON sessions (purpose, used)",
    "CREATE INDEX sessions_vault ON sessions (vault, purpose, used)",
    "CREATE INDEX sessions_parent ON sessions (parent, used)",
    "CREATE INDEX sessions_all ON sessions (used)",
    "CREATE INDEX calls_state ON calls (state, created)",
    "CREATE INDEX events_session ON events (session, seq)",
    "CREATE INDEX hook_calls_session ON hook_calls (session, turn)",
    "CREATE INDEX artifacts_id ON artifacts (id)",
    "CREATE INDEX approvals_id ON approvals (id)",
    "CREATE INDEX approvals_pending ON approvals (session) WHERE state = 'pending'",
    "CREATE INDEX purges_open ON purges (session) WHERE finished IS NULL",
    """CREATE TRIGGER nodes_never_change BEFORE UPDATE ON nodes
        BEGIN SELECT RAISE(ABORT, 'nodes are append-only'); END""",
    """CREATE TRIGGER nodes_never_vanish BEFORE DELETE ON nodes
        WHEN NOT EXISTS (SELECT 1 FROM purges WHERE session = OLD.session AND finished IS NULL)
        BEGIN SELECT RAISE(ABORT, 'nodes are append-only; only a whole session can be purged'); END""",
    """CREATE TRIGGER purges_are_whole BEFORE UPDATE OF finished ON purges
        WHEN EXISTS (SELECT 1 FROM nodes WHERE session = OLD.session)
        BEGIN SELECT RAISE(ABORT, 'a purge removes the whole session'); END""",
)

# These triggers protect nodes from any program that opens the file. Another program's connection may not have set
# `recursive_triggers`, so its REPLACE deletes a row without firing delete triggers; and it may commit between two statements.
_VERSION_2 = (
    "DROP TRIGGER purges_are_whole",
    "UPDATE purges SET finished = started WHERE finished IS NULL",  # an open purge would allow deleting single nodes
    """CREATE TRIGGER nodes_never_replaced BEFORE INSERT ON nodes
        WHEN EXISTS (SELECT 1 FROM nodes WHERE number = NEW.number)
            OR EXISTS (SELECT 1 FROM nodes WHERE session = NEW.session AND id = NEW.id)
            OR EXISTS (SELECT 1 FROM nodes WHERE session = NEW.session AND seq = NEW.seq)
        BEGIN SELECT RAISE(ABORT, 'nodes are append-only; there is one with this number, id or seq'); END""",
    """CREATE TRIGGER purges_are_whole AFTER INSERT ON purges WHEN NEW.finished IS NULL
        BEGIN
            DELETE FROM nodes WHERE session = NEW.session;
            DELETE FROM runs WHERE session = NEW.session;
            DELETE FROM calls WHERE session = NEW.session;
            DELETE FROM hook_calls WHERE session = NEW.session;
            DELETE FROM events WHERE session = NEW.session;
            DELETE FROM artifacts WHERE session = NEW.session;
            DELETE FROM approvals WHERE session = NEW.session;
            DELETE FROM plugin_state WHERE session = NEW.session;
            DELETE FROM sessions WHERE id = NEW.session;
            UPDATE purges SET finished = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') WHERE number = NEW.number;
        END""",
    """CREATE TRIGGER purges_never_change BEFORE UPDATE ON purges WHEN OLD.finished IS NOT NULL
        BEGIN SELECT RAISE(ABORT, 'what was purged stays on record'); END""",
    """CREATE TRIGGER purges_never_vanish BEFORE DELETE ON purges
        BEGIN SELECT RAISE(ABORT, 'what was purged stays on record'); END""",
    """CREATE TRIGGER purges_never_replaced BEFORE INSERT ON purges
        WHEN EXISTS (SELECT 1 FROM purges WHERE number = NEW.number)
        BEGIN SELECT RAISE(ABORT, 'what was purged stays on record'); END""",
)


def _create(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for statement in _VERSION_1:
        connection.execute(statement)


def _seal(connection: sqlite3.Connection) -> None:
    for statement in _VERSION_2:
        connection.execute(statement)


def _keep_inputs(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE hook_calls ADD COLUMN input TEXT")


# Migration n, counted from 1, leads to version n. Append new ones; never change one that was released.
MIGRATIONS: tuple[Migration, ...] = (_create, _seal, _keep_inputs)


def version_of(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Apply the `migrations` that a database lacks, each in its own transaction."""
    for number, step in enumerate(migrations, 1):
        if number <= version_of(connection):
            continue
        connection.execute("BEGIN IMMEDIATE")
        try:
            step(connection)
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
