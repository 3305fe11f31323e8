"""Full-text search over what people, models and tools wrote.

The index is brought up to date before a search, in small transactions. So a commit never pays for it, and a damaged index
never stops a commit. If SQLite has no FTS5, or for scripts that do not separate words, the nodes themselves are scanned.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from moryflow.store.queries import nodes_where
from moryflow.store.records import Hit
from moryflow.store.search import SEARCHED, hit
from moryflow.store.tables import DamagedRow, decode_stored, execute, text_of

from .failures import code_of

# To change what is indexed, add a migration that drops the index: FTS5 removes an entry only if given the same text again.
_LIMIT = 64 * 1024
_BATCH = 500
_CREATE = """CREATE VIRTUAL TABLE IF NOT EXISTS search
    USING fts5 (text, content='', tokenize='unicode61 remove_diacritics 2')"""
_INSERT = "INSERT INTO search (rowid, text) VALUES (?, ?)"
_DELETE = "INSERT INTO search (search, rowid, text) VALUES ('delete', ?, ?)"


class DamagedIndex(Exception):
    """The search index is damaged; the database is not."""


@contextmanager
def _index_errors() -> Iterator[None]:
    try:
        yield
    except DamagedRow as error:
        raise DamagedIndex from error
    except sqlite3.DatabaseError as error:
        if code_of(error) not in ("corrupt", "invalid"):
            raise
        raise DamagedIndex from error


@contextmanager
def _changing(connection: sqlite3.Connection) -> Iterator[None]:
    """Change the index inside a savepoint, which is rolled back if the index is damaged.

    The inner savepoint makes FTS5 write its pending data here, not at the commit, so that its errors appear here too.
    """
    connection.execute("SAVEPOINT indexing")
    try:
        with _index_errors():
            yield
            connection.execute("SAVEPOINT flushed")
    except DamagedIndex:
        connection.execute("ROLLBACK TO indexing")
        raise
    finally:
        if connection.in_transaction:
            connection.execute("RELEASE indexing")


def extend_index(connection: sqlite3.Connection) -> bool:
    """Index the next nodes; return whether there may be more.

    :raises DamagedIndex: the index must be dropped first.
    :raises sqlite3.OperationalError: this SQLite has no FTS5.
    """
    connection.execute(_CREATE)
    until = _until(connection)
    rows = list(nodes_where(connection, f"WHERE n.number > ? ORDER BY n.number LIMIT {_BATCH}", (until,), skip_damaged=True))
    with _changing(connection):
        connection.executemany(_INSERT, [(number, _indexed(node.payload)) for number, node in rows if node.kind in SEARCHED])
    if rows:
        connection.execute("UPDATE search_progress SET until = ?", (rows[-1][0],))
    return len(rows) == _BATCH


def drop_index(connection: sqlite3.Connection) -> None:
    """Drop the index; the next search builds it again."""
    connection.execute("DROP TABLE IF EXISTS search")
    connection.execute("UPDATE search_progress SET until = 0")


def forget(connection: sqlite3.Connection, session: str) -> None:
    """Remove a session that is about to be purged from the index."""
    if not _exists(connection):
        return
    statement = f"SELECT number, payload FROM nodes WHERE session = ? AND number <= ? AND kind IN {SEARCHED!r}"
    try:
        rows = execute(connection, statement, (session, _until(connection))).fetchall()
        with _changing(connection):
            connection.executemany(_DELETE, [(number, _indexed(decode_stored(payload))) for number, payload in rows])
    except DamagedIndex:
        drop_index(connection)


def rewind(connection: sqlite3.Connection) -> None:
    """Set the progress back after a purge: the last rows may be gone, and new nodes will get their numbers."""
    connection.execute("UPDATE search_progress SET until = min(until, (SELECT coalesce(max(number), 0) FROM nodes))")


def find(connection: sqlite3.Connection, words: list[str], limit: int) -> list[Hit]:
    """Return the nodes that contain all `words`, best first; the last word also matches as the beginning of a word."""
    query = " ".join(f'"{word}"' for word in words) + "*"
    with _index_errors():
        numbers = connection.execute("SELECT rowid FROM search WHERE search MATCH ? ORDER BY rank LIMIT ?", (query, limit))
        found = [row[0] for row in numbers]
    nodes = (
        node for number in found for _, node in nodes_where(connection, "WHERE n.number = ?", (number,), skip_damaged=True)
    )
    return [hit(node, words) for node in nodes]


def _exists(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'search'").fetchone() is not None


def _until(connection: sqlite3.Connection) -> int:
    return connection.execute("SELECT until FROM search_progress").fetchone()[0]


def _indexed(payload: Mapping[str, Any]) -> str:
    return text_of(payload)[:_LIMIT].encode("utf-8", "replace").decode()
