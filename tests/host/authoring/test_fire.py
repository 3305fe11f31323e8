"""``moryflow hook fire``: every hook that a turn calls can be called alone, with the chain shown."""

from __future__ import annotations

import pytest
from moryflow_sdk import HOOKS

EVERY = """
    from moryflow_sdk import SystemBlock, hookimpl

    @hookimpl
    def system_blocks(turn):
        return [SystemBlock(id="rule", text="Be brief.")]

    @hookimpl
    def chat_messages(messages): ...

    @hookimpl
    def chat_system(system): ...

    @hookimpl
    def chat_params(params): ...

    @hookimpl
    def tool_before(call): ...

    @hookimpl
    def tool_gate(call): ...

    @hookimpl
    def tool_decided(call, ruling): ...

    @hookimpl
    def tool_after(call, result): ...

    @hookimpl
    def compaction(plan): ...

    @hookimpl
    def event(event): ...
"""
LOADING = ("plugin_start", "tools", "agents", "models", "commands")


@pytest.fixture(scope="module")
def every(shared_desk):
    """A desk with a plugin that implements every hook of a turn."""
    shared_desk.plugin("every", EVERY)
    assert shared_desk.turn("warm").code == 0
    return shared_desk


@pytest.mark.parametrize("hook", [name for name in HOOKS if name not in LOADING])
def test_every_hook_of_a_turn_can_be_fired_without_an_input(every, hook: str) -> None:
    """The value after the chain, and who was called, in order (CONTRACT 1)."""
    done = every("hook", "fire", HOOKS[hook].dotted)
    assert done.code == 0, done.err
    assert "  every: " in done.err
    chain = every("hook", "fire", hook, "--output", "json").json["chain"]
    assert [call["plugin"] for call in chain].count("every") == 1 and all(call["hook"] == hook for call in chain)


@pytest.mark.parametrize(
    ("name", "fired"), [("tool.execute.before", "tool_before"), ("session.compacting", "compaction"), ("session.idle", "event")]
)
def test_names_of_other_hosts_are_understood(every, name: str, fired: str) -> None:
    """A hook by another name, or the event that observers are told of (S2.11)."""
    document = every("hook", "fire", name, "--json").json
    assert (document["hook"], [call["plugin"] for call in document["chain"]][-1:]) == (fired, ["every"])


@pytest.mark.parametrize("hook", LOADING)
def test_a_hook_that_loads_is_said_to_be_one(every, hook: str) -> None:
    """It is called while plugins load, and the command that shows what came of it is named (CONTRACT 1)."""
    done = every("hook", "fire", hook)
    assert (done.code, "called while plugins load" in done.err, "moryflow plugin info" in done.err) == (2, True, True)


def test_blocks_are_shown_with_their_plugin(every) -> None:
    blocks = every("hook", "fire", "system.blocks", "--output", "json").json["value"]
    assert {"id": "rule", "text": "Be brief.", "plugin": "every"} in blocks


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tool.gate", '{"tool": "write"}'], "tool.gate has no argument 'tool'; it takes call"),
        (
            ["tool.gate", '{"call": {"tool": "wirte"}}'],
            "there is no tool 'wirte', and gates judge calls of tools; did you mean",
        ),
        (["system.blocks", '{"turn": {}}'], "system.blocks has no argument 'turn'; it takes nothing"),
        (["event", '{"evnt": {}}'], "event has no argument 'evnt'; it takes event"),
    ],
)
def test_an_input_that_does_not_fit_is_refused_with_one_that_does(every, words, sentence: str) -> None:
    """What would have been left unread is named, and nothing is judged in its stead (CONTRACT 1)."""
    done = every("hook", "fire", *words)
    assert (done.code, sentence in done.err) == (2, True), done.err
    assert "  next: moryflow " in done.err


def test_a_denial_of_tool_before_is_shown(shared_desk) -> None:
    """What a plugin says in place of a call is the value that comes out (D9)."""
    shared_desk.plugin(
        "early", "from moryflow_sdk import Deny, hookimpl\n@hookimpl\ndef tool_before(call): return Deny('no')\n"
    )
    try:
        value = shared_desk("hook", "fire", "tool.before", "--output", "json").json["value"]
        assert (value["decision"], value["reason"]) == ("deny", "no")
    finally:
        (shared_desk.home / "plugins" / "early.py").unlink()
