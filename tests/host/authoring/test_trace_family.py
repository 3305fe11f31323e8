"""``trace``, ``replay`` and ``session show --stats`` of a session with a sub-agent and a compaction."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest

from .scripts import ANN

LOUD = '''
    """Shouts."""
    from moryflow_sdk import hookimpl, tool

    @tool(domain="read")
    def greet(name: str) -> str:
        """Greet NAME."""
        return f"hello {name}"

    @hookimpl
    def tools():
        return [greet]

    @hookimpl
    def tool_after(call, result):
        return result.replace(output=result.output.upper()) if call.tool == "greet" else None
'''
SUMMARY = "## Goal\nx\n## Progress\nall is well"
CONFIG = {"permission": {"rules": [{"domain": "task", "pattern": "*", "decision": "allow"}]}}
SMALL = {**CONFIG, "compaction": {"keepRecentTokens": 200, "protectedTurns": 1}}


@pytest.fixture(scope="module")
def family(shared_desk):
    """A desk with a session of three turns, of which the second starts a sub-agent, and a compaction before the third."""
    desk = shared_desk
    desk.plugin("loud", LOUD)
    desk.write(desk.home / "config.jsonc", json.dumps({"keepInputs": True, "agents": {"runtime": CONFIG}}))
    task = {"calls": [{"name": "task", "arguments": {"agent": "general", "description": "look", "prompt": "look around"}}]}
    assert desk.turn("word " * 2000).code == 0
    assert desk.turn(task, {"calls": [ANN]}, "found", "word " * 2000, prompt="tell me " * 800, again=True).code == 0
    script = desk.write(desk.vault.parent / "summary.json", json.dumps([SUMMARY] * 2))
    small = json.dumps({"agents": {"runtime": SMALL}})
    done = desk("session", "compact", "-m", f"script:{script}", "--config", small)
    assert done.code == 0, done.err
    assert desk.turn({"calls": [ANN]}, "three", again=True).code == 0
    return desk


def test_a_compaction_is_no_turn(family) -> None:
    """Turns are what a person asked for: a summary has no number, and its hooks are shown apart (S2.20)."""
    found = family("trace", "--json").json
    assert [turn["turn"] for turn in found["turns"] if "session" not in turn] == [1, 2, 3]
    assert [compaction["purpose"] for compaction in found["compactions"]] == ["compact"]
    assert "turn" not in found["compactions"][0]
    assert "there is no turn '4'; it has 3 turns" in family("trace", "--turn", "4").err
    assert "3 turns" in family("session", "show").out
    assert family("session", "show", "--stats", "--json").json["turns"] == 3


def test_sub_agents_are_part_of_a_trace(family) -> None:
    """What plugins did in a sub-agent stands in the trace of the session, and of the turn that started it (S2.20)."""
    for arguments, there in (((), 1), (("--turn", "2"), 1), (("--turn", "3"), 0)):
        turns = [turn for turn in family("trace", "--json", *arguments).json["turns"] if "session" in turn]
        assert [turn["agent"] for turn in turns] == ["general"] * there
        for turn in turns:
            assert ("tool.after", "loud", "greet") in {(row["hook"], row["plugin"], row.get("tool")) for row in turn["hooks"]}
    assert "general " in family("trace").out


def test_sub_agents_are_part_of_the_statistics(family) -> None:
    """Their calls are counted; turns and steps stand apart (S2.20)."""
    stats = family("session", "show", "--stats", "--json").json
    assert stats["tools"] == {"greet": {"completed": 2}, "task": {"completed": 1}}
    assert (stats["turns"], stats["sub_agents"]["sessions"], stats["sub_agents"]["turns"]) == (3, 1, 1)
    assert stats["ends"] == {"completed": 3}


def test_sub_agents_are_part_of_a_replay(family) -> None:
    """A changed plugin is called with what a sub-agent's calls gave it, too; it is said whose they were (S2.20)."""
    changed = family.write(family.vault.parent / "elsewhere" / "loud.py", dedent(LOUD).replace(".upper()", ".lower()"))
    whole = family("replay", "--with", str(changed), "--all", "--json").json["differences"]
    third = family("replay", "--with", str(changed), "--all", "--json", "--turn", "3").json["differences"]
    assert len([one for one in whole if "session" in one]) >= 1
    assert third and not [one for one in third if "session" in one]
    assert "general " in family("replay", "--with", str(changed), "--all").out
