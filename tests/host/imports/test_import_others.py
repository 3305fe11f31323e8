"""``moryflow import opencode|codex|anyhunt`` (issue F, D80)."""

from __future__ import annotations

import json

from .conftest import Person

CODEX = """
model = "gpt-5"
approval_policy = "on-request"
sandbox_mode = "workspace-write"
[mcp_servers.docs]
command = "docs-mcp"
env = { KEY = "s3cret" }
disabled_tools = ["wipe"]
enabled_tools = ["look"]
"""
CALL = {"type": "function_call", "name": "shell", "call_id": "k"}
RULES = """
prefix_rule(pattern=["git", ["status", "log"]], decision="allow")
prefix_rule(pattern=["rm"], decision="forbidden")
prefix_rule(pattern=WORDS, decision="allow")
"""


def test_codex_brings_policy_rules_servers_and_rollouts(person: Person) -> None:
    """A rule that is not understood asks about every command; a rollout becomes a session."""
    person.write(".codex/config.toml", CODEX)
    person.write(".codex/rules/default.rules", RULES)
    person.lines(
        ".codex/sessions/2026/01/01/rollout-1.jsonl",
        {"type": "session_meta", "payload": {"id": "c1", "cwd": str(person.project)}},
        {"type": "response_item", "payload": {"type": "message", "role": "user", "content": [{"text": "hello"}]}},
        {"type": "response_item", "payload": {**CALL, "arguments": '{"command": ["bash", "-lc", "git status"]}'}},
        {"type": "response_item", "payload": {"type": "function_call_output", "call_id": "k", "output": "clean"}},
    )  # fmt: skip
    items = person.json("import", "codex")["items"]
    assert any(item["becomes"] == "stricter" and "every command asks" in item["why"] for item in items)
    person.run("import", "codex", "--apply")
    text = person.config.read_text("utf-8")
    assert "s3cret" not in text and '"model": "openai/gpt-5"' in text and '"sandbox:commands"' in text
    assert person.json("permission", "explain", "bash", "rm x")["decision"] == "deny"
    for tool, decision in (("wipe", "deny"), ("other", "deny"), ("look", "ask")):
        assert person.json("permission", "explain", "mcp", f"docs/{tool}")["decision"] == decision
    (row,) = person.json("session", "list", "--all")
    assert row["vault"] == str(person.project)


def test_opencode_brings_permissions_servers_providers_and_sessions(person: Person) -> None:
    """Both stores: files of JSON, and the database of version 2."""
    config = {
        "model": "anthropic/claude-sonnet-4-5",
        "permission": {"edit": "ask", "bash": {"*": "ask", "git *": "allow", "git push*": "deny"}},
        "mcp": {"gh": {"type": "local", "command": ["gh-mcp", "--x"], "environment": {"T": "{env:GH}", "S": "s3cret"}}},
        "provider": {"loc": {"options": {"baseURL": "http://127.0.0.1:8080/v1", "apiKey": "{env:LOC}"}}},
    }
    person.write(".config/opencode/opencode.jsonc", "// mine\n" + json.dumps(config))
    data = ".local/share/opencode/storage"
    person.write(f"{data}/session/p/ses_1.json", {"id": "ses_1", "directory": str(person.project), "title": "First"})
    person.write(f"{data}/message/ses_1/msg_1.json", {"role": "user"})
    person.write(f"{data}/message/ses_1/msg_2.json", {"role": "assistant"})
    person.write(f"{data}/part/msg_1/prt_1.json", {"type": "text", "text": "hi"})
    tool = {
        "type": "tool",
        "callID": "c",
        "tool": "bash",
        "state": {"status": "completed", "input": {"command": "git log"}, "output": "x"},
    }
    person.write(f"{data}/part/msg_2/prt_1.json", tool)
    report = person.json("import", "opencode", "--check")
    assert (report["judged"], report["same"], report["looser"]) == (1, 1, 0)
    person.run("import", "opencode", "--apply")
    text = person.config.read_text("utf-8")
    assert "s3cret" not in text and '"T": "${GH}"' in text and '"apiKeyEnv": "LOC"' in text
    assert person.json("permission", "explain", "bash", "git push origin")["decision"] == "deny"
    assert person.json("permission", "explain", "edit", "a.md")["decision"] == "ask"
    assert [row["title"] for row in person.json("session", "list", "--all")] == ["First"]


def test_anyhunt_has_the_keys_of_our_own_configuration(person: Person) -> None:
    """Settings where none are set, rules as they are, no key (D80)."""
    rules = [
        {"domain": "bash", "pattern": "make", "decision": "allow"},
        {"domain": "read", "pattern": "a", "decision": "maybe"},
    ]
    config = {"model": "a/b", "limits": {"maxSteps": 5}, "agents": {"runtime": {"permission": {"rules": rules}}}}
    person.write(".anyhunt/config.jsonc", {**config, "models": {"providers": {"x": {"apiKey": "s3cret"}}}})
    person.run("import", "anyhunt", "--apply")
    text = person.config.read_text("utf-8")
    assert "s3cret" not in text and '"maxSteps": 5' in text
    assert person.json("permission", "explain", "bash", "make")["decision"] == "allow"
    assert person.json("permission", "explain", "read", "a")["decision"] == "ask"
