"""Full disks, failing disks, locks, removed homes, other programs' files: a sentence each, and nothing lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from moryflow.sessions import Commit, Hold, NewNode, SessionRow, Store, StoreError
from moryflow.sessions.opening import connect
from moryflow.sessions.schema import MIGRATIONS, migrate

HERE = Path(__file__).parent
ONE = Commit(nodes=[NewNode("user", {"text": "one"})])


def script(name: str, *arguments: str, **environment: str) -> str:
    """Run a harness of this folder; its figures are what it prints."""
    command = [sys.executable, str(HERE / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_200_kills_lose_nothing():
    """A writer killed 200 times with SIGKILL: every acknowledged node is there, the database is sound (invariant 6)."""
    assert ", 0 problems" in script("kill_harness.py", "--kills", "200", "--seed", "7")


def test_the_nth_read_write_sync_or_truncation_fails(tmp_path: Path):
    """I/O errors and a full disk at the n-th system call, for n = 1, 2, 3 …: a code, nothing lost (SECURITY §3)."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux to make system calls fail")
    shim = tmp_path / "io_faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(shim), str(HERE / "io_faults.c"), "-ldl"], check=True)
    assert ", 0 problems" in script("io_fault_harness.py", str(shim), "15", LD_PRELOAD=str(shim))


async def test_a_full_database_keeps_what_it_has(store: Store, hold: Hold, session: SessionRow):
    """SQLite's own 'full': code `no_space`, memory as before, and after space is made the session goes on (SECURITY §3)."""
    await hold.commit(ONE)
    pages = await store._database.write(lambda to: to.execute("PRAGMA page_count").fetchone()[0])
    await store._database.write(lambda to: to.execute(f"PRAGMA max_page_count = {pages}").fetchone())
    before = (hold.session, list(hold.path))
    with pytest.raises(StoreError, match=r"disk is full.*Next: free some space") as caught:
        await hold.commit(Commit(nodes=[NewNode("tool", {"output": "x" * 1_000_000})], session={"title": "T"}))
    assert caught.value.code == "no_space"
    assert (hold.session, hold.path) == before == (await store.session(session.id), await store.path(session.id))
    await store._database.write(lambda to: to.execute(f"PRAGMA max_page_count = {pages + 9999}").fetchone())
    await hold.commit(Commit(nodes=[NewNode("tool", {"output": "x" * 1_000_000})]))
    assert hold.path == await store.path(session.id)


FILL = """
    import asyncio, sys
    from pathlib import Path
    from moryflow.sessions import *

    async def main():
        store = Store.open(Path(sys.argv[1]) / "sessions.db")
        row = await store.create(vault="/v", agent="a", mode="agent")
        hold = await store.hold(row.id)
        code = ""
        while not code:
            try:
                await hold.commit(Commit(nodes=[NewNode("tool", {"output": "x" * 20000})]))
            except StoreError as error:
                code = error.code
        assert hold.path == await store.path(row.id)
        print(code, len(hold.path))
        try:
            await store.hold((await store.create(vault="/v", agent="a", mode="agent")).id)
        except StoreError as error:
            print(error.code)
        store.close()
        again = Store.open(Path(sys.argv[1]) / "sessions.db")
        print(len(await again.path(row.id)), again.notices)
        again.close()

    asyncio.run(main())
"""


def test_a_small_disk_that_fills_up(tmp_path: Path):
    """A real file system of 1 MB fills up: `no_space`, and every stored node is there afterwards (SECURITY §3)."""
    mount = f'mount -t tmpfs -o size=1m tmpfs {tmp_path} && exec "$@"'
    source = "\n".join(line[4:] for line in FILL.splitlines())
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        mount,
        "sh",
        sys.executable,
        "-c",
        source,
        str(tmp_path),
    ]
    if shutil.which("unshare") is None or subprocess.run([*command[:6], "true"], capture_output=True).returncode:
        pytest.skip("needs user namespaces to mount a small file system")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "mount:" in done.stderr:
        pytest.skip(f"cannot mount a small file system: {done.stderr.strip()}")
    code, count, other, kept, notices = done.stdout.split()
    assert (code, other, kept, notices) == ("no_space", "no_space", count, "[]"), done.stderr
    assert int(count) > 5


@contextlib.contextmanager
def locked(file: Path) -> Iterator[sqlite3.Connection]:
    """Another program that keeps the write lock."""
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


async def test_a_lock_that_ends_is_waited_for(hold: Hold, file: Path):
    """Locked for a while: the commit waits and succeeds (SECURITY §3)."""
    with locked(file) as other:
        asyncio.get_running_loop().call_later(0.3, other.execute, "ROLLBACK")
        await hold.commit(ONE)
    assert len(hold.path) == 1


async def test_a_lock_that_never_ends_is_a_sentence(hold: Hold, file: Path):
    """Locked for ever: `locked` after the patience is over, readers go on, later the session does too (SECURITY §3)."""
    impatient = Store.open(file, patience=0.1)
    with locked(file):
        with pytest.raises(StoreError, match=r"kept the session database locked.*Next:") as caught:
            await impatient.create(vault="/v", agent="a", mode="agent")
        assert caught.value.code == "locked"
        assert await impatient.path(hold.session.id) == []
        assert len(await impatient.sessions()) == 1
    await impatient.create(vault="/v", agent="a", mode="agent")
    impatient.close()


async def test_a_home_that_is_removed_while_running(store: Store, hold: Hold, file: Path):
    """What cannot be stored is refused as `gone` or `not_found`, never acknowledged; new sessions work (SECURITY §3)."""
    await hold.commit(ONE)
    shutil.rmtree(file.parent)
    with pytest.raises(StoreError) as caught:
        await hold.commit(ONE)
    assert caught.value.code == "not_found"
    assert len(hold.path) == 1
    hold.release()
    again = await store.hold((await store.create(vault="/v", agent="a", mode="agent")).id)
    await again.commit(ONE)
    assert [row.id for row in await store.sessions()] == [again.session.id]
    again.release()


async def test_a_database_removed_in_the_middle_of_a_commit(store: Store, hold: Hold, file: Path, session: SessionRow):
    """A write into a file that is no longer there is not acknowledged (SECURITY §3)."""

    def work(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE sessions SET title = 'lost'")
        file.rename(file.with_name("elsewhere.db"))

    with pytest.raises(StoreError, match="removed or replaced") as caught:
        await store._database.write(work)
    assert caught.value.code == "gone"


async def test_a_moved_database_does_not_take_the_new_one_s_log_along(store: Store, hold: Hold, file: Path):
    """Closing a database that was moved away must not remove, by name, the log of the one in its place."""
    await hold.commit(ONE)
    file.rename(file.with_name("old.db"))
    for suffix in ("-wal", "-shm"):
        file.with_name(file.name + suffix).rename(file.with_name("old.db" + suffix))
    other = Store.open(file)
    row = await other.create(vault="/v", agent="a", mode="agent")
    log = file.with_name("sessions.db-wal")
    size = log.stat().st_size
    store.close()
    assert log.stat().st_size == size
    assert (await other.session(row.id)) == row
    other.close()


async def test_opening_a_database_leaves_the_locks_of_this_process_alone(store: Store, hold: Hold, file: Path, python):
    """While this process has the database open, another one that closes it does not remove the log (SECURITY §3)."""
    await hold.commit(ONE)
    other = Store.open(file)
    await other.path(hold.session.id)
    source = """
        import asyncio, sys
        from pathlib import Path
        from moryflow.sessions import *
        store = Store.open(Path(sys.argv[1]))
        asyncio.run(store.create(vault="/v", agent="a", mode="agent"))
        store.close()
    """
    for number in (2, 3):
        python(source, str(file))
        assert file.with_name("sessions.db-wal").exists()
        assert len(await store.sessions()) == len(await other.sessions()) == number
    other.close()


async def test_a_commit_found_on_the_disk_after_all_is_taken_in(store: Store, hold: Hold, session: SessionRow):
    """Where the disk is ahead of the holder (a sync failed after the bytes were written), its path follows the disk."""
    await hold.commit(ONE)

    def unseen(connection: sqlite3.Connection) -> None:
        connection.execute(
            """INSERT INTO nodes (session, id, seq, parent, kind, payload, tokens, hash, created)
            SELECT session, 'unseen', 2, id, kind, payload, 0, hash, '' FROM nodes"""
        )
        connection.execute("UPDATE sessions SET active = 'unseen'")

    await store._database.write(unseen)
    await hold.commit(ONE)
    assert [node.seq for node in hold.path] == [1, 2, 3]
    assert hold.path == await store.path(session.id)


def test_a_home_that_cannot_be_written(python):
    """A read-only home: sessions can be read, writes and new homes are `readonly` (SECURITY §3)."""
    home = Path(tempfile.mkdtemp(prefix="moryflow-readonly-"))
    store = Store.open(home / "sessions.db")
    row = asyncio.run(store.create(vault="/v", agent="a", mode="agent"))
    store.close()
    (home / "sessions.db").chmod(0o444)
    home.chmod(0o555)
    source = """
        import asyncio, os, sys
        from pathlib import Path
        from moryflow.sessions import *
        if os.geteuid() == 0:
            os.setgid(65534); os.setuid(65534)
        home = Path(sys.argv[1])

        async def main():
            store = Store.open(home / "sessions.db")
            print((await store.session(sys.argv[2])).id)
            for act in (store.create(vault="/v", agent="a", mode="agent"), store.hold(sys.argv[2])):
                try:
                    await act
                except StoreError as error:
                    print(error.code)
            store.close()
            try:
                Store.open(home / "new" / "sessions.db")
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


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder that say anything; a reader may leave an empty log behind."""
    files = [path for path in folder.iterdir() if path.is_file() and not path.name.endswith("-shm")]
    return {path.name: path.read_bytes() for path in files if path.stat().st_size}


def test_a_newer_database_is_refused_and_left_alone(file: Path):
    """A database of a newer version is refused with a sentence and not written to (SECURITY §3)."""
    Store.open(file).close()
    with sqlite3.connect(file) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    before = snapshot(file.parent)
    with pytest.raises(StoreError, match=r"written by a newer Moryflow.*Next: .*pip install -U") as caught:
        Store.open(file)
    assert caught.value.code == "newer"
    assert snapshot(file.parent) == before


async def test_a_database_upgraded_by_another_process_is_not_written_to(store: Store, hold: Hold, file: Path):
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
        Store.open(file)
    assert caught.value.code == "foreign"
    assert snapshot(file.parent) == before


async def test_an_empty_file_becomes_a_database(file: Path):
    """What a process killed right at the start leaves behind is taken over (SECURITY §3, empty)."""
    file.parent.mkdir()
    file.touch()
    store = Store.open(file)
    await store.create(vault="/v", agent="a", mode="agent")
    assert store.notices == []
    store.close()


def test_database_and_home_are_the_owner_s_alone(file: Path):
    """Conversations are nobody else's business: 0600 files in a 0700 folder."""
    old = os.umask(0)
    try:
        Store.open(file).close()
        store = Store.open(file)
        asyncio.run(store.create(vault="/v", agent="a", mode="agent"))
        modes = {path.name: path.stat().st_mode & 0o777 for path in file.parent.iterdir() if path.is_file()}
        store.close()
    finally:
        os.umask(old)
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert set(modes.values()) == {0o600}


def test_a_failed_migration_leaves_the_version_before(file: Path):
    """A migration is one transaction: what fails in the middle leaves nothing behind (SECURITY §3)."""
    Store.open(file).close()

    def breaks(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE later (id)")
        connection.execute("no such statement")

    def adds(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE later (id)")

    with closing(connect(file)) as connection:
        with pytest.raises(sqlite3.OperationalError):
            migrate(connection, [*MIGRATIONS, breaks])
        assert connection.execute("PRAGMA user_version").fetchone()[0] == 1
        assert not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'later'").fetchone()
        migrate(connection, [*MIGRATIONS, adds])
        assert connection.execute("PRAGMA user_version").fetchone()[0] == 2


def test_a_file_where_the_home_should_be(tmp_path: Path):
    """A home that is not a folder is a sentence."""
    (tmp_path / "home").write_text("")
    with pytest.raises(StoreError, match="Next:") as caught:
        Store.open(tmp_path / "home" / "sessions.db")
    assert caught.value.code in ("io", "readonly")


async def test_a_value_beyond_sqlite_s_numbers_is_refused(hold: Hold):
    """A token count no column can hold is a sentence, and nothing is stored."""
    with pytest.raises(StoreError) as caught:
        await hold.commit(Commit(nodes=[NewNode("user", {"text": ""}, tokens=1 << 80)]))
    assert caught.value.code == "too_large"
    assert hold.path == []


async def test_nothing_looks_at_all_sessions(store: Store, session: SessionRow, hold: Hold):
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

    from moryflow.sessions import forking, reading, writing

    def reads(db: sqlite3.Connection) -> None:
        reading.find_session(db, session.id[:5])
        for vault, purpose, parent in (("/v", "main", None), (None, "main", None), (None, None, None), (None, None, "p")):
            reading.list_sessions(db, 5, vault=vault, purpose=purpose, parent=parent)
        reading.path_of(db, session.id, hold.path[0].id)
        reading.nodes_of(db, session.id)
        reading.calls_of(db, session.id, None, None)
        reading.calls_of(db, None, "2026", {"waiting"})
        reading.approvals_of(db, session=session.id)
        reading.approvals_of(db, state="pending")
        reading.artifacts_of(db, id="x")
        reading.events_of(db, session.id, 0, 10)
        reading.events_of(db, None, 0, 10)

    await store._database.read(lambda db: traced(db, reads))
    commit = Commit(nodes=[NewNode("user", {"text": "two"})], plugin_state={("p", "s"): 1})
    await store._database.write(lambda to: traced(to, lambda c: writing.apply(c, session.id, hold.epoch, commit, None)))
    await store._database.write(lambda to: traced(to, lambda c: forking.descendants(c, session.id)))
    scans = [plan for plan in plans if plan.startswith("SCAN") and "up" not in plan.split()[1] and "below" not in plan]
    assert plans
    assert [plan for plan in scans if "USING" not in plan] == []
