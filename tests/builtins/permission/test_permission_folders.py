"""Folders: what they bring when they are moved or deleted, and what makes one a git repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow_builtins.permission.files import MAX_PATHS, judge_folder
from moryflow_builtins.permission.policy import Decision, Policy
from moryflow_builtins.permission.verdict import decide, is_long, judge_target
from moryflow_sdk import ToolCall

from .conftest import build_policy

MakePolicy = Callable[..., Policy]


def make_files(root: Path, *paths: str) -> Path:
    """Create files below `root`; a path that ends with a slash is a folder."""
    root.mkdir(parents=True, exist_ok=True)
    for path in paths:
        place = root / path
        if path.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("x", encoding="utf-8")
    return root


def call_of(policy: Policy, tool: str, *paths: str) -> ToolCall:
    """Return a call of a file tool as the gate sees it."""
    targets = tuple(policy.resolve(path, "edit", None) for path in paths)
    return ToolCall(id="c", tool=tool, args={}, domain="edit", targets=targets)


def move(vault: Path, source: str, goal: str, **rules: object) -> Decision:
    """Judge ``move source goal``."""
    policy = build_policy(**{"vault": vault, "user_home": vault.parent / "home", **rules})  # type: ignore[arg-type]
    return decide(policy, call_of(policy, "move", source, goal))


@pytest.mark.parametrize(
    ("holds", "source", "goal", "named"),
    [
        (["gh/workflows/ci.yml"], "gh", ".github", ".github/workflows"),
        (["cf/fish/config.fish"], "cf", ".config", ".config/fish"),
        (["cf/a/b/git/config"], "cf/a/b", ".config", ".config/git"),
        (["x/bin/python"], "x", "venv", "venv/bin"),
        (["x/.bin/eslint"], "x", "web/node_modules", "web/node_modules/.bin"),
        (["x/HEAD", "x/refs/k"], "x", "y", "y/HEAD"),
        (["a/b/.envrc"], "a", "c", "a/b/.envrc"),
        (["a/deep/er/prod.tfvars"], "a", "c", "a/deep/er/prod.tfvars"),
        (["a/.vscode/tasks.json"], "a", "c", "c/.vscode"),
    ],
)
def test_a_moved_folder_is_judged_by_every_path_it_brings(
    tmp_path: Path, holds: list[str], source: str, goal: str, named: str
) -> None:
    """Where its files were and where they arrive; the question names them (R21, R35)."""
    found = move(make_files(tmp_path / "vault", *holds), source, goal)
    assert found.worst.decision == "ask"
    assert named in found.verdict.reason
    assert found.remember == ()


def test_a_moved_folder_of_ordinary_files_is_not_asked_about(tmp_path: Path) -> None:
    """Nothing in it asks, so the move does not (S0.8)."""
    vault = make_files(tmp_path / "vault", "src/a.py", "src/deep/b.md", "src/empty/", "src/.github/CODEOWNERS")
    assert move(vault, "src", "lib/src").worst.decision == "allow"
    assert move(vault, "src/a.py", "src/c.py").worst.decision == "allow"


def test_rules_hold_for_what_a_folder_brings(tmp_path: Path) -> None:
    """A deny on one file denies moving the folder around it, and moving it there (R35)."""
    vault = make_files(tmp_path / "vault", "a/private/x.md", "b/x.md")
    rows = [{"domain": "edit", "pattern": "vault:**/private/x.md", "decision": "deny"}]
    assert move(vault, "a", "c", rows=rows).worst.decision == "deny"
    assert move(vault, "b", "private", rows=rows).worst.decision == "deny"
    assert move(vault, "b", "c", rows=rows).worst.decision == "allow"


@pytest.mark.parametrize(("inside", "decision"), [("a/b/.env", "ask"), ("a/.git/hooks/x", "ask"), ("a/b/notes.md", "allow")])
def test_a_deleted_folder_is_judged_by_what_it_takes_away(tmp_path: Path, inside: str, decision: str) -> None:
    """Deleting a folder deletes every file in it (R35); the same answer is given by ``permission explain``."""
    policy = build_policy(vault=make_files(tmp_path / "vault", inside))
    call = call_of(policy, "delete", "a")
    assert decide(policy, call).worst.decision == decision
    assert judge_target(policy, call.targets[0]).worst.decision == decision
    assert is_long(call)


def test_a_folder_over_the_bound_asks(tmp_path: Path) -> None:
    """What was not looked at is not taken for harmless (R35)."""
    vault = make_files(tmp_path / "vault", *(f"many/{number // 100}/{number}" for number in range(MAX_PATHS)))
    found = move(vault, "many", "other")
    assert found.worst.decision == "ask" and "5,000" in found.verdict.reason


def test_a_folder_that_cannot_be_read_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error on the way is not an answer (R35)."""
    vault = make_files(tmp_path / "vault", "a/b/c.md")
    policy = build_policy(vault=vault)
    source = policy.resolve("a", "edit", None)
    (vault / "a").rename(vault / "gone")
    (answer,) = judge_folder(policy, source)
    assert answer.decision == "ask" and "cannot be read" in answer.reason


NAMES = st.sampled_from(["a", "b", ".env", "HEAD", ".git", "workflows", ".github", "x.pem", "notes.md", ".venv", "fish"])


@settings(max_examples=60)
@given(st.lists(st.lists(NAMES, min_size=1, max_size=4), min_size=1, max_size=6), NAMES)
def test_a_move_is_never_laxer_than_its_files_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, trees: list[list[str]], goal: str
) -> None:
    """For any tree: if moving one file of it would ask, so does moving the folder (R35)."""
    vault = tmp_path_factory.mktemp("tree") / "vault"
    (vault / "source").mkdir(parents=True)
    for names in trees:
        place = vault / "source" / "/".join(names)
        if not any(parent.is_file() for parent in place.parents) and not place.exists():
            make_files(vault, f"source/{'/'.join(names)}")
    policy = build_policy(vault=vault)
    whole = decide(policy, call_of(policy, "move", "source", goal)).worst
    for file in (path.relative_to(vault / "source") for path in (vault / "source").rglob("*") if path.is_file()):
        one = decide(policy, call_of(policy, "move", f"source/{file}", f"{goal}/{file}")).worst
        assert one.severity <= whole.severity, file


# ------------------------------------------------------------------------------------------------
# What makes a folder a git repository
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "written", "decision"),
    [
        ([], "evil/HEAD", "ask"),
        ([], "evil/head", "ask"),
        ([], "evil/commondir", "ask"),
        ([], "evil/.git", "ask"),
        (["evil/HEAD"], "evil/config", "ask"),
        (["evil/HEAD"], "evil/objects/k", "ask"),
        (["evil/HEAD"], "evil/refs/heads/main", "ask"),
        (["evil/HEAD"], "evil/hooks/pre-commit", "ask"),
        (["evil/HEAD"], "evil/packed-refs", "ask"),
        (["evil/commondir"], "evil/config.worktree", "ask"),
        (["evil/HEAD"], "evil/deep/../config", "ask"),
        (["evil/HEAD"], "evil/src/a.py", "allow"),
        (["evil/HEAD"], "evil/sub/config", "allow"),
        ([], "src/config", "allow"),
        ([], "objects/a.md", "allow"),
        ([], "refs/a.md", "allow"),
        ([], "src/HEAD.md", "allow"),
        ([], "src/head/index.tsx", "allow"),
        ([], "packed-refs", "allow"),
    ],
)
def test_what_makes_a_folder_a_git_repository_is_asked_about(
    tmp_path: Path, there: list[str], written: str, decision: str
) -> None:
    """Its configuration names programs that git runs there (R15, R21)."""
    policy = build_policy(vault=make_files(tmp_path / "vault", *there))
    assert judge_target(policy, policy.resolve(written, "edit", None)).worst.decision == decision


def test_a_head_that_leads_nowhere_counts(tmp_path: Path) -> None:
    """Git takes a folder with such a link for a repository (R21)."""
    vault = make_files(tmp_path / "vault", "evil/")
    (vault / "evil/HEAD").symlink_to("refs/heads/none")
    policy = build_policy(vault=vault)
    assert judge_target(policy, policy.resolve("evil/config", "edit", None)).worst.decision == "ask"


def test_a_rule_of_the_person_can_allow_it(tmp_path: Path) -> None:
    """Like every default, it gives way to what a person wrote (S0.40)."""
    policy = build_policy(
        [{"domain": "edit", "pattern": "vault:fixtures/**", "decision": "allow"}],
        vault=make_files(tmp_path / "vault", "fixtures/HEAD"),
    )
    assert judge_target(policy, policy.resolve("fixtures/config", "edit", None)).worst.decision == "allow"
    assert judge_target(policy, policy.resolve("fixtures/HEAD", "edit", None)).worst.decision == "allow"
