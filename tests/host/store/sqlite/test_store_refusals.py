"""Homes and files that cannot be used as they are, migrations, and queries that stay small: a sentence each."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from moryflow.store import Commit, NewNode, SessionLock, SessionRow, StoreError
from moryflow.store.sqlite import database as opening
from moryflow.store.sqlite.database import beside, connect, make_database, put_in_place
from moryflow.store.sqlite.locks import FileLock
from moryflow.store.sqlite.schema import MIGRATIONS, migrate
from moryflow.store.sqlite.store import SqliteStore

ONE = Commit(nodes=[NewNode("user", {"text": "one"})])


def test_a_home_that_cannot_be_written(python):
    """A read-only home: sessions can be read, writes and new homes are `readonly` (SECURITY §3)."""
    home = Path(tempfile.mkdtemp(prefix="moryflow-readonly-"))
    store = SqliteStore.open(home / "sessions.db")
    row = asyncio.run(store.create(vault="/v", agent="a", mode="agent"))
    store.close()
    (home / "sessions.db").chmod(0o444)
    home.chmod(0o555)
    source = """
        import asyncio, os, sys
        from pathlib import Path
        from moryflow.store import *
        from moryflow.store.sqlite.store import SqliteStore
        if os.geteuid() == 0:
            os.setgid(65534); os.setuid(65534)
        home = Path(sys.argv[1])

        async def main():
            store = SqliteStore.open(home / "sessions.db")
            print((await store.session(sys.argv[2])).id)
            for act in (store.create(vault="/v", agent="a", mode="agent"), store.hold(sys.argv[2])):
                try:
                    await act
                except StoreError as error:
                    print(error.code)
            store.close()
            try:
                SqliteStore.open(home / "new" / "sessions.db")
            except StoreError as error:
                print(error.code, error.next_step)

        asyncio.run(main())
    """
    try:
        done = python(source, str(home), row.id, check=False)
    finally:
        home.chmod(0o700)
        shutil.rmtree(home)
    if "ModuleNotFoundError" in done.stderr or ("PermissionError" in done.stderr and "setuid" in done.stderr):
        pytest.skip("an ordinary user cannot read this installation")
    assert done.stdout.splitlines()[:3] == [row.id, "readonly", "readonly"], done.stderr
    assert done.stdout.splitlines()[3].startswith("readonly make it writable, or set MORYFLOW_HOME")


@pytest.mark.parametrize("name", ["sessions.db", "sessions.db-shm"])
def test_the_file_that_cannot_be_written_is_named(python, name: str):
    """Those beside the database stay read-only when it is made writable again, and SQLite says of neither which it is."""
    home = Path(tempfile.mkdtemp(prefix="moryflow-readonly-"))
    SqliteStore.open(home / "sessions.db").close()
    (home / "sessions.db-shm").touch()
    for path in (home, *home.rglob("*")):
        os.chown(path, *((65534, 65534) if os.geteuid() == 0 else (-1, -1)))
    (home / name).chmod(0o400)
    source = """
        import asyncio, os, sys
        from pathlib import Path
        from moryflow.store import *
        from moryflow.store.sqlite.store import SqliteStore
        if os.geteuid() == 0:
            os.setgid(65534); os.setuid(65534)
        home = Path(sys.argv[1])
        try:
            asyncio.run(SqliteStore.open(home / "sessions.db").create(vault="/v", agent="a", mode="agent"))
        except StoreError as error:
            print(error.code, error.where)
    """
    try:
        done = python(source, str(home), check=False)
    finally:
        shutil.rmtree(home)
    if "ModuleNotFoundError" in done.stderr or ("PermissionError" in done.stderr and "setuid" in done.stderr):
        pytest.skip("an ordinary user cannot read this installation")
    assert done.stdout == f"readonly {home / name}\n", done.stderr


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder that say anything; a reader may leave an empty log behind."""
    files = [path for path in folder.iterdir() if path.is_file() and not path.name.endswith("-shm")]
    return {path.name: path.read_bytes() for path in files if path.stat().st_size}


def test_a_newer_database_is_refused_and_left_alone(file: Path):
    """A database of a newer version is refused with a sentence and not written to (SECURITY §3)."""
    SqliteStore.open(file).close()
    with sqlite3.connect(file) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    before = snapshot(file.parent)
    with pytest.raises(StoreError, match=r"written by a newer Moryflow.*Next: .*pip install -U") as caught:
        SqliteStore.open(file)
    assert caught.value.code == "newer"
    assert snapshot(file.parent) == before


async def test_a_database_upgraded_by_another_process_is_not_written_to(store: SqliteStore, hold: SessionLock, file: Path):
    """A newer Moryflow that upgrades the file while this one runs stops this one's writes."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(StoreError) as caught:
        await hold.commit(ONE)
    assert caught.value.code == "newer"
    assert hold.path == []


@pytest.mark.parametrize("marked", [True, False])
def test_another_program_s_database_is_refused_and_left_alone(file: Path, marked: bool):
    """A foreign SQLite file is never written over (SECURITY §3)."""
    file.parent.mkdir()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE mail (text)")
        connection.execute(f"PRAGMA application_id = {77 if marked else 0}")
    before = snapshot(file.parent)
    with pytest.raises(StoreError, match="another program") as caught:
        SqliteStore.open(file)
    assert caught.value.code == "foreign"
    assert snapshot(file.parent) == before


def test_a_folder_in_the_place_of_the_database_is_named(tmp_path: Path) -> None:
    """What lies there is left as it is, and the sentence says what it is (SECURITY §3)."""
    (tmp_path / "sessions.db").mkdir()
    with pytest.raises(StoreError, match="this is a folder") as caught:
        SqliteStore.open(tmp_path / "sessions.db")
    assert caught.value.code == "foreign" and "move it away" in caught.value.next_step


async def test_an_empty_file_becomes_a_database(file: Path):
    """What a process killed right at the start leaves behind is taken over (SECURITY §3, empty)."""
    file.parent.mkdir()
    file.touch()
    store = SqliteStore.open(file)
    await store.create(vault="/v", agent="a", mode="agent")
    assert store.notices == []
    store.close()


def test_database_and_home_are_the_owner_s_alone(file: Path):
    """Conversations are nobody else's business: 0600 files in a 0700 folder."""
    old = os.umask(0)
    try:
        SqliteStore.open(file).close()
        store = SqliteStore.open(file)
        asyncio.run(store.create(vault="/v", agent="a", mode="agent"))
        modes = {path.name: path.stat().st_mode & 0o777 for path in file.parent.iterdir() if path.is_file()}
        store.close()
    finally:
        os.umask(old)
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert set(modes.values()) == {0o600}


def test_a_failed_migration_leaves_the_version_before(file: Path):
    """A migration is one transaction: what fails in the middle leaves nothing behind (SECURITY §3)."""
    SqliteStore.open(file).close()

    def breaks(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE later (id)")
        connection.execute("no such statement")

    def adds(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE later (id)")

    with closing(connect(file)) as connection:
        with pytest.raises(sqlite3.OperationalError):
            migrate(connection, [*MIGRATIONS, breaks])
        assert connection.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS)
        assert not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'later'").fetchone()
        migrate(connection, [*MIGRATIONS, adds])
        assert connection.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS) + 1


def test_a_file_where_the_home_should_be(tmp_path: Path):
    """A home that is not a folder is a sentence."""
    (tmp_path / "home").write_text("")
    with pytest.raises(StoreError, match="Next:") as caught:
        SqliteStore.open(tmp_path / "home" / "sessions.db")
    assert caught.value.code in ("io", "readonly")


async def test_a_value_beyond_sqlite_s_numbers_is_refused(hold: SessionLock):
    """A token count no column can hold is a sentence, and nothing is stored."""
    with pytest.raises(StoreError) as caught:
        await hold.commit(Commit(nodes=[NewNode("user", {"text": ""}, tokens=1 << 80)]))
    assert caught.value.code == "too_large"
    assert hold.path == []


async def test_nothing_looks_at_all_sessions(store: SqliteStore, session: SessionRow, hold: SessionLock):
    """With a million nodes beside it, a session's own queries use an index (SECURITY §3)."""
    await hold.commit(ONE)
    plans: list[str] = []

    def traced(connection: sqlite3.Connection, work) -> None:
        statements: list[str] = []
        connection.set_trace_callback(statements.append)
        work(connection)
        connection.set_trace_callback(None)
        for statement in statements:
            if statement.startswith(("SELECT", "WITH", "UPDATE", "DELETE")):
                plans.extend(f"{row[3]}   [{statement}]" for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}"))

    from moryflow.store import queries as reading
    from moryflow.store.sqlite.session_lock import apply

    def reads(db: sqlite3.Connection) -> None:
        reading.find_session(db, session.id[:5])
        for vault, purpose, parent in (("/v", "main", None), (None, "main", None), (None, None, None), (None, None, "p")):
            reading.list_sessions(db, 5, vault=vault, purpose=purpose, parent=parent)
        reading.descendants(db, session.id)
        reading.path_of(db, session.id, hold.path[0].id)
        reading.nodes_of(db, session.id)
        reading.calls_of(db, session.id, None, None)
        reading.calls_of(db, None, "2026", {"waiting"})
        reading.approvals_of(db, session=session.id)
        reading.approvals_of(db, state="pending")
        reading.artifacts_of(db, id="x")
        reading.events_of(db, "events", session.id, 0, 10)
        reading.events_of(db, "events", None, 0, 10)

    await store._database.read(lambda db: traced(db, reads))
    commit = Commit(nodes=[NewNode("user", {"text": "two"})], plugin_state={("p", "s"): 1})
    await store._database.write(lambda to: traced(to, lambda c: apply(c, session.id, hold.epoch, commit, None)))
    scans = [plan for plan in plans if plan.startswith("SCAN") and "up" not in plan.split()[1]]
    assert plans
    assert [plan for plan in scans if "USING" not in plan] == []


def test_a_store_that_another_process_is_preparing(file: Path, monkeypatch: pytest.MonkeyPatch):
    """Who makes or repairs the file for ever is named (SECURITY §3, locked for ever)."""
    monkeypatch.setattr(opening, "LOCK_TIMEOUT", 0.1)
    lock = FileLock(file.parent / "locks" / "store.lock")
    assert lock.acquire()
    with pytest.raises(StoreError, match="this process is preparing the session database") as caught:
        SqliteStore.open(file)
    assert caught.value.code == "locked"
    lock.release()
    SqliteStore.open(file).close()


async def test_a_hold_that_fails_leaves_the_session_free(store: SqliteStore, session: SessionRow, file: Path):
    """Where the epoch cannot be stored, the lock is given back."""
    impatient = SqliteStore.open(file, patience=0.1)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked"):
            await impatient.hold(session.id)
    impatient.close()
    (await store.hold(session.id)).release()


def test_a_database_that_cannot_be_folded_is_not_put_in_place(file: Path):
    """A new database whose log still holds something does not get its name."""
    file.parent.mkdir()
    new = make_database(beside(file, ".new"))
    beside(new, "-wal").write_bytes(b"something")
    with pytest.raises(OSError, match="could not be written"):
        put_in_place(new, file)
    assert not file.exists()


async def test_a_journal_left_by_a_killed_program_is_rolled_back(file: Path, python):
    """Someone switched the journal and was killed: what was committed is there, the log is on again (SECURITY §3)."""
    store = SqliteStore.open(file)
    row = await store.create(vault="/v", agent="a", mode="agent")
    store.close()
    source = """
        import os, sqlite3, sys
        connection = sqlite3.connect(sys.argv[1], isolation_level=None)
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN")
        connection.execute("UPDATE sessions SET title = 'half done'")
        for number in range(3000):
            connection.execute("INSERT INTO purges (session, started) VALUES (?, ?)", ("x", "y" * 500))
        os._exit(9)
    """
    python(source, str(file), check=False)
    assert beside(file, "-journal").exists()
    store = SqliteStore.open(file)
    assert (await store.session(row.id)).title == ""
    assert store.notices == []
    store.close()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
