"""What the tables themselves hold, whichever program opens the file: no node changes, and a purge is whole."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from moryflow.store import Commit, NewNode, SessionLock, SessionRow
from moryflow.store.sqlite.database import connect
from moryflow.store.sqlite.schema import MIGRATIONS, migrate, version_of
from moryflow.store.sqlite.store import SqliteStore
from moryflow.store.tables import node_hash

COLUMNS = "number, session, id, seq, parent, kind, payload, tokens, hash, created"
OLD = '{"text":"old"}'
FORGED = '{"text":"forged"}'
OWNED = ("nodes", "runs", "calls", "hook_calls", "events", "artifacts", "approvals", "plugin_state")


@pytest.fixture
def plain(file: Path, store: SqliteStore) -> Iterator[sqlite3.Connection]:
    """Another program's connection: nothing but what SQLite does by itself."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        assert connection.execute("PRAGMA recursive_triggers").fetchone()[0] == 0
        yield connection


@pytest.mark.parametrize(
    "taken",
    [
        f"number, session, id, seq, parent, kind, '{FORGED}', tokens, hash, created",
        f"number, 'another', 'new', 99, parent, kind, '{FORGED}', tokens, hash, created",
        f"NULL, session, id, 99, parent, kind, '{FORGED}', tokens, hash, created",
        f"NULL, session, 'new', seq, parent, kind, '{FORGED}', tokens, hash, created",
    ],
    ids=["all of it", "its number", "its id", "its seq"],
)
@pytest.mark.parametrize("verb", ["INSERT OR REPLACE", "INSERT OR IGNORE", "INSERT"])
async def test_no_insert_takes_a_node_s_place(store: SqliteStore, say, plain: sqlite3.Connection, verb: str, taken: str):
    """REPLACE by a program without `recursive_triggers` rewrites nothing (S1.2, invariant 6)."""
    before = await say("one", "two")
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        plain.execute(f"{verb} INTO nodes ({COLUMNS}) SELECT {taken} FROM nodes WHERE seq = 1")
    assert await store.nodes(before[0].session) == before
    plain.create_function("node_hash", 3, node_hash)
    new = "NULL, session, 'new', 3, id, kind, payload, tokens, node_hash(hash, kind, payload), created"
    plain.execute(f"{verb} INTO nodes ({COLUMNS}) SELECT {new} FROM nodes WHERE seq = 1")
    assert len(await store.nodes(before[0].session)) == 3


async def test_an_upsert_changes_no_node(say, plain: sqlite3.Connection):
    """``ON CONFLICT DO UPDATE`` is one more way to write over a node (S1.2, invariant 6)."""
    await say("one")
    insert = f"INSERT INTO nodes ({COLUMNS}) SELECT {COLUMNS} FROM nodes WHERE true"
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        plain.execute(f"{insert} ON CONFLICT (session, id) DO UPDATE SET payload = '{FORGED}'")


PART = [
    # Name a session, take a part of it, unname it.
    ["INSERT INTO purges (session, started) VALUES ('{id}', 'x')", "DELETE FROM nodes WHERE seq = 2", "DELETE FROM purges"],
    ["INSERT INTO purges (session, started) VALUES ('other', 'x')", "UPDATE purges SET session = '{id}'", "DELETE FROM nodes"],
    ["INSERT INTO purges (session, started) VALUES ('other', 'x')", "UPDATE purges SET finished = NULL", "DELETE FROM nodes"],
    ["INSERT INTO purges (session, started, finished) VALUES ('{id}', 'x', 'y')", "DELETE FROM nodes WHERE seq = 2"],
    ["INSERT INTO purges (session, started) VALUES ('other', 'x')", "DELETE FROM nodes WHERE seq = 2"],
]


@pytest.mark.parametrize("statements", PART)
async def test_no_order_of_statements_leaves_a_part_of_a_session(
    store: SqliteStore, say, session: SessionRow, plain: sqlite3.Connection, statements: list[str]
):
    """Whatever a program does around a purge, and wherever it commits, a session is whole or gone (invariant 6)."""
    nodes = await say("one", "two", "three")
    for statement in statements:
        try:
            plain.execute(statement.format(id=session.id))
        except sqlite3.IntegrityError as error:
            assert "append-only" in str(error) or "purge" in str(error)
        assert await store.nodes(session.id) in (nodes, [])  # each statement is committed by itself


async def test_to_name_a_session_in_purges_takes_all_of_it(store: SqliteStore, session: SessionRow, plain: sqlite3.Connection):
    """One statement purges: nodes and every other row of the session, and nothing of others (invariant 6)."""
    for id in (session.id, (await store.create(vault="/v", agent="a", mode="agent")).id):
        plain.execute(f"INSERT INTO nodes ({COLUMNS}) VALUES (NULL, '{id}', 'n', 1, NULL, 'user', '{{}}', 0, '', '')")
        plain.execute(f"INSERT INTO runs VALUES (NULL, '{id}', 't', 'main', '', '', '', 'ended', '', '', 0, 0, '', '')")
        plain.execute(f"INSERT INTO calls VALUES (NULL, '{id}', 'n', 'c', '', 1, '', '', '', '', '', '', '', '', '')")
        plain.execute(f"INSERT INTO hook_calls VALUES (NULL, '{id}', '', 1, '', '', '', 0, '', 0, '', '', 1, NULL)")
        plain.execute(f"INSERT INTO events VALUES (NULL, '{id}', '', '', '')")
        plain.execute(f"INSERT INTO artifacts VALUES (NULL, '{id}', 'a', '', '', '', 0, '', '', '', '', 0)")
        plain.execute(f"INSERT INTO approvals VALUES (NULL, '{id}', 'q', '', '', '', '', '', '', '', '', '', '', 0)")
        plain.execute(f"INSERT INTO plugin_state VALUES (NULL, '{id}', 'p', 's', '1')")
    plain.execute("INSERT INTO purges (session, started) VALUES (?, 'x')", (session.id,))
    for table in OWNED:
        left = plain.execute(f"SELECT count(*), sum(session = ?) FROM {table}", (session.id,)).fetchone()
        assert left == (1, 0), table
    assert [row.id for row in await store.sessions() if row.id == session.id] == []
    assert plain.execute("SELECT count(*) FROM purges WHERE finished IS NULL").fetchone()[0] == 0


async def test_what_was_purged_once_opens_nothing(store: SqliteStore, say, session: SessionRow, plain: sqlite3.Connection):
    """That another session was purged, or this one before, lets no node be deleted now (invariant 6)."""
    gone = await store.create(vault="/v", agent="a", mode="agent")
    await store.delete(gone.id)
    nodes = await say("one", "two")
    plain.execute("INSERT INTO purges (session, started, finished) VALUES (?, 'x', 'y')", (session.id,))
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        plain.execute("DELETE FROM nodes WHERE seq = 2")
    assert await store.nodes(session.id) == nodes
    for statement in ("DELETE FROM purges", "REPLACE INTO purges SELECT number, 'x', '', '' FROM purges"):
        with pytest.raises(sqlite3.IntegrityError, match="stays on record"):
            plain.execute(statement)


async def test_the_writer_waits_for_the_disk(store: SqliteStore, session: SessionRow, hold: SessionLock):
    """With less than FULL a commit that was told may be lost with the power (ARCHITECTURE §5, invariant 6)."""
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "one"})]))
    pragmas = ("synchronous", "recursive_triggers", "journal_mode", "secure_delete")
    for write in (store._database.write, store._database.write):  # the thread's first, then one on the loop
        told = await write(lambda to: [to.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas])
        assert told == [2, 1, "wal", 1]


# ------------------------------------------------------------------ from version 1


def old_database(file: Path) -> None:
    """Make a database as version 1 made it, with a session in it and a purge that a program left open."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    file.touch(mode=0o600)
    with closing(connect(file)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        migrate(connection, MIGRATIONS[:1])
        connection.execute(
            """INSERT INTO sessions VALUES (1, 's', 'Old', '/v', 'build', '', 'agent', NULL, 'main', 'n', '2025', '2025', NULL,
            '[]', 1, 1, NULL)"""
        )
        connection.execute(
            f"INSERT INTO nodes ({COLUMNS}) VALUES (1, 's', 'n', 1, NULL, 'user', ?, 1, ?, '2025')",
            (OLD, node_hash("", "user", OLD)),
        )
        connection.execute("INSERT INTO purges (session, started) VALUES ('s', '2025')")


async def test_a_database_of_version_1_is_upgraded(file: Path):
    """What was in it is there, it goes on as it was, and the new rules hold (SECURITY §3)."""
    old_database(file)
    store = SqliteStore.open(file)
    (node,) = await store.nodes("s")
    assert node.payload == {"text": "old"}
    hold = await store.hold("s")
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "new"})]))
    hold.release()
    assert store.notices == []
    with closing(sqlite3.connect(file, isolation_level=None)) as plain:
        assert version_of(plain) == len(MIGRATIONS)
        for statement in ("DELETE FROM nodes WHERE seq = 2", "REPLACE INTO nodes SELECT * FROM nodes"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                plain.execute(statement)
    await store.delete("s")
    assert await store.sessions() == []
    store.close()


async def test_an_upgraded_database_has_the_tables_of_a_new_one(file: Path, tmp_path: Path):
    """An upgrade leads to the same tables, indexes and triggers as a new file has (SECURITY §3)."""
    old_database(file)
    SqliteStore.open(file).close()
    SqliteStore.open(tmp_path / "new" / "sessions.db").close()
    schemas: list[set[tuple[str, str]]] = []
    for path in (file, tmp_path / "new" / "sessions.db"):
        with closing(sqlite3.connect(path)) as connection:
            schemas.append(set(connection.execute("SELECT name, sql FROM sqlite_master")))
    assert schemas[0] == schemas[1]


KILLED = """
    import os, signal, sqlite3, sys
    from moryflow.store.sqlite.schema import migrate
    connection = sqlite3.connect(sys.argv[1], isolation_level=None)
    left = int(sys.argv[2])

    def before(statement):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    connection.set_trace_callback(before)
    migrate(connection)
"""


@pytest.mark.parametrize("statements", [3, 4, 6, 9, 10, 11])
async def test_an_upgrade_killed_in_the_middle_is_done_by_the_next(file: Path, python, statements: int):
    """A kill before any statement of the upgrade leaves version 1, whole; the next start upgrades it (SECURITY §3)."""
    old_database(file)
    done = python(KILLED, str(file), str(statements), check=False)
    assert done.returncode == -9, done
    with closing(sqlite3.connect(file)) as connection:
        names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")}
        assert version_of(connection) == 1
        assert names == {"nodes_never_change", "nodes_never_vanish", "purges_are_whole"}
    store = SqliteStore.open(file)
    assert [node.payload["text"] for node in await store.nodes("s")] == ["old"]
    with closing(sqlite3.connect(file)) as connection:
        assert version_of(connection) == len(MIGRATIONS)
    store.close()
