"""Runs that go in circles, on a real host."""

from __future__ import annotations

import re

import pytest
from moryflow import RunOptions

PING = """
    @tool(domain="read", parallel_safe=True)
    def ping(x: int = 0) -> str:
        "Ping."
        return "pong"
"""


def pings(bench, count, **arguments):
    return bench.calls(*[("ping", arguments)] * count)


async def test_headless_the_run_ends_and_the_history_is_whole(bench):
    """Exit code 5, a readable sentence, one result per call, and the session goes on afterwards (S0.63, S0.65)."""
    bench.tool(PING)
    outcome = await bench.run(pings(bench, 10))
    assert (outcome.result.end_reason, outcome.result.exit_code) == ("doom_loop", 5)
    last = outcome.tools()[-1]
    assert last["status"] == "denied" and "called 5 times in a row with the same arguments" in last["output"]
    asked = [call["id"] for node in outcome.path if node.kind == "assistant" for call in node.payload["calls"]]
    assert [node["call_id"] for node in outcome.tools()] == asked and len(asked) == 5
    async with bench.host() as host:
        session = await host.resume(bench.vault, outcome.session, model=bench.script({"text": "fine"}))
        assert (await session.prompt("something else")).text == "fine"


async def test_a_person_is_asked_and_once_goes_on(bench):
    """A question at the fifth; once resets and enters the cooldown (S0.61, S0.64)."""
    bench.tool(PING)
    outcome = await bench.run(pings(bench, 11), replies=["once"])
    asked = outcome.named("permission.asked")
    assert [question["call_id"] for question in asked] == ["call_5_1"]
    assert outcome.result.end_reason == "completed" and len(outcome.tools()) == 11


async def test_stop_ends_the_run(bench):
    """Refusing is Stop (S0.61, S0.64)."""
    bench.tool(PING)
    outcome = await bench.run(pings(bench, 11), replies=["stop"])
    assert outcome.result.end_reason == "stopped" and len(outcome.tools()) == 5


async def test_always_holds_for_the_session_and_is_not_stored(bench):
    """No second question however often the loop comes back, and nothing in the configuration (S0.61, S0.62, D10, D25)."""
    bench.tool(PING)
    outcome = await bench.run(pings(bench, 48), replies=["always"])
    assert len(outcome.named("permission.asked")) == 1
    assert [hit["action"] for hit in outcome.named("plugin.doom_loop.hit")] == ["asked"] + ["continued"] * 6
    assert (outcome.result.end_reason, len(outcome.tools())) == ("completed", 48)
    assert not (bench.home / "config.jsonc").exists()
    async with bench.host() as host:
        assert [grant["domain"] for grant in (await host.store.session(outcome.session)).grants] == ["doom_loop"]


async def test_always_of_one_session_is_not_that_of_another(bench):
    """A new session asks again (S0.62)."""
    bench.tool(PING)
    await bench.run(pings(bench, 6), replies=["always"])
    outcome = await bench.run(pings(bench, 6), replies=["once"])
    assert len(outcome.named("permission.asked")) == 1


async def test_full_access_continues_without_a_card_is_audited_and_then_stops(bench):
    """Recorded each time, no question, the end after three (D11, S0.72, S0.76)."""
    bench.tool(PING)
    outcome = await bench.run(pings(bench, 60), mode="full_access")
    assert outcome.named("permission.asked") == [] and outcome.result.end_reason == "doom_loop"
    lines = [line for line in bench.audit(outcome.session) if line["type"] == "decision"]
    noted = [line for line in lines if "because full_access" in line["reason"]]
    assert [line["decision"] for line in noted] == ["allow"] * 3 and {line["mode"] for line in lines} == {"full_access"}
    assert (lines[-1]["decision"], lines[-1]["cause"]) == ("stop", "doom_loop")


async def test_a_loop_inside_one_message_is_noticed_too(bench):
    """Calls side by side are gated and counted in call order (S0.58, D67)."""
    bench.tool(PING)
    outcome = await bench.run(bench.calls(*[("ping", {})] * 8, together=True))
    assert outcome.result.end_reason == "doom_loop"
    statuses = [(node["status"], node.get("code")) for node in outcome.tools()]
    assert statuses == [("ok", None)] * 4 + [("denied", "doom_loop")] + [("error", "skipped")] * 3


async def test_denied_calls_count_as_well(bench):
    """Hammering at a closed door is a loop (S0.58)."""
    bench.tool(PING, allow=False)
    bench.plugin(
        "no",
        """
        @hookimpl
        def tool_gate(call):
            return Deny(reason="no")
    """,
    )
    assert (await bench.run(pings(bench, 10))).result.end_reason == "doom_loop"


async def test_counters_survive_a_restart_in_the_middle_of_a_question(bench):
    """A stored question about a loop is still that question in a new process (S0.65, D65)."""
    bench.tool(PING)
    model = bench.script(*pings(bench, 11))
    bench.plugin(
        "asks",
        """
        @hookimpl
        def tool_gate(call):
            return Ask(reason="sure?") if call.id == "call_3_1" else None
    """,
    )
    async with bench.host() as host:
        session = await host.new_session(bench.vault, model=model)
        result = await session.prompt("go", options=RunOptions(on_ask="fail"))
        assert result.end_reason == "approval_required"
        state = (await host.store.plugin_state(session.id))["doom_loop", "session"]["run"]
        assert (state["calls"], state["repeats"], list(state["open"])) == (3, 3, ["call_3_1"])
    async with bench.host() as host:
        waiting = await host.store.approvals(state="pending")
        await host.approvals.reply(waiting[0].id, "once")
        session = await host.resume(bench.vault, session.id, model=model)
        result = await session.resume(RunOptions(on_ask="fail"))
        state = (await host.store.plugin_state(session.id))["doom_loop", "session"]["run"]
    assert result.end_reason == "doom_loop" and state["total"] == 5


@pytest.mark.parametrize("key", ["maxAttempts", "maxToolCalls", "sameToolThreshold", "maxSignatureBytes", "cooldownToolCalls"])
async def test_all_five_settings_are_read(bench, key):
    """Each has its key under agents.runtime.doomLoop (S0.59, S0.66)."""
    bench.config(doomLoop={key: 7})
    async with bench.host() as host:
        loaded = host.plugin_set.plugins["doom_loop"].config
    assert getattr(loaded, re.sub("([A-Z])", r"_\1", key).lower()) == 7


async def test_a_wrong_setting_leaves_the_guard_in_place(bench):
    """A typo never switches it off (D40)."""
    bench.config(doomLoop={"sameToolThreshold": 0, "maxToolCalls": "many"})
    bench.tool(PING)
    assert (await bench.run(pings(bench, 10))).result.end_reason == "doom_loop"


MISTAKES = {
    "a tool that is not there": ("gerp", {"pattern": "x"}),
    "JSON that is none": ("ping", '{"x": '),
    "arguments that do not fit": ("ping", {"y": 1}),
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("mode", ["agent", "full_access"])
async def test_the_same_mistake_five_times_ends_the_run(bench, name, mode):
    """No gate sees such a call; it is counted all the same, also where a person could be asked (S0.58, S0.61)."""
    bench.tool(PING)
    turns = bench.calls(*[MISTAKES[name]] * 9)
    outcome = await bench.run(turns, mode=mode, replies=[])
    assert (outcome.result.end_reason, outcome.result.exit_code) == ("doom_loop", 5)
    assert len(outcome.tools()) == 5
    assert "5 times in a row with the same mistake" in outcome.result.denied[-1]["reason"]
    assert [hit["action"] for hit in outcome.named("plugin.doom_loop.hit")] == ["stopped"]


async def test_a_mistake_that_is_made_again_after_good_calls_is_no_circle(bench):
    """A slip now and then in long work ends nothing (S0.60)."""
    bench.tool(PING)
    slips = [call for number in range(8) for call in (("lost", {}), ("ping", {"x": number}))]
    assert (await bench.run([*bench.calls(*slips), "done"])).result.end_reason == "completed"


async def test_calls_that_fail_before_the_gate_count_towards_the_limit_of_a_run(bench):
    """Each mistake another one: ``maxToolCalls`` ends it (S0.58, S0.59)."""
    turns = bench.calls(*[(f"tool{number}", {}) for number in range(70)])
    outcome = await bench.run(turns)
    assert outcome.result.end_reason == "doom_loop" and len(outcome.tools()) == 61


async def test_mistakes_beside_each_other_end_the_run_and_each_has_its_result(bench):
    """Five calls in one answer: one result per call, and the session goes on (S0.65)."""
    bench.tool(PING)
    answer = {"calls": [{"name": "ping", "arguments": '{"x": '}] * 7}
    outcome = await bench.run([answer, {"text": "never asked for"}])
    assert outcome.result.end_reason == "doom_loop"
    asked = [call["id"] for node in outcome.path if node.kind == "assistant" for call in node.payload["calls"]]
    assert [node["call_id"] for node in outcome.tools()] == asked and len(asked) == 7
