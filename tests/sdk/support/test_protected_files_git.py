"""What git's own configuration names is run or obeyed by git, whatever it is called."""

from __future__ import annotations

import os

import pytest
from moryflow_sdk.support.protected_files import named_by_git, read_start

CONFIGS = {
    "[core]\n\thooksPath = tools/odd\n": ("tools/odd",),
    "[core] HOOKSPATH=../tools/odd\n": ("tools/odd",),
    '[core]\n\thooksPath = "none yet"\n': ("none yet",),
    "[core]\n\thooksPath = .git/hooks\n": (),
    "[core]\n\thooksPath = /usr/share/hooks\n": (),
    "[include]\n\tpath = ../team.gitconfig\n": ("team.gitconfig",),
    "[core]\n\tfsmonitor = ./watch.sh -v\n": ("watch.sh",),
    '[filter "x"]\n\tclean = sh watch.sh %f\n': ("watch.sh",),
    "[alias]\n\tx = !./watch.sh\n\ty = log\n": ("watch.sh",),
    "[core]\n\teditor = vim\n\tpager = less\n": (),
    '[remote "o"]\n\turl = ../other\n\tfetch = +refs/heads/*:x\n[branch "main"]\n\tmerge = refs/heads/main\n': (),
    "\x00[core\nhooksPath\n=\n": (),
    "[core]\n\thooksPath = .husky # ours\n": (".husky", ".husky # ours"),
    '[core]\n\thooksPath = .hu"sky" ; ours\n': (".husky", '.hu"sky" ; ours'),
    '[core]\n\thooksPath = "hu\\\\sky"\n': ("hu\\sky", "hu\\\\sky"),
    "[core]\n\thooksPath = .hu\\\nsky\n": (".husky",),
}


@pytest.mark.parametrize("text", CONFIGS)
def test_the_files_that_git_runs_are_those_that_it_is_told(tmp_path, text):
    """Folders of hooks, included files, and programs that are there (R21)."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text(text)
    (tmp_path / "watch.sh").touch()
    found = {path for path in named_by_git(tmp_path) if not path.startswith("..")}
    assert found == set(CONFIGS[text])


def test_without_a_repository_nothing_is_named(tmp_path):
    """Nor where its configuration cannot be read."""
    assert named_by_git(tmp_path) == ()
    (tmp_path / ".git" / "config").mkdir(parents=True)
    assert named_by_git(tmp_path) == ()


def test_hooks_beside_everything_else_are_named_one_by_one(tmp_path):
    """A folder of hooks that is the vault itself (R21)."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("[core]\n\thooksPath = .\n")
    found = named_by_git(tmp_path)
    assert {"pre-commit", "post-checkout", "pre-push"} <= set(found)
    assert "notes.md" not in found


def test_a_pipe_in_place_of_the_configuration_holds_nobody_up(tmp_path):
    """Whoever opens a pipe waits for its other end; nothing is read from it."""
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git" / "config")
    assert named_by_git(tmp_path) == ()
    with pytest.raises(OSError, match="not an ordinary file"):
        read_start(tmp_path / ".git" / "config", 1)
