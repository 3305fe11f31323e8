"""The lock of a session is a file that the operating system locks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from moryflow.store import Commit, NewNode, SessionRow, StoreError
from moryflow.store.sqlite import locks
from moryflow.store.sqlite.locks import FileLock
from moryflow.store.sqlite.store import SqliteStore


async def test_a_stopped_holder_that_continues_cannot_write(store: SqliteStore, session: SessionRow, file: Path, holder):
    """A holder stopped while another took the session over is refused by its epoch, and its memory stays (SECURITY §3)."""
    process = await holder(session.id)
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


async def test_holding_an_unknown_session(store: SqliteStore, file: Path):
    """No lock file is left for a session that does not exist."""
    with pytest.raises(StoreError, match="no session 'nothing'"):
        await store.hold("nothing")
    assert not list((file.parent / "locks").glob("*"))


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
    real = locks.try_lock

    def lock_after_release(descriptor: int) -> bool:
        first.release()
        return real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(locks, "try_lock", lock_after_release)
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


async def test_a_lock_that_cannot_be_made_is_a_sentence(store: SqliteStore, session: SessionRow, file: Path):
    """Where the lock's folder cannot be made, the session is refused with file and next step."""
    (file.parent / "locks").rmdir() if (file.parent / "locks").exists() else None
    (file.parent / "locks").write_text("not a folder")
    with pytest.raises(StoreError, match="Next:") as caught:
        await store.hold(session.id)
    assert str(file.parent / "locks") in caught.value.where
