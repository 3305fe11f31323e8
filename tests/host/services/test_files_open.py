"""Opening, writing, moving and removing what was judged."""

from __future__ import annotations

import os
import shutil
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from moryflow.base.atomic_write import take_over
from moryflow.services.files import VaultFiles
from moryflow_sdk import ToolError


def code_of(call, *arguments, **options) -> str:
    with pytest.raises(ToolError) as caught:
        call(*arguments, **options)
    return caught.value.code


@pytest.mark.parametrize(("name", "code"), [("pipe", "not_a_file"), ("sock", "not_a_file"), ("notes", "is_directory"),
                                            ("none.md", "not_found"), ("notes/a.md/x", "not_a_directory")])  # fmt: skip
def test_what_is_no_file_is_refused_at_once(corpus_files: VaultFiles, name: str, code: str) -> None:
    """A pipe nobody writes to does not make the host wait (R12)."""
    assert code == code_of(corpus_files.read, corpus_files.resolve(name))
    if name in ("pipe", "sock", "notes"):
        assert code == code_of(corpus_files.write, corpus_files.resolve(name), b"x")


def test_a_device_that_took_the_place_of_a_file_is_refused(files: VaultFiles, vault: Path) -> None:
    """The kind is looked at after opening, not only before (R12)."""
    (vault / "a").write_text("x")
    target = files.resolve("a")
    (vault / "a").unlink()
    os.mkfifo(vault / "a")
    assert code_of(files.read, target) in ("changed", "not_a_file")


def test_a_file_over_the_limit_is_not_read(corpus_files: VaultFiles) -> None:
    """A hundred sparse megabytes do not become memory (R12)."""
    assert code_of(corpus_files.read, corpus_files.resolve("big.bin")) == "too_large"
    assert corpus_files.read(corpus_files.resolve("notes/a.md"), limit=5) == b"alpha"
    assert code_of(corpus_files.read, corpus_files.resolve("notes/a.md"), limit=4) == "too_large"


@pytest.mark.parametrize("data", [b"", b"new", b"x" * 3_000_000])
def test_a_write_keeps_the_mode_and_leaves_nothing_beside(files: VaultFiles, vault: Path, data: bytes) -> None:
    """The temporary file is beside the target and gone afterwards (R12)."""
    (vault / "run.sh").write_text("old")
    (vault / "run.sh").chmod(0o751)
    target = files.write(files.resolve("run.sh"), data)
    assert data == (vault / "run.sh").read_bytes() == files.read(target, limit=len(data))
    assert stat.S_IMODE((vault / "run.sh").stat().st_mode) == 0o751
    assert [path.name for path in vault.iterdir()] == ["run.sh"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder to a group")
@pytest.mark.parametrize(("owner", "group"), [(0, 0), (65534, 0), (65534, 4321)])
def test_a_write_keeps_owner_and_group_also_in_a_folder_that_gives_its_own(
    files: VaultFiles, vault: Path, owner: int, group: int
) -> None:
    """A private file is not opened to the group of a shared folder, nor taken from those who share it (R12)."""
    os.chown(vault, -1, 4321)
    vault.chmod(0o2775)
    (vault / "a").write_text("old")
    (vault / "a").chmod(0o640)
    os.chown(vault / "a", owner, group)
    files.write(files.resolve("a"), b"new")
    found = (vault / "a").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (owner, group, 0o640)


@pytest.mark.parametrize(("mode", "left"), [(0o660, 0o600), (0o664, 0o644), (0o646, 0o646), (0o777, 0o777)])
def test_a_group_that_cannot_be_kept_leaves_its_rights_to_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, left: int
) -> None:
    """The group that a new file has may do what everybody may (R12)."""

    def refused(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchown", refused)
    with (tmp_path / "a").open("w") as file:
        of = os.fstat(file.fileno())
        take_over(file.fileno(), os.stat_result((0o100000 | mode, 0, 0, 1, of.st_uid, of.st_gid + 1, 0, 0, 0, 0)))
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == left


def test_a_write_keeps_the_access_list_and_the_attributes(files: VaultFiles, vault: Path) -> None:
    """Without the list, the mode of a file shared with one person would open it to a group (R12)."""
    entries = [(1, 6, -1), (2, 6, 4321), (4, 0, -1), (16, 6, -1), (32, 0, -1)]  # owner, user 4321, group, mask, others
    shared = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    (vault / "a").write_text("old")
    try:
        os.setxattr(vault / "a", "system.posix_acl_access", shared)
        os.setxattr(vault / "a", "user.color", b"red")
    except (OSError, AttributeError):
        pytest.skip("this volume keeps no such attributes")
    files.write(files.resolve("a"), b"new")
    assert os.getxattr(vault / "a", "system.posix_acl_access") == shared
    assert os.getxattr(vault / "a", "user.color") == b"red"


def test_a_new_file_has_the_mode_that_the_person_asked_for(files: VaultFiles, vault: Path) -> None:
    """The umask counts, although the temporary file is closed to others (R12)."""
    before = os.umask(0o027)
    try:
        files.write(files.resolve("new/a.txt"), b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((vault / "new/a.txt").stat().st_mode) == 0o640


def test_the_temporary_file_is_closed_to_others(vault: Path) -> None:
    """Nobody else can read a file while it is being written (R12)."""
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom moryflow.services import files\n"
        "old = files._write_all\n"
        "def look(descriptor, data):\n    print(oct(os.fstat(descriptor).st_mode & 0o777)); old(descriptor, data)\n"
        "files._write_all = look\nfrom moryflow.services.files import VaultFiles\n"
        "v = Path(sys.argv[1])\nf = VaultFiles(v, v / 'h', v)\nf.write(f.resolve('a'), b'x')\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(vault)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0o600"


def test_writing_through_a_hard_link_leaves_the_other_name_alone(corpus_files: VaultFiles, base: Path) -> None:
    """The new content gets an object of its own (R12, D8)."""
    corpus_files.write(corpus_files.resolve("hard.md", domain="edit"), b"mine")
    assert (base / "vault/hard.md").read_bytes() == b"mine"
    assert (base / "outside/secret.txt").read_bytes() == b"TOP-SECRET"


def test_what_did_not_exist_when_judged_must_not_exist_now(files: VaultFiles, vault: Path) -> None:
    """Nobody agreed to replace the file that has appeared (R12, R22)."""
    target = files.resolve("new.md", domain="edit")
    (vault / "new.md").write_text("somebody's")
    assert code_of(files.write, target, b"mine") == "changed"
    assert code_of(files.read, target) == "changed"
    assert (vault / "new.md").read_text() == "somebody's"


def test_another_object_under_the_same_name_is_not_written(files: VaultFiles, vault: Path) -> None:
    """A name is not an identity (R12)."""
    (vault / "a.md").write_text("old")
    target = files.resolve("a.md", domain="edit")
    (vault / "b.md").write_text("other")
    (vault / "b.md").replace(vault / "a.md")
    for call in (lambda: files.read(target), lambda: files.write(target, b"x"), lambda: files.remove(target)):
        assert code_of(call) == "changed"
    assert (vault / "a.md").read_text() == "other"


def test_a_file_that_was_moved_away_is_not_found(files: VaultFiles, vault: Path) -> None:
    """Nothing is made anew in its place (R12)."""
    (vault / "d").mkdir()
    (vault / "d/a.md").write_text("old")
    target = files.resolve("d/a.md", domain="edit")
    shutil.rmtree(vault / "d")
    assert code_of(files.write, target, b"x") == "not_found"
    assert not (vault / "d").exists()


def test_a_target_outside_the_vault_works_the_same(corpus_files: VaultFiles, base: Path) -> None:
    """What a person has agreed to is done, from the root (R12)."""
    target = corpus_files.resolve(str(base / "outside/plain.md"), domain="edit")
    assert corpus_files.read(target) == b"plain"
    corpus_files.write(target, b"changed")
    assert (base / "outside/plain.md").read_bytes() == b"changed"
    assert {"dir", "file", "link"} == {
        entry.kind for entry in corpus_files.entries(corpus_files.resolve(str(base / "outside")))
    }


def test_a_full_disk_leaves_the_original(files: VaultFiles, vault: Path) -> None:
    """The error has a code of its own, and no temporary file stays (R12)."""
    (vault / "a.md").write_text("original")
    script = (
        "import resource, signal, sys\nfrom pathlib import Path\nfrom moryflow.services.files import VaultFiles\n"
        "from moryflow_sdk import ToolError\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\nv = Path(sys.argv[1])\nf = VaultFiles(v, v / 'h', v)\n"
        "for name in ('a.md', 'new/b.md'):\n"
        "    try:\n        f.write(f.resolve(name), b'x' * 100000)\n    except ToolError as error:\n        print(error.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(vault)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["no_space", "no_space"]
    assert {path.name: path.read_text() for path in vault.rglob("*") if path.is_file()} == {"a.md": "original"}


def test_a_read_only_file_is_not_replaced(vault: Path) -> None:
    """Renaming over it would ignore what its owner wants (R12)."""
    (vault / "a.md").write_text("fixed")
    (vault / "a.md").chmod(0o444)
    vault.chmod(0o777)
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom moryflow.services.files import VaultFiles\n"
        "from moryflow_sdk import ToolError\nif os.getuid() == 0: os.setuid(65534)\n"
        "v = Path(sys.argv[1])\nf = VaultFiles(v, v / 'h', v)\n"
        "try:\n    f.write(f.resolve('a.md'), b'x')\nexcept ToolError as error:\n    print(error.code)\n"
    )
    for folder in vault.parents:
        if str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    done = subprocess.run([sys.executable, "-c", script, str(vault)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "permission"
    assert (vault / "a.md").read_text() == "fixed"


def test_a_move_replaces_nothing(files: VaultFiles, vault: Path) -> None:
    """Files and folders move; what is there stays there (R12)."""
    (vault / "a.md").write_text("a")
    (vault / "b.md").write_text("b")
    assert code_of(files.move, files.resolve("a.md"), files.resolve("b.md")) == "exists"
    files.move(files.resolve("a.md"), files.resolve("deep/er/c.md"))
    assert (vault / "deep/er/c.md").read_text() == "a"
    files.move(files.resolve("deep"), files.resolve("other"))
    assert (vault / "other/er/c.md").read_text() == "a"
    target = files.resolve("new.md")
    (vault / "new.md").write_text("appeared")
    assert code_of(files.move, files.resolve("b.md"), target) == "changed"
    assert ((vault / "b.md").read_text(), (vault / "new.md").read_text()) == ("b", "appeared")


def test_removing_a_link_removes_the_link(corpus_files: VaultFiles, base: Path) -> None:
    """What it leads to stays; a link reached through another link is not touched (R12, D8)."""
    corpus_files.remove(corpus_files.resolve("link_in.md", domain="edit"))
    assert not (base / "vault/link_in.md").is_symlink()
    assert (base / "vault/notes/a.md").exists()
    assert code_of(corpus_files.remove, corpus_files.resolve("up/outside/back_in.md", domain="edit")) == "changed"
    assert (base / "outside/back_in.md").is_symlink()
    corpus_files.remove(corpus_files.resolve("linkdir_in/sub/deep.md", domain="edit"))
    assert not (base / "vault/notes/sub/deep.md").exists()


def test_a_folder_goes_only_when_asked_for_with_all_in_it(corpus_files: VaultFiles, base: Path) -> None:
    """Links in it are removed, not entered (R12)."""
    (base / "vault/notes/out").symlink_to(base / "outside")
    target = corpus_files.resolve("notes", domain="edit")
    assert code_of(corpus_files.remove, target) == "not_empty"
    corpus_files.remove(target, recursive=True)
    assert not (base / "vault/notes").exists()
    assert (base / "outside/secret.txt").read_text() == "TOP-SECRET"
    corpus_files.remove(corpus_files.resolve("empty", domain="edit"))
    assert not (base / "vault/empty").exists()


@pytest.mark.parametrize("path", [".", "..", "/", "~", "~/.moryflow", "~/.moryflow/new.jsonc", "cfg/config.jsonc"])
def test_the_home_and_the_vault_itself_stay(corpus_files: VaultFiles, base: Path, path: str) -> None:
    """A gate that is missing does not open the host's own folder (R14)."""
    before = sorted(base.rglob("*"))
    assert code_of(corpus_files.remove, corpus_files.resolve(path, domain="edit"), recursive=True) == "permission"
    if "moryflow" in path or "cfg" in path:
        assert code_of(corpus_files.write, corpus_files.resolve(path, domain="edit"), b"{}") == "permission"
        assert code_of(corpus_files.move, corpus_files.resolve("notes/a.md"), corpus_files.resolve(path)) == "permission"
    assert before == sorted(base.rglob("*"))


def test_a_held_folder_can_be_used_by_a_program(files: VaultFiles, vault: Path) -> None:
    """The folder is held by descriptor, whatever becomes of its name (R12)."""
    (vault / "d").mkdir()
    (vault / "d/a.md").write_text("x")
    with files.folder(files.resolve("d")) as descriptor:
        (vault / "d").rename(vault / "e")
        assert [entry.name for entry in os.scandir(descriptor)] == ["a.md"]


def descriptors() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0


def test_no_descriptor_is_left_open(corpus_files: VaultFiles) -> None:
    """Errors close what they opened; 64 descriptors are enough for ever (R12)."""
    opened = descriptors()
    for name in ("pipe", "none/x", "notes", "link_out.md", "loop_a", "notes/a.md/x", "none.md"):
        target = corpus_files.resolve(name)
        for call in (corpus_files.read, lambda t: corpus_files.write(t, b"", create_parents=False), corpus_files.entries):
            try:
                call(target)
            except ToolError:
                continue
    assert opened == descriptors()


def test_a_move_names_the_file_that_is_missing(files: VaultFiles, vault: Path) -> None:
    """Not the place where it would have gone, and no folder is left there (R12)."""
    with pytest.raises(ToolError, match=r"\Anone\.md does not exist"):
        files.move(files.resolve("none.md"), files.resolve("new/place.md"))
    assert list(vault.iterdir()) == []


@pytest.mark.parametrize("name", ["new.md", "deep/er/new.md"])
def test_a_vault_that_has_vanished_is_not_made_anew(files: VaultFiles, vault: Path, name: str, tmp_path: Path) -> None:
    """Moved away while a turn runs: nothing is written apart from all the rest, elsewhere as ever (SECURITY §3, issue 2)."""
    outside = files.resolve(str(tmp_path / "outside" / "x"), domain="edit")
    vault.rename(tmp_path / "moved")
    with pytest.raises(ToolError, match="the vault no longer exists") as caught:
        files.write(files.resolve(name, domain="edit"), b"x")
    assert caught.value.code == "not_found" and not vault.exists()
    assert files.write(outside, b"x").identity
