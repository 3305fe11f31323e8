"""How risky a write is: operation and path, and how a plugin judges otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow_builtins.memory_bank import SENSITIVE_PATHS, MemoryBankSettings
from moryflow_builtins.memory_bank.guard import assess, risk_of, sensitive_paths
from moryflow_sdk import Identity, Target, ToolCall
from moryflow_sdk.risk import replace_risk

SETTINGS = MemoryBankSettings()


def edit(*paths, tool="write", **fields):
    targets = [Target(domain="edit", kind="file", text=f"vault:/{path}", path=f"/v/{path}", **fields) for path in paths]
    return ToolCall(id="c", tool=tool, args={}, domain="edit", targets=tuple(targets))


@pytest.mark.parametrize(
    "path",
    [
        *(
            "src/auth/login.py",
            "src/security/keys.py",
            "package.json",
            "web/package.json",
            "tsconfig.json",
            "docker/x",
            "a/infra/y",
        ),
        *(
            "lib/Auth/a.rb",
            "app/authentication/x.ts",
            "pyproject.toml",
            "requirements-dev.txt",
            "Cargo.lock",
            "go.mod",
            "Gemfile",
        ),
        *("poetry.lock", "uv.lock", "pnpm-lock.yaml", "pom.xml", "composer.json", ".github/workflows/ci.yml", ".gitlab-ci.yml"),
        *(
            "Dockerfile",
            "docker-compose.prod.yml",
            "main.tf",
            "terraform/a.txt",
            "db/migrations/0001.sql",
            ".env",
            "a/.env.local",
        ),
        *("a/.env.local", "PACKAGE.JSON", "Src/AUTH/x.py", "k8s/pod.yaml"),
    ],
)
def test_sensitive_paths_are_high_risk(path):
    """Those of the list and their equals elsewhere, without regard to case (S3.27, D69)."""
    assert assess(edit(path), SETTINGS) == "high"


@pytest.mark.parametrize(
    "path",
    [
        "src/a.py",
        "README.md",
        "docs/author.md",
        "src/authors/list.py",
        "package.jsonl",
        "dockerish/a",
        "environment.md",
        "x.lock.md",
        ".moryflow/plans/logging.md",
    ],
)
def test_other_paths_are_low_risk(path):
    """Names that only look alike (S3.27, S3.41)."""
    assert assess(edit(path), SETTINGS) == "low"


def test_operations_that_are_high_risk(tmp_path):
    """Several files, multiedit, a folder; one file is not (S3.27, D29)."""
    assert assess(edit("a.md", "b.md"), SETTINGS) == "high"
    assert assess(edit("a.md", "b.md", tool="apply_patch"), SETTINGS) == "high"
    assert assess(edit("a.md", tool="apply_patch"), SETTINGS) == "low"
    assert assess(edit("a.md", tool="multiedit"), SETTINGS) == "high"
    folder = Target(domain="edit", kind="file", text="vault:/d", path=str(tmp_path), identity=Identity(device=1, inode=1))
    assert assess(ToolCall(id="c", tool="delete", args={}, targets=(folder,)), SETTINGS) == "high"


def test_a_write_that_names_no_file_is_medium():
    """It is unknown what it touches (S3.27)."""
    target = Target(domain="edit", kind="tool", text="tool:format", given="format")
    assert assess(ToolCall(id="c", tool="format", args={}, domain="edit", targets=(target,)), SETTINGS) == "medium"


def test_a_link_does_not_hide_what_is_sensitive():
    """Where it leads to and how it was given both count (S3.27)."""
    assert assess(edit("plain.md", lexical="vault:/docker/plain.md"), SETTINGS) == "high"
    assert assess(edit("docker/plain.md", lexical="vault:/plain.md"), SETTINGS) == "high"


def test_the_paths_are_configurable():
    """Replaced, or added to (D69)."""
    mine = MemoryBankSettings(sensitive_paths=("secret/**",))
    assert (assess(edit("package.json"), mine), assess(edit("secret/a"), mine)) == ("low", "high")
    more = MemoryBankSettings(more_sensitive_paths=("*.sql",))
    assert (assess(edit("package.json"), more), assess(edit("a.sql"), more)) == ("high", "high")


def test_a_glob_that_cannot_be_read_lets_nothing_through():
    """A mistake in the configuration never makes a write less risky (S3.27)."""
    assert sensitive_paths(("{a,b}" * 40,)).match("anything")


@given(st.text(st.characters(blacklist_categories=("Cs",)), max_size=60))
def test_any_path_has_a_risk(path):
    """No path breaks the judgement, and what lies in a sensitive folder is always high (S3.27, S3.41)."""
    assert assess(edit(path), SETTINGS) in ("low", "high")
    assert assess(edit(f"infra/{path}"), SETTINGS) == "high" and len(SENSITIVE_PATHS) > 10


async def test_a_plugin_puts_its_own_judgement_in_place():
    """The last one is asked first, ``None`` leaves it to the others, and undoing restores (D29)."""
    undo_low = replace_risk(lambda call: "low")
    undo_none = replace_risk(lambda call: None)
    try:
        assert risk_of(edit("package.json"), SETTINGS) == "low"
        undo_low()
        assert risk_of(edit("package.json"), SETTINGS) == "high"
    finally:
        undo_low()
        undo_none()


def boom(call):
    raise RuntimeError("boom")


@pytest.mark.parametrize("judgement", [boom, lambda call: "tiny", lambda call: 3])
async def test_a_judgement_that_fails_counts_as_high(judgement):
    """Raising and nonsense never let a write through (D29)."""
    undo = replace_risk(judgement)
    try:
        assert risk_of(edit("notes.md"), SETTINGS) == "high"
    finally:
        undo()


async def test_a_user_plugin_replaces_it_for_as_long_as_it_is_loaded(project):
    """From plugin_start to the end of the plugin (D29, S3.27)."""
    project.plugin(
        "mine",
        """
        from moryflow_sdk.risk import replace_risk

        @hookimpl
        def plugin_start(ctx):
            return replace_risk(lambda call: "high" if call.args.get("path") == "notes.md" else "low")
        """,
    )
    project.configure(bank={"guardMode": "block"})
    calls = [
        {"calls": [{"name": "write", "arguments": {"path": path, "content": "x"}}]} for path in ("notes.md", "package.json")
    ]
    talk = await project.run(*calls, "done")
    assert [node["status"] for node in talk.tools] == ["denied", "ok"]
    assert risk_of(edit("package.json"), SETTINGS) == "high", "it went with its plugin"
