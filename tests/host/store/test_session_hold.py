"""One appender per session: a lock of the operating system and an epoch."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from moryflow.store import Commit, NewNode, SessionBusy, SessionRow, StaleEpoch, Store, StoreError
from moryflow.store.sqlite import locks
from moryflow.store.sqlite.locks import FileLock

HOLDER = """
    import asyncio, sys
    from pathlib import Path
    from moryflow.store import *

    async def main():
        store = Store.open(Path(sys.argv[1]))
        hold = await store.hold(sys.argv[2])
        print("held", flush=True)
        for line in sys.stdin:
            try:
                await hold.commit(Commit(nodes=[NewNode("user", {"text": line.strip()})]))
                print("stored", flush=True)
            except Exception as error:
                print(type(error).__name__, len(hold.path), flush=True)

    asyncio.run(main())
"""


async def test_second_holder_in_the_same_process_is_busy(store: Store, session: SessionRow):
    """A held session is refused with a sentence that names the holder; released, it is free (SECURITY §3)."""
    hold = await store.hold(session.id)
    with pytest.raises(SessionBusy, match=r"in use by this process.*session fork") as caught:
        await store.hold(session.id)
    assert caught.value.code == "busy"
    hold.release()
    again = await store.hold(session.id, wait=1)
    assert again.epoch == hold.epoch + 1
    with pytest.raises(StaleEpoch, match="given back"):
        await hold.commit(Commit())
    again.release()
    again.release()


async def test_two_processes_on_one_session(store: Store, session: SessionRow, file: Path, child):
    """The second process gets `busy` with the first one's number; readers take nothing (SECURITY §3)."""
    process = await child(HOLDER, str(file), session.id)
    assert await process.stdout.readline() == b"held\n"
    with pytest.raises(SessionBusy, match=f"process {process.pid}"):
        await store.hold(session.id, wait=0.1)
    assert await store.path(session.id) == []
    other = await store.create(vault="/v", agent="a", mode="agent")
    (await store.hold(other.id)).release()
    process.stdin.close()
    await process.wait()
    (await store.hold(session.id)).release()


async def test_a_killed_holder_leaves_no_lock(store: Store, session: SessionRow, file: Path, child):
    """The lock ends with its process: no heartbeat, no expiry (ARCHITECTURE §5)."""
    process = await child(HOLDER, str(file), session.id)
    await process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    hold = await store.hold(session.id, wait=300)
    assert hold.epoch == 2
    hold.release()
    await process.wait()


async def test_a_stopped_holder_that_continues_cannot_write(store: Store, session: SessionRow, file: Path, child):
    """A holder stopped while another took the session over is refused by its epoch, and its memory stays (SECURITY §3)."""
    process = await child(HOLDER, str(file), session.id)
    await process.stdout.readline()
    process.stdin.write(b"first\n")
    assert await process.stdout.readline() == b"stored\n"
    process.send_signal(signal.SIGSTOP)
    # What a network file system, or a person with rm, does to the stopped one's lock.
    (file.parent / "locks" / f"{session.id}.lock").unlink()
    hold = await store.hold(session.id)
    await hold.commit(Commit(nodes=[NewNode("user", {"text": "second"})]))
    process.send_signal(signal.SIGCONT)
    process.stdin.write(b"too late\n")
    assert await process.stdout.readline() == b"StaleEpoch 1\n"
    process.stdin.close()
    await process.wait()
    assert [node.payload["text"] for node in await store.path(session.id)] == ["first", "second"]
    assert hold.path == await store.path(session.id)
    hold.release()


async def test_eight_processes_on_one_database(store: Store, file: Path, child):
    """Eight writers on eight sessions of one database all get through (SECURITY §3)."""
    rows = [await store.create(vault="/v", agent="a", mode="agent") for _ in range(8)]
    processes = [await child(HOLDER, str(file), row.id) for row in rows]
    for process in processes:
        process.stdin.write(b"".join(b"%d\n" % number for number in range(40)))
        process.stdin.close()
    for row, process in zip(rows, processes, strict=True):
        assert await process.stdout.read() == b"held\n" + b"stored\n" * 40
        await process.wait()
        assert [node.payload["text"] for node in await store.path(row.id)] == [str(number) for number in range(40)]


async def test_eight_processes_make_one_database(file: Path, child):
    """Eight processes that start at once in an empty home make one sound database (SECURITY §3)."""
    source = """
        import asyncio, sys
        from pathlib import Path
        from moryflow.store import *
        sys.stdin.readline()
        store = Store.open(Path(sys.argv[1]))
        asyncio.run(store.create(vault="/v", agent="a", mode="agent"))
        print(store.notices)
    """
    processes = [await child(source, str(file)) for _ in range(8)]
    for process in processes:
        process.stdin.write(b"go\n")
    assert [await process.stdout.read() for process in processes] == [b"[]\n"] * 8
    assert [await process.wait() for process in processes] == [0] * 8
    store = Store.open(file)
    assert len(await store.sessions()) == 8
    store.close()


async def test_holding_an_unknown_session(store: Store, file: Path):
    """No lock file is left for a session that does not exist."""
    with pytest.raises(StoreError, match="no session 'nothing'"):
        await store.hold("nothing")
    assert not list((file.parent / "locks").glob("*"))


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


def test_a_lock_counts_only_while_its_file_is_in_place(tmp_path: Path):
    """Two locks never hold at once although the file is removed on release."""
    first, second, third = (FileLock(tmp_path / "locks" / "x.lock") for _ in range(3))
    assert first.acquire()
    assert not second.acquire()
    assert first.holder() == second.holder() == "this process"
    first.release()
    assert not first.path.exists()
    assert second.acquire()
    assert not third.acquire()
    second.path.unlink()
    assert third.acquire()
    second.release()
    assert third.path.exists()
    third.release()


def test_a_lock_on_a_file_that_was_just_removed_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Who opened the file before its holder removed it locks nothing that anyone else would see."""
    first, second, third = (FileLock(tmp_path / "x.lock") for _ in range(3))
    assert first.acquire()
    real = locks._lock

    def lock_after_release(descriptor: int) -> bool:
        first.release()
        return real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(locks, "_lock", lock_after_release)
        assert not second.acquire()
    assert third.acquire()
    assert not second.acquire()
    third.release()


def test_the_holder_of_a_strange_lock_file_is_just_another_process(tmp_path: Path):
    """The sentence does not depend on what stands in the file."""
    lock = FileLock(tmp_path / "x.lock")
    assert lock.holder() == "another process"
    for content in (b"", b"\xff\xfe", b"12x"):
        lock.path.write_bytes(content)
        assert lock.holder() == "another process"
    lock.path.write_text(str(os.getppid()))
    assert lock.holder() == f"process {os.getppid()}"


async def test_a_lock_that_cannot_be_made_is_a_sentence(store: Store, session: SessionRow, file: Path):
    """Where the lock's folder cannot be made, the session is refused with file and next step."""
    (file.parent / "locks").rmdir() if (file.parent / "locks").exists() else None
    (file.parent / "locks").write_text("not a folder")
    with pytest.raises(StoreError, match="Next:") as caught:
        await store.hold(session.id)
    assert str(file.parent / "locks") in caught.value.where
