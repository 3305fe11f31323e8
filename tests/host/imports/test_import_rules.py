"""What rules of other systems mean here: the same, or stricter with a reason (issue F, D89)."""

from __future__ import annotations

from pathlib import Path

import pytest
from moryflow.imports import ImportPlan
from moryflow.imports.opencode import _permissions
from moryflow.imports.rules import claude_rule

ROOT = Path("/home/u/.claude")


@pytest.mark.parametrize(
    ("entry", "decision", "domain", "patterns"),
    [
        ("Bash", "allow", "bash", ("*",)),
        ("Bash(*)", "deny", "bash", ("*",)),
        ("Bash(npm run test:*)", "allow", "bash", ("npm run test", "npm run test *")),
        ("Bash(npm run build)", "allow", "bash", ("npm run build",)),
        ("Bash(git * main)", "deny", "bash", ("git * main",)),
        ("Read", "deny", "read", ("*",)),
        ("Read", "allow", "read", ()),
        ("Edit(**)", "allow", "edit", ()),
        ("Write", "ask", "edit", ("vault:**",)),
        ("Grep(src/**)", "allow", "read", ("src/**",)),
        ("Read(.env)", "deny", "read", ("**/.env", "**/.env/**")),
        ("Read(.env)", "allow", "read", ("**/.env",)),
        ("Read(./.env)", "deny", "read", (".env", ".env/**")),
        ("Read(secrets/)", "deny", "read", ("**/secrets/**",)),
        ("Read(//etc/passwd)", "allow", "read", ("fs:/etc/passwd",)),
        ("Read(~/notes/**)", "allow", "read", ("fs:~/notes/**",)),
        ("Read(~/.ssh/**)", "deny", "read", ("fs:~/.ssh/**", "vault:**/.ssh/**")),
        ("Read(~/**)", "deny", "read", ("fs:~/**", "vault:**")),
        ("MultiEdit(docs/*.md)", "allow", "edit", ("docs/*.md",)),
        ("Write", "deny", "edit", ("*",)),
        ("WebFetch(domain:x.org)", "allow", "web_fetch", ("https://x.org/**", "http://x.org/**")),
        ("WebFetch", "deny", "web_fetch", ("*",)),
        ("WebSearch", "allow", "web_search", ("*",)),
        ("mcp__github", "deny", "mcp", ("github/*",)),
        ("mcp__github__list_issues", "allow", "mcp", ("github/list_issues",)),
        ("Agent(Explore)", "deny", "task", ("Explore",)),
        ("Task(team:Explore)", "deny", "task", ("Explore",)),
    ],
)
def test_an_entry_of_claude_code_means(entry: str, decision: str, domain: str, patterns: tuple[str, ...]) -> None:
    """Tools by the one table of names; paths as gitignore has them; a deny holds for what is in a folder too."""
    found = claude_rule(entry, decision, ROOT, project=False)
    assert (found.domain, found.patterns) == (domain, patterns)


@pytest.mark.parametrize("entry", ["WebFetch(anything)", "WebSearch(words)", "Whatever(x)", "TodoWrite", "((", "Skill(x)"])
def test_what_is_not_understood_is_never_laxer(entry: str) -> None:
    """An allow is left out; a deny is for the whole, or for any tool of that name (D89)."""
    assert claude_rule(entry, "allow", ROOT, project=False).patterns == ()
    denied = claude_rule(entry, "deny", ROOT, project=False)
    assert denied.why and denied.patterns in (("*",), (f"tool:{entry.partition('(')[0]}",), ())


def test_a_path_of_a_project_begins_at_the_project() -> None:
    """A leading slash is the folder of the settings; of the user's own, what restricts holds for the disk too."""
    assert claude_rule("Edit(/src/**)", "allow", ROOT, project=True).patterns == ("vault:/src/**",)
    assert claude_rule("Edit(/src/**)", "allow", ROOT, project=False).patterns == ("fs:/home/u/.claude/src/**",)
    assert "fs:/etc/**" in claude_rule("Edit(/etc/**)", "deny", ROOT, project=False).patterns


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        ("ask", {("edit", "vault:**", "ask"), ("bash", "*", "ask"), ("mcp", "*", "ask")}),
        ({"bash": {"*": "ask", "git *": "allow"}}, {("bash", "*", "ask"), ("bash", "git *", "allow")}),
        ({"webfetch": "deny", "patch": "deny"}, {("web_fetch", "*", "deny"), ("edit", "*", "deny")}),
        ({"edit": {"src/*.py": "allow"}}, {("edit", "src/**.py", "allow")}),
        ({"external_directory": "deny"}, {("read", "fs:**", "deny"), ("edit", "fs:**", "deny")}),
        ({"external_directory": "ask", "edit": "allow"}, {("read", "fs:**", "ask"), ("edit", "vault:**", "allow")}),
        (
            {"bash": {"*": "deny", "git *": "allow", "git push*": "deny"}},
            {("bash", "*", "deny"), ("bash", "git *", "allow"), ("bash", "git push*", "deny")},
        ),
        ({"external_directory": {"~/x/*": "allow"}}, {("read", "fs:~/x/**", "allow")}),
        ([{"permission": "bash", "pattern": "rm *", "action": "deny"}], {("bash", "rm *", "deny")}),
        ({"gh_*": "deny"}, {("mcp", "gh/*", "deny")}),
        ({"bash": "sometimes"}, {("bash", "*", "ask")}),
        ({"frobnicate": "deny"}, {("tool", "tool:frobnicate", "deny")}),
        ({"frobnicate": "allow", "todowrite": "deny"}, set()),
    ],
)
def test_permissions_of_opencode_mean(value: object, rows: set[tuple[str, str, str]]) -> None:
    """Both versions; the last match counts there as here, and a star matches a slash too."""
    plan = ImportPlan("opencode", ROOT)
    _permissions(plan, value, "x")
    found = {(rule.domain, rule.pattern, rule.decision) for rule in (*plan.first, *plan.last)}
    assert rows <= found and (value == "ask" or rows == found)
