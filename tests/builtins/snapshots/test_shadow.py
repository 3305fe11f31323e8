"""The shadow repository: outside the vault, blind to every configuration but its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from moryflow_builtins.snapshots.shadow import UNRECORDED, Shadow, SnapshotSettings, VaultTree, blob_of


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    folder = tmp_path / "vault"
    folder.mkdir()
    return folder


def shadow(vault: Path, **settings) -> Shadow:
    return Shadow(vault.parent / "data", vault, SnapshotSettings(**settings))


def changed(made: Shadow, before: VaultTree, after: VaultTree) -> list[str]:
    return [found.path for found in made.differences(before.tree, after.tree)]


def git(vault: Path, *words: str) -> None:
    identity = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    subprocess.run(["git", *words], cwd=vault, env={**os.environ, **identity}, check=True, capture_output=True)


def test_a_snapshot_leaves_the_vault_and_its_repository_as_they_are(vault):
    """Everything is kept outside; the vault's own index and objects do not change (S4.8)."""
    git(vault, "init", "-q")
    (vault / "a").write_text("a")
    git(vault, "add", "a")
    before = {path: path.stat().st_mtime_ns for path in vault.rglob("*")}
    shadow(vault).snapshot()
    assert {path: path.stat().st_mtime_ns for path in vault.rglob("*")} == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter every folder")
def test_a_folder_that_may_not_be_entered_stops_no_snapshot(vault):
    """What was recorded of it stays, the rest is recorded (S4.8)."""
    for name in ("listed/x", "listed/sub/x", "closed/x", "y"):
        (vault / name).parent.mkdir(parents=True, exist_ok=True)
        (vault / name).write_text("one")
    made = shadow(vault)
    first = made.snapshot()
    (vault / "listed").chmod(0o444)
    (vault / "closed").chmod(0)
    (vault / "y").write_text("two")
    second = made.snapshot()
    fresh = Shadow(vault.parent / "other", vault, SnapshotSettings()).snapshot()
    (vault / "listed").chmod(0o700)
    (vault / "closed").chmod(0o700)
    assert changed(made, first, second) == ["y"] and fresh.number
    assert changed(made, first, made.snapshot()) == ["y"]


HOSTILE = """[core]
    fsmonitor = {evil}
    hooksPath = {base}
    attributesFile = {base}/attributes
    excludesFile = {base}/excludes
    worktree = {base}/elsewhere
    sshCommand = {evil}
    pager = {evil}
    editor = {evil}
    askPass = {evil}
    alternateRefsCommand = {evil}
[filter "evil"]
    clean = {evil}
    smudge = {evil}
    process = {evil}
    required = true
[diff "evil"]
    command = {evil}
    textconv = {evil}
[diff]
    external = {evil}
[alias]
    ls-files = !{evil}
    update-index = !{evil}
[extensions]
    worktreeConfig = true
    partialClone = origin
[remote "origin"]
    url = ext::{evil}
    promisor = true
    uploadpack = {evil}
[submodule "inner"]
    path = inner
    url = ext::{evil}
    update = !{evil}
[submodule]
    recurse = true
[credential]
    helper = !{evil}
"""
VARIABLES = {
    "GIT_DIR": "{vault}/.git", "GIT_WORK_TREE": "{base}/elsewhere", "GIT_INDEX_FILE": "{base}/index",
    "GIT_OBJECT_DIRECTORY": "{base}/objects", "GIT_ALTERNATE_OBJECT_DIRECTORIES": "{base}/objects",
    "GIT_EXTERNAL_DIFF": "{evil}", "GIT_SSH_COMMAND": "{evil}", "GIT_ASKPASS": "{evil}", "GIT_PAGER": "{evil}",
    "GIT_EDITOR": "{evil}", "GIT_EXEC_PATH": "{base}", "GIT_TEMPLATE_DIR": "{base}", "GIT_TRACE": "{base}/marker",
    "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor", "GIT_CONFIG_VALUE_0": "{evil}",
    "GIT_CONFIG_PARAMETERS": "'core.fsmonitor={evil}'", "GIT_CONFIG_GLOBAL": "{base}/settings",
    "GIT_CONFIG_SYSTEM": "{base}/settings", "XDG_CONFIG_HOME": "{base}", "HOME": "{base}",
}  # fmt: skip


@pytest.mark.parametrize("where", ["config", "include", "worktree config", "environment"])
def test_a_hostile_repository_starts_nothing(vault, tmp_path, monkeypatch, where):
    """Monitors, hooks, filters, aliases, includes, work trees, submodules, alternates and variables never count (R13, R15)."""
    marker = tmp_path / "marker"
    evil = tmp_path / "evil.sh"
    evil.write_text(f"#!/bin/sh\ntouch '{marker}'\ncat\n")
    evil.chmod(0o755)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "of-another-place").touch()
    settings = HOSTILE.format(evil=evil, base=tmp_path)
    for name in ("settings", ".gitconfig"):
        (tmp_path / name).write_text(settings)
    git(vault, "init", "-q")
    (vault / ".git/objects/info/alternates").write_text(f"{tmp_path}/objects\n")
    (vault / ".gitmodules").write_text(f'[submodule "inner"]\n\tpath = inner\n\turl = ext::{evil}\n\tupdate = !{evil}\n')
    match where:
        case "config":
            with (vault / ".git/config").open("a") as file:
                file.write(settings)
        case "include":
            with (vault / ".git/config").open("a") as file:
                file.write(f'[include]\n\tpath = {tmp_path}/settings\n[includeIf "gitdir:**"]\n\tpath = {tmp_path}/settings\n')
        case "worktree config":
            with (vault / ".git/config").open("a") as file:
                file.write("[extensions]\n\tworktreeConfig = true\n")
            (vault / ".git/config.worktree").write_text(settings)
        case _:
            for name, value in VARIABLES.items():
                monkeypatch.setenv(name, value.format(evil=evil, base=tmp_path, vault=vault))
    (tmp_path / "post-index-change").write_text(evil.read_text())
    (tmp_path / "post-index-change").chmod(0o755)
    (vault / ".gitattributes").write_text("* filter=evil diff=evil text eol=crlf ident working-tree-encoding=UTF-16\n")
    (vault / "a").write_bytes(b"one\r\n$Id$\n")
    made = shadow(vault)
    first = made.snapshot()
    (vault / "a").write_bytes(b"two\n")
    second = made.snapshot()
    assert changed(made, first, second) == ["a"]
    assert "of-another-place" not in made.git("ls-tree", "-r", "--name-only", second.tree).decode()
    assert not marker.exists()


def test_bytes_are_stored_as_they_are(vault):
    """No line end is converted, no keyword expanded, whatever ``.gitattributes`` asks for (R15)."""
    (vault / ".gitattributes").write_text("* text eol=lf ident\n")
    content = b"one\r\ntwo\n$Id$\n\xff"
    (vault / "a").write_bytes(content)
    made = shadow(vault)
    first = made.snapshot()
    (vault / "a").unlink()
    (found,) = made.differences(first.tree, made.snapshot().tree)
    assert found.before is not None and made.contents([found.before.hash])[found.before.hash] == content


def test_what_git_would_store_is_told_without_git(vault):
    """The hash that is compared with the disk is git's own (S4.8)."""
    (vault / "a").write_bytes(b"x" * 1000)
    (vault / "a").chmod(0o755)
    (vault / "l").symlink_to("nowhere")
    made = shadow(vault)
    tree = made.snapshot()
    listed = made.git("ls-tree", "-r", tree.tree).decode().split()
    for name in ("a", "l"):
        found = blob_of(vault / name)
        assert found is not None and found[0].hash in listed and found[0].mode in listed


def test_ignored_large_and_odd_files_are_left_out(vault):
    """Sockets, pipes, what .gitignore names and what is over the limit cost nothing and break nothing (S4.8)."""
    (vault / ".gitignore").write_text("*.log\n")
    made = shadow(vault, max_file_bytes=100)
    first = made.snapshot()
    (vault / "x.log").write_text("ignored")
    (vault / "big").write_bytes(b"x" * 101)
    (vault / "small").write_bytes(b"x" * 100)
    os.mkfifo(vault / "pipe")
    server = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(vault)
    try:
        server.bind("socket")
    finally:
        os.chdir(here)
    (vault / "secret").write_text("unreadable")
    (vault / "secret").chmod(0)
    second = made.snapshot()
    found = {one.path: one.after.mode for one in made.differences(first.tree, second.tree) if one.after is not None}
    server.close()
    found.pop("secret")
    assert found == {"small": "100644", "big": UNRECORDED}
    assert made.snapshot().tree == second.tree
    (vault / "big").write_bytes(b"y" * 101)
    assert changed(made, second, made.snapshot()) == ["big"]
    assert "x.log" in changed(made, first, shadow(vault, max_file_bytes=100, ignored=True).snapshot())


def test_files_of_repositories_inside_the_vault_are_recorded(vault):
    """Of one without a commit, a submodule, one deeper inside and an empty one; never what is in ``.git`` (S4.8)."""
    made = shadow(vault)
    first = made.snapshot()
    for folder in ("inner", "inner/deep", "empty", "lib/module"):
        (vault / folder).mkdir(parents=True)
        git(vault / folder, "init", "-q")
    (vault / "inner/.gitignore").write_text("*.log\n")
    for name in ("inner/one", "inner/x.log", "inner/deep/two", "lib/module/three"):
        (vault / name).write_text(name)
    git(vault / "lib/module", "add", "three")
    git(vault / "lib/module", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")
    git(vault, "init", "-q")
    git(vault, "add", "lib/module")  # as a submodule
    second = made.snapshot()
    assert changed(made, first, second) == ["inner/.gitignore", "inner/deep/two", "inner/one", "lib/module/three"]
    assert made.snapshot().tree == second.tree
    (vault / "inner/one").write_text("changed")
    (vault / "lib/module/four").write_text("new")
    shutil.rmtree(vault / "inner/deep")
    assert changed(made, second, made.snapshot()) == ["inner/deep/two", "inner/one", "lib/module/four"]


def test_odd_files_where_git_looks_for_its_own(vault):
    """A device, a link out of the vault, a folder, a repository that is a file: nothing hangs, the rest is recorded (R13)."""
    (vault / "a").write_text("a")
    (vault / ".gitignore").symlink_to("/dev/zero")
    (vault / "sub").mkdir()
    (vault / "sub/.gitattributes").symlink_to("/dev/zero")
    (vault / ".git").write_text("gitdir: /nowhere\n")
    with (vault / "huge").open("wb") as file:
        file.truncate(1 << 43)
    (vault / "round").symlink_to("round")
    made = shadow(vault)
    names = set(made.git("ls-tree", "-r", "--name-only", made.snapshot().tree).decode().split())
    assert names >= {"a", "huge", "round"} and names <= {"a", "huge", "round", ".gitignore", "sub/.gitattributes"}


def test_two_processes_and_a_killed_one_do_not_get_in_each_others_way(vault):
    """A lock that a killed git left behind is removed under our own lock (S4.8)."""
    (vault / "a").write_text("a")
    made = shadow(vault)
    first = made.snapshot()
    (made.folder / "git" / "index.lock").touch()
    (vault / "a").write_text("bb")
    assert changed(made, first, shadow(vault).snapshot()) == ["a"]


def test_every_change_makes_a_tree_of_its_own_and_no_change_none(vault):
    """Also of a file that is too large to be recorded (S4.8)."""
    large, small = vault / "large", vault / "small"
    made = shadow(vault, max_file_bytes=10)
    trees = [made.snapshot().tree]  # an empty folder
    large.write_text("x" * 20)
    small.write_text("s")
    trees.append(made.snapshot().tree)
    for change in (
        lambda: large.write_text("x" * 21), lambda: small.write_text("t"), lambda: large.write_text("x"), large.unlink,
        lambda: (vault / "new").write_text("n" * 30),
    ):  # fmt: skip
        change()
        trees.append(made.snapshot().tree)
        assert made.snapshot().tree == trees[-1]
    assert len(set(trees)) == len(trees)


def test_a_file_that_became_a_folder_and_back(vault):
    """Both directions are one difference each way (S4.8)."""
    (vault / "x").write_text("file")
    made = shadow(vault)
    first = made.snapshot()
    (vault / "x").unlink()
    (vault / "x").mkdir()
    (vault / "x/y").write_text("inside")
    assert set(changed(made, first, made.snapshot())) == {"x", "x/y"}


def test_moryflows_own_folder_in_the_vault_is_not_recorded(vault):
    """Somebody who works in their home folder can undo: what the host itself writes is not theirs to restore (S4.8, R14)."""
    home = vault / ".moryflow"
    made = Shadow(home / "data", vault, SnapshotSettings(ignored=True), home=home)
    first = made.snapshot()
    (home / "sessions.db").write_bytes(b"x")
    (vault / "a.txt").write_text("a")
    assert changed(made, first, made.snapshot()) == ["a.txt"]
    assert Shadow(vault / "data", vault, SnapshotSettings(), home=vault).snapshot()


def test_a_folder_that_became_a_link(vault, tmp_path):
    """What was recorded in it is gone, and what the link leads to is not read (S4.8, R12)."""
    made = shadow(vault)
    (vault / "d").mkdir()
    (vault / "d" / "f.txt").write_text("f")
    first = made.snapshot()
    (vault / "d" / "f.txt").unlink()
    (vault / "d").rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "f.txt").write_text("of somebody else")
    (vault / "d").symlink_to(tmp_path / "elsewhere")
    second = made.snapshot()
    assert changed(made, first, second) == ["d", "d/f.txt"]
    assert made.snapshot().tree == second.tree
