"""Who else could have written a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow_sdk.support import own_files
from moryflow_sdk.support.own_files import _is_private_group as is_private_group
from moryflow_sdk.support.own_files import doubt_about, doubt_about_one, open_regular, replace_file
from moryflow_sdk.support.protected_files import sensitive

ROOT = os.geteuid() == 0


def own_file(path: Path) -> Path:
    """Make a file that only its owner may write, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    path.write_text("{}", encoding="utf-8")
    path.chmod(0o600)
    return path


@pytest.mark.usefixtures("shared_group")
@pytest.mark.parametrize(
    ("opened", "mode", "reason"),
    [
        ("a/b/file", 0o602, "everybody can write to it"),
        ("a/b/file", 0o620, "its group can write to it"),
        ("a/b", 0o777, "everybody can write to the folder {root}/a/b"),
        ("a/b", 0o775, "its group can write to the folder {root}/a/b"),
        ("a", 0o757, "everybody can write to the folder {root}/a"),
        ("a", 0o1777, ""),
        ("a/b", 0o1777, ""),
        ("a/b/file", 0o1602, "everybody can write to it"),
        ("a/b", 0o755, ""),
        ("a/b/file", 0o644, ""),
    ],
)
def test_every_folder_on_the_way_counts(tmp_path: Path, opened: str, mode: int, reason: str) -> None:
    """Who may write a folder may put another file in its place; not where the sticky bit holds, as in /tmp (R17)."""
    file = own_file(tmp_path / "a/b/file")
    (tmp_path / opened).chmod(mode)
    doubt = doubt_about(file)
    assert (doubt.reason if doubt else "") == reason.format(root=tmp_path)
    assert not doubt or doubt.step == f"chmod go-w {tmp_path / opened}"


@pytest.mark.parametrize(
    ("user", "primary", "name", "members", "private"),
    [
        (1000, 1000, "ada", [], True),
        (1000, 1000, "ada", ["ada"], True),
        (1000, 1000, "ada", ["bob"], False),
        (1000, 1000, "staff", [], False),
        (1000, 50, "ada", [], False),
        (0, 1000, "ada", [], False),
    ],
    ids=["alone", "named in it", "a member", "shared name", "not their first", "root"],
)
def test_the_private_group_of_a_user_is_nobody_else(monkeypatch, user, primary, name, members, private):
    """Ubuntu and Fedora create files with umask 002 in a group of the user's own: nobody else can write them (R17)."""
    monkeypatch.setattr("grp.getgrgid", lambda _: SimpleNamespace(gr_name=name, gr_mem=members))
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_name="ada", pw_gid=primary))
    assert is_private_group.__wrapped__(1000, user) is private


def test_only_the_private_group_may_write(tmp_path, monkeypatch):
    """Others may not, whatever the group may (R17)."""
    file = own_file(tmp_path / "a/file")
    monkeypatch.setattr(own_files, "_is_private_group", lambda group, user: (group, user) == (file.stat().st_gid, os.geteuid()))
    file.chmod(0o664)
    file.parent.chmod(0o775)
    assert doubt_about(file) is None
    file.chmod(0o666)
    assert doubt_about(file) is not None


Maker = Callable[[Path, Path], None]


@pytest.mark.parametrize(
    "link",
    [
        lambda link, goal: link.symlink_to(goal),
        lambda link, goal: link.symlink_to(f"../{goal.parent.name}/../{goal.parent.name}/{goal.name}"),
        lambda link, goal: (link.with_name("hop").symlink_to(goal), link.symlink_to("hop")),
    ],
    ids=["absolute", "relative", "two links"],
)
def test_where_a_link_leads_is_on_the_way(tmp_path: Path, link: Maker) -> None:
    """A linked config.jsonc in a folder that others may write is theirs to replace (R17)."""
    goal = own_file(tmp_path / "dotfiles/config.jsonc")
    (tmp_path / "home").mkdir(mode=0o700)
    link(tmp_path / "home/config.jsonc", goal)
    assert doubt_about(tmp_path / "home/config.jsonc") is None
    goal.parent.chmod(0o777)
    doubt = doubt_about(tmp_path / "home/config.jsonc")
    assert doubt is not None and doubt.step == f"chmod go-w {goal.parent}"


def test_the_folder_that_holds_a_link_counts_too(tmp_path: Path) -> None:
    """Who may write there may make the link lead elsewhere (R17)."""
    goal = own_file(tmp_path / "good/config.jsonc")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/config.jsonc").symlink_to(goal)
    (tmp_path / "home").chmod(0o777)
    doubt = doubt_about(tmp_path / "home/config.jsonc")
    assert doubt is not None and doubt.step == f"chmod go-w {tmp_path / 'home'}"


@pytest.mark.skipif(not ROOT, reason="only root can give a file away")
@pytest.mark.parametrize("given", ["a", "a/b", "a/b/file", "link"])
def test_a_foreign_owner_of_any_part_counts(tmp_path: Path, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of folders, of the file and of links; the next step is one that this user can take (R17)."""
    file = own_file(tmp_path / "a/b/file")
    (tmp_path / "link").symlink_to(file)
    os.chown(tmp_path / given, 12345, 12345, follow_symlinks=False)
    doubt = doubt_about(tmp_path / "link")
    assert doubt is not None and "belongs to another user (uid 12345)" in doubt.reason
    if given in ("a", "a/b"):  # it may be the home of that user
        assert doubt.step == "run Moryflow as that user: sudo -u '#12345' -H moryflow"
    else:
        assert doubt.step.startswith("chown ") and str(tmp_path / given) in doubt.step
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert (doubt := doubt_about_one(tmp_path, (tmp_path / given).lstat())) and doubt.step.startswith("sudo chown ")


@pytest.mark.skipif(not ROOT, reason="only root can give a file away")
def test_in_a_sticky_folder_only_ones_own_files_are_trusted(tmp_path: Path) -> None:
    """Anybody can make the folder first that is going to be ours (R17)."""
    file = own_file(tmp_path / "tmp/home/config.jsonc")
    (tmp_path / "tmp").chmod(0o1777)
    assert doubt_about(file) is None
    os.chown(file.parent, 12345, 12345)
    assert doubt_about(file) is not None


def test_a_file_that_was_replaced_meanwhile_is_in_doubt(tmp_path: Path) -> None:
    """What was read is what is looked at (R17)."""
    file = own_file(tmp_path / "file")
    opened = file.stat()
    own_file(tmp_path / "other").replace(file)
    doubt = doubt_about(file, opened)
    assert doubt is not None and "replaced" in doubt.reason


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    """It cannot be looked at (R17)."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="loop"):
        doubt_about(tmp_path / "a")


@pytest.mark.usefixtures("shared_group")
@settings(max_examples=60)
@given(modes=st.lists(st.sampled_from([0o700, 0o755, 0o775, 0o777, 0o1777]), min_size=1, max_size=5))
def test_one_open_folder_is_enough(tmp_path_factory: pytest.TempPathFactory, modes: list[int]) -> None:
    """In any chain of folders: in doubt if and only if one of them is open and not sticky (R17)."""
    folder = tmp_path_factory.mktemp("chain")
    file = own_file(folder / "/".join(f"d{index}" for index in range(len(modes))) / "file")
    for place, mode in zip([*file.parents][: len(modes)], modes, strict=True):
        place.chmod(mode)
    assert (doubt_about(file) is not None) == any(mode in (0o775, 0o777) for mode in modes)


def test_a_pipe_a_folder_and_a_link_in_place_of_a_file_are_refused_without_waiting(tmp_path: Path) -> None:
    """Whoever opens a pipe waits for its other end (R13)."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    for name, follow in (("pipe", True), (".", True), ("link", False)):
        with pytest.raises(OSError, match=r"ordinary file|symbolic links"):
            open_regular(tmp_path / name, follow=follow)
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"text"


def test_a_file_is_replaced_whole_and_for_its_owner_alone(tmp_path: Path) -> None:
    """Also if everybody could read the old one; the status is that of the new file (S0.88)."""
    file = tmp_path / "hub.token.json"
    file.write_text("old")
    file.chmod(0o666)
    status = replace_file(file, b"new", sync=True)
    assert file.read_bytes() == b"new" and file.stat().st_mode & 0o777 == 0o600
    assert (status.st_ino, status.st_ctime_ns) == (file.stat().st_ino, file.stat().st_ctime_ns)
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_cannot_be_replaced_stays_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    """A half-written file has a name that is protected like its own until it is removed (S0.88)."""
    place, names = tmp_path / "hub.token.json", list[str]()
    place.mkdir()

    def replace(self: Path, _: Path) -> Path:
        names.append(self.name)
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(Path, "replace", replace)
        replace_file(place, b"new")
    assert place.is_dir() and list(tmp_path.iterdir()) == [place]
    assert names[0].startswith(".") and sensitive(f"fs:/{names[0]}")
