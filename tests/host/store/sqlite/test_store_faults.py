"""Full disks, failing disks, locks, removed homes, other programs' files: a sentence each, and nothing lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from moryflow.store import Commit, NewNode, SessionLock, SessionRow, StoreError
from moryflow.store.sqlite.store import SqliteStore
from moryflow.store.tables import node_hash

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ONE = Commit(nodes=[NewNode("user", {"text": "one"})])


def script(name: str, *arguments: str, **environment: str) -> str:
    """Run a harness of this folder; its figures are what it prints."""
    command = [sys.executable, str(HERE / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_200_kills_lose_nothing():
    """A writer killed 200 times with SIGKILL: every acknowledged node is there, the database is sound, and what killed calls
    had started is ended and told before their session goes on (invariant 6, S1.3)."""
    told = script("kill_harness.py", "--kills", "200", "--seed", "7")
    assert ", 0 problems" in told and ", 0 calls killed asleep" not in told and "(2 of whole hosts)" in told


def test_the_nth_read_write_sync_or_truncation_fails(tmp_path: Path):
    """I/O errors and a full disk at the n-th system call, for n = 1, 2, 3 …: a code, nothing lost (SECURITY §3)."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux to make system calls fail")
    shim = tmp_path / "io_faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(shim), str(HERE / "io_faults.c"), "-ldl"], check=True)
    assert ", 0 problems" in script("io_fault_harness.py", str(shim), "15", LD_PRELOAD=str(shim))


async def test_a_full_database_keeps_what_it_has(store: SqliteStore, hold: SessionLock, session: SessionRow):
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
from moryflow.store import *
from moryflow.store.sqlite.store import SqliteStore

async def main():
    store = open_store(Path(sys.argv[1]))
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
    again = open_store(Path(sys.argv[1]))
    print(len(await again.path(row.id)), again.notices)
    again.close()

asyncio.run(main())
"""
READ = """
import asyncio, os, sys
from pathlib import Path
from moryflow.store import *
from moryflow.store.sqlite.store import SqliteStore

HOME = Path(sys.argv[1])
FILE, FILLER = HOME / "sessions.db", HOME / "filler"

def fill():
    with FILLER.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError as error:
            assert error.errno == 28, error

async def made():
    store = SqliteStore.open(FILE)
    row = await store.create(vault="/v", agent="a", mode="agent")
    (await store.hold(row.id)).release()
    return store, row.id

async def read(id):
    store = SqliteStore.open(FILE)
    try:
        return await store.path(id), [row.id for row in await store.sessions()], [line async for line in store.export(id)]
    finally:
        store.close()

async def main():
    store, id = await made()
    store.close()
    fill()
    looking = SqliteStore.open(FILE)
    print(len(await looking.sessions()), (await read(id))[1] == [id])
    FILLER.unlink()
    store, _ = await made()
    print(len(await looking.sessions()))
    looking.close()
    # a log that nobody can fold in any more, and nothing to read it with: what a killed process and a copy leave
    left = {part: (HOME / f"sessions.db{part}").read_bytes() for part in ("", "-wal")}
    store.close()
    for part, data in left.items():
        (HOME / f"sessions.db{part}").write_bytes(data)
    fill()
    try:
        await read(id)
    except StoreError as error:
        print(error.code, error.next_step)
    FILLER.unlink()
    print(len((await read(id))[1]))

asyncio.run(main())
"""


def on_small_disk(folder: Path, source: str) -> str:
    """Run a program in which `folder` is a file system of 1 MB; it is the program's argument, and its output is returned."""
    mount = f'mount -t tmpfs -o size=1m tmpfs {folder} && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*command[:4], "true"], capture_output=True).returncode:
        pytest.skip("needs user namespaces to mount a small file system")
    done = subprocess.run([*command, sys.executable, "-c", source, str(folder)], capture_output=True, text=True)
    if "mount:" in done.stderr:
        pytest.skip(f"cannot mount a small file system: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_small_disk_that_fills_up(tmp_path: Path):
    """A real file system of 1 MB fills up: `no_space`, and every stored node is there afterwards (SECURITY §3)."""
    code, count, other, kept, notices = on_small_disk(tmp_path, FILL).split()
    assert (code, other, kept, notices) == ("no_space", "no_space", count, "[]")
    assert int(count) > 5


def test_a_full_disk_is_read_all_the_same(tmp_path: Path):
    """Sessions are listed and exported, and later ones are seen; where there is a log to read, it is said what to do."""
    found = on_small_disk(tmp_path, READ).splitlines()
    assert found == ["1 True", "2", "no_space free some space, then try again; moryflow run -c goes on with a turn", "2"]


@contextlib.contextmanager
def locked(file: Path) -> Iterator[sqlite3.Connection]:
    """Another program that keeps the write lock."""
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


async def test_a_lock_that_ends_is_waited_for(hold: SessionLock, file: Path):
    """Locked for a while: the commit waits and succeeds (SECURITY §3)."""
    with locked(file) as other:
        asyncio.get_running_loop().call_later(0.3, other.execute, "ROLLBACK")
        await hold.commit(ONE)
    assert len(hold.path) == 1


async def test_a_lock_that_never_ends_is_a_sentence(hold: SessionLock, file: Path):
    """Locked for ever: `locked` after the patience is over, readers go on, later the session does too (SECURITY §3)."""
    impatient = SqliteStore.open(file, patience=0.1)
    with locked(file):
        with pytest.raises(StoreError, match=r"kept the session database locked.*Next:") as caught:
            await impatient.create(vault="/v", agent="a", mode="agent")
        assert caught.value.code == "locked"
        assert await impatient.path(hold.session.id) == []
        assert len(await impatient.sessions()) == 1
    await impatient.create(vault="/v", agent="a", mode="agent")
    impatient.close()


async def test_a_home_that_is_removed_while_running(store: SqliteStore, hold: SessionLock, file: Path):
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


async def test_a_database_removed_in_the_middle_of_a_commit(
    store: SqliteStore, hold: SessionLock, file: Path, session: SessionRow
):
    """A write into a file that is no longer there is not acknowledged (SECURITY §3)."""

    def work(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE sessions SET title = 'lost'")
        file.rename(file.with_name("elsewhere.db"))

    with pytest.raises(StoreError, match="removed or replaced") as caught:
        await store._database.write(work)
    assert caught.value.code == "gone"


async def test_a_moved_database_does_not_take_the_new_one_s_log_along(store: SqliteStore, hold: SessionLock, file: Path):
    """Closing a database that was moved away must not remove, by name, the log of the one in its place."""
    await hold.commit(ONE)
    file.rename(file.with_name("old.db"))
    for suffix in ("-wal", "-shm"):
        file.with_name(file.name + suffix).rename(file.with_name("old.db" + suffix))
    other = SqliteStore.open(file)
    row = await other.create(vault="/v", agent="a", mode="agent")
    log = file.with_name("sessions.db-wal")
    size = log.stat().st_size
    store.close()
    assert log.stat().st_size == size
    assert (await other.session(row.id)) == row
    other.close()


async def test_opening_a_database_leaves_the_locks_of_this_process_alone(
    store: SqliteStore, hold: SessionLock, file: Path, python
):
    """While this process has the database open, another one that closes it does not remove the log (SECURITY §3)."""
    await hold.commit(ONE)
    other = SqliteStore.open(file)
    await other.path(hold.session.id)
    source = """
        import asyncio, sys
        from pathlib import Path
        from moryflow.store import *
        from moryflow.store.sqlite.store import SqliteStore
        store = SqliteStore.open(Path(sys.argv[1]))
        asyncio.run(store.create(vault="/v", agent="a", mode="agent"))
        store.close()
    """
    for number in (2, 3):
        python(source, str(file))
        assert file.with_name("sessions.db-wal").exists()
        assert len(await store.sessions()) == len(await other.sessions()) == number
    other.close()


async def test_a_commit_found_on_the_disk_after_all_is_taken_in(store: SqliteStore, hold: SessionLock, session: SessionRow):
    """Where the disk is ahead of the holder (a sync failed after the bytes were written), its path follows the disk."""
    await hold.commit(ONE)

    def unseen(connection: sqlite3.Connection) -> None:
        connection.create_function("node_hash", 3, node_hash)
        connection.execute(
            """INSERT INTO nodes (session, id, seq, parent, kind, payload, tokens, hash, created)
            SELECT session, 'unseen', 2, id, kind, payload, 0, node_hash(hash, kind, payload), '' FROM nodes"""
        )
        connection.execute("UPDATE sessions SET active = 'unseen'")

    await store._database.write(unseen)
    await hold.commit(ONE)
    assert [node.seq for node in hold.path] == [1, 2, 3]
    assert hold.path == await store.path(session.id)
