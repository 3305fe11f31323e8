"""A summary written beside the turn, applied at the turn's next pause if it is still true."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from compaction_paths import SUMMARY, compact, kinds, talk
from moryflow.store import Commit, NewNode, open_store
from moryflow_sdk import ModelRequest, ToolRequest
from simulation import VOICE, SimulatedModel

ANSWER = {"text": "the answer"}


async def long_session(bench, host):
    bench.events.clear()
    session = await bench.session(host, talk(14, 1000))
    await session.keep()
    return session


async def test_the_turn_is_not_blocked_and_the_result_is_applied_at_a_pause(bench):
    """Pending is visible, the answer comes first, the next turn's owner applies it (S1.19, S1.29, S1.30, D18)."""
    bench.config(mode="background")
    async with bench.host(compact(), ANSWER, {"text": "two"}) as host:
        host.scripted.may_write.clear()
        session = await long_session(bench, host)
        await session.prompt("and now?")
        assert "compaction" not in kinds(await host.store.path(session.id))
        assert [item["state"] for item in bench.compactions()] == ["pending"]
        await bench.written(host, session)
        await session.prompt("and then?")
        path = await host.store.path(session.id)
        runs = await host.store.runs(session.id)
        last = host.scripted.requests[-1]
    assert kinds(path)[-4:] == ["assistant", "user", "compaction", "assistant"]
    assert [item["state"] for item in bench.compactions()] == ["pending", "done"]
    assert [run.state for run in runs if run.purpose == "compact"] == ["ended"]
    said = [message.text for message in last.messages]
    assert said[-3:] == ["and now?", "the answer", "and then?"]


async def test_a_session_that_is_given_back_waits_for_its_summary(bench):
    """Without anyone to take it later (`moryflow run`), the turn's end waits for what was begun (D18)."""
    bench.config(mode="background")
    async with bench.host(compact(delay=0.2), ANSWER) as host:
        session = await bench.session(host, talk(14, 1000))
        await session.prompt("and now?")
        path = await host.store.path(session.id)
    assert "compaction" in kinds(path) and bench.compactions("done")


async def test_the_answer_is_stored_before_the_summary_is_waited_for_and_a_person_need_not_wait(bench):
    """A host that is killed meanwhile has lost no answer; a stop ends the waiting, and the turn is as it ended (S1.30, D18)."""
    bench.config(mode="background")
    async with bench.host(compact(delay=30), ANSWER) as host:
        session = await bench.session(host, talk(14, 1000))
        answered = asyncio.Event()
        host.bus.subscribe(lambda event: answered.set() if event.type == "step.finish" else None)
        turn = asyncio.create_task(session.prompt("and now?"))
        await asyncio.wait_for(answered.wait(), 300)
        assert (await host.store.path(session.id))[-1].payload["text"] == ANSWER["text"]
        assert not turn.done() and [item["state"] for item in bench.compactions()] == ["pending"]
        session.cancel()
        result = await asyncio.wait_for(turn, 300)
    assert (result.end_reason, result.text) == ("completed", ANSWER["text"])
    assert [item.get("reason") for item in bench.compactions()] == [None, "the user did not wait for it"]


class Delegating(SimulatedModel):
    """Lets a sub-agent read `steps` times; `slow` summaries never come, and the sub-agent ends once one was begun."""

    def __init__(self, steps: int, *, slow: bool) -> None:
        super().__init__(16_000)
        self.steps, self.sizes, self.slow, self.begun = (steps,), (500,), slow, False

    def _next(self, request: ModelRequest) -> tuple[ToolRequest, ...]:
        if request.purpose == "child":
            return () if self.begun else super()._next(request)[:1]
        self._calls += 1
        asked = len([message for message in request.messages if message.role == "assistant"])
        return () if asked else (ToolRequest(id=f"c{self._calls}", name="helper", arguments='{"prompt": "Look there."}'),)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        if request.purpose == "compact" and self.slow:
            self.begun = True
            await asyncio.Event().wait()
        async for event in super().stream(request):
            yield event


@pytest.mark.parametrize("slow", [False, True])
async def test_sub_agents_work_on_too_while_their_summary_is_written(bench, slow):
    """What a child began beside its turn is taken at its next pause, or given up when it ends: its parent waits (D18)."""
    bench.plugin("voice", VOICE)
    bench.doom(prune=False)
    async with bench.host(provider=Delegating(90, slow=slow)) as host:
        session = await host.new_session(bench.vault)
        assert (await session.prompt("Have somebody look there.")).end_reason == "completed"
    begun, ended = bench.compactions()
    assert (begun["trigger"], begun["state"], ended["state"]) == ("background", "pending", "stale" if slow else "done")


async def test_a_summary_that_is_needed_at_once_ends_the_one_written_beside(bench):
    """It is not left pending; the other one counts (S1.29, S1.31)."""
    bench.config(mode="background")
    refused = {"error": {"code": "context", "message": "too long"}}
    async with bench.host(compact(delay=30), refused, compact(), ANSWER) as host:
        session = await long_session(bench, host)
        result = await session.prompt("and now?")
    assert result.text == ANSWER["text"]
    assert [item["state"] for item in bench.compactions()] == ["pending", "stale", "pending", "done"]


async def test_a_switch_of_branch_makes_it_stale(bench):
    """Another branch is active when it is ready: no node, the run is kept, an event says why (S1.31, S1.32, D21)."""
    bench.config(mode="background")
    async with bench.host(compact(), ANSWER, {"text": "two"}) as host:
        host.scripted.may_write.clear()
        session = await long_session(bench, host)
        await session.prompt("and now?")
        await session.note(lambda journal: journal.switch("n3"))
        await bench.written(host, session)
        await session.prompt("elsewhere")
        nodes = await host.store.nodes(session.id)
        runs = await host.store.runs(session.id)
    assert "compaction" not in kinds(nodes)
    (stale,) = bench.compactions("stale")
    assert (stale["reason"], stale["answers"]) == ("another branch is active now", (SUMMARY,))  # what it said is kept (S1.28)
    assert [run.end_reason for run in runs if run.purpose == "compact"] == ["completed"]


async def test_a_newer_compaction_makes_it_stale(bench):
    """A compaction that came meanwhile counts; the older one is not added (S1.31, D21)."""
    bench.config(mode="background")
    async with bench.host(compact(), ANSWER, {"text": "two"}) as host:
        host.scripted.may_write.clear()
        session = await long_session(bench, host)
        await session.prompt("and now?")
        newer = {"summary": "【会话摘要】\nnewer", "first_kept_node_id": "n20", "tokens_before": 9, "details": {}}
        await session.note(lambda journal: journal.node("compaction", newer))
        await bench.written(host, session)
        await session.prompt("and then?")
        path = await host.store.path(session.id)
    assert [node.payload["summary"] for node in path if node.kind == "compaction"] == [newer["summary"]]
    assert bench.compactions("stale")[0]["reason"] == "another compaction counts now"


async def test_the_check_is_part_of_the_transaction(bench):
    """The store refuses a commit whose active node has changed: nothing of it is stored (D21)."""
    from moryflow.store import Outdated

    async with bench.host() as host:
        session = await bench.session(host, talk(2, 100))
        hold = await host.store.hold(session.id)
        await hold.switch("n1")
        try:
            await hold.commit(Commit(nodes=[NewNode("note", {"text": "late"})], after="n3"))
            refused = False
        except Outdated:
            refused = True
        hold.release()
        assert refused and "note" not in kinds(await host.store.nodes(session.id))


async def test_a_background_failure_is_an_event(bench):
    """The fork fails: the turn goes on, the event says why, nothing is tried at once again (S0.25, D18)."""
    bench.config(mode="background")
    error = {"code": "auth", "message": "no such key"}
    async with bench.host(compact(error=error), ANSWER, {"text": "two"}) as host:
        session = await long_session(bench, host)
        await session.prompt("and now?")
        result = await session.prompt("and then?")
    assert result.text == "two" and [item["state"] for item in bench.compactions()] == ["pending", "failed"]


async def test_closing_the_host_ends_what_works_beside(bench):
    """No background task outlives its host (STYLE), and the session goes on (D18)."""
    bench.config(mode="background")
    async with bench.host(compact(delay=30), ANSWER) as host:
        session = await long_session(bench, host)
        await session.prompt("and now?")
    assert len(asyncio.all_tasks()) == 1
    assert [item["state"] for item in bench.compactions()] == ["pending", "stale"]
    assert "the host closed" in bench.compactions("stale")[0]["reason"]
    bench.config(mode="before")
    async with bench.host(compact(), ANSWER) as host:
        again = await host.resume(bench.vault, session.id)
        runs = await host.store.runs(session.id)
        assert [(run.state, run.end_reason) for run in runs if run.purpose == "compact"] == [("ended", "interrupted")]
        assert (await again.prompt("go on")).text == "the answer"


async def test_what_a_killed_host_began_is_settled_by_the_next_turn(bench):
    """A run that nobody ends is ended by whoever opens the session next, and an event says why (S1.32)."""
    bench.config(mode="background")
    async with bench.host(compact(delay=30), ANSWER) as host:
        session = await long_session(bench, host)
        await session.prompt("and now?")
        session.release()  # closed without the session in hand, as a killed host is
    runs = await stored_runs(bench, session.id)
    assert [run.state for run in runs if run.purpose == "compact"] == ["running"]
    bench.config(mode="before")
    async with bench.host(compact(), ANSWER) as host:
        await (await host.resume(bench.vault, session.id)).prompt("go on")
    runs = await stored_runs(bench, session.id)
    assert [run.end_reason for run in runs if run.purpose == "compact"] == ["interrupted", "completed"]
    assert [(item["state"], item["run"]) for item in bench.compactions()][1] == ("stale", runs[1].id)


async def stored_runs(bench, session):
    store = open_store(bench.home)
    try:
        return await store.runs(session)
    finally:
        store.close()
