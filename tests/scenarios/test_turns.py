"""Whole turns: the loop, its end reasons, its states, resume."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest
from moryflow import RunOptions
from moryflow_sdk import ConfigError, MoryflowError
from moryflow_sdk.events import DELTAS


async def test_a_prompt_becomes_an_answer_through_a_tool(rig):
    """Prompt → model → tool → model → answer, with usage and steps counted (S4.1, S4.4, S4.5)."""
    (rig.vault / "notes.md").write_text("the answer is 42")
    result, events = await rig.run(rig.call("read", path="notes.md"), {"text": "It is 42."}, prompt="what is it?")
    assert (result.end_reason, result.exit_code, result.text, result.steps) == ("completed", 0, "It is 42.", 2)
    kinds = [node.kind for node in rig.path]
    assert kinds == ["user", "assistant", "tool", "assistant"]
    assert [event.type for event in events if event.type.startswith("turn.")] == ["turn.start", "turn.finish"]


async def test_a_tool_call_goes_through_its_states(rig):
    """pending → running → completed or error, each published in order (S2.15, S2.23, S2.26, S4.6)."""
    (rig.vault / "a.txt").write_text("x")
    _, events = await rig.run(rig.call("read", path="a.txt"), rig.call("read", path="missing"), {"text": "ok"})
    states = [e.data["state"] for e in events if e.type in ("tool.start", "tool.result")]
    assert states == ["pending", "running", "completed", "pending", "running", "error"]


async def test_status_is_busy_then_idle(rig):
    """The session's status is published (S4.17)."""
    _, events = await rig.run({"text": "hi"})
    assert [e.data["status"] for e in events if e.type == "session.status"] == ["busy", "idle"]


async def test_events_carry_their_place(rig):
    """Every event says which session, turn and step it belongs to; durable ones are numbered (S2.10, S2.22)."""
    result, events = await rig.run({"text": "hi"})
    durable = [e for e in events if e.type not in DELTAS]
    assert all(e.session == result.session and e.turn for e in events)
    numbers = [e.seq for e in durable]
    assert numbers == sorted(numbers) and None not in numbers
    finish = next(e for e in events if e.type == "step.finish")
    assert set(finish.data) >= {"usage", "cost"} and finish.step == 1


async def test_plugins_observe_events(rig):
    """A plugin is told of what happens, after it was committed (S2.10)."""
    file = rig.plugin(
        "watcher",
        """
        import pathlib
        @hookimpl
        def event(event):
            with pathlib.Path(__file__).with_suffix(".log").open("a") as out:
                out.write(event.type + "\\n")
    """,
    )
    await rig.run({"text": "hi"})
    told = file.with_suffix(".log").read_text().split()
    assert told.index("turn.start") < told.index("step.finish") < told.index("turn.finish")


async def test_a_step_limit_ends_the_turn(rig):
    """max_steps is an end reason with exit code 5 (S4.5)."""
    (rig.vault / "a.txt").write_text("x")
    turns = [rig.call("read", path="a.txt", offset=n + 1) for n in range(5)]
    result, _ = await rig.run(*turns, max_steps=2)
    assert (result.end_reason, result.exit_code, result.steps) == ("max_steps", 5, 2)


async def test_a_budget_ends_the_turn(rig):
    """max_cost needs a price; without one the turn is not stopped by it (S4.5)."""
    result, _ = await rig.run({"text": "hi"}, max_cost=0.01)
    assert result.end_reason == "completed"


async def test_invalid_calls_get_one_result_each_and_the_turn_goes_on(rig):
    """Unknown tools and wrong arguments become results the model can read (S4.6)."""
    answer = {"calls": [{"name": "nope", "arguments": {}}, {"name": "read", "arguments": {"path": 5}}]}
    result, events = await rig.run(answer, {"text": "sorry"})
    codes = [e.data.get("code") for e in events if e.type == "tool.result"]
    assert codes == ["unknown_tool", "invalid_args"]
    assert result.end_reason == "completed"


async def test_a_denied_call_is_told_to_the_model_and_headless_shows_in_the_exit_code(rig):
    """Reading in the vault is allowed, the rest asks; with nobody to ask it is denied, exit code 4 (S2.11)."""
    result, events = await rig.run(rig.call("bash", command="ls"), {"text": "could not"})
    assert (result.end_reason, result.exit_code) == ("completed", 4)
    assert result.denied[0]["cause"] == "headless"
    assert next(e for e in events if e.type == "tool.result").data["status"] == "denied"


async def test_on_ask_fail_ends_and_a_stored_answer_lets_it_go_on(rig):
    """A question is stored, can be answered later from elsewhere, and the turn resumes there (S0.45, D65)."""
    model = rig.script(rig.call("bash", command="echo hi"), {"text": "done"})
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=model)
        result = await session.prompt("go", options=RunOptions(on_ask="fail"))
        assert (result.end_reason, result.exit_code) == ("approval_required", 4)
    async with rig.host() as host:
        waiting = await host.store.approvals(state="pending")
        assert len(waiting) == 1
        await host.approvals.reply(waiting[0].id, "once")
        await host.approvals.reply(waiting[0].id, "reject")
        session = await host.resume(rig.vault, model=rig.script({"text": "done"}))
        result = await session.resume(RunOptions(on_ask="fail"))
        path = await host.store.path(session.id)
    tool = next(node for node in path if node.kind == "tool")
    assert tool.payload["status"] == "ok" and "hi" in tool.payload["output"]
    assert result.end_reason == "completed"


async def test_a_new_process_judges_a_waiting_call_again_without_an_answer(rig):
    """Nothing waits for ever: without an answer the call is judged again and refused (D65, invariant 9)."""
    model = rig.script(rig.call("bash", command="echo hi"), {"text": "ok"})
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=model)
        await session.prompt("go", options=RunOptions(on_ask="fail"))
    async with rig.host() as host:
        session = await host.resume(rig.vault, model=rig.script({"text": "ok"}))
        result = await session.prompt("never mind")
        path = await host.store.path(session.id)
    assert result.end_reason == "completed"
    assert [node.payload["status"] for node in path if node.kind == "tool"] == ["denied"]


@pytest.mark.parametrize("how", ["nobody is there", "a rule allows it", "it was stopped"])
async def test_a_question_whose_call_has_its_result_is_open_no_more(rig, how):
    """Nobody is asked to answer what an answer would change nothing of; what was answered stays so (D65)."""
    call = rig.call("bash", command="echo hi")
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script(call, call, {"text": "ok"}))
        if how == "it was stopped":

            def stop(event):
                if event.type == "permission.asked":
                    asyncio.get_running_loop().call_soon(session.cancel)

            host.bus.subscribe(stop)
        await asyncio.wait_for(session.prompt("go", options=RunOptions(on_ask="prompt" if "stop" in how else "fail")), 300)
    if how == "a rule allows it":
        rig.allow_all()
    async with rig.host() as host:
        session = await host.resume(rig.vault, model=rig.script({"text": "ok"}))
        if how != "it was stopped":
            await session.resume()
        [question] = await host.store.approvals()
        assert (question.state, question.reply) == (("replied", "stop") if how == "it was stopped" else ("expired", None))
        assert (await host.approvals.reply(question.id, "once")).state == question.state  # too late


async def test_stop_keeps_what_was_said_and_gives_each_call_a_result(rig):
    """Stopping a turn keeps the session valid: the running call is interrupted, nothing is lost (S2.15)."""
    rig.allow_all()
    async with rig.host() as host:
        call = rig.call("bash", command="touch begun; sleep 600")
        session = await host.new_session(rig.vault, model=rig.script(call, {"text": "x"}))
        turn = asyncio.create_task(session.prompt("go"))
        while not (rig.vault / "begun").exists():
            assert not turn.done(), await turn
            await asyncio.sleep(0.02)
        session.cancel()
        result = await asyncio.wait_for(turn, 300)
        path = await host.store.path(session.id)
    assert (result.end_reason, result.exit_code) == ("stopped", 130)
    assert path[-1].payload["status"] == "interrupted"


async def test_a_failing_model_keeps_the_partial_text(rig):
    """What a person already saw is kept; the turn ends with model_error, exit code 7 (S4.6)."""
    result, _ = await rig.run({"text": "half an ans", "error": {"code": "incomplete", "message": "cut"}})
    assert (result.end_reason, result.exit_code) == ("model_error", 7)
    assert rig.path[-1].payload["partial"] is True
    assert result.text == "half an ans"


async def test_a_prompt_that_does_not_fit_has_its_own_end(rig):
    """prompt_too_long leaves the session intact (S1.21)."""
    result, _ = await rig.run({"error": {"code": "context", "message": "too long"}})
    assert (result.end_reason, result.exit_code) == ("prompt_too_long", 5)
    assert [node.kind for node in rig.path] == ["user"]


async def test_repeated_call_ids_are_made_unique(rig):
    """Models repeat ids across steps; results are still matched one to one (S4.6)."""
    (rig.vault / "a.txt").write_text("x")
    same = {"calls": [{"id": "x", "name": "read", "arguments": {"path": "a.txt"}}]}
    await rig.run(same, same, {"text": "ok"})
    ids = [node.payload["call_id"] for node in rig.path if node.kind == "tool"]
    assert len(set(ids)) == 2


async def test_two_hosts_do_not_write_one_session(rig):
    """A prompt to a busy session is refused as busy (ARCHITECTURE §5)."""
    model = rig.script({"text": "hi"})
    async with rig.host() as host, rig.host() as other:
        session = await host.new_session(rig.vault, model=model)
        await session.keep()
        second = await other.resume(session_id=session.id, model=model)
        with pytest.raises(Exception) as caught:
            await second.prompt("me too")
        assert caught.value.code == "busy"
        session.release()
        assert (await second.prompt("now")).end_reason == "completed"


async def test_removing_a_line_removes_only_that_feature(rig):
    """Each line of the built-in tuple is deleted in turn: the host starts, only that feature is gone (S2.16, S2.21)."""
    from moryflow.base.builtins import BUILTINS

    for gone in BUILTINS:
        rest = tuple(name for name in BUILTINS if name != gone)
        async with rig.host(builtins=rest) as host:
            names = {record.name for record in host.plugin_set.records if record.status == "loaded"}
            assert gone.rsplit(".", 1)[1] not in names
            assert len(names) == len(rest), [r for r in host.plugin_set.records if r.status != "loaded"]
            if not gone.endswith("script_model"):
                session = await host.new_session(rig.vault, model=rig.script({"text": "hi"}))
                assert (await session.prompt("go")).text == "hi"


async def test_an_unknown_vault_agent_and_model_are_sentences(rig):
    """Bad input gets a sentence and the next command, before anything is written (S4.2)."""
    async with rig.host() as host:
        with pytest.raises(ConfigError, match="does not exist"):
            await host.new_session(rig.vault / "none", model="script:x")
        with pytest.raises(ConfigError, match="did you mean 'build'"):
            await host.new_session(rig.vault, agent="biuld", model="script:x")
        with pytest.raises(ConfigError, match="unknown model"):
            await host.new_session(rig.vault, model="zzz")
        assert not await host.store.sessions()


async def test_mode_is_switched_recorded_and_lifts_open_questions(rig):
    """Switching to full access is recorded and resolves the questions it may (S0.68, S0.77, D65)."""
    model = rig.script(rig.call("bash", command="echo hi"), {"text": "done"})
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=model)
        events = []

        def switch(event):
            events.append(event)
            if event.type == "permission.asked":
                asyncio.get_running_loop().create_task(session.set_mode("full_access"))

        host.bus.subscribe(switch)
        result = await asyncio.wait_for(session.prompt("go", options=RunOptions(on_ask="prompt")), 300)
        assert (result.end_reason, session.mode) == ("completed", "full_access")
    assert next(e for e in events if e.type == "permission.replied").data["by"] == "mode"
    assert json.loads(json.dumps(next(e for e in events if e.type == "session.mode").as_json()))["to"] == "full_access"


GATE = """
from moryflow_sdk import Ask, Remember

@hookimpl
def tool_gate(call):
    return Ask("{name} asks", bypass="{bypass}", remember=(Remember(scope="session", domain="bash", pattern="echo {name}"),))
"""


@pytest.mark.parametrize("bypass", ["mode", "never"])
async def test_full_access_answers_no_question_that_holds_an_ask_which_no_mode_lifts(rig, bypass):
    """One of two gates is enough; and two gates that ask are one question, which *always* answers once (S0.68, S0.77)."""
    rig.plugin("soft", GATE.format(name="soft", bypass="mode"))
    rig.plugin("firm", GATE.format(name="firm", bypass=bypass))
    model = rig.script(rig.call("bash", command="echo hi"), {"text": "done"})
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=model)
        events = []

        async def answer(event):
            await session.set_mode("full_access")
            with suppress(MoryflowError):  # the mode has answered already
                await session.reply(event.data["approval_id"], "always")

        def heard(event):
            events.append(event)
            if event.type == "permission.asked":
                asyncio.get_running_loop().create_task(answer(event))

        host.bus.subscribe(heard)
        await asyncio.wait_for(session.prompt("go", options=RunOptions(on_ask="prompt")), 300)
    asked = [event for event in events if event.type == "permission.asked"]
    replied = [event.data["by"] for event in events if event.type == "permission.replied"]
    assert len(asked) == 1 and "soft asks" in asked[0].data["reason"] and "firm asks" in asked[0].data["reason"]
    assert replied == (["mode"] if bypass == "mode" else ["user"])


async def test_rules_of_person_and_agent_merge_and_children_are_sessions_of_their_own(rig):
    """Permission by merged rules; parent and child sessions are separate, and the child knows its parent (S2.24)."""
    async with rig.host() as host:
        parent = await host.new_session(rig.vault, model="script:none")
        child = await host.new_session(rig.vault, model="script:none", parent=parent.id)
        assert (child.row.parent, child.id != parent.id) == (parent.id, True)
        narrow = {"domain": "read", "pattern": "vault:**", "decision": "deny"}
        child.agent = child.agent.replace(rules=(narrow,))
        (rig.vault / "a.txt").write_text("alpha")
        child.model = rig.script(rig.call("read", path="a.txt"), {"text": "no"})
        result = await child.prompt("go")
    assert [denial["cause"] for denial in result.denied] == ["policy"]


async def test_a_turn_can_be_traced_from_its_records(rig):
    """Which hook ran where, how long, with what outcome; compaction and pruning are nodes (S2.25)."""
    (rig.vault / "a.txt").write_text("alpha")
    await rig.run(rig.call("read", path="a.txt"), {"text": "ok"})
    async with rig.host() as host:
        session = (await host.store.sessions())[0]
        rows = await host.store.hook_calls(session.id)
        runs = await host.store.runs(session.id)
    assert {(row.hook, row.plugin) for row in rows} >= {("tool_gate", "permission"), ("tool_after", "truncation")}
    assert [run.end_reason for run in runs] == ["completed"]


@pytest.mark.parametrize("levels", [150, 480, 900])
async def test_arguments_nested_without_end_cost_the_call_and_not_the_turn(rig, levels):
    """They are refused with a sentence, and the session goes on (R11, S4.7)."""
    deep = '{"path":' + '{"a":' * levels + "1" + "}" * (levels + 1)
    result, _ = await rig.run({"calls": [{"name": "read", "arguments": deep}]}, {"text": "done"})
    assert (result.end_reason, result.text) == ("completed", "done")
    [tool] = [node for node in rig.path if node.kind == "tool"]
    assert tool.payload["code"] == "invalid_args" and "nested more than 100 levels deep" in tool.payload["output"]


async def test_a_patch_that_is_none_is_the_models_fault_and_not_the_plugins(rig):
    """What a tool says itself about its arguments is told as it is (S4.9)."""
    rig.allow_all()
    rig.plugin(
        "picky",
        """
        def place(args):
            raise ToolError("line 3 of the patch is not a line of a patch", code="invalid_patch", next_step="begin it again")

        @tool(domain="edit", targets=place)
        def patch(text: str) -> str:
            "Patch."
            return text

        @hookimpl
        def tools(): return [patch]
        """,
    )
    await rig.run(rig.call("patch", text="x"), {"text": "done"})
    [tool] = [node.payload for node in rig.path if node.kind == "tool"]
    assert tool["code"] == "invalid_patch" and "plugin picky" not in tool["output"]


async def test_a_prompt_that_failed_is_not_sent_with_the_next(rig):
    """It stays in the tree, and a turn without a prompt still continues from it (issue 41)."""
    async with rig.host() as host:
        failing = {"error": {"code": "auth", "message": "no key"}}
        session = await host.new_session(rig.vault, model=rig.script(failing, failing, {"text": "fine"}))
        assert (await session.prompt("one")).end_reason == "model_error"
        assert (await session.resume()).end_reason == "model_error"
        assert (await session.prompt("two")).text == "fine"
        path, nodes = await host.store.path(session.id), await host.store.nodes(session.id)
    assert [node.payload["text"] for node in path] == ["two", "fine"]
    assert [node.payload.get("text") for node in nodes] == ["one", "two", "fine"]
