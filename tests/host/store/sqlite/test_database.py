"""One connection writes and one reads; tables refuse what the store would not do; the index can be made again."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from moryflow.store import Commit, NewNode, SessionLock, SessionRow, StoreError, tree
from moryflow.store.sqlite.store import SqliteStore
from moryflow.store.tables import node_hash


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE nodes SET payload = '{}'",
        "UPDATE nodes SET parent = NULL",
        "DELETE FROM nodes",
        "INSERT OR REPLACE INTO nodes SELECT * FROM nodes",
    ],
)
async def test_database_refuses_to_change_or_remove_nodes(store: SqliteStore, say, file: Path, statement: str):
    """Original nodes are never deleted nor replaced, whoever tries (S1.2, invariant 6)."""
    before = await say("one", "two")
    plain = sqlite3.connect(file)  # as any program opens it: without `recursive_triggers`
    with plain, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        plain.execute(statement)
    plain.close()
    assert await store.nodes(before[0].session) == before


async def test_replace_by_the_store_s_own_connection_is_refused(store: SqliteStore, say):
    """REPLACE meets a trigger on the writer's connection too (S1.2)."""
    await say("one")
    statement = """REPLACE INTO nodes (session, id, seq, kind, payload, tokens, hash, created)
        SELECT session, id, 99, 'user', '{}', 0, '', '' FROM nodes"""
    with pytest.raises(StoreError, match="append-only"):
        await store._database.write(lambda to: to.execute(statement))


async def test_10_000_branches(store: SqliteStore, hold: SessionLock, say, session: SessionRow):
    """Ten thousand branches from one node: the path stays as short as it is (SECURITY §3)."""
    (root,) = await say("root")
    for _ in range(100):
        drafts = [NewNode("user", {"text": "branch"}) for _ in range(100)]
        await hold.commit(Commit(nodes=drafts, active=root.id))

    def fan(connection: sqlite3.Connection) -> None:
        connection.create_function("node_hash", 3, node_hash)
        connection.execute(
            """INSERT INTO nodes (session, id, seq, parent, kind, payload, tokens, hash, created)
            SELECT session, 'b' || seq, seq + 20000, ?, kind, payload, tokens, node_hash(?, kind, payload), created
            FROM nodes""",
            (root.id, root.hash),
        )

    await store._database.write(fan)
    assert len(tree(await store.nodes(session.id))[0].children) > 10_000
    await hold.switch("b5000")
    assert [node.id for node in hold.path] == [root.id, "b5000"]


async def test_a_cancelled_commit_is_stored_and_shown(store: SqliteStore, hold: SessionLock, session: SessionRow):
    """Cancelling the waiting turn neither loses the write nor lets memory and disk part (invariant 6)."""
    store._database._left_to_thread = 1
    task = asyncio.create_task(hold.commit(Commit(nodes=[NewNode("user", {"text": "x" * 3_000_000})])))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.create(vault="/v", agent="a", mode="agent")  # comes after it in the writer's queue
    assert hold.path == await store.path(session.id)
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "next"})]))
    assert len(hold.path) == 2
    assert hold.path == await store.path(session.id) == await store.nodes(session.id)


async def test_a_quick_write_does_not_overtake_a_slow_one(store: SqliteStore):
    """What the holder remembers follows the order on the disk, however long each transaction takes (invariant 6)."""
    applied: list[str] = []
    store._database._left_to_thread = 1

    def slow(_: object) -> str:
        time.sleep(0.02)
        return "slow"

    write = store._database.write
    await asyncio.gather(write(slow, applied.append), write(lambda _: "quick", applied.append))
    assert applied == ["slow", "quick"]


async def test_a_commit_that_another_process_holds_up_does_not_hold_up_the_loop(
    store: SqliteStore, hold: SessionLock, tmp_path: Path
):
    """While one process writes, the loop of another goes on, and its commit follows (invariant 6)."""
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "first"})]))
    with closing(sqlite3.connect(store._database.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(hold.commit(Commit(nodes=[NewNode("user", {"text": "second"})])))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        other.execute("ROLLBACK")
    await waiting
    assert [node.payload["text"] for node in hold.path] == ["first", "second"]


async def test_a_slow_disk_is_left_to_the_thread(store: SqliteStore, monkeypatch: pytest.MonkeyPatch):
    """A transaction that took long keeps the loop once, and not again and again (S4.5)."""
    threads: list[str] = []

    def work(_: object) -> None:
        threads.append(threading.current_thread().name)

    await store._database.write(work)
    await store._database.write(work)
    monkeypatch.setattr("moryflow.store.sqlite.database.QUICK", 0.0)
    await store._database.write(work)
    await store._database.write(work)
    assert [name.startswith("store-write") for name in threads] == [True, False, False, True]


@pytest.mark.parametrize("where", ["search", "extend", "purge"])
@pytest.mark.parametrize("damage", ["DELETE FROM search_docsize", "DELETE FROM search_data"])
async def test_a_damaged_index_is_built_again(store: SqliteStore, hold: SessionLock, where: str, damage: str):
    """A damaged index costs a search its speed and never the store its data (S4.19)."""
    other = await store.hold((await store.create(vault="/v", agent="a", mode="agent")).id)
    await other.commit(Commit(nodes=[NewNode("user", {"text": "alpha other"})]))
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "alpha"})]))
    assert len(await store.search("alpha")) == 2
    await store._database.write(lambda to: to.execute(damage))
    if where == "extend":
        await hold.commit(Commit(nodes=[NewNode("user", {"text": "alpha two"})]))
    if where == "purge":
        other.release()
        await store.delete(other.session.id)
    expected = {"search": 2, "extend": 3, "purge": 1}[where]
    assert [len(await store.search("alpha")) for _ in range(3)] == [expected] * 3
    assert store.notices == []
    words = await store._database.read(lambda db: db.execute("SELECT until FROM search_progress").fetchone())
    assert words[0] > 0
