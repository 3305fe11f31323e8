"""PgBouncer in transaction mode between a store and its server: no connection keeps anything between two transactions."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from moryflow.store import Commit, NewNode, open_store
from moryflow_sdk import Event
from postgres import PostgresServer

POOLER = shutil.which("pgbouncer") or next((path for path in ("/usr/sbin/pgbouncer",) if Path(path).exists()), None)


@pytest.fixture
def pooled(postgres: PostgresServer, tmp_path: Path) -> Iterator[str]:
    """The address of the pooler, which has three connections; its database is one of its own."""
    if POOLER is None:
        pytest.skip("no PgBouncer here: apt-get install pgbouncer")
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE pooled")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="moryflow-pooler-"))
    (folder / "users").write_text('"postgres" ""\n')
    (folder / "pgbouncer.ini").write_text(f"""[databases]
pooled = host=127.0.0.1 port={postgres.port} dbname=pooled user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 3
""")
    given: dict[str, object] = {}
    if os.getuid() == 0:  # it does not run as root
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, "postgres", "postgres")
        given = {"user": "postgres", "group": "postgres", "extra_groups": []}
    with (tmp_path / "pooler.log").open("wb") as log:
        process = subprocess.Popen([POOLER, folder / "pgbouncer.ini"], stdout=log, stderr=log, cwd="/", **given)  # type: ignore[call-overload]
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "pooler.log").read_text()
                time.sleep(0.05)
        yield f"postgresql://postgres@127.0.0.1:{port}/pooled"
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("DROP DATABASE pooled WITH (FORCE)")


async def test_a_store_works_through_a_pooler_in_transaction_mode(pooled: str, home: Path):
    """Holds, commits, forks, searches and purges, from two stores at once over three connections (D87)."""
    one, two = open_store(home, url=pooled), open_store(home, url=pooled)
    for round in range(5):
        first, second = [await store.hold((await store.create(vault="/v", agent="a", mode="agent")).id) for store in (one, two)]
        for hold in (first, second):
            for number in range(5):
                event = Event(type="said", session=hold.session.id, ts="1")
                await hold.commit(Commit(nodes=[NewNode("user", {"text": f"word{number}"})], events=[event]))
            hold.release()
        copy = await two.fork(first.session.id)
        assert len(await one.nodes(copy.id)) == 5
        assert len(await two.search("word3")) == 3 * (round + 1) - round
        await one.delete(copy.id)
    assert len(await two.events(None)) == 50
    one.close()
    two.close()
