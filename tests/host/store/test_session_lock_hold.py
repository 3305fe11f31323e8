"""One appender per session: a lock of the operating system and an epoch."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from moryflow.store import Commit, NewNode, SessionBusy, SessionRow, StaleEpoch, Store, StoreError


async def test_second_holder_in_the_same_process_is_busy(store: Store, session: SessionRow):
    """A held session is refused with a sentence that names the holder; released, it is free (SECURITY §3)."""
    hold = await store.hold(session.id)
    with pytest.raises(SessionBusy, match=r"in use by this process.*session fork") as caught:
        await store.hold(session.id)
    assert caught.value.code == "busy"
    hold.release()
    again = await store.hold(session.id, wait=1)
    assert again.epoch == hold.epoch + 1
    with pytest.raises(StaleEpoch, match="released"):
        await hold.commit(Commit())
    again.release()
    again.release()


async def test_two_processes_on_one_session(store: Store, session: SessionRow, holder):
    """The second process gets `busy` with the first one's number; readers take nothing (SECURITY §3)."""
    process = await holder(session.id)
    assert await process.stdout.readline() == b"held\n"
    with pytest.raises(SessionBusy, match=f"process {process.pid}"):
        await store.hold(session.id, wait=0.1)
    assert await store.path(session.id) == []
    other = await store.create(vault="/v", agent="a", mode="agent")
    (await store.hold(other.id)).release()
    process.stdin.close()
    await process.wait()
    (await store.hold(session.id)).release()


async def test_a_killed_holder_leaves_no_lock(store: Store, session: SessionRow, holder):
    """The lock ends with its process: no heartbeat, no expiry (ARCHITECTURE §5)."""
    process = await holder(session.id)
    await process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    hold = await store.hold(session.id, wait=300)
    assert hold.epoch == 2
    hold.release()
    await process.wait()


async def test_eight_processes_on_one_database(store: Store, holder):
    """Eight writers on eight sessions of one database all get through (SECURITY §3)."""
    rows = [await store.create(vault="/v", agent="a", mode="agent") for _ in range(8)]
    processes = [await holder(row.id) for row in rows]
    for process in processes:
        process.stdin.write(b"".join(b"%d\n" % number for number in range(40)))
        process.stdin.close()
    for row, process in zip(rows, processes, strict=True):
        assert await process.stdout.read() == b"held\n" + b"stored\n" * 40
        await process.wait()
        assert [node.payload["text"] for node in await store.path(row.id)] == [str(number) for number in range(40)]


async def test_eight_processes_make_one_database(home: Path, implementation: str, open_home, child):
    """Eight processes that start at once in an empty home make one sound database (SECURITY §3)."""
    source = """
        import asyncio, pkgutil, sys
        from pathlib import Path
        sys.stdin.readline()
        store = pkgutil.resolve_name(sys.argv[1])(Path(sys.argv[2]))
        asyncio.run(store.create(vault="/v", agent="a", mode="agent"))
        print(store.notices)
    """
    processes = [await child(source, implementation, str(home)) for _ in range(8)]
    for process in processes:
        process.stdin.write(b"go\n")
    assert [await process.stdout.read() for process in processes] == [b"[]\n"] * 8
    assert [await process.wait() for process in processes] == [0] * 8
    store = open_home(home)
    assert len(await store.sessions()) == 8
    store.close()


async def test_a_held_session_is_not_purged(store: Store, session: SessionRow):
    """Deleting a session that someone works in is refused; so is deleting its parent."""
    kid = await store.create(vault="/v", agent="a", mode="agent", parent=session.id, purpose="child")
    hold = await store.hold(kid.id)
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "x"})]))
    with pytest.raises(SessionBusy):
        await store.delete(session.id)
    assert await store.path(kid.id) == hold.path
    hold.release()
    await store.delete(session.id)
    assert await store.sessions(purpose=None) == []
    assert await store.nodes(kid.id) == []
    with pytest.raises(StoreError, match="no session"):
        await store.delete(session.id)
