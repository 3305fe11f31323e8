"""What git brings without naming it is judged by the paths that differ; what cannot be told asks (R35)."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from moryflow_builtins.permission.policy import Policy
from moryflow_builtins.permission.shell.git_repository import tracked_paths
from moryflow_builtins.permission.shell.git_store import GitStore

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


STEPS = (
    ("pick {good}", "allow"),
    ("# pick {bad}\nnoop\ndrop {bad} x\n\nlabel x\npick {good} # subject", "allow"),
    ("pick {good}\npick {bad} subject", "ask"),
    ("fixup {bad}", "ask"),
    ("fixup -C {bad}", "ask"),
    ("exec make", "ask"),
    ("x make", "ask"),
    ("merge -C {good} x", "ask"),
    ("pick nowhere", "ask"),
)


@pytest.mark.parametrize(("steps", "decision"), STEPS)
@pytest.mark.parametrize("place", ["rebase-merge/git-rebase-todo", "sequencer/todo"])
def test_what_is_left_of_an_unfinished_command_is_judged(
    vault: Path, make_policy: MakePolicy, steps: str, decision: str, place: str
) -> None:
    """``--continue`` brings what stands in a list, which may be from yesterday; what it cannot be told of asks (R35, R37)."""
    (vault / ".git" / place).parent.mkdir()
    names = {name: git(vault, "rev-parse", "--short", name).strip() for name in ("good", "bad")}
    (vault / ".git" / place).write_text(steps.format(**names))
    policy = make_policy(rules("+git *"), vault=vault)
    for command in ("rebase --continue", "cherry-pick --continue", "revert --skip", "rebase --skip", "cherry-pick --conti"):
        assert decide(policy, f"git {command}") == decision, command
    assert decide(policy, "git rebase --abort") == decide(policy, "git cherry-pick --quit") == "allow"


def test_patches_that_are_left_of_a_series_ask(vault: Path, make_policy: MakePolicy) -> None:
    """``git am`` keeps them as mails, and ``-3`` puts them where a file was renamed to (R35, R37)."""
    policy = make_policy(rules("+git *"), vault=vault)
    (vault / "a.patch").write_text("--- a/src/a.py\n+++ b/src/a.py\n")
    assert [decide(policy, f"git am {rest}") for rest in ("--continue", "a.patch", "-3 a.patch", "--3way a.patch")] == [
        *("allow", "allow", "ask", "ask")
    ]
    (vault / ".git" / "rebase-apply").mkdir()
    assert [decide(policy, f"git {rest}") for rest in ("am --continue", "am -r", "am --skip", "rebase --continue")] == [
        "ask"
    ] * 4
    assert decide(policy, "git am --abort") == "allow"


def _tree(vault: Path, message: str, **files: str | None) -> None:
    for name, text in files.items():
        path = vault / name.replace("__", "/").replace("DOT", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text) if text is not None else path.unlink()
    git(vault, "add", "-A")
    git(vault, "commit", "-qm", message)


LONG = "".join(f"line {number}\n" for number in range(30))
RENAMES = {
    "a file, here, that the other side has changed": (
        {"ci": LONG},
        {"ci": None, "DOTgithub__workflows__ci.yml": LONG},
        {"ci": LONG + "new\n"},
    ),
    "the same, where both have the new file": (
        {"ci": LONG},
        {"ci": None, "DOTgithub__workflows__ci.yml": LONG},
        {"ci": LONG + "new\n", "DOTgithub__workflows__ci.yml": LONG},
    ),
    "a folder, here, in which the other side adds a file": (
        {"ed__notes": LONG},
        {"ed__notes": None, "DOTvscode__notes": LONG},
        {"ed__tasks.json": "new\n", "DOTvscode__notes": LONG},
    ),
    "a folder there, in which a file is new here": (
        {"ed__notes": LONG},
        {"ed__tasks.json": "new\n", "DOTvscode__notes": LONG},
        {"ed__notes": None, "DOTvscode__notes": LONG},
    ),
}


@pytest.mark.parametrize("case", RENAMES)
def test_a_change_that_follows_a_rename_asks(tmp_path: Path, make_policy: MakePolicy, case: str) -> None:
    """Git merges into the new name; by the paths that differ alone nothing would be seen (R35)."""
    vault = tmp_path / "vault"
    vault.mkdir()
    git(vault, "init", "-q")
    first, ours, theirs = RENAMES[case]
    _tree(vault, "first", x="x", **first)
    git(vault, "checkout", "-qb", "other")
    _tree(vault, "theirs", **theirs)
    git(vault, "checkout", "-q", "main")
    _tree(vault, "ours", **ours)
    _tree(vault, "more", x="y")
    policy = make_policy(rules("+git *"), vault=vault)
    for verb in ("merge", "rebase", "cherry-pick"):
        assert decide(policy, f"git {verb} other") == "ask", verb
    git(vault, "checkout", "-qb", "plain", "main~2")
    _tree(vault, "plain", x="z", new="new")
    git(vault, "checkout", "-q", "main")
    assert decide(policy, "git cherry-pick plain") == "allow"


@pytest.mark.parametrize("seed", range(3))
def test_the_commits_of_a_range_are_those_of_git(tmp_path: Path, seed: int) -> None:
    """Over random histories with merges, all of one second; and where two of them part (R35)."""
    chance, vault = random.Random(seed), tmp_path / "vault"
    vault.mkdir()
    git(vault, "init", "-q")
    tree = git(vault, "write-tree").strip()
    commits: list[str] = []
    for number in range(25):
        parents = chance.sample(commits[-6:], min(len(commits), chance.choice((1, 1, 2))))
        words = [word for parent in parents for word in ("-p", parent)]
        commits.append(git(vault, "commit-tree", tree, *words, "-m", str(number)).strip())
    store = GitStore(vault / ".git")
    for _ in range(20):
        one, other = chance.sample(commits, 2)
        expected = git(vault, "rev-list", other, f"^{one}").split()
        assert sorted(store.history([other], [one], most=99)) == sorted(expected)
        if expected:
            assert set(git(vault, "merge-base", "--all", one, other).split()) <= set(store.bases(one, other))
