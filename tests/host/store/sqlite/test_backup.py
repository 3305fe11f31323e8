"""A damaged database is moved aside and named, and the last backup takes its place."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest
from moryflow.store import Commit, NewNode, Node, StaleEpoch, StoreError
from moryflow.store.sqlite import backup
from moryflow.store.sqlite.database import BACKUP, BACKUP_INTERVAL, RESTORED, beside
from moryflow.store.sqlite.store import SqliteStore
from moryflow_sdk import Event

PAGE = 4096
Trees = dict[str, list[Node]]
Filled = Callable[..., Awaitable[Trees]]
Everything = Callable[[SqliteStore], Awaitable[Trees]]


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def spoil(path: Path) -> None:
    overwrite(path, 0, b"\0" * PAGE)


def asides(path: Path) -> list[Path]:
    return sorted(file for file in path.parent.glob("*.corrupt-*") if not file.name.endswith(("-wal", "-shm")))


def count(trees: Trees) -> int:
    return sum(map(len, trees.values()))


def root_of(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]


async def say(file: Path, text: str, session: str = "talk") -> None:
    """Add a prompt to a session, which is made first if need be."""
    store = SqliteStore.open(file)
    if session not in {row.id for row in await store.sessions()}:
        await store.create(vault="/v", agent="a", mode="agent", id=session)
    hold = await store.hold(session)
    await hold.commit(Commit(nodes=[NewNode("user", {"text": text})]))
    hold.release()
    store.close()


def age(file: Path, seconds: float) -> None:
    """Make the backup older."""
    made = beside(file, BACKUP).stat().st_mtime - seconds
    os.utime(beside(file, BACKUP), (made, made))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "header": spoil,
    "text instead": lambda path: path.write_text("dear diary\n" * 1000),
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // PAGE // 2 * PAGE),
    "cut to one page": lambda path: os.truncate(path, PAGE),
    "a table": lambda path: overwrite(path, (root_of(path, "sessions") - 1) * PAGE, b"\xff" * PAGE),
}


@pytest.mark.parametrize("name", DAMAGES)
async def test_a_damaged_file_is_kept_aside_and_the_backup_takes_its_place(
    file: Path, name: str, filled: Filled, everything: Everything
):
    """The command that meets the damage names both files; nothing that was stored until the backup is lost (SECURITY §3)."""
    before = await filled(file)
    DAMAGES[name](file)
    spoiled = file.read_bytes()
    store = SqliteStore.open(file)
    assert await everything(store) == before
    (aside,), (notice,) = asides(file), store.notices
    assert aside.read_bytes() == spoiled
    assert aside.name in notice and str(file) in notice and "backup of" in notice
    store.close()
    again = SqliteStore.open(file)
    assert again.notices == []
    again.close()


@pytest.mark.parametrize("backup_too", [False, True])
async def test_without_a_sound_backup_a_new_database_begins(file: Path, backup_too: bool, filled: Filled):
    """The damaged file is kept and named; the next run works (SECURITY §3)."""
    await filled(file, sessions=1, nodes=2)
    spoil(file)
    spoil(beside(file, BACKUP)) if backup_too else beside(file, BACKUP).unlink()
    store = SqliteStore.open(file)
    assert await store.sessions() == [] and len(store.notices) == len(asides(file)) == 1
    assert "no sound backup" in store.notices[0]
    store.close()


async def test_a_backup_is_made_once_a_day_when_a_writer_closes(file: Path):
    """What a command stored is copied at its end, at most once a day; a reader copies nothing (S1.6)."""
    await say(file, "one")
    first = beside(file, BACKUP).stat()
    assert first.st_mode & 0o777 == 0o600
    await say(file, "two")
    assert beside(file, BACKUP).stat().st_ino == first.st_ino
    age(file, BACKUP_INTERVAL + 60)
    reader = SqliteStore.open(file)
    await reader.sessions()
    reader.close()
    assert beside(file, BACKUP).stat().st_ino == first.st_ino
    await say(file, "three")
    with closing(sqlite3.connect(beside(file, BACKUP))) as copy:
        assert copy.execute("SELECT count(*) FROM nodes").fetchone()[0] == 3


async def test_a_server_that_never_closes_makes_its_backup_while_it_runs(file: Path, monkeypatch: pytest.MonkeyPatch):
    """A day after its start, a write has the copy made (S1.6)."""
    store = SqliteStore.open(file)
    store._database._next_backup = 0.0
    await store.create(vault="/v", agent="a", mode="agent")
    await store.sessions()  # the copy is made by the reading thread, before this
    assert beside(file, BACKUP).exists()
    store.close()


async def test_a_copy_that_is_not_sound_does_not_replace_the_last_one(file: Path, filled: Filled):
    """Damage that nobody has met yet stays out of the backup (S1.6)."""
    await filled(file)
    sound = beside(file, BACKUP).read_bytes()
    age(file, BACKUP_INTERVAL + 60)
    made = beside(file, BACKUP).stat().st_mtime
    overwrite(file, (root_of(file, "events") - 1) * PAGE, b"\xff" * PAGE)
    backup.back_up(file)
    assert beside(file, BACKUP).read_bytes() == sound and beside(file, BACKUP).stat().st_mtime == made
    assert not beside(file, ".backup-new").exists()


async def test_what_is_deleted_is_in_no_backup(file: Path):
    """A deleted session does not come back (S1.6)."""
    await say(file, "a secret word")
    store = SqliteStore.open(file)
    await store.delete("talk")
    assert not beside(file, BACKUP).exists()
    store.close()
    assert b"a secret word" not in beside(file, BACKUP).read_bytes()


async def test_who_held_a_session_of_the_damaged_file_must_take_it_again(file: Path, filled: Filled):
    """What a holder knows is newer than the backup: it may not append to it (S1.6)."""
    before = await filled(file)
    overwrite(file, (root_of(file, "events") - 1) * PAGE, b"\xff" * PAGE)
    store, other = SqliteStore.open(file), SqliteStore.open(file)
    hold = await store.hold("s1")
    with pytest.raises(StaleEpoch):
        await hold.commit(Commit(events=[Event(type="x", session="s1")]))
    assert len(store.notices) == 1
    hold.release()
    again = await store.hold("s1")
    await again.commit(Commit(events=[Event(type="x", session="s1")]))
    again.release()
    assert await other.path("s1") == before["s1"]
    other.close()
    store.close()


async def test_two_processes_that_meet_the_damage_restore_once(file: Path, child, filled: Filled):
    """One restores; the others find it done (SECURITY §3, 8 processes)."""
    before = await filled(file)
    spoil(file)
    source = """
        import asyncio, sys
        from pathlib import Path
        from moryflow.store.sqlite.store import SqliteStore
        sys.stdin.readline()
        store = SqliteStore.open(Path(sys.argv[1]))
        print(len(store.notices), len(asyncio.run(store.nodes("s0"))), flush=True)
    """
    processes = [await child(source, str(file)) for _ in range(4)]
    for process in processes:
        process.stdin.write(b"go\n")
    said = [(await process.stdout.read()).split() for process in processes]
    for process in processes:
        await process.wait()
    assert sorted(notices for notices, _ in said) == [b"0", b"0", b"0", b"1"]
    assert {int(nodes) for _, nodes in said} == {len(before["s0"])}
    assert len(asides(file)) == 1


@pytest.mark.parametrize("point", ["_copy_of", "put_in_place", "_move_aside"])
async def test_a_restore_that_is_cut_short_is_made_again(
    file: Path, point: str, monkeypatch: pytest.MonkeyPatch, filled: Filled, everything: Everything
):
    """A process killed at any step loses nothing: the next start ends it (SECURITY §3)."""
    before = await filled(file)
    spoil(file)
    real = getattr(backup, point)

    class Killed(BaseException):
        pass

    def killed(*arguments: object) -> object:
        real(*arguments)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(backup, point, killed)
        SqliteStore.open(file)
    store = SqliteStore.open(file)
    assert len(store.notices) == len(asides(file)) == 1
    assert await everything(store) == before
    assert not beside(file, RESTORED).exists()
    store.close()


@pytest.mark.parametrize("kept", ["an empty file", "no file"])
async def test_a_log_without_its_file_is_damage(file: Path, kept: str, filled: Filled):
    """A new database is not begun over a log: it is kept aside (SECURITY §3)."""
    await filled(file, sessions=1, nodes=2)
    beside(file, "-wal").write_bytes(b"\x37\x7f\x06\x82" + os.urandom(8000))
    os.truncate(file, 0) if kept == "an empty file" else file.unlink()
    store = SqliteStore.open(file)
    assert len(store.notices) == 1 and len(await store.sessions()) == 1
    assert len(list(file.parent.glob("*.corrupt-*-wal"))) == 1
    store.close()


async def test_damage_on_a_disk_that_is_full_changes_nothing(file: Path, monkeypatch: pytest.MonkeyPatch, filled: Filled):
    """Where there is no room for the copy, the damaged file stays where it is, and a sentence says so."""
    await filled(file, sessions=1, nodes=5)
    spoil(file)
    spoiled = file.read_bytes()

    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backup, "_copy_of", full)
    with pytest.raises(StoreError, match="disk is full") as caught:
        SqliteStore.open(file)
    assert caught.value.code == "no_space"
    assert file.read_bytes() == spoiled


async def test_a_false_alarm_changes_nothing(file: Path, filled: Filled):
    """A sound database stays; one of a newer version is never replaced."""
    await filled(file, sessions=1, nodes=2)
    data = file.read_bytes()
    assert backup.restore(file) is None
    assert file.read_bytes() == data
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="newer"):
        backup.restore(file)
    assert asides(file) == []
