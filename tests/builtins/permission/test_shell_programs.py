"""What allowed commands really do: random options of real programs; nothing outside is shown, nothing is changed or run."""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from moryflow_builtins.permission.policy import Policy
from moryflow_builtins.permission.shell import judge_command

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="bash is the reference")

PROGRAMS = {
    "readers": ("cat", "head", "tail", "wc", "sort", "ls", "stat", "file", "tac", "nl", "cut", "uniq", "fold", "od"),
    "searchers": ("grep", "find", "diff", "rg", "tree", "du", "cmp", "join"),
    "editors": ("sed", "awk", "jq", "date", "printf"),
    "git": ("git diff", "git log", "git show", "git status", "git grep", "git blame"),
}
SECRET = "TOP-CANARY-SECRET"
_SPECIAL = {
    "find": [
        "-exec",
        "-delete",
        "-fprint",
        "-fls",
        "-ok",
        "-newer",
        "-samefile",
        "-files0-from",
        "-follow",
        "-L",
        "-name",
        "-f",
    ],
    "awk": ["-f", "-v", "-F", "-W", "-e", "-i", "-E", "-o"],
    "git": ["--output", "--no-index", "--ext-diff", "--textconv", "-O", "--contents", "--open-files-in-pager", "--stdin", "-S"],
}
_VALUES = ["notes.md", "b.txt", "{out}", "../outside/new", "5", "./evil.sh", "x", "list", "list0", "sub", ".", "..", "-", "lnk"]
_VALUES += [
    "lnk/canary.txt",
    "{}",
    ";",
    "+",
    "1e ./evil.sh",
    "s/a/b/e",
    "w ../outside/new",
    "w new",
    "r {out}",
    "{print}",
    "--",
]
_VALUES += ['BEGIN{system("./evil.sh")}', 'BEGIN{while((getline l<"{out}")>0)print l}', '{print > "new"}', "env", "input", "%s"]
_VALUES += [
    "always",
    "HEAD",
    "HEAD:notes.md",
    "HEAD:.env",
    "!",
    "f",
    "d",
    "none",
    "auto",
    "@{out}",
    "sub/../../outside/canary.txt",
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A vault with a repository, and a secret beside it."""
    vault, outside = tmp_path / "vault", tmp_path / "outside"
    for folder in (vault / "sub", outside, tmp_path / "home"):
        folder.mkdir(parents=True)
    texts = {"notes.md": "alpha\nbeta x\n", "b.txt": "beta\n", "list": "../outside/canary.txt\n", "sub/c.txt": "gamma\n"}
    texts |= {"list0": "../outside/canary.txt\0", "evil.sh": f"#!/bin/sh\ntouch {tmp_path}/MARKER\n", ".env": "KEY=1\n"}
    for name, text in texts.items():
        (vault / name).write_text(text)
    (vault / "evil.sh").chmod(0o755)
    (vault / "lnk").symlink_to("../outside")
    (outside / "canary.txt").write_text(f"{SECRET}\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for step in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *step], cwd=vault, check=True, capture_output=True, env=_environment(tmp_path))
    return tmp_path


def _environment(root: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(root / "home"), "LC_ALL": "C.UTF-8", "GIT_CONFIG_NOSYSTEM": "1"}


def _options(program: str, root: Path) -> tuple[list[str], list[str]]:
    """Return the long and the short options that a program says it has."""
    asked = [*program.split(), "-h" if program.startswith("git") else "--help"]
    done = subprocess.run(asked, cwd=root / "vault", env=_environment(root), capture_output=True, stdin=subprocess.DEVNULL)
    text = (done.stdout + done.stderr).decode("utf-8", "replace")
    long = sorted(set(re.findall(r"--[a-z][a-z0-9-]+", text))) + _SPECIAL.get(program.split()[0], [])
    return long, sorted(set(re.findall(r"(?<![\w-])-([A-Za-z0-9])\b", text)))


def _command(chance: random.Random, program: str, long: list[str], short: list[str], out: str) -> str:
    words = program.split()
    for _ in range(chance.randint(1, 5)):
        kind, value = chance.random(), chance.choice(_VALUES).replace("{out}", out)
        if kind < 0.3 and long:
            option = chance.choice(long)
            option = option[: chance.randint(4, len(option))] if len(option) > 4 and chance.random() < 0.25 else option
            words.append(f"{option}={value}" if option.startswith("--") and chance.random() < 0.5 else option)
        elif kind < 0.5 and short:
            letters = "".join(chance.choice(short) for _ in range(chance.randint(1, 3)))
            words.append(f"-{letters}{value if chance.random() < 0.3 else ''}")
        else:
            words.append(value)
    return " ".join(map(shlex.quote, words))


def _state(root: Path) -> dict[str, tuple[int, int]]:
    """Return what is there, but what git keeps for itself."""
    found = (path for path in root.rglob("*") if ".git" not in path.parts and not path.is_dir())
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in found}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_an_allowed_command_shows_changes_and_runs_nothing_it_should_not(
    kind: str, root: Path, make_policy: Callable[..., Policy]
) -> None:
    """Wildcards over readers cover no option that reads elsewhere, writes or runs (R8, R9)."""
    vault, chance = root / "vault", random.Random(int(os.environ.get("MORYFLOW_TEST_SEED", "1")))
    known = {name: _options(name, root) for name in PROGRAMS[kind] if shutil.which(name.split()[0])}
    rules = [{"domain": "bash", "pattern": f"{name} *", "decision": "allow"} for name in known]
    policy = make_policy(rules, vault=vault, user_home=root / "home")
    before = _state(root)
    for _ in range(int(os.environ.get("MORYFLOW_TEST_ROUNDS", "100"))):
        name = chance.choice(list(known))
        command = _command(chance, name, *known[name], "../outside/canary.txt")
        if judge_command(policy, command).verdict.decision != "allow":
            continue
        try:
            where = {"cwd": vault, "env": _environment(root), "stdin": subprocess.DEVNULL, "timeout": 5}
            done = subprocess.run(["bash", "--norc", "-c", command], capture_output=True, check=False, **where)
        except subprocess.TimeoutExpired:
            continue
        shown = (done.stdout + done.stderr).decode("utf-8", "replace")
        assert SECRET not in shown, command
        assert _state(root) == before, command
