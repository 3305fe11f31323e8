"""``moryflow replay`` of the hooks that no call of a tool leads to: compaction, observers, blocks; and observers."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest

from .scripts import keeping

WATCHER = '''
    """Watches."""
    from moryflow_sdk import SystemBlock, hookimpl

    @hookimpl
    def system_blocks(turn):
        return [SystemBlock(id="rule", text=f"Be brief, {turn.agent.id}, in {turn.purpose}.")]

    @hookimpl(events=["turn.finish", "tool.result", "compaction"])
    def event(event, turn):
        turn.session_state[event.type] = turn.session_state.get(event.type, 0) + 1
        if event.type == "turn.finish" and event.data["steps"] == 2:
            raise ValueError("at the end")

    @hookimpl
    async def compaction(plan, turn):
        told = f"{len(plan.covered)} covered, {len(plan.previous_summary)} before; {turn.agent.id}"
        return plan.replace(context=(told,), instructions=plan.instructions + "!")

    @hookimpl
    def chat_params(params, turn):
        return params.replace(temperature=0.5 if turn.purpose == "main" else 0.1)
'''
LS = {"name": "ls", "arguments": {}}
SUMMARY = "## Goal\nx\n## Progress\nall is well"
SMALL = json.dumps({"agents": {"runtime": {"compaction": {"keepRecentTokens": 200, "protectedTurns": 1}}}})


@pytest.fixture(scope="module")
def watched(shared_desk):
    """A desk with three turns, a compaction that was asked for, and a fourth turn."""
    desk = keeping(shared_desk)
    desk.plugin("watcher", WATCHER)
    desk.turn({"calls": [LS, LS]}, "done")
    for prompt in ("tell me " * 800, "more " * 800):
        desk.turn("word " * 2000, prompt=prompt, again=True)
    script = desk.write(desk.vault.parent / "summary.json", json.dumps([SUMMARY] * 2))
    done = desk("session", "compact", "--focus", "names", "-m", f"script:{script}", "--config", SMALL)
    assert done.code == 0, done.err
    desk.turn("again", again=True)
    return desk


def replayed(desk, old: str = "", new: str = "", *arguments: str):
    source = dedent(WATCHER).replace(old, new)
    file = desk.write(desk.vault.parent / "watcher.py", source)
    return desk("replay", "--with", str(file), "--json", "--config", SMALL, *arguments)


def test_the_same_plugin_does_the_same(watched) -> None:
    """Plan, blocks, events and what it keeps are as they were, for every turn; exit code 0 (ARCHITECTURE §4, ledger)."""
    done = replayed(watched)
    assert (done.code, done.json["differences"], done.json["skipped"]) == (0, [], [])
    kinds = {"turn.finish": 4, "tool.result": 2, "compaction": 2}
    assert done.json["compared"] == sum(kinds.values()) + 4 + 5 + 1 + 1, "blocks, parameters with a summary's, and a plan"


PLANTED = [
    ("covered,", "covered!,", "compaction", "plan.context[0]", " covered"),
    ('+ "!"', '+ "?"', "compaction", "plan.instructions, line", "names\n!"),
    ("Be brief", "Be very brief", "system.blocks", "blocks[0].chars", "25"),
    ("else 0.1", "else 0.2", "chat.params", "params.temperature", "0.1"),
    ("== 2", "== 1", "event", "outcome", "failed"),
]


@pytest.mark.parametrize(("old", "new", "hook", "path", "before"), PLANTED)
def test_a_planted_difference_is_found(watched, old, new, hook, path, before) -> None:
    """Hook and place; of a block only the length was written down, and that is said (invariant 10)."""
    done = replayed(watched, old, new)
    found = done.json["differences"][0]
    assert (done.code, found["hook"]) == (3, hook) and found["path"].startswith(path)
    assert before in str(found["before"]) and found["before"] != found["after"]


QUITTER = """
    from moryflow_sdk import hookimpl

    @hookimpl(events="turn.finish")
    def event(event, turn):
        turn.session_state["ended"] = True
        raise ValueError("at the end")
"""


def test_what_an_observer_does_at_the_very_end_is_kept_and_its_failure_told(desk) -> None:
    """The last events of a turn are committed like all others: state, ledger and notice (invariant 3, S2.13)."""
    desk.plugin("quitter", QUITTER)
    script = desk.write(desk.vault.parent / "script.json", '["done"]')
    done = desk("run", "-m", f"script:{script}", "go")
    assert "plugin quitter failed in event" in done.err
    row = next(row for row in desk("trace", "--json", "--plugin", "quitter").json["turns"][0]["hooks"])
    assert (row["outcome"], row["delta"]["event"]) == ("failed", "turn.finish")


AGENTS = """
    from moryflow_sdk import hookimpl

    @hookimpl
    def chat_params(params, turn):
        return params.replace(extra={"agent": turn.agent.id, "turn": turn.id})
"""


def test_each_turn_is_seen_as_it_was(desk) -> None:
    """Its own id and agent, not those of the turn before it (invariant 8)."""
    file = keeping(desk).plugin("agents_seen", AGENTS)
    script = desk.write(desk.vault.parent / "script.json", '["done"]')
    for agent in ("build", "plan"):
        assert desk("run", *(["-c"] if agent == "plan" else []), "--agent", agent, "-m", f"script:{script}", "go").code == 0
    done = desk("replay", "--with", str(file), "--json")
    assert (done.code, done.json["compared"], done.json["differences"]) == (0, 2, [])
