"""What git prints from its store holds files that are asked about when they are named (R36)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from moryflow_builtins.permission.policy import Policy
from moryflow_builtins.permission.shell import git_contents, judge_command
from moryflow_builtins.permission.shell.effects import EffectUnknown
from moryflow_builtins.permission.shell.git_repository import index_entries

from .judging import decide, git, rules

MakePolicy = Callable[..., Policy]
SECRET = "TOP-CANARY-SECRET"


def _commit(vault: Path, name: str, text: str) -> None:
    path = vault / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    git(vault, "add", "-f", name)
    git(vault, "commit", "-qm", f"change {name}")


@pytest.fixture(params=["loose", "packed"])
def vault(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A vault in which ``app/.env`` was tracked once, on `main`, and is tracked on `other`; `old` is before both."""
    vault = tmp_path / "vault"
    vault.mkdir()
    git(vault, "init", "-q")
    _commit(vault, "src/a.py", "one\n")
    git(vault, "tag", "-a", "old", "-mx")
    git(vault, "checkout", "-qb", "other")
    _commit(vault, "app/.env", f"other {SECRET}\n")
    git(vault, "checkout", "-q", "main")
    _commit(vault, "app/.env", f"{SECRET}\n")
    git(vault, "rm", "-q", "app/.env")
    git(vault, "commit", "-qm", "remove it")
    for number in range(3):
        _commit(vault, "src/a.py", f"two {number}\n")
    (vault / "src/a.py").write_text("three\n")
    if request.param == "packed":
        git(vault, "gc", "-q")
    return vault


SHOWS = """
show --all | show --branches | diff ^main other | diff ^old other -- app
show HEAD~3 | show HEAD~4 | show other | show old..other | show --stat -p other | show --format=%s other | show HEAD~4 HEAD
log -p | log -u | log --patch | log --pat | log -U3 | log --patch-with-stat | log -p -- app | log -p old..HEAD
log -p other | log --cc -m | log -p -n 4 | log -p -4 | log -p --all | log -p --author=a -2 | log --word-diff | log -p HEAD~2
log -p old.. | log -p ^old other | log -p old...other | whatchanged -p | reflog -p | diff old other | diff old..other
diff other | diff other HEAD | diff main...other | diff old...other | diff --cached other | diff other -- app
diff other -- '*.env' | diff other -- '*pp' | diff --stat --patch other | diff other:app | format-patch -5 --stdout
format-patch old --stdout | format-patch --stdout old..other | diff-tree -p old other | diff-tree -p other
diff-index -p other | grep TOP other | grep TOP other -- app | archive other | archive other app
range-diff old..other old..HEAD | checkout -p other | reset -p other | cat-file -p other:app/.env | cat-file blob BLOB
cat-file -p BLOB | show BLOB | diff BLOB BLOB | show other:app/.env | -C src log -p | -C app/.. show other
diff other -- . ':!src' | diff other -- ':(top)app' | diff other -- ':!app/.e' | log -p -- '[a]pp' | show other -- 'app/**'
"""
SHOWS_NOT = """
show | show HEAD | show --stat other | show --name-only other | show -s other | show HEAD~1 HEAD~2 | show old
show other -- src | show other -- . ':!app' | show other -- ':^*.env' | show other -- . ':(exclude)app/.env'
show other:src/a.py | show HEAD^{tree} | log | log --oneline | log --stat | log -p -2 | log -2 -p --oneline
log -p HEAD~2.. | log -p old | log -p -- src | log -S x | log --name-status --all | log --color | log -p ^HEAD~2 HEAD
log other | diff | diff HEAD | diff --cached | diff HEAD~2 | diff HEAD~2 HEAD | diff --stat other
diff --name-only old other | diff other -- src | diff main~1...main | diff src | diff src/a.py | diff '*.py'
diff other src | status | status -v | commit -v --dry-run | diff-tree other | diff-tree -p HEAD | format-patch -1 --stdout
format-patch HEAD~2 --stdout | grep TOP | grep one old | grep TOP other -- src | archive HEAD | archive HEAD src
cat-file -p HEAD | cat-file -t other | cat-file -p HEAD:src/a.py | ls-tree -r other | stash list | stash | stash show
blame src/a.py | -C src diff | -C src show other -- . | reflog | shortlog | checkout other -- src | add -p | rev-list --all
"""


def _each(vault: Path, text: str) -> list[str]:
    blob = git(vault, "rev-parse", "other:app/.env").strip()
    return [f"git {part.strip().replace('BLOB', blob)}" for line in text.strip().splitlines() for part in line.split(" | ")]


def test_git_asks_before_it_shows_what_is_asked_about(vault: Path, make_policy: MakePolicy) -> None:
    """Whatever the verb and however it is spelled; the question names the file (R36)."""
    for rule in ("+git *", "+*"):
        policy = make_policy(rules(rule), vault=vault)
        for command in _each(vault, SHOWS):
            verdict = judge_command(policy, command).verdict
            assert verdict.decision == "ask", command
            assert "app" in verdict.reason or "is not looked up" in verdict.reason, (command, verdict.reason)


def test_git_is_not_asked_about_where_it_shows_nothing_of_the_kind(vault: Path, make_policy: MakePolicy) -> None:
    """By the revisions, by the options and by the paths that it is given (R36)."""
    policy = make_policy(rules("+git *"), vault=vault)
    for command in _each(vault, SHOWS_NOT):
        verdict = judge_command(policy, command).verdict
        assert (verdict.decision, verdict.reason) == ("allow", ""), command


def test_nothing_that_goes_unasked_shows_the_secret(vault: Path, make_policy: MakePolicy, tmp_path: Path) -> None:
    """Git itself is the reference, and the lists above hold no command that it does not know (R36)."""
    policy = make_policy(rules("+git *"), vault=vault)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "a",
                   "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}  # fmt: skip
    for command in _each(vault, SHOWS + SHOWS_NOT):
        if decide(policy, command) == "allow":
            run = ["bash", "-c", f"cp -r . ../copy && cd ../copy && {command} </dev/null; rm -rf ../copy"]
            done = subprocess.run(run, cwd=vault, env=environment, capture_output=True, check=False)
            assert SECRET.encode() not in done.stdout + done.stderr, command


CHANGES = (
    "diff",
    "diff HEAD",
    "diff --cached",
    "status -v",
    "commit -v",
    "add -p",
    "diff app",
    "diff-index -p HEAD",
    "rerere diff",
)


def test_a_tracked_secret_is_shown_where_it_was_changed(vault: Path, make_policy: MakePolicy) -> None:
    """In the folder or in the index; the hash of what is there tells, and only in the same command it cannot (R36)."""
    git(vault, "checkout", "-qf", "other")
    policy = make_policy(rules("+git *", "+./gen"), vault=vault)
    assert {decide(policy, f"git {verb}") for verb in CHANGES} == {"allow"}
    assert decide(policy, "./gen && git diff") == "ask" and decide(policy, "./gen && git diff src") == "allow"
    assert decide(policy, "git commit -m x && git show") == "ask" and decide(policy, "git commit -m x && git log") == "allow"
    (vault / "app/.env").write_text("new\n")
    assert {decide(policy, f"git {verb}") for verb in CHANGES} == {"ask"}
    git(vault, "add", "app/.env")
    assert {decide(policy, f"git {verb}") for verb in CHANGES} == {"ask"}
    git(vault, "commit", "-qm", "x")
    assert decide(policy, "git diff") == "allow" and decide(policy, "git show") == "ask"
    (vault / "app/.env").unlink()
    assert decide(policy, "git diff") == "ask" and decide(policy, "git grep new src") == "allow"
    assert decide(policy, "git grep new") == "ask" and decide(policy, "git archive HEAD") == "ask"


def test_a_stash_is_shown_by_what_it_holds(vault: Path, make_policy: MakePolicy) -> None:
    """Files that were not tracked are in it too (R36)."""
    policy = make_policy(rules("+git *"), vault=vault)
    git(vault, "stash")
    assert decide(policy, "git stash show -p") == "allow"
    (vault / "app").mkdir()
    (vault / "app/.env").write_text(SECRET)
    git(vault, "stash", "-u")
    assert [decide(policy, f"git stash show {rest}") for rest in ("-p", "", "-p stash@{1}", "--patch 0")] == [
        "ask",
        "allow",
        "allow",
        "ask",
    ]


def test_of_a_long_history_the_last_commits_and_what_is_tracked_are_looked_at(
    vault: Path, make_policy: MakePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the gate stays quick; a number given with ``-n`` counts where nothing else chooses commits (R36)."""
    monkeypatch.setattr(git_contents, "MAX_COMMITS", 2)
    policy = make_policy(rules("+git *"), vault=vault)
    assert decide(policy, "git log -p HEAD~2") == "ask"
    assert decide(policy, "git log -p -2 main") == "allow"


@pytest.mark.parametrize("version", ["2", "4"])
def test_the_index_is_read_as_git_reads_it(tmp_path: Path, version: str) -> None:
    """Each path and its hash, in the formats that git writes; an index in parts is not understood (R36)."""
    vault = tmp_path / "vault"
    vault.mkdir()
    git(vault, "init", "-q")
    for name in ("a", "b/" + "c" * 200, "b/d", "ünï", "b e"):
        (vault / name).parent.mkdir(exist_ok=True)
        (vault / name).write_text(name)
    git(vault, "add", "a", "b", "ünï")
    git(vault, "add", "--intent-to-add", "b e")
    git(vault, "update-index", "--index-version", version)
    lines = git(vault, "ls-files", "-sz").split("\0")[:-1]
    assert index_entries(vault / ".git") == {line.partition("\t")[2]: line.split(" ")[1] for line in lines}
    git(vault, "update-index", "--split-index")
    with pytest.raises(EffectUnknown, match="in parts"):
        index_entries(vault / ".git")


@pytest.mark.parametrize("broken", [".git/index", ".git/HEAD", ".git/objects"])
def test_a_broken_repository_holds_nothing_up(vault: Path, make_policy: MakePolicy, broken: str) -> None:
    """The gate answers, and asks where it cannot tell (R37)."""
    for file in filter(Path.is_file, [vault / broken, *(vault / broken).rglob("*")]):
        file.chmod(0o600)
        file.write_bytes(b"\xff" * 60)
    policy = make_policy(rules("+git *"), vault=vault)
    decisions = [decide(policy, f"git {verb}") for verb in ("diff", "log -p", "show other", "grep x")]
    assert set(decisions) <= {"ask", "allow"} and (broken != ".git/index" or set(decisions) == {"ask"})
