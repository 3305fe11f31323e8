"""``moryflow import claude``: dry run, apply, check, undo; rules, servers, agents, commands and sessions (issue F)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Person

SETTINGS = {
    "permissions": {
        "allow": ["Bash(npm run test:*)", "Read(~/notes/**)", "Bash(ls:*)"],
        "deny": ["Read(.env)", "Bash(rm -rf:*)"],
        "ask": ["Bash(git push:*)"],
        "defaultMode": "acceptEdits",
    },
    "model": "opus",
    "hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "true"}]}]},
}
AGENT = "---\nname: rev\ndescription: Reviews: all of it\ntools: Read, Grep\n---\nReview.\n"
OWN = """{
  // mine
  "agents": { "runtime": { "permission": { "rules": [
    { "domain": "bash", "pattern": "npm run test", "decision": "deny" } // never here
  ] } } },
}
"""


def use(call: str, tool: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call, "name": tool, "input": given}


def line(kind: str, name: str, above: str | None, content: Any, folder: str = "", **more: Any) -> dict[str, Any]:
    about = {"type": kind, "uuid": name, "parentUuid": above, "cwd": folder, "timestamp": "2026-01-01T00:00:00.000Z"}
    return {**about, "message": {"role": kind, "content": content}, **more}


@pytest.fixture
def user(person: Person) -> Person:
    """Somebody with a year of Claude Code behind them."""
    person.write(".claude/settings.json", SETTINGS)
    person.write(
        ".claude/agents/team/rev.md", "---\nname: rev\ndescription: Reviews: all of it\ntools: Read, Grep\n---\nReview.\n"
    )
    person.write(".claude/commands/hi.md", "Say hi to $ARGUMENTS\n")
    servers = {"github": {"command": "npx", "args": ["-y", "x", "--token", "ghp_1"], "env": {"TOKEN": "ghp_2", "A": "${A:-b}"}}}
    person.write(".claude.json", {"mcpServers": servers})
    calls = [
        use("t1", "Bash", command="npm run test -- --watch"),
        use("t2", "Read", file_path=f"{person.project}/.env"),
        use("t3", "Edit", file_path=f"{person.project}/a.py", old_string="a", new_string="b"),
        use("t4", "Bash", command="make build"),
        use("t5", "Bash", command="ls -la && git push origin"),
        use("t6", "TodoWrite", todos=[]),
    ]
    folder = str(person.project)
    person.lines(
        ".claude/projects/-u-proj/s1.jsonl",
        {"type": "summary", "summary": "Fixing tests"},
        line("user", "a1", None, "run the tests", folder),
        line("assistant", "a2", "a1", [{"type": "text", "text": "Running."}, *calls], folder),
        line("user", "a3", "a2", [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}], folder),
        {"type": "system", "uuid": "a4", "parentUuid": "a3", "content": "noise"},
        line("assistant", "a5", "a4", [{"type": "text", "text": "Done."}], folder),
        line("user", "b1", "a2", "no, like this", folder),
        "this line is torn\n",
    )
    person.config.write_text(OWN, encoding="utf-8")
    person.config.chmod(0o600)
    return person


def test_the_dry_run_shows_every_item_and_writes_nothing(user: Person) -> None:
    """One line for each, with what becomes of it and why not."""
    document = user.json("import", "claude")
    assert user.config.read_text("utf-8") == OWN and document["applied"] is None
    items = {item["original"]: item for item in document["items"]}
    assert items['allow "Bash(npm run test:*)"']["result"] == "allow bash npm run test, allow bash npm run test *"
    assert (items["opus"]["becomes"], items["PreToolUse Bash: true"]["becomes"]) == ("skipped", "in place")
    assert {item["kind"] for item in document["items"]} >= {"rule", "model", "hook", "server", "agents", "commands", "sessions"}
    assert "nothing was written" in user.run("import", "claude").stdout


def test_apply_keeps_comments_and_denies_and_undo_restores_the_file(user: Person) -> None:
    """Imported rules that allow stand before the user's own, and each below its original; no secret is copied."""
    done = user.json("import", "claude", "--apply")["applied"]
    assert done["sessions"] == 1 and done["rules"] > 8
    text = user.config.read_text("utf-8")
    assert "// mine" in text and "// never here" in text and '// claude: allow "Bash(npm run test:*)"' in text
    assert "ghp_" not in text and '"TOKEN": "${TOKEN}"' in text and '"A": "${A}"' in text
    assert user.run("config", "check", code=0).stderr.count("error") == 0
    assert user.json("permission", "explain", "bash", "npm run test")["decision"] == "deny"  # the user's own rule holds
    assert user.json("permission", "explain", "bash", "npm run test -- -x")["decision"] == "allow"
    assert user.json("permission", "explain", "read", "sub/.env")["decision"] == "deny"
    assert "rev" in user.run("agent", "list", "-q").stdout
    assert user.json("import", "claude", "--apply")["applied"]["rules"] == 0  # once is enough
    user.run("import", "claude", "--undo")
    assert user.config.read_text("utf-8") == OWN and user.json("session", "list", "--all") == []
    assert "nothing was imported" in user.run("import", "claude", "--undo", code=2).stderr


def test_undo_of_a_file_that_was_changed_since_takes_only_its_own(user: Person) -> None:
    """What the user wrote after the import stays, comments too."""
    user.run("import", "claude", "--apply")
    user.run("config", "set", "limits.maxSteps", "7")
    user.run("import", "claude", "--undo")
    text = user.config.read_text("utf-8")
    assert "claude" not in text and '"maxSteps": 7' in text and "// never here" in text
    user.run("config", "check")


def test_check_finds_the_same_decisions_and_names_what_differs(user: Person) -> None:
    """The proof: every call of the transcripts, judged by both sides; nothing may be freer here."""
    user.config.unlink()
    report = user.json("import", "claude", "--check")
    assert (report["calls"], report["judged"], report["same"], report["looser"]) == (6, 5, 5, 0)
    assert report["not_judged"] == {"TodoWrite": 1}
    user.config.write_text(OWN.replace("npm run test", "make build").replace("deny", "allow"), encoding="utf-8")
    user.config.chmod(0o600)
    freer = user.json("import", "claude", "--check", code=3)
    assert freer["looser"] == 1 and "make build" in freer["examples"]["now allowed"][0]


def test_a_transcript_becomes_a_tree_that_can_be_continued(user: Person) -> None:
    """Branches by ``parentUuid``; lines that are no messages are passed over, and a torn line harms nothing."""
    user.run("import", "claude", "--apply")
    (row,) = user.json("session", "list", "--all")
    assert row["title"] == "Fixing tests" and row["vault"] == str(user.project)
    exported = [json.loads(text) for text in user.run("session", "export", row["id"], "-q").stdout.splitlines()]
    nodes = {node["id"]: node for node in exported if node["type"] == "node"}
    shape = [(node["kind"], nodes[node["parent"]]["kind"] if node["parent"] else None) for node in nodes.values()]
    assert shape == [
        ("user", None), ("assistant", "user"), ("tool", "assistant"), ("assistant", "tool"), ("user", "assistant"),
    ]  # fmt: skip
    script = user.write("script.json", ["continued"])
    assert user.run("run", "-r", row["id"], "-m", f"script:{script}", "go on", "-q").stdout == "continued\n"
    kept = user.run("import", "claude", "--undo").stdout
    assert "kept, because you went on with them" in kept and len(user.json("session", "list", "--all")) == 1


def test_a_project_keeps_its_rules_to_itself(user: Person) -> None:
    """They are settings of that folder, and a deny of the user's own holds in it."""
    project = {"permissions": {"allow": ["Bash(npm run test)", "Bash(make deploy:*)"], "deny": ["Edit(/generated/**)"]}}
    (user.project / ".claude").mkdir()
    (user.project / ".claude" / "settings.json").write_text(json.dumps(project), encoding="utf-8")
    (user.project / ".mcp.json").write_text(json.dumps({"local": {"command": "srv"}}), encoding="utf-8")
    user.run("import", "claude", ".", "--apply")
    assert user.json("permission", "explain", "bash", "make deploy now")["decision"] == "allow"
    assert user.json("permission", "explain", "bash", "npm run test")["decision"] == "deny"
    assert user.json("permission", "explain", "edit", "generated/x.py")["decision"] == "deny"
    other = user.home / "other"
    other.mkdir()
    assert user.json("permission", "explain", "bash", "make deploy now", "--vault", str(other))["decision"] == "ask"


@pytest.mark.parametrize(
    "settings",
    ["{", "[]", '{"permissions": 3}', '{"permissions": {"allow": "x", "deny": {"a": 1}, "ask": [1, null]}}', "\x00\xff", ""],
)
def test_broken_settings_are_named_and_give_nothing(user: Person, settings: str) -> None:
    """The rest is taken over; nothing is looser than before (D90)."""
    (user.home / ".claude" / "settings.json").write_text(settings, encoding="latin-1")
    document = user.json("import", "claude")
    assert all("allow " not in item["result"] for item in document["items"] if item["kind"] == "rule")
    assert any(item["kind"] == "agents" for item in document["items"])
    user.run("import", "claude", "--apply")
    user.run("config", "check")


def test_nothing_there_is_a_sentence(person: Person) -> None:
    """With the next command, exit code 2."""
    for system in ("claude", "opencode", "codex", "anyhunt"):
        assert f"nothing of {system} is there" in person.run("import", system, code=2).stderr
