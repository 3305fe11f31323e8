"""Git runs what a repository's configuration names: only the vault's own repository goes unasked."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from moryflow_builtins.permission.policy import Policy
from moryflow_builtins.permission.shell import judge_command

from . import judging
from .judging import rules

MakePolicy = Callable[..., Policy]
RULES = ("+git *", "+git status", "+cd *", "+export *", "+env *", "+mkdir *", "+echo *", "+tar *", "+pushd *")
GIT = shutil.which("git")

SHAPES: dict[str, dict[str, str | None]] = {
    "bare": {"HEAD": "ref: refs/heads/x\n", "objects/": None, "refs/": None},
    "bare with an object and a ref": {"HEAD": "ref: refs/heads/x\n", "objects/k": "", "refs/k": "", "config": "[core]\n"},
    "without objects": {"HEAD": "ref: refs/heads/x\n", "commondir": "../other\n"},
    "a HEAD that leads nowhere": {"HEAD": "-> refs/heads/none", "objects/": None, "refs/": None},
    "a .git folder": {".git/HEAD": "ref: refs/heads/x\n", ".git/objects/": None, ".git/refs/": None},
    "a .git file": {".git": "gitdir: ../other\n"},
    "a .git file that leads nowhere": {".git": "gitdir: none\n"},
    "a link for .git": {".git": "-> ../other"},
}
"""Folders that git takes for repositories; ``->`` is a link, a slash at the end is a folder."""


def _make(folder: Path, files: dict[str, str | None]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name
        (path if text is None else path.parent).mkdir(parents=True, exist_ok=True)
        if text is not None and text.startswith("-> "):
            path.symlink_to(text[3:])
        elif text is not None:
            path.write_text(text)


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    """A vault with a repository of its own, a plain folder, and something that links can lead to."""
    vault = tmp_path / "vault"
    _make(vault / "src" / "deep", {})
    _make(vault, SHAPES["a .git folder"])
    _make(vault / "other", {"HEAD": "ref: refs/heads/x\n", "objects/": None, "refs/": None})
    return vault


@pytest.fixture
def decide(vault: Path, tmp_path: Path, make_policy: MakePolicy) -> Callable[..., str]:
    """Judge a command under wildcards that cover git."""
    policy = make_policy(rules(*RULES), vault=vault, user_home=tmp_path / "home")
    return partial(judging.decide, policy)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "command",
    ["cd evil && git status", "git -C evil status", "cd evil/a; git log -1", "(cd evil; git diff)"],
)
def test_a_folder_that_git_takes_for_another_repository_asks(
    shape: str, command: str, vault: Path, decide: Callable[..., str]
) -> None:
    """Whatever makes a folder a repository, and however the command gets there (R15, R34)."""
    (vault / "evil" / "a").mkdir(parents=True)
    assert decide(command) == "allow"
    _make(vault / "evil", SHAPES[shape])
    assert decide(command) == "ask"


@pytest.mark.parametrize("shape", SHAPES)
def test_the_folder_a_command_starts_in_counts(shape: str, vault: Path, decide: Callable[..., str]) -> None:
    """With ``workdir`` the command is the same and the repository is not (R34, R15)."""
    _make(vault / "evil", SHAPES[shape])
    assert decide("git status", str(vault / "evil")) == "ask"
    assert decide("git status", str(vault / "src")) == "allow"


@pytest.mark.parametrize(
    "command", ["git status", "cd src && git log", "git -C src/deep diff", "cd src/deep; cd ..; git status"]
)
def test_the_vaults_own_repository_is_used_unasked(command: str, decide: Callable[..., str]) -> None:
    """From the root and from every folder below that has none of its own (R15)."""
    assert decide(command) == "allow"


def test_a_further_worktree_of_the_same_repository_is_the_vaults_own(vault: Path, decide: Callable[..., str]) -> None:
    """It shares the configuration of the vault's repository (R15)."""
    _make(vault / ".git" / "worktrees" / "w", {"HEAD": "ref: refs/heads/w\n", "commondir": "../..\n"})
    _make(vault / "w", {".git": f"gitdir: {vault}/.git/worktrees/w\n"})
    assert decide("cd w && git status") == "allow"


@pytest.mark.parametrize("shape", ["bare", "without objects"])
def test_a_repository_planted_at_the_root_asks(shape: str, vault: Path, decide: Callable[..., str]) -> None:
    """The root may only hold ``.git``, or belong to a repository around it (R15, R21)."""
    shutil.rmtree(vault / ".git")
    assert decide("git status") == "allow"
    _make(vault, {**SHAPES[shape], **({".git": "gitdir: other\n"} if ".git" in SHAPES[shape] else {})})
    assert decide("git status") == "ask"


def test_a_vault_below_the_root_of_its_repository_keeps_it(vault: Path, tmp_path: Path, make_policy: MakePolicy) -> None:
    """The repository around the vault is the one that git uses at its root (R15)."""
    policy = make_policy(
        [{"domain": "bash", "pattern": "git *", "decision": "allow"}], vault=vault / "src", user_home=tmp_path / "home"
    )
    assert judge_command(policy, "git status").verdict.decision == "allow"
    assert judge_command(policy, "git -C deep status").verdict.decision == "allow"


@pytest.mark.parametrize(
    "command",
    [
        "GIT_DIR=other git status",
        "env GIT_DIR=other git status",
        "git --git-dir=other status",
        "git --git-dir other status",
        "git --work-tree=src status",
    ],
)
def test_what_names_or_makes_another_repository_first_asks(command: str, decide: Callable[..., str]) -> None:
    """Variables and options of git, and what the same command puts there (R15, R19)."""
    assert decide(command) == "ask"


STARTS_A_PROGRAM = (
    "git log --help", "git --help log", "git -h", "git fetch --help", "git notes --ref=x edit", "git notes --ref x edit",
    "git remote -v add x y", "git remote --verbose set-url x y", "git commit -S -m x", "git commit -aSkey -m x",
    "git commit --gpg-sign -m x", "git tag -s v1", "git tag -u key v1", "git tag --sign v1", "git tag -v v1",
    "git merge --verify-signatures x", "git merge -S x", "git rebase --gpg-sign=k x", "git rebase --edit-todo",
    "git cherry-pick -S x", "git push --signed", "git verify-commit HEAD", "git verify-tag v1",
)  # fmt: skip


def test_a_form_of_git_that_starts_a_viewer_a_signer_or_an_editor_asks(decide: Callable[..., str]) -> None:
    """A second verb behind an option, ``--help``, and signatures, which take a program and a key of the person (R8)."""
    assert [command for command in STARTS_A_PROGRAM if decide(command) != "ask"] == []
    plain = ("git commit -m x", "git tag v1", "git log -S x", "git notes list", "git remote -v", "git commit -am S")
    assert [command for command in plain if decide(command) != "allow"] == []


@pytest.mark.skipif(GIT is None, reason="git is the reference")
@pytest.mark.parametrize("shape", SHAPES)
def test_no_allowed_git_command_runs_what_a_planted_repository_names(
    shape: str, vault: Path, tmp_path: Path, decide: Callable[..., str]
) -> None:
    """The real git is the reference: what is allowed leaves no marker (R15)."""
    marker, hook = (
        tmp_path / "marker",
        f'[core]\n\tfsmonitor = "touch {tmp_path}/marker; false"\n\tbare = false\n\tworktree = .\n',
    )
    _make(vault / "evil", SHAPES[shape])
    for folder in (vault / "evil", vault / "other", vault / "evil" / ".git"):
        if folder.is_dir():
            (folder / "config").write_text(hook)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    for command in ("git -C evil status", "cd evil && git status", "git status", "git -C src status"):
        if decide(command) == "allow":
            subprocess.run(["bash", "-c", command], cwd=vault, env=environment, capture_output=True, check=False)
    assert not marker.exists()
