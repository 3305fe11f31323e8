"""What git brings without naming it is judged by the paths that differ; what cannot be told asks (R35)."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from moryflow_builtins.permission.policy import Policy
from moryflow_builtins.permission.shell.git_store import GitStore
from moryflow_builtins.permission.shell.repositories import tracked_paths

from .judging import decide, git, rules

MakePolicy = Callable[..., Policy]
WORKFLOW = ".github/workflows/ci.yml"


def _commit(vault: Path, **files: str) -> None:
    for name, text in files.items():
        path = vault / {"workflow": WORKFLOW, "tasks": ".vscode/tasks.json", "code": "src/a.py"}[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(vault, "add", "-A")
    git(vault, "commit", "-qm", "x")


@pytest.fixture(params=["loose", "packed"])
def vault(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A vault whose branch `good` changes code only, and `bad`, made from it, what runs later; and two stashes of the kind."""
    vault = tmp_path / "vault"
    vault.mkdir()
    git(vault, "init", "-q")
    _commit(vault, workflow="one", code="one")
    git(vault, "checkout", "-qb", "good")
    _commit(vault, code="two")
    git(vault, "checkout", "-qb", "bad")
    _commit(vault, workflow="two", tasks="two")
    git(vault, "tag", "-a", "vbad", "-mx")
    git(vault, "update-ref", "refs/remotes/origin/rbad", "bad")
    git(vault, "update-ref", "refs/remotes/origin/rgood", "good")
    git(vault, "checkout", "-q", "good")
    git(vault, "checkout", "-q", "main")
    for name in ("src/a.py", WORKFLOW):
        (vault / name).write_text("three")
        git(vault, "stash")
    if request.param == "packed":
        git(vault, "gc", "-q")
        git(vault, "pack-refs", "--all")
    return vault


BRINGS = """
checkout bad | checkout vbad | switch bad | switch rbad | checkout origin/rbad | checkout -b new bad | switch -c new bad
checkout bad~0 | checkout -q --detach bad | checkout bad -- .github | checkout bad -- '*.yml' | -C src checkout bad
merge bad | merge --no-ff bad | merge good bad | rebase bad | rebase --onto bad good | cherry-pick bad | revert bad
reset --hard bad | reset bad | reset --soft bad | restore --source=bad . | restore -s bad . | restore -s bad --staged .
stash pop | stash apply | stash pop stash@{0} | stash apply --index 0
"""
UNKNOWN = """
pull | pull origin main | pull --rebase | merge | rebase | cherry-pick good..bad | checkout nowhere | checkout @{-1}
checkout $X | stash pop stash@{9} | symbolic-ref HEAD refs/heads/bad | update-ref HEAD bad
fetch && git merge origin/main | fetch; git checkout good | branch -f x bad && git checkout x
reset good && git reset --hard HEAD~1 | checkout good && git checkout - | push -f . bad:good && git checkout good
reset --hard 'bad^{/[x]}' | checkout 'bad^{/[x]}' -- | checkout :/two | checkout vbad-0-gabcdef0 | sparse-checkout disable
"""
ALLOWED = """
checkout main | checkout good | checkout bad^ | checkout bad~1 | checkout bad^^ | switch rgood | checkout - | checkout -b new
switch -c new good | checkout --orphan new | merge good | merge origin/rgood | rebase good | cherry-pick good | revert good
reset --hard | reset --hard HEAD | reset good | reset src/a.py | restore . | checkout . | checkout -- . | checkout src/a.py
restore -s bad src | checkout bad -- src/a.py | -C src checkout bad -- a.py | stash pop stash@{1} | stash apply 1 | stash
merge --abort | rebase --continue | cherry-pick --skip | symbolic-ref HEAD | commit -m x && git checkout main
checkout good && git merge main
"""


def _each(text: str) -> list[str]:
    return [part.strip() for line in text.strip().splitlines() for part in line.split(" | ")]


@pytest.mark.parametrize("rule", ["+git *", "+*"])
def test_what_git_brings_asks_where_it_runs_later_or_is_not_known(vault: Path, make_policy: MakePolicy, rule: str) -> None:
    """Whatever the verb, by every path that differs; ordinary branches need no question (R21, R35)."""
    policy = make_policy(rules(rule), vault=vault)
    for command in _each(BRINGS) + _each(UNKNOWN):
        assert decide(policy, f"git {command}") == "ask", command
    for command in _each(ALLOWED):
        assert decide(policy, f"git {command}") == "allow", command


def test_a_rule_for_one_command_covers_what_cannot_be_told_and_no_more(vault: Path, make_policy: MakePolicy) -> None:
    """``git pull`` is what it names; what is known to change a guarded file is asked about each time (R35, R37)."""
    policy = make_policy(rules("+git pull", "+git checkout bad", "+git checkout nowhere", "+git merge *"), vault=vault)
    decisions = [decide(policy, f"git {verb}") for verb in ("pull", "checkout nowhere", "checkout bad", "merge", "merge bad")]
    assert decisions == ["allow", "allow", "ask", "ask", "ask"]


def test_a_file_named_like_a_commit_hides_none(vault: Path, make_policy: MakePolicy) -> None:
    """Git tries the commit first, in capital letters too, and a path may be written from the root (R35)."""
    head = git(vault, "rev-parse", "bad").strip()
    (vault / "bad@{0}").touch()
    (vault / head[:9].upper()).touch()
    policy = make_policy(rules("+git *"), vault=vault)
    commands = ("checkout 'bad@{0}' --", "checkout 'bad@{0}'", f"checkout {head[:9].upper()}", f"checkout bad -- {vault}")
    for command in commands:
        assert decide(policy, f"git {command}") == "ask", command


def test_only_whole_names_are_tracked(vault: Path) -> None:
    """The end of a name is none, nor are bytes between the names; one with more flags is, and a folder is by its files."""
    (vault / "later").touch()
    git(vault, "add", "--intent-to-add", "later")
    tracked = tracked_paths(vault)
    assert tracked is not None
    names = ("src/a.py", "a.py", "src", "sr", "y", "later", "none")
    assert {name for name in names if tracked(vault / name)} == {"src/a.py", "src", "later"}


@pytest.mark.parametrize("name", ["index", "packed-refs", "logs/HEAD"])
def test_a_pipe_in_a_repository_holds_no_gate_up(vault: Path, make_policy: MakePolicy, name: str) -> None:
    """Who opens one waits for its other end."""
    (vault / ".git" / name).unlink(missing_ok=True)
    os.mkfifo(vault / ".git" / name)
    policy = make_policy(rules("+git *"), vault=vault)
    assert decide(policy, "git checkout nowhere") == "ask"
    assert decide(policy, "git checkout -") == ("allow" if name == "index" else "ask")


def test_without_a_repository_git_brings_nothing(tmp_path: Path, make_policy: MakePolicy) -> None:
    """There is nothing to ask about."""
    assert decide(make_policy(rules("+git *"), vault=tmp_path), "git pull; git checkout x") == "allow"


@pytest.mark.parametrize("broken", [".git/HEAD", ".git/objects", ".git/packed-refs"])
def test_a_repository_that_cannot_be_read_asks(vault: Path, make_policy: MakePolicy, broken: str) -> None:
    """Whatever stands in its files, the gate answers (R37)."""
    chance = random.Random(1)
    files = [vault / broken, *(vault / broken).rglob("*")]
    for file in filter(Path.is_file, files):
        file.chmod(0o600)
        file.write_bytes(chance.randbytes(60))
    assert decide(make_policy(rules("+git *"), vault=vault), "git checkout bad") in ("ask", "deny")


@pytest.mark.parametrize("seed", range(3))
def test_the_paths_that_differ_are_those_of_git(tmp_path: Path, seed: int) -> None:
    """Over random histories, loose and in packs with differences of differences (R35)."""
    chance, vault = random.Random(seed), tmp_path / "vault"
    vault.mkdir()
    git(vault, "init", "-q")
    names = ["a", "b/c", "b/d/e", "f", "f.x", "ünï", "g/" + "h" * 200]
    for number in range(12):
        for name in chance.sample(names, 3):
            path = vault / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("line\n" * 50 + str(number)) if chance.random() < 0.7 else path.unlink(missing_ok=True)
        for extra in range(40):
            (vault / f"many{extra}").write_text(str(number // 3))
        git(vault, "add", "-A")
        git(vault, "commit", "-qm", "x", "--allow-empty")
        if number == 8:
            git(vault, "repack", "-adfq", "--depth=50")
    store = GitStore(vault / ".git")
    for _ in range(20):
        one, other = (f"HEAD~{chance.randrange(11)}" for _ in "12")
        expected = git(vault, "-c", "core.quotePath=false", "diff", "--name-only", "--no-renames", one, other).splitlines()
        short = git(vault, "rev-parse", "--short", other).strip()
        assert sorted(store.changes(store.tree(store.commit(one)), store.tree(store.commit(short)))) == sorted(expected)
