"""A disk that is full, a server whose place another takes, and a server that answers slowly: made, not pretended."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from moryflow.store import Commit, NewNode, Store, StoreError, open_store
from moryflow_sdk import Event
from postgres import PostgresServer

pytestmark = pytest.mark.slow


def commit(session: str, text: str) -> Commit:
    return Commit(nodes=[NewNode("user", {"text": text})], events=[Event(type="said", session=session, ts="1")])


async def texts(store: Store, session: str) -> list[str]:
    return [node.payload["text"] for node in await store.nodes(session)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MB; only root can make one."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "none", place], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no disk can be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


async def test_a_full_disk_loses_nothing_and_is_named(own_server: PostgresServer, home: Path, small_disk: Path):
    """What was acknowledged stays, what was not is not there, and the session goes on when there is room (D87)."""
    tables = small_disk / "tables"
    tables.mkdir()
    if os.getuid() == 0:
        for folder in (*list(small_disk.parents)[:-2], small_disk):
            folder.chmod(folder.stat().st_mode | 0o011)
        shutil.chown(tables, "postgres", "postgres")
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLESPACE small LOCATION '{tables}'".encode())
        connection.execute("ALTER ROLE postgres SET default_tablespace = 'small'")
    store = open_store(home, url=own_server.url, patience=5.0)
    hold = await store.hold((await store.create(vault="/v", agent="a", mode="agent")).id)
    said: list[str] = []
    with pytest.raises(StoreError) as caught:
        for number in range(200):
            text = f"{number} {os.urandom(100_000).hex()}"
            await hold.commit(commit(hold.session.id, text))
            said.append(text)
    assert caught.value.code == "no_space" and said
    assert await texts(store, hold.session.id) == said
    await asyncio.to_thread(subprocess.run, ["mount", "-o", "remount,size=256m", small_disk], check=True)
    await hold.commit(commit(hold.session.id, "there is room"))
    assert await texts(store, hold.session.id) == [*said, "there is room"]
    hold.release()
    store.close()
    own_server.stop(at_once=True)


@pytest.fixture
def standby(own_server: PostgresServer, tmp_path: Path) -> Iterator[PostgresServer]:
    """A second server that follows the first; a commit is acknowledged when both have it."""
    folder = tmp_path / "standby"
    folder.mkdir()
    second = PostgresServer(folder, own_server.programs)
    if os.getuid() == 0:
        for above in list(folder.parents)[:-2]:
            above.chmod(above.stat().st_mode | 0o011)
        shutil.chown(folder, "postgres", "postgres")
    own_server.stop()
    own_server.start("wal_level=replica", "synchronous_standby_names=*", "synchronous_commit=local")
    copy = [own_server.programs / "pg_basebackup", "-h", "127.0.0.1", "-p", str(own_server.port), "-U", "postgres", "-R"]
    subprocess.run([*copy, "-D", folder / "data", "--no-sync"], check=True, cwd="/", capture_output=True, **second._as)
    second.start()
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        while connection.execute("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'").fetchone() != (1,):
            time.sleep(0.05)
    yield second
    second.stop(at_once=True)


async def test_a_failover_loses_nothing_that_was_acknowledged(own_server: PostgresServer, standby: PostgresServer, home: Path):
    """The first server is killed while commits come; the second is promoted, and the same store goes on there (D87)."""
    one, two = urlsplit(own_server.url), urlsplit(standby.url)
    hosts = f"127.0.0.1:{one.port},127.0.0.1:{two.port}"
    options = "target_session_attrs=read-write&options=-csynchronous_commit%3Don"
    store = open_store(home, url=f"postgresql://postgres@{hosts}/postgres?{options}", patience=30.0)
    hold = await store.hold((await store.create(vault="/v", agent="a", mode="agent")).id)
    promoted = threading.Event()

    def fail_over() -> None:
        time.sleep(0.5)
        own_server.stop(at_once=True)
        with psycopg.connect(standby.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            connection.execute("SELECT pg_promote()")
            connection.execute("SELECT pg_reload_conf()")
        promoted.set()

    failing = asyncio.get_running_loop().run_in_executor(None, fail_over)
    said: list[str] = []
    while not promoted.is_set() or len(said) % 10:
        said.append(f"n{len(said)}")
        await hold.commit(commit(hold.session.id, said[-1]))
    await failing
    assert await texts(store, hold.session.id) == said and len(said) >= 10
    assert len(await store.events(None)) == len(said)
    hold.release()
    store.close()


async def test_a_slow_server_is_waited_for(own_server: PostgresServer, home: Path):
    """Every statement of a commit takes a second, and somebody else's lock two more: it is late, and there once (D87)."""
    store = open_store(home, url=own_server.url, patience=20.0)
    hold = await store.hold((await store.create(vault="/v", agent="a", mode="agent")).id)
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        connection.execute("""CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_sleep(1); RETURN NEW; END $$""")
        connection.execute("CREATE TRIGGER slow BEFORE INSERT ON nodes FOR EACH ROW EXECUTE FUNCTION slow()")
        began = time.monotonic()
        with connection.transaction():
            connection.execute("LOCK TABLE nodes IN ACCESS EXCLUSIVE MODE")
            working = asyncio.create_task(hold.commit(commit(hold.session.id, "one")))
            await asyncio.sleep(2)
            assert not working.done()
        await working
        assert time.monotonic() - began >= 3
    assert await texts(store, hold.session.id) == ["one"]
    with suppress(StoreError):
        hold.release()
    store.close()
