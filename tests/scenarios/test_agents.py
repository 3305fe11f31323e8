"""Agents that work together: child sessions, what they may do, what they cost, and how each of them can end."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from moryflow import RunOptions
from moryflow.testing import replies
from moryflow.testing.replies import LoopbackServer
from moryflow_sdk import MoryflowError


def agent(rig, name, *turns, mode="subagent", **fields):
    """Write an agent file with a script of its own."""
    script = rig.vault.parent / f"{name}.json"
    script.write_text(json.dumps(list(turns)), encoding="utf-8")
    file = rig.home / "agents" / f"{name}.md"
    file.parent.mkdir(exist_ok=True, mode=0o700)
    head = {"id": name, "mode": mode, "model": f"script:{script}", **fields}
    file.write_text(f"---\n{json.dumps(head)}\n---\nYou are {name}.\n", encoding="utf-8")
    file.chmod(0o600)


def tasks(*orders):
    """Return an answer of the model that starts these tasks in one step."""
    return {"calls": [{"name": "task", "arguments": {"prompt": "look", **order}} for order in orders]}


async def children(host, result):
    """Return the child sessions of a turn's session, oldest first."""
    return (await host.store.sessions(20, purpose=None, parent=result.session))[::-1]


async def run(rig, *turns, on_ask="deny", watch=None, **limits):
    """Run one prompt; return result, events and the child sessions."""
    events = []
    async with rig.host() as host:
        host.bus.subscribe(events.append)
        if watch:
            host.bus.subscribe(lambda event: watch(host, event))
        session = await host.new_session(rig.vault, model=rig.script(*turns))
        result = await session.prompt("go", options=RunOptions(on_ask=on_ask, **limits))
        rig.path = await host.store.path(session.id)
        return result, events, await children(host, result)


def results(rig):
    """Return the payloads of the tool nodes of the last path."""
    return [node.payload for node in rig.path if node.kind == "tool"]


# -------------------------------------------------------------------- a child's life


async def test_a_task_runs_in_a_session_of_its_own_and_comes_back_as_text_summary_and_metadata(rig):
    """A child session carries the parent's id, sees nothing of its conversation, and its result is a tool output with a
    synthetic message behind it (S2.3, S2.4, S2.19, S4.15).
    """
    (rig.vault / "a.md").write_text("hello")
    agent(rig, "finder", rig.call("read", path="a.md"), {"text": "It says hello."})
    result, events, kids = await run(rig, tasks({"agent": "finder", "description": "Look around"}), {"text": "Done."})
    assert (result.end_reason, result.text, result.steps) == ("completed", "Done.", 4)
    assert [(kid.parent, kid.purpose, kid.agent, kid.title) for kid in kids] == [
        (result.session, "child", "finder", "Look around")
    ]
    assert [node.kind for node in rig.path] == ["user", "assistant", "tool", "note", "assistant"]
    told = results(rig)[0]
    assert told["status"] == "ok" and told["output"].startswith("It says hello.") and kids[0].id in told["output"]
    assert told["metadata"]["session"] == kids[0].id and told["metadata"]["calls"] == {"read": 1}
    assert told["metadata"]["summary"].endswith("completed, 2 steps, calls: read 1")
    assert "go on with what the user asked for" in rig.path[3].payload["text"]
    assert {event.agent for event in events if event.parent == result.session} == {"finder"}
    assert result.usage.input == 40


async def test_the_child_reads_its_task_and_nothing_of_the_conversation(rig):
    """The child's own context: its prompt, its agent's instructions (S2.3)."""
    agent(rig, "finder", {"text": "ok"})
    async with rig.host() as host:
        session = await host.new_session(
            rig.vault, model=rig.script(tasks({"agent": "finder", "prompt": "find it"}), {"text": "x"})
        )
        result = await session.prompt("the secret of the parent")
        kid = (await children(host, result))[0]
        path = await host.store.path(kid.id)
    assert [node.payload.get("text") for node in path] == ["find it", "ok"]


async def test_tasks_of_one_step_run_side_by_side(rig):
    """Several children work at the same time, and their results come in call order (S2.3, D67)."""
    for name in ("one", "two", "three"):
        agent(rig, name, rig.holding(), {"text": f"I am {name}"})
    order = [{"agent": "three"}, {"agent": "one"}, {"agent": "two"}]
    begun = []

    def watch(host, event):
        if event.type == "turn.start" and event.parent:
            begun.append(event)
            if len(begun) == 3:
                rig.let_go()

    _result, _events, kids = await run(rig, tasks(*order), {"text": "ok"}, watch=watch)
    assert len(kids) == 3
    assert [told["output"].split("\n")[0] for told in results(rig)] == ["I am three", "I am one", "I am two"]
    assert sum(node.kind == "note" for node in rig.path) == 1


async def test_a_background_task_returns_at_once_and_its_result_comes_as_a_note(rig):
    """The call gives the id; the note is appended between steps, never between a call and its result (S2.3, invariant 6)."""
    agent(rig, "slow", {"text": "found it"})
    script = rig.script(tasks({"agent": "slow", "background": True}), rig.holding(), {"text": "ok"})
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=script)
        held = asyncio.Event()
        host.bus.subscribe(lambda event: held.set() if event.type == "tool.start" and event.data["tool"] == "hold" else None)
        turn = asyncio.create_task(session.prompt("go", options=RunOptions(on_ask="deny")))
        await held.wait()
        await session.children.settled()
        rig.let_go()
        result = await turn
        rig.path = await host.store.path(session.id)
        kids = await children(host, result)
    assert [node.kind for node in rig.path] == ["user", "assistant", "tool", "assistant", "tool", "note", "assistant"]
    assert results(rig)[0]["metadata"]["end_reason"] == "running"
    note = rig.path[5].payload
    assert "found it" in note["text"] and note["task"] == {"session": kids[0].id, "agent": "slow", "end_reason": "completed"}
    assert result.usage.input == 40


async def test_the_result_of_a_background_task_reaches_an_idle_session(rig):
    """When the turn has ended, the note is appended at once; it waits where a call is open (invariant 6)."""
    agent(rig, "slow", {"text": "late", "delay": 0.1})
    async with rig.host() as host:
        script = rig.script(tasks({"agent": "slow", "background": True}), {"text": "bye"})
        session = await host.new_session(rig.vault, model=script)
        await session.prompt("go")
        assert await session.children.settled()
        path = await host.store.path(session.id)
    assert [node.kind for node in path[-2:]] == ["assistant", "note"] and "late" in path[-1].payload["text"]


async def test_a_note_waits_while_a_question_is_open(rig):
    """A path that ends in a call without its result gets no note; the turn that settles the call takes it (invariant 6)."""
    agent(rig, "slow", {"text": "late", "delay": 0.2})
    both = {"calls": [*tasks({"agent": "slow", "background": True})["calls"], {"name": "bash", "arguments": {"command": "ls"}}]}
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script(both, {"text": "bye"}))
        result = await session.prompt("go", options=RunOptions(on_ask="fail"))
        assert result.end_reason == "approval_required"
        await session.children.settled()
        assert [node.kind for node in await host.store.path(session.id)] == ["user", "assistant", "tool"]
        await session.resume()
        kinds = [node.kind for node in await host.store.path(session.id)]
    assert kinds == ["user", "assistant", "tool", "tool", "note", "assistant"]


async def test_a_note_that_came_before_the_question_waits_too(rig):
    """The child ended while the model was writing the call that is asked about (invariant 6)."""
    agent(rig, "quick", {"text": "early"})
    asks = {"calls": [{"name": "bash", "arguments": {"command": "ls"}}], "delay": 0.4}
    async with rig.host() as host:
        script = rig.script(tasks({"agent": "quick", "background": True}), asks, {"text": "bye"})
        session = await host.new_session(rig.vault, model=script)
        result = await session.prompt("go", options=RunOptions(on_ask="fail"))
        assert result.end_reason == "approval_required"
        kinds = [node.kind for node in await host.store.path(session.id)]
        assert kinds == ["user", "assistant", "tool", "assistant"]
        await session.children.settled()
        await session.resume()
        kinds = [node.kind for node in await host.store.path(session.id)]
    assert kinds == ["user", "assistant", "tool", "assistant", "tool", "note", "assistant"]


async def test_a_task_can_be_resumed_by_its_id(rig):
    """A resumed child knows what it did; nothing begins anew (S4.15)."""
    agent(rig, "finder", {"text": "first"}, {"text": "second"})
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script(tasks({"agent": "finder"}), {"text": "ok"}))
        result = await session.prompt("go")
        kid = (await children(host, result))[0]
        again = tasks({"agent": "finder", "task_id": kid.id, "prompt": "and then?"})
        session.model = rig.script(again, {"text": "ok"}).replace("script.json", "again.json")
        (rig.vault.parent / "again.json").write_text(json.dumps([again, {"text": "ok"}]))
        await session.prompt("more")
        path = await host.store.path(kid.id)
        assert len(await children(host, result)) == 1
    assert [node.payload["text"] for node in path] == ["look", "first", "and then?", "second"]


async def test_tool_run_starts_a_task_too(rig):
    """A command reaches a child through the same door (invariant 1)."""
    agent(rig, "finder", {"text": "here"})
    async with rig.host() as host:
        done = await host.call_tool("task", {"agent": "finder", "prompt": "x"}, vault=rig.vault)
    assert done.result.status == "ok" and done.result.output.startswith("here")


# -------------------------------------------------------------------- stop, questions, mode


@pytest.mark.parametrize("background", [False, True])
async def test_stopping_the_parent_stops_every_child(rig, background):
    """A person's stop reaches children in the foreground and in the background; what they have is kept (S4.15)."""
    (rig.vault / "a.md").write_text("x")
    for name in ("one", "two"):
        agent(rig, name, rig.call("read", path="a.md"), {"text": "never", "delay": 30})
    later = {"text": "never", "delay": 30}
    async with rig.host() as host:
        script = rig.script(tasks(*({"agent": name, "background": background} for name in ("one", "two"))), later)
        session = await host.new_session(rig.vault, model=script)
        seen = []

        def stop(event):
            if event.parent and event.type == "tool.result":
                seen.append(event)
                if len(seen) == 2:
                    asyncio.get_running_loop().call_later(0.05, session.cancel)

        host.bus.subscribe(stop)
        result = await asyncio.wait_for(session.prompt("go"), 300)
        await asyncio.wait_for(session.children.settled(), 300)
        kids = await children(host, result)
        ends = [(await host.store.runs(kid.id))[-1].end_reason for kid in kids]
        kinds = [[node.kind for node in await host.store.path(kid.id)] for kid in kids]
    assert result.end_reason == "stopped" and ends == ["stopped", "stopped"]
    assert kinds == [["user", "assistant", "tool"]] * 2


@pytest.mark.parametrize("how", ["ends", "is stopped", "the one above fails"])
async def test_what_a_sub_agent_left_in_the_background_is_never_without_an_owner(rig, how):
    """It has not ended before those it started have; a stop reaches them, and whatever else ends it (S4.15, invariant 9)."""
    rig.config(tasks={"depth": 2})
    failing = {"error": {"code": "auth", "message": "no"}}
    last = failing if how == "the one above fails" else {"text": "begun"}
    agent(rig, "middle", tasks({"agent": "lowest", "background": True}), last, {"text": "both are done"})
    agent(rig, "lowest", {"text": "found it", "delay": 0.2 if how == "ends" else 30})
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script(tasks({"agent": "middle"}), {"text": "ok"}))
        if how == "is stopped":

            def stop(event):
                if event.type == "turn.finish" and event.agent == "middle":
                    asyncio.get_running_loop().call_soon(session.cancel)

            host.bus.subscribe(stop)
        result = await asyncio.wait_for(session.prompt("go"), 300)
        middle = (await children(host, result))[0]
        lowest = (await host.store.sessions(5, purpose="child", parent=middle.id))[0]
        ends = [[run.end_reason for run in await host.store.runs(kid.id)] for kid in (middle, lowest)]
        told = next(node.payload for node in await host.store.path(session.id) if node.kind == "tool")
        heard = [node.payload["text"] for node in await host.store.path(middle.id) if node.kind == "note"]
    stopped = ["stopped"]
    expected = {"ends": [["completed"] * 2, ["completed"]], "is stopped": [["completed"], stopped]}
    assert ends == expected.get(how, [["model_error"], stopped]) and len(heard) == 1
    if how == "ends":
        assert "found it" in heard[0] and told["output"].startswith("both are done")


async def test_closing_the_host_stops_what_runs_in_the_background(rig):
    """No child outlives its host; its run says that it was stopped (invariant 9)."""
    agent(rig, "slow", {"text": "never", "delay": 30})
    async with rig.host() as host:
        session = await host.new_session(
            rig.vault, model=rig.script(tasks({"agent": "slow", "background": True}), {"text": "x"})
        )
        result = await session.prompt("go")
    async with rig.host() as host:
        kid = (await children(host, result))[0]
        assert (await host.store.runs(kid.id))[-1].end_reason == "stopped"


async def test_a_childs_question_reaches_the_parents_person_with_its_name(rig):
    """The event says whose question it is; the answer is audited under both sessions (D66)."""
    agent(rig, "runner", rig.call("bash", command="echo hi"), {"text": "ran"})
    asked = []

    def answer(host, event):
        if event.type == "permission.asked":
            asked.append(event)
            asyncio.get_running_loop().create_task(host.approvals.reply(event.data["approval_id"], "once"))

    result, _, kids = await run(rig, tasks({"agent": "runner"}), {"text": "ok"}, on_ask="prompt", watch=answer)
    assert [(event.parent, event.agent, event.data["agent"]) for event in asked] == [(result.session, "runner", "runner")]
    assert result.end_reason == "completed" and results(rig)[0]["status"] == "ok"
    logs = {path: path.read_text() for path in (rig.home / "logs" / "agent-audit").glob("*.jsonl")}
    lines = [line for text in logs.values() for line in map(json.loads, text.splitlines()) if line["tool"] == "bash"]
    assert len(lines) == 2 and {line["sessionId"] for line in lines} == {kids[0].id}


async def test_a_persons_stop_at_a_childs_question_stops_the_parent_too(rig):
    """Stop means stop: the parent's turn ends with the step (D24)."""
    agent(rig, "runner", rig.call("bash", command="echo hi"), {"text": "ran"})

    def answer(host, event):
        if event.type == "permission.asked":
            asyncio.get_running_loop().create_task(host.approvals.reply(event.data["approval_id"], "stop"))

    result, _, _ = await run(rig, tasks({"agent": "runner"}), {"text": "never"}, on_ask="prompt", watch=answer)
    assert (result.end_reason, result.exit_code) == ("stopped", 130)
    assert results(rig)[0]["code"] == "stopped"


async def test_a_change_of_mode_holds_for_children_at_once(rig):
    """A child has its parent's mode, and full access answers its open question (D65, D66)."""
    agent(rig, "runner", rig.call("bash", command="echo hi"), {"text": "ran"})
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script(tasks({"agent": "runner"}), {"text": "ok"}))

        def lift(event):
            if event.type == "permission.asked":
                asyncio.get_running_loop().create_task(session.set_mode("full_access"))

        host.bus.subscribe(lift)
        result = await asyncio.wait_for(session.prompt("go", options=RunOptions(on_ask="prompt")), 300)
        kid = (await children(host, result))[0]
        calls = await host.store.calls(session=kid.id)
    assert result.end_reason == "completed" and calls[0].decision == "allow"


async def test_an_always_given_to_a_child_holds_for_the_whole_session(rig):
    """The grant is the parent's too: a child never has more than its parent (R4, D66)."""
    agent(rig, "runner", rig.call("bash", command="echo hi"), {"text": "ran"})
    asked = []

    def answer(host, event):
        if event.type == "permission.asked":
            asked.append(event)
            asyncio.get_running_loop().create_task(host.approvals.reply(event.data["approval_id"], "exact"))

    again = rig.call("bash", command="echo hi")
    result, _, _ = await run(rig, tasks({"agent": "runner"}), again, {"text": "ok"}, on_ask="prompt", watch=answer)
    assert len(asked) == 1 and [told["status"] for told in results(rig)] == ["ok", "ok"]
    async with rig.host() as host:
        assert (await host.store.session(result.session)).grants[0]["pattern"] == "echo hi"


# -------------------------------------------------------------------- limits


async def test_steps_of_children_count_for_the_parents_limit(rig):
    """--max-steps bounds the whole family (S4.15)."""
    (rig.vault / "a.md").write_text("x\n" * 99)
    agent(rig, "busy", *(rig.call("read", path="a.md", offset=n + 1) for n in range(9)))
    result, _, _kids = await run(rig, tasks({"agent": "busy"}), {"text": "never"}, max_steps=4)
    assert (result.end_reason, result.exit_code, result.steps) == ("max_steps", 5, 4)
    assert results(rig)[0]["code"] == "max_steps"


PRICED = """
    from moryflow_sdk.support.scripted import ScriptedModel

    info = ModelInfo(id="dear", name="dear", provider="dear", context_window=128000, input_price=1000.0, output_price=0.0)

    class Dear(ScriptedModel):
        name = "dear"

        def __init__(self):
            task = {"calls": [{"name": "task", "arguments": {"agent": "general", "prompt": "x"}}]}
            step = {"purpose": "child", "calls": [{"name": "ls", "arguments": {}}]}
            super().__init__([task, *[step] * 20, {"text": "never"}], info=info)

    @hookimpl
    def models():
        return [Dear()]
"""


async def test_the_cost_of_children_counts_for_the_parents_budget(rig):
    """--max-cost bounds the whole family; a step costs a cent here (S4.15)."""
    rig.plugin("dear", PRICED)
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model="dear")
        result = await session.prompt("go", options=RunOptions(max_cost=0.035))
        path = await host.store.path(session.id)
    assert (result.end_reason, result.exit_code) == ("budget", 5)
    assert result.cost == pytest.approx(0.04) and path[-1].payload["title"] == "tasks"


async def test_a_sub_agent_starts_no_sub_agents_unless_configured(rig):
    """The depth limit is 1; a deeper one is the person's choice, in their configuration (S4.15)."""
    agent(rig, "outer", tasks({"agent": "inner"}), {"text": "outer done"})
    agent(rig, "inner", {"text": "inner done"})
    _, events, kids = await run(rig, tasks({"agent": "outer"}), {"text": "ok"})
    assert len(kids) == 1
    assert [e.data["code"] for e in events if e.type == "tool.result" and e.parent] == ["unknown_tool"]
    rig.config(tasks={"depth": 2})
    (rig.vault.parent / "outer.json").write_text(json.dumps([tasks({"agent": "inner"}), {"text": "outer done"}]))
    _, events, _ = await run(rig, tasks({"agent": "outer"}), {"text": "ok"})
    assert [e.data["status"] for e in events if e.type == "tool.result" and e.agent == "outer"] == ["ok"]


async def test_general_starts_others_where_the_person_allows_it_and_never_below_that(rig):
    """It has every tool (S2.3); how deep agents start agents is the person's choice, and what is below is told of none."""
    rig.config(tasks={"depth": 2})
    order = tasks({"agent": "general"})
    turns = (order, *[{**order, "purpose": "child"}] * 2, *[{"text": "done", "purpose": "child"}] * 2, {"text": "ok"})
    _, events, kids = await run(rig, *turns)
    codes = [event.data.get("code") for event in events if event.type == "tool.result"]
    assert codes == ["unknown_tool", None, None] and len(kids) == 1


# -------------------------------------------------------------------- bad input (docs/agents.md has the table)


async def test_an_unknown_agent_is_an_error_that_names_the_nearest(rig):
    """Nothing is started, and the model reads what it can start (S4.15)."""
    result, _, kids = await run(rig, tasks({"agent": "genral"}), tasks({"agent": "plan"}), {"text": "ok"})
    codes = [(told["status"], told["code"]) for told in results(rig)]
    assert codes == [("error", "unknown_agent")] * 2 and not kids and result.exit_code == 0
    assert "did you mean 'general'?" in results(rig)[0]["output"]


async def test_an_unknown_task_id_is_an_error_and_no_fresh_start(rig):
    """A child of another session, or one of another agent, is not taken either (S4.15)."""
    agent(rig, "finder", {"text": "x"})
    async with rig.host() as host:
        other = await host.new_session(rig.vault, model=rig.script(tasks({"agent": "finder"}), {"text": "ok"}))
        foreign = (await children(host, await other.prompt("go")))[0]
    orders = ({"agent": "finder", "task_id": name} for name in ("nope", foreign.id, foreign.id[:6]))
    _, _, kids = await run(rig, *(tasks(order) for order in orders), {"text": "ok"})
    assert [told["code"] for told in results(rig)] == ["unknown_session"] * 3 and not kids


async def test_a_task_is_not_resumed_as_another_agent(rig):
    """What a session may do depends on its agent, so it keeps it (R4)."""
    agent(rig, "finder", {"text": "x"})
    rig.plugin("known", "import moryflow_sdk")
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script(tasks({"agent": "finder"}), {"text": "ok"}))
        kid = (await children(host, await session.prompt("go")))[0]
        (rig.vault.parent / "b.json").write_text(json.dumps([tasks({"agent": "general", "task_id": kid.id}), {"text": "ok"}]))
        session.model = f"script:{rig.vault.parent / 'b.json'}"
        await session.prompt("go")
        rig.path = await host.store.path(session.id)
    assert results(rig)[-1]["code"] == "wrong_agent"


async def test_a_child_that_loops_is_ended_and_the_parent_goes_on(rig):
    """The loop guard ends the child; the parent reads why (S0.58, S4.15)."""
    agent(rig, "looper", *[rig.call("ls")] * 8)
    result, _, _ = await run(rig, tasks({"agent": "looper"}), {"text": "I saw that"})
    assert (result.end_reason, result.text) == ("completed", "I saw that")
    assert (results(rig)[0]["status"], results(rig)[0]["code"]) == ("error", "doom_loop")
    assert "went in circles" in results(rig)[0]["output"]


async def test_a_child_that_loops_in_other_words_is_ended_too(rig):
    """What its calls do is the same however their paths are written (S0.58, S0.60)."""
    agent(rig, "looper", *[rig.call("ls", path="./" * number + ".") for number in range(8)])
    await run(rig, tasks({"agent": "looper", "description": "look around"}), {"text": "I saw that"})
    assert (results(rig)[0]["status"], results(rig)[0]["code"]) == ("error", "doom_loop")


async def test_a_child_whose_model_fails_gives_a_clear_status(rig):
    """What it had said is passed on (S4.15)."""
    agent(rig, "broken", {"text": "half an", "error": {"code": "protocol", "message": "the line broke"}})
    result, _, _ = await run(rig, tasks({"agent": "broken"}), {"text": "ok"})
    told = results(rig)[0]
    assert (result.exit_code, told["status"], told["code"]) == (0, "error", "model_error")
    assert "the line broke" in told["output"] and "half an" in told["output"]


async def test_a_child_without_its_model_is_not_started(rig):
    """An agent file may name a model that nobody knows (S4.2)."""
    agent(rig, "odd", {"text": "x"}, model="nosuchmodel")
    _, _, kids = await run(rig, tasks({"agent": "odd"}), {"text": "ok"})
    assert results(rig)[0]["code"] == "unknown_model" and not kids


async def test_a_child_whose_model_has_no_key_says_which_one(rig):
    """Its parent's agent reads what is missing and what to do, as the person does (S4.2, S4.15)."""
    agent(rig, "keyless", {"text": "x"}, model="openai/test-model")
    result, events, _ = await run(rig, tasks({"agent": "keyless"}), {"text": "ok"})
    told = results(rig)[0]
    assert (result.exit_code, told["status"], told["code"]) == (0, "error", "model_error")
    assert "OPENAI_API_KEY is not set. Next: export OPENAI_API_KEY=" in told["output"]
    [error] = [event for event in events if event.type == "error"]
    assert error.agent == "keyless" and error.data["next"].startswith("export OPENAI_API_KEY=")


async def test_a_child_that_asks_when_nobody_can_be_asked_is_refused_and_it_shows(rig):
    """Headless, ask is deny; the parent's exit code says so (D27, R23)."""
    agent(rig, "runner", rig.call("bash", command="echo hi"), {"text": "could not"})
    result, _, kids = await run(rig, tasks({"agent": "runner"}), {"text": "ok"})
    assert (result.end_reason, result.exit_code) == ("completed", 4)
    assert [(item["session"], item["agent"], item["cause"]) for item in result.denied] == [(kids[0].id, "runner", "headless")]
    assert "1 of its calls was refused" in results(rig)[0]["output"]


async def test_an_unanswered_question_of_a_child_ends_the_turn_and_can_be_answered_later(rig):
    """--on-ask fail: question and child wait; once it is answered, going on with the parent finishes both (D27, D65)."""
    agent(rig, "runner", rig.call("bash", command="echo hi"), {"text": "ran"})
    result, _, kids = await run(rig, tasks({"agent": "runner"}), {"text": "never"}, on_ask="fail")
    assert (result.end_reason, result.exit_code) == ("approval_required", 4)
    assert results(rig)[0]["code"] == "approval_required"
    (rig.vault.parent / "runner.json").write_text(json.dumps([{"text": "ran"}]))
    async with rig.host() as host:
        waiting = await host.store.approvals(state="pending")
        await host.approvals.reply(waiting[0].id, "once")
        session = await host.resume(rig.vault, model=rig.script({"text": "all done"}))
        done = await session.resume(RunOptions(on_ask="fail"))
        path = await host.store.path(kids[0].id)
        mine = await host.store.path(session.id)
    assert (done.end_reason, done.text) == ("completed", "all done")
    assert [node.payload.get("code") for node in mine if node.kind == "tool"] == ["approval_required", None]
    ran = next(node.payload for node in path if node.kind == "tool")
    assert ran["status"] == "ok" and "hi" in ran["output"]


@pytest.mark.parametrize("how", ["waits still", "was refused", "went on already", "asks again"])
async def test_a_waiting_child_goes_on_once_whatever_the_answer(rig, how):
    """Two of them, side by side; a question that is still open is asked again, not forgotten (D65, D66)."""
    agent(rig, "runner", *[rig.call("bash", command="echo hi")] * 2)
    await run(rig, tasks({"agent": "runner"}, {"agent": "runner"}), {"text": "never"}, on_ask="fail")
    again = rig.call("bash", command="echo more") if how == "asks again" else {"text": "ran"}
    (rig.vault.parent / "runner.json").write_text(json.dumps([again] * 2))
    options = RunOptions(on_ask="fail")
    async with rig.host() as host:
        pending = await host.store.approvals(state="pending")
        for row in pending if how != "waits still" else ():
            await host.approvals.reply(row.id, "reject" if how == "was refused" else "once")
        session = await host.resume(rig.vault, model=rig.script({"text": "one"}, {"text": "two"}))
        done = await session.resume(options)
        if how in ("waits still", "asks again"):
            assert (done.end_reason, done.exit_code) == ("approval_required", 4)
            assert len(await host.store.approvals(state="pending")) == 2
            return
        assert (done.end_reason, done.text) == ("completed", "one")
        path = await host.store.path(session.id)
        assert [node.kind for node in path[-5:]] == ["assistant", "tool", "tool", "note", "assistant"]
        assert not await host.store.approvals(state="pending")
        with pytest.raises(MoryflowError, match="nothing to continue"):
            await session.resume(options)


async def test_a_question_far_below_lets_all_above_it_go_on(rig):
    """The middle one lets the one below it go on before its own model is asked (D65, S4.15)."""
    rig.config(tasks={"depth": 2})
    agent(rig, "middle", tasks({"agent": "runner"}))
    agent(rig, "runner", rig.call("bash", command="echo hi"))
    result, _, kids = await run(rig, tasks({"agent": "middle"}), on_ask="fail")
    assert (result.end_reason, result.exit_code) == ("approval_required", 4)
    for name, text in (("middle", "it ran"), ("runner", "ran")):
        (rig.vault.parent / f"{name}.json").write_text(json.dumps([{"text": text}]))
    async with rig.host() as host:
        [question] = await host.store.approvals(state="pending")
        await host.approvals.reply(question.id, "once")
        session = await host.resume(rig.vault, model=rig.script({"text": "all done"}))
        done = await session.resume(RunOptions(on_ask="fail"))
        lowest = (await host.store.sessions(5, purpose="child", parent=kids[0].id))[0]
        middle = [node.payload for node in await host.store.path(kids[0].id) if node.kind == "tool"]
        ends = [run.end_reason for run in await host.store.runs(lowest.id)]
    assert done.text == "all done" and ends == ["approval_required", "completed"]
    assert [told.get("code") for told in middle] == ["approval_required", None] and middle[1]["output"].startswith("ran")


async def test_a_question_from_the_background_waits_like_any_other(rig):
    """--on-ask fail: the turn ends with it, and goes on with the answer (D27, D65)."""
    from moryflow.runtime.subagents import with_background

    agent(rig, "runner", rig.call("bash", command="echo hi"))
    options = RunOptions(on_ask="fail")
    async with rig.host() as host:
        script = rig.script(tasks({"agent": "runner", "background": True}), {"text": "bye"})
        session = await host.new_session(rig.vault, model=script)
        result = await with_background(session, await session.prompt("go", options=options), options)
        assert (result.end_reason, result.exit_code) == ("approval_required", 4)
    (rig.vault.parent / "runner.json").write_text(json.dumps([{"text": "ran"}]))
    async with rig.host() as host:
        [question] = await host.store.approvals(state="pending")
        await host.approvals.reply(question.id, "once")
        session = await host.resume(rig.vault, model=rig.script({"text": "all done"}))
        done = await session.resume(options)
        rig.path = await host.store.path(session.id)
    assert done.text == "all done" and results(rig)[-1]["output"].startswith("ran")


async def test_a_child_that_takes_too_long_is_stopped(rig):
    """Nothing waits for ever (invariant 9)."""
    rig.config(tasks={"minutes": 0.003})
    agent(rig, "slow", {"text": "never", "delay": 30})
    _, _, kids = await run(rig, tasks({"agent": "slow"}), {"text": "ok"})
    assert results(rig)[0]["code"] == "timeout"
    async with rig.host() as host:
        assert (await host.store.runs(kids[0].id))[-1].end_reason == "stopped"


async def test_two_children_on_one_file_lose_no_edit(rig):
    """Each edit is made on what is there, or refused as changed; none is overwritten unseen (R12)."""
    (rig.vault / "a.md").write_text("one\ntwo\n")
    for name in ("one", "two"):
        agent(rig, name, rig.call("edit", path="a.md", old_string=name, new_string=name.upper()), {"text": "ok"})
    await run(rig, tasks({"agent": "one"}, {"agent": "two"}), {"text": "ok"})
    async with rig.host() as host:
        calls = [call for call in await host.store.calls() if call.tool == "edit"]
    text = (rig.vault / "a.md").read_text()
    kept = {"one": "ONE" in text, "two": "TWO" in text}
    assert all(kept[json.loads(call.args)["old_string"]] == (call.state == "completed") for call in calls)
    assert len(calls) == 2 and any(kept.values())


async def test_a_task_that_is_at_work_is_not_prompted_again(rig):
    """One appender per session: the second order is refused, the first goes on (invariant 6)."""
    agent(rig, "slow", rig.holding(), {"text": "found it"})
    async with rig.host() as host:
        first = rig.script(tasks({"agent": "slow", "background": True}), {"text": "ok"})
        session = await host.new_session(rig.vault, model=first)
        result = await session.prompt("go")
        kid = (await children(host, result))[0]
        second = rig.vault.parent / "second.json"
        second.write_text(json.dumps([tasks({"agent": "slow", "task_id": kid.id}), {"text": "ok"}]))
        session.model = f"script:{second}"
        await session.prompt("again")
        rig.let_go()
        await session.children.settled()
        path = await host.store.path(session.id)
    codes = [node.payload.get("code") for node in path if node.kind == "tool"]
    assert codes == [None, "busy"] and "found it" in path[-1].payload["text"]


async def test_a_result_that_cannot_be_appended_now_is_not_lost(rig):
    """Another process has the session when a child in the background ends: the next turn here takes the note (D65)."""
    agent(rig, "slow", rig.holding(), {"text": "found it"})
    async with rig.host() as host, rig.host() as other:
        errors = []
        host.bus.subscribe(lambda event: event.type == "error" and errors.append(event))
        script = rig.script(tasks({"agent": "slow", "background": True}), {"text": "ok"}, {"text": "I see"})
        session = await host.new_session(rig.vault, model=script)
        await session.prompt("go")
        theirs = await other.resume(session_id=session.id, model=script)
        await theirs.keep()
        rig.let_go()
        await session.children.settled()
        theirs.release()
        assert [event.data["code"] for event in errors] == ["busy"]
        await session.prompt("and?")
        kinds = [node.kind for node in await host.store.path(session.id)]
    assert kinds == ["user", "assistant", "tool", "assistant", "user", "note", "assistant"]


async def test_a_person_may_switch_tasks_off(rig):
    """Depth 0: nobody starts anyone, and nobody is told of it or offered it (S4.15)."""
    rig.config(tasks={"depth": 0})
    agent(rig, "finder", {"text": "x"})
    _, _, kids = await run(rig, tasks({"agent": "finder"}), {"text": "ok"})
    assert results(rig)[0]["code"] == "unknown_tool" and not kids


async def test_an_agent_is_told_whom_it_can_start_and_a_sub_agent_is_not(rig):
    """One block of the system prompt names those that are not hidden, the same in every step (S0.82, S2.3)."""
    agent(rig, "finder", {"text": "x"}, description="Finds things.")
    order = replies.calls(("task", {"agent": "explore", "prompt": "look"}))
    with LoopbackServer(order, replies.text("found"), otherwise=replies.text("done")) as server:
        rig.environ = {"OPENAI_BASE_URL": server.url}
        async with rig.host() as host:
            session = await host.new_session(rig.vault, model="openai/test-model")
            assert (await session.prompt("go")).text == "done"
        parent, child, again = (request.body for request in server.requests)
    system = [body["messages"][0]["content"] for body in (parent, child, again)]
    assert "- finder: Finds things." in system[0] and "- explore: " in system[0] and "- title" not in system[0]
    assert "task tool" not in system[1] and system[2] == system[0]
    offered = [{tool["function"]["name"] for tool in body["tools"]} for body in (parent, child)]
    assert "task" in offered[0] and offered[1] == {"read", "ls", "glob", "grep", "search_in_file"}


async def test_many_results_at_once_and_a_prompt_in_between_lose_nothing(rig):
    """Notes and turns of one session take turns with its hold; each result is there once (invariant 6)."""
    for number in range(6):
        agent(rig, f"slow{number}", {"text": f"result {number}", "delay": 0.1})
    order = tasks(*({"agent": f"slow{number}", "background": True} for number in range(6)))
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script(order, {"text": "ok"}, {"text": "I see"}))
        await session.prompt("go")
        _, answer = await asyncio.gather(session.children.settled(), session.prompt("and?"))
        path = await host.store.path(session.id)
        assert answer.text == "I see" and not session.busy
    notes = [node.payload["text"] for node in path if node.kind == "note"]
    assert sorted(text.split("\n\n")[1] for text in notes) == [f"result {number}" for number in range(6)]


async def ended_of_child(host, parent: str) -> str:
    """What ``session tree`` says of the first child of a session."""
    from moryflow.runtime.documents import kin_of

    return (await kin_of(host.store, await host.store.session(parent)))[0].end_reason


async def test_a_host_that_is_killed_leaves_a_child_that_can_be_gone_on_with(rig):
    """The call counts as interrupted and is not run again; the child keeps what it had and is resumed by its id (S1.6)."""
    (rig.vault / "a.md").write_text("x")
    agent(rig, "finder", rig.call("read", path="a.md"), {"text": "never", "delay": 600})
    model = rig.script(tasks({"agent": "finder"}), {"text": "never"})
    command = (sys.executable, "-m", "moryflow", "run", "-m", model, "go")
    nowhere = asyncio.subprocess.DEVNULL
    running = await asyncio.create_subprocess_exec(*command, cwd=rig.vault, stdin=nowhere, stdout=nowhere)
    async with rig.host() as host:
        kids = []
        while not kids or len(await host.store.path(kids[0].id)) < 3:
            assert running.returncode is None
            await asyncio.sleep(0.02)
            kids = await host.store.sessions(5, purpose="child")
        told = [await ended_of_child(host, kids[0].parent)]
        running.kill()
        await running.wait()
        told.append(await ended_of_child(host, kids[0].parent))
        assert told == ["at work", "interrupted"]
        (rig.vault.parent / "finder.json").write_text(json.dumps([{"text": "found it after all"}]))
        again = rig.script(tasks({"agent": "finder", "task_id": kids[0].id}), {"text": "good"})
        session = await host.resume(rig.vault, model=again)
        result = await session.prompt("go on")
        rig.path = await host.store.path(session.id)
        ends = [run.end_reason for run in await host.store.runs(kids[0].id)]
    assert [told["status"] for told in results(rig)] == ["interrupted", "ok"] and result.text == "good"
    assert "found it after all" in results(rig)[1]["output"] and ends == ["interrupted", "completed"]


async def test_edits_of_one_file_at_the_same_moment_lose_nothing(rig):
    """Fifteen times two edits at once: what was made is there, what was not says that the file has changed (R12)."""
    async with rig.host() as host:
        for _ in range(15):
            (rig.vault / "a.md").write_text("one\ntwo\n")
            edits = [{"path": "a.md", "old_string": word, "new_string": word.upper()} for word in ("one", "two")]
            done = await asyncio.gather(*(host.call_tool("edit", edit, vault=rig.vault) for edit in edits))
            text = (rig.vault / "a.md").read_text()
            assert {call.result.code for call in done} <= {None, "changed"}
            assert [call.result.status == "ok" for call in done] == ["ONE" in text, "TWO" in text]


async def test_a_childs_answer_that_was_cut_is_told_to_its_parent(rig):
    """Half an answer must not pass for a whole one (S2.4)."""
    child = {"text": "half of it", "finish": "length"}
    _, events = await rig.run(rig.call("task", agent="explore", prompt="look"), child, "done")
    (output,) = [event.data["output"] for event in events if event.type == "tool.result" and event.data["tool"] == "task"]
    assert "cut at its length limit" in output and "half of it" in output
