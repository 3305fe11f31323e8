"""Stored outputs: where they go, who may read them, when they go away."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import resource
import stat
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow.services.artifacts import ArtifactService, OutputFolder, file_name, new_id, open_folder, parse_name, put
from moryflow_sdk import ToolError


class Rows:
    """Records in a dictionary, newest first."""

    def __init__(self):
        self.kept = {}

    async def add(self, artifact):
        self.kept[artifact.id] = artifact

    async def get(self, artifact):
        return self.kept.get(artifact)

    async def list(self, *, session=None, limit=None):
        found = [row for row in reversed(self.kept.values()) if session in (None, row.session)]
        return found[:limit]

    async def copy(self, artifact, offset, limit):
        return None

    async def expire(self, artifact):
        self.kept[artifact] = self.kept[artifact].replace(state="expired")


@pytest.fixture
def folders(tmp_path):
    home, vault = tmp_path / "home", tmp_path / "vault"
    vault.mkdir()
    return home, vault


@pytest.fixture
def rows():
    return Rows()


@pytest.fixture
def service(folders, rows):
    return ArtifactService(folders[0], rows, session="s1", vault=folders[1])


@contextmanager
def files_no_larger_than(size: int):
    """Let writes beyond `size` fail, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def age(path: Path, days: float) -> Path:
    """Give a stored file a name that says it is `days` old."""
    created, output = parse_name(path.name)
    older = path.with_name(file_name(created - timedelta(days=days), "tool", output))
    path.rename(older)
    return older


@given(st.text(max_size=3000).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)))
def test_the_file_holds_exactly_the_bytes_of_the_output(text):
    """What is stored equals the original, and size, hash and number of lines are of it (S0.52, D62)."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        stored = put(text, file_name(datetime.now(UTC), "t", new_id()), [OutputFolder(Path(folder), ".agent-output")])
        data = text.encode()
        assert stored.path.read_bytes() == data
        assert (stored.size, stored.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert stored.lines == len(re.findall(r"[^\n]*\n|[^\n]+\Z", text))


@given(st.text(max_size=60))
def test_a_file_name_is_ours_whatever_the_tool_is_called(tool):
    """``<UTC time>-<tool>-<id>.txt``; no tool name leads out of the folder (D36)."""
    moment, output = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), new_id()
    name = file_name(moment, tool, output)
    assert parse_name(name) == (moment, output) and "/" not in name


async def test_content_larger_than_one_chunk_is_stored_whole(service):
    """Several chunks, characters of every width (S0.52)."""
    text = "aé漢😀" * 600_000
    row = await service.store(text, call_id="c", tool="big")
    assert Path(row.path).read_bytes() == text.encode() and (row.size, row.lines) == (len(text.encode()), 1)
    assert row.sha256 == hashlib.sha256(text.encode()).hexdigest()


async def test_folder_and_file_are_private_whatever_the_umask(service, folders):
    """0700, 0600, a .gitignore of * (D36)."""
    before = os.umask(0)
    try:
        row = await service.store("x", call_id="c", tool="t")
    finally:
        os.umask(before)
    folder = folders[1] / ".agent-output"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, Path(row.path), folder / ".gitignore")]
    assert modes == [0o700, 0o600, 0o600] and (folder / ".gitignore").read_text() == "*\n"


async def test_a_place_that_fails_while_writing_leaves_nothing_and_the_next_is_tried(service, folders):
    """Disk full in the middle: no half file is left behind in either place (D37, SECURITY §3)."""
    with files_no_larger_than(1 << 20), pytest.raises(OSError):
        await service.store("x" * (3 << 20), call_id="c", tool="t")
    left = [path for place in (folders[1] / ".agent-output", folders[0] / "agent-output") for path in place.glob("*.txt")]
    assert left == []


async def test_without_a_vault_the_home_is_used(folders, rows):
    """The profile ``remote`` writes below the home only (S0.57, D71)."""
    service = ArtifactService(folders[0], rows, session="s", vault=None)
    row = await service.store("x", call_id="c", tool="t")
    assert Path(row.path).parent == folders[0] / "agent-output" and list(folders[1].iterdir()) == []


@pytest.mark.parametrize("inside", [True, False])
async def test_a_linked_folder_is_never_entered(service, folders, tmp_path, inside):
    """Neither written, nor given a .gitignore, nor cleaned, wherever the link leads (R12, D36, D38)."""
    target = (folders[1] if inside else tmp_path) / "elsewhere"
    target.mkdir()
    victim = target / file_name(datetime(2020, 1, 1, tzinfo=UTC), "t", new_id())
    victim.write_text("keep")
    (folders[1] / ".agent-output").symlink_to(target)
    row = await service.store("x", call_id="c", tool="t")
    assert Path(row.path).parent == folders[0] / "agent-output"
    await service.expire()
    assert [path.name for path in target.iterdir()] == [victim.name]


async def test_a_swap_of_the_folder_for_a_link_never_writes_outside(service, folders, tmp_path):
    """While somebody exchanges folder and link, every file lands in a place of ours (R12, SECURITY §3)."""
    outside = tmp_path / "outside"
    outside.mkdir()
    folder, aside, ending = folders[1] / ".agent-output", folders[1] / "aside", threading.Event()

    def exchange():
        while not ending.is_set():
            for step in (
                lambda: folder.rename(aside),
                lambda: folder.symlink_to(outside),
                folder.unlink,
                lambda: aside.rename(folder),
            ):
                try:
                    step()
                except OSError:
                    continue

    racer = threading.Thread(target=exchange)
    racer.start()
    try:
        made = [await service.store("secret", call_id="c", tool="t") for _ in range(300)]
    finally:
        ending.set()
        racer.join()
    assert list(outside.iterdir()) == []
    assert len({row.id for row in made}) == 300


async def test_a_spooled_file_is_moved_within_a_disk(service, tmp_path):
    """The same object under a new name (D54)."""
    spool = tmp_path / "spool"
    spool.write_bytes(b"data" * 1000)
    number = spool.stat().st_ino
    row = await service.store(spool, call_id="c", tool="t")
    assert Path(row.path).stat().st_ino == number and not spool.exists()
    assert (row.size, row.sha256) == (4000, hashlib.sha256(b"data" * 1000).hexdigest())
    assert stat.S_IMODE(Path(row.path).stat().st_mode) == 0o600


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a second file system")
async def test_a_spooled_file_is_copied_between_disks(service):
    """Another file system: copied whole, then removed (D54)."""
    spool = Path("/dev/shm") / f"moryflow-test-{os.getpid()}"
    spool.write_bytes(b"data" * 500_000)
    try:
        row = await service.store(spool, call_id="c", tool="t")
        assert Path(row.path).read_bytes() == b"data" * 500_000 and not spool.exists()
    finally:
        spool.unlink(missing_ok=True)


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "missing"])
async def test_what_is_no_plain_file_is_not_taken_for_a_spool(service, tmp_path, kind):
    """A tool cannot have another file moved by pointing a link at it (R12)."""
    spool, secret = tmp_path / "spool", tmp_path / "secret"
    secret.write_text("secret")
    {"link": lambda: spool.symlink_to(secret), "folder": spool.mkdir, "pipe": lambda: os.mkfifo(spool), "missing": int}[kind]()
    with pytest.raises(OSError):
        await service.store(spool, call_id="c", tool="t")
    assert secret.read_text() == "secret"


async def test_parts_of_an_output_can_be_read(service):
    """Offset and limit in bytes; beyond the end there is nothing (S0.56)."""
    row = await service.store("0123456789", call_id="c", tool="t")
    assert await service.read(row.id, offset=3, limit=4) == b"3456"
    assert await service.read(row.id, offset=8, limit=100) == b"89"
    assert await service.read(row.id, offset=50) == b""


async def test_an_unknown_a_removed_and_a_replaced_output_are_told_apart(service, rows, tmp_path):
    """``not_found``, ``expired``, ``io``; a link in the file's place is not followed (R12, D38)."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    row = await service.store("x", call_id="c", tool="t")
    Path(row.path).unlink()
    Path(row.path).symlink_to(secret)
    for artifact, code in (("nope", "not_found"), (row.id, "io")):
        with pytest.raises(ToolError) as caught:
            await service.read(artifact)
        assert caught.value.code == code
    Path(row.path).unlink()
    with pytest.raises(ToolError) as caught:
        await service.read(row.id)
    assert caught.value.code == "expired" and rows.kept[row.id].state == "expired"


async def test_expiry_removes_files_past_their_time_and_keeps_the_rows(service, rows):
    """Only what is due goes; a row whose file is gone says so; without an end a file stays (S0.54, D38)."""
    short, long, ever = [await service.store("x", call_id="c", tool="t", ttl_days=days) for days in (1e-7, 7, None)]
    await asyncio.sleep(0.05)
    assert await service.expire() == 1
    assert [rows.kept[row.id].state for row in (short, long, ever)] == ["expired", "stored", "stored"]
    assert [Path(row.path).exists() for row in (short, long, ever)] == [False, True, True]


async def test_expiry_looks_into_every_folder_that_rows_name(folders, rows, tmp_path):
    """Outputs of other vaults expire too (D38)."""
    other = tmp_path / "other"
    other.mkdir()
    row = await ArtifactService(folders[0], rows, session="s2", vault=other).store("x", call_id="c", tool="t", ttl_days=1e-7)
    await asyncio.sleep(0.05)
    assert await ArtifactService(folders[0], rows, session="s1", vault=folders[1]).expire() == 1
    assert not Path(row.path).exists() and rows.kept[row.id].state == "expired"


async def test_files_without_a_row_go_after_the_default_time(service, rows):
    """A crash before the commit, or a deleted session, leaves no file for ever (D38)."""
    new, old = [Path((await service.store("x", call_id="c", tool="t")).path) for _ in range(2)]
    rows.kept.clear()
    old = age(old, 8)
    assert await service.expire() == 1
    assert new.exists() and not old.exists()


async def test_expiry_touches_only_plain_files_of_our_naming(service, rows, folders, tmp_path):
    """Not other names, not links, not folders (D38)."""
    await service.store("x", call_id="c", tool="t")
    folder, secret = folders[1] / ".agent-output", tmp_path / "secret"
    secret.write_text("secret")
    ours = [file_name(datetime(2020, 1, 1, tzinfo=UTC), "t", new_id()) for _ in range(2)]
    (folder / ours[0]).symlink_to(secret)
    (folder / ours[1]).mkdir()
    for name in ("notes.txt", "20200101T000000Z-t-short.txt", "20201399T000000Z-t-0123456789ab.txt"):
        (folder / name).write_text("keep")
    before = sorted(folder.iterdir())
    assert await service.expire() == 0
    assert sorted(folder.iterdir()) == before and secret.read_text() == "secret"


async def test_a_folder_of_an_old_vault_that_became_a_link_is_left_alone(folders, rows, tmp_path):
    """Expiry follows no link on the way either (D38)."""
    vault, moved = tmp_path / "old", tmp_path / "moved"
    vault.mkdir()
    row = await ArtifactService(folders[0], rows, session="s", vault=vault).store("x", call_id="c", tool="t", ttl_days=1e-7)
    vault.rename(moved)
    vault.symlink_to(moved)
    await asyncio.sleep(0.05)
    assert await ArtifactService(folders[0], rows, session="s", vault=folders[1]).expire() == 0
    assert (moved / ".agent-output" / Path(row.path).name).exists()


async def test_lists_are_newest_first_and_by_session(service, folders, rows):
    """What ``output list`` shows (S0.56)."""
    first, second = [await service.store("x", call_id="c", tool="t") for _ in range(2)]
    other = await ArtifactService(folders[0], rows, session="s2", vault=folders[1]).store("x", call_id="c", tool="t")
    assert [row.id for row in await service.list()] == [other.id, second.id, first.id]
    assert [row.id for row in await service.list(session="s1", limit=1)] == [second.id]


async def test_a_home_that_was_removed_is_made_again(folders, rows):
    """Outputs survive a home that vanishes while running (SECURITY §3)."""
    service = ArtifactService(folders[0], rows, session="s", vault=None)
    await service.store("x", call_id="c", tool="t")
    for path in sorted(folders[0].rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folders[0].rmdir()
    assert Path((await service.store("y", call_id="c", tool="t")).path).read_text() == "y"


def test_opening_a_place_that_is_no_folder_says_so(tmp_path):
    """A file in the folder's place is an error, not a crash later (D37)."""
    (tmp_path / ".agent-output").write_text("in the way")
    with pytest.raises(OSError), open_folder(OutputFolder(tmp_path, ".agent-output"), create=True):
        pass
