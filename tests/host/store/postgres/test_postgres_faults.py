"""What becomes of a commit when the database restarts, crashes, refuses or does not answer."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest
from moryflow.store import Commit, NewNode, SessionBusy, Store, StoreError, open_store
from moryflow.store.postgres.store import inbox_of
from moryflow_sdk import Event
from postgres import PostgresServer


def commit(session: str, text: str) -> Commit:
    return Commit(nodes=[NewNode("user", {"text": text})], events=[Event(type="said", session=session, ts="1")])


async def texts(store: Store, session: str) -> list[str]:
    return [node.payload["text"] for node in await store.nodes(session)]


@pytest.mark.parametrize("at_once", [False, True], ids=["restarted", "crashed"])
async def test_a_commit_outlives_a_restart_of_the_server(own_server: PostgresServer, home: Path, at_once: bool):
    """Connections are made anew; each acknowledged commit is there once (D87)."""
    store = open_store(home, url=own_server.url, patience=20.0)
    hold = await store.hold((await store.create(vault="/v", agent="a", mode="agent")).id)
    said: list[str] = []
    stopped = threading.Event()

    def restart() -> None:
        own_server.stop(at_once=at_once)
        own_server.start()
        stopped.set()

    restarting = asyncio.get_running_loop().run_in_executor(None, restart)
    while not stopped.is_set():
        said.append(f"n{len(said)}")
        await hold.commit(commit(hold.session.id, said[-1]))
    await restarting
    assert await texts(store, hold.session.id) == said
    assert len(await store.events(None)) == len(said)
    hold.release()
    store.close()


class Wire:
    """A wire to the server that can be cut after the server got a commit, before its answer comes back."""

    def __init__(self, port: int) -> None:
        self._to, self.cut_at = port, b"\0never\0"
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                cut = threading.Event()
                threading.Thread(target=self._pass, args=(client, server, True, cut), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, False, cut), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, forward: bool, cut: threading.Event) -> None:
        with suppress(OSError), closing(source), closing(target):
            while data := source.recv(1 << 20):
                if not forward and cut.is_set():
                    self.cuts += 1
                    source.shutdown(socket.SHUT_RDWR)
                    target.shutdown(socket.SHUT_RDWR)
                    return
                if forward and self.cut_at in data:
                    self.cut_at = b"\0never\0"
                    cut.set()
                target.sendall(data)

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def wire(postgres: PostgresServer) -> Iterator[Wire]:
    """A wire to the server."""
    made = Wire(postgres.port)
    yield made
    made.close()


async def test_a_commit_whose_answer_was_lost_is_not_doubled(wire: Wire, url: str, home: Path):
    """The answer is unknown: the same commit is sent again with its id, and is recognised (D87)."""
    store = open_store(home, url=url.replace(f":{wire._to}/", f":{wire.port}/"), patience=10.0)
    hold = await store.hold((await store.create(vault="/v", agent="a", mode="agent")).id)
    await hold.commit(commit(hold.session.id, "one"))
    wire.cut_at = b"two"
    done = await hold.commit(commit(hold.session.id, "two"))
    await hold.commit(commit(hold.session.id, "three"))
    assert wire.cuts == 1
    assert await texts(store, hold.session.id) == ["one", "two", "three"]
    seqs = [event.seq for event in await store.events(None)]
    assert len(seqs) == 3 and seqs[1] == done.events[0].seq
    assert [node.payload["text"] for node in hold.path] == ["one", "two", "three"]
    hold.release()
    store.close()


async def test_a_database_that_only_reads_says_so_and_loses_nothing(store: Store, url: str, psql: psycopg.Connection):
    """A failover to a standby: the commit is refused with a sentence, and succeeds when it can be written again."""
    hold = await store.hold((await store.create(vault="/v", agent="a", mode="agent")).id)
    database = psql.execute("SELECT current_database()").fetchone()
    assert database is not None
    hold._database._free.queue.clear()  # type: ignore[attr-defined]  # the next connections see the setting
    psql.execute("ALTER ROLE postgres SET default_transaction_read_only = on")
    try:
        with pytest.raises(StoreError, match="refuses") as caught:
            await hold.commit(commit(hold.session.id, "one"))
        assert caught.value.code == "readonly"
    finally:
        psql.execute("SET transaction_read_only = off")
        psql.execute("ALTER ROLE postgres RESET default_transaction_read_only")
    hold._database._free.queue.clear()  # type: ignore[attr-defined]
    await hold.commit(commit(hold.session.id, "two"))
    assert await texts(store, hold.session.id) == ["two"]
    hold.release()


async def test_a_clock_that_is_wrong_takes_no_session(store: Store, url: str, home: Path, monkeypatch: pytest.MonkeyPatch):
    """Only the database's clock counts: a process whose own is a year ahead waits like any other (D87)."""
    hold = await store.hold((await store.create(vault="/v", agent="a", mode="agent")).id)
    monkeypatch.setattr("time.time", lambda: 4e9)
    other = open_store(home, url=url)
    with pytest.raises(SessionBusy):
        await other.hold(hold.session.id)
    other.close()
    hold.release()


async def test_more_work_than_connections_waits(store: Store):
    """A burst of reads and writes queues for the few connections of a process; none fails."""
    rows = await asyncio.gather(*(store.create(vault="/v", agent="a", mode="agent") for _ in range(60)))
    found = await asyncio.gather(*(store.session(row.id) for row in rows))
    assert [row.id for row in found] == [row.id for row in rows]


async def test_nobody_there_is_explained(home: Path):
    """A database that cannot be reached is named with what to do, after the patience it was given."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(StoreError, match=r"cannot be reached.*moryflow doctor") as caught:
        open_store(home, url=f"postgresql://postgres@127.0.0.1:{port}/postgres", patience=0.2)
    assert caught.value.code == "locked"


async def test_a_commit_wakes_who_waits_and_a_lost_listener_comes_back(own_server: PostgresServer, home: Path):
    """`LISTEN` wakes at once; after a restart of the server it wakes again, and meanwhile looking saves (D87)."""
    one, two = (open_store(home, url=own_server.url, patience=20.0) for _ in range(2))
    hold = await one.hold((await one.create(vault="/v", agent="a", mode="agent")).id)

    async def woken() -> bool:
        waiting = asyncio.create_task(two.wait_for_events(5.0))
        await asyncio.sleep(0.3)
        await hold.commit(commit(hold.session.id, "one"))
        began = asyncio.get_running_loop().time()
        await waiting
        return asyncio.get_running_loop().time() - began < 2.0

    assert await woken()
    own_server.stop(at_once=True)
    own_server.start()
    for _ in range(5):
        if await woken():
            break
    else:
        raise AssertionError("nobody woke it after the restart")
    hold.release()
    one.close()
    two.close()


async def test_what_is_told_arrives_in_its_order(url: str, home: Path):
    """However fast it is told, and from whichever thread; nothing of it is stored (D87)."""
    one, two = (open_store(home, url=url, patience=20.0) for _ in range(2))
    sender, hearer, heard = inbox_of(one), inbox_of(two), list[str]()
    assert sender is not None and hearer is not None
    hearer.wakes.heard = heard.append
    waiting = asyncio.create_task(hearer.wakes.wait(20.0))
    async with asyncio.timeout(20):
        while not heard:  # until it listens
            sender.wakes.tell("-")
            await asyncio.sleep(0.05)
        for number in range(60):
            sender.wakes.tell(str(number))
            if number % 7 == 0:
                await asyncio.sleep(0.01)
        while heard[-1] != "59":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert [text for text in heard if text != "-"] == [str(number) for number in range(60)]
    waiting.cancel()
    one.close()
    two.close()
