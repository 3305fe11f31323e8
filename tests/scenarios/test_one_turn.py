"""One session works on one prompt at a time, and says truly when it is idle."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from moryflow import RunOptions, SessionBusy
from moryflow.base.events import Bus
from moryflow_sdk import ConfigError, Event

SLOW = {"text": "a b c", "pause": 0.02}


async def begun(session):
    """Wait until the session is working on a prompt."""
    works = asyncio.Event()
    end = session.subscribe(lambda event: works.set())
    await works.wait()
    end()


async def prompts(host, session):
    """Return the texts of the stored prompts."""
    return [node.payload["text"] for node in await host.store.path(session.id) if node.kind == "user"]


@pytest.mark.parametrize("second", ["prompt", "resume", "call", "scoped", "stream"])
async def test_a_second_turn_at_once_is_refused_as_busy(rig, second):
    """A session that works on a prompt refuses another with a typed error, and the first one is not touched (D67)."""
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script(SLOW, "two"))
        first = asyncio.create_task(session.prompt("one"))
        await begun(session)
        with pytest.raises(SessionBusy) as refused:
            match second:
                case "prompt":
                    await session.prompt("two")
                case "resume":
                    await session.resume()
                case "call":
                    await session.call("ls", "{}", RunOptions())
                case "scoped":
                    await session.scoped(lambda scope: asyncio.sleep(0))
                case _:
                    await anext(session.stream("two"))
        assert refused.value.code == "busy" and "queue=True" in refused.value.next_step
        assert (await first).text == "a b c"
        assert await prompts(host, session) == ["one"]


async def test_prompts_that_ask_for_it_wait_in_line(rig):
    """Queued prompts run one after another, in the order in which they came, each with its own options (D67)."""
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script(SLOW, rig.call("ls"), "three"))
        first = asyncio.create_task(session.prompt("one"))
        await begun(session)
        second = asyncio.create_task(session.prompt("two", queue=True, options=RunOptions(max_steps=1)))
        third = asyncio.create_task(session.prompt("three", queue=True))
        await asyncio.sleep(0)
        with pytest.raises(SessionBusy):
            await session.prompt("four")
        ended = [result.end_reason for result in await asyncio.gather(first, second, third)]
        assert ended == ["completed", "max_steps", "completed"]
        assert await prompts(host, session) == ["one", "two", "three"]


async def test_a_queued_prompt_waits_for_another_holder_of_the_session(rig):
    """Whoever else works in the session, here by a second object, is waited for too (D67)."""
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script(SLOW, "two"))
        other = await host.resume(rig.vault, session.id, model=session.model)
        first = asyncio.create_task(session.prompt("one"))
        await begun(session)
        with pytest.raises(SessionBusy):
            await other.prompt("two")
        assert (await other.prompt("two", queue=True)).text == "two"
        assert (await first).text == "a b c"


async def test_idle_is_sent_when_the_next_prompt_is_taken(rig):
    """Who hears ``idle`` may prompt at once; who prompts before is told ``busy`` (S4.17)."""
    heard = []
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script("one", "two"))
        next_turns = []

        def hear(event):
            heard.append((event.type, event.data.get("status")))
            if heard[-1] == ("session.status", "idle") and not next_turns:
                next_turns.append(asyncio.ensure_future(session.prompt("go on")))

        session.subscribe(hear)
        await session.prompt("go")
        assert (await next_turns[0]).text == "two"
    assert heard[-1] == ("session.status", "idle")
    assert heard.count(("session.status", "idle")) == heard.count(("turn.finish", None)) == 2


async def test_a_session_with_a_queued_prompt_is_not_idle_in_between(rig):
    """``idle`` is sent once, after the last prompt in line; also when that one cannot begin (S4.17, D67)."""
    statuses = []
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script(SLOW, "two", SLOW))
        session.subscribe(lambda event: event.type == "session.status" and statuses.append(event.data["status"]))
        first = asyncio.create_task(session.prompt("one"))
        await begun(session)
        await asyncio.gather(first, session.prompt("two", queue=True))
        assert statuses == ["busy", "busy", "idle"]
        statuses.clear()
        first = asyncio.create_task(session.prompt("three"))
        await begun(session)
        second = asyncio.create_task(session.prompt("four", queue=True))
        await asyncio.sleep(0)
        session.model = "nobody/knows"
        await asyncio.wait((first, second))
        assert isinstance(second.exception(), ConfigError) and statuses == ["busy", "idle"]


async def test_stored_events_stay_in_order_where_idle_is_held_back(rig):
    """A note that came too late for the turn is written before ``idle`` is sent, and the numbers still grow (S2.22)."""
    events = []
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script("one"))
        host.bus.subscribe(events.append)

        def late(event):
            if event.type == "turn.finish":
                session._lease.inbox.append(lambda journal: journal.event("session.title", title="late"))

        session.subscribe(late)
        await session.prompt("go")
    numbers = [event.seq for event in events if event.seq is not None]
    assert numbers == sorted(numbers)
    assert [event.type for event in events][-2:] == ["session.status", "session.title"]


async def test_a_stream_yields_the_events_of_one_turn_and_its_result(rig):
    """``session.stream(prompt)`` is an async generator of events; the last one is the result (S2.26, D78)."""
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script({"text": "two words"}))
        events = [event async for event in session.stream("go")]
    kinds = [event.type for event in events]
    assert kinds[0] == "turn.start" and kinds[-2:] == ["session.status", "result"]
    assert "".join(event.data["text"] for event in events if event.type == "text.delta") == "two words"
    assert events[-1].session == session.id and events[-1].data["end_reason"] == "completed"
    assert events[-1].as_json()["text"] == "two words"


async def test_a_stream_that_is_closed_early_interrupts_its_turn_only(rig):
    """What the turn had is kept; a stream that waits in line gives up its place and touches nobody (S2.26)."""
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script(SLOW, SLOW, "three"))
        async with aclosing(session.stream("one")) as first:
            async for event in first:
                if event.type == "text.delta":
                    waiting = session.stream("never", queue=True)
                    asked = asyncio.ensure_future(anext(waiting))
                    await asyncio.sleep(0)
                    asked.cancel()
                    await asyncio.wait((asked,))
                    assert session.running
                    break
        path = await host.store.path(session.id)
        assert [node.kind for node in path] == ["user", "assistant"] and path[-1].payload["partial"]
        assert [run.end_reason for run in await host.store.runs(session.id)] == ["interrupted"]
        assert (await session.prompt("go on")).text == "a b c"


async def test_a_stream_fails_as_its_prompt_does(rig):
    """What :meth:`prompt` raises, the stream raises (S2.26)."""
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script("one"))
        session.model = "nobody/knows"
        with pytest.raises(ConfigError, match="unknown model"):
            await anext(session.stream("go"))


async def test_subscriptions_are_per_session(rig):
    """A subscriber of one session hears of it and of its sub-agents, and not of others; the host's bus tells of all (S4.17)."""
    rig.allow_all()
    own, every = [], []
    task = rig.call("task", agent="explore", description="look", prompt="look around")
    async with rig.host() as host:
        model = rig.script(task, "found it", "done", "other")
        session = await host.new_session(rig.vault, model=model)
        other = await host.new_session(rig.vault, model=model)
        end = session.subscribe(own.append)
        host.bus.subscribe(every.append)
        await session.prompt("go")
        await other.prompt("go")
        children = {row.id for row in await host.store.sessions(purpose="child", parent=session.id)}
        end()
        before = len(own)
        await other.prompt("again")
    assert len(children) == 1
    assert {event.session for event in own} == {session.id, *children}
    assert {event.session for event in every} == {session.id, other.id, *children}
    assert len(own) == before


async def test_streams_of_two_sessions_do_not_mix(rig):
    """Two sessions that stream at once each yield only their own events (S2.26, S4.17)."""
    async with rig.host() as host:
        sessions = [await host.new_session(rig.vault, model=rig.script(*[SLOW] * 2)) for _ in range(2)]

        async def taken(session):
            return {event.session async for event in session.stream("go")}

        assert await asyncio.gather(*map(taken, sessions)) == [{session.id} for session in sessions]


def test_a_late_subscriber_hears_sub_agents_that_began_before_it():
    """Who subscribes while sub-agents of sub-agents work hears them too (S4.17)."""
    bus, heard = Bus(), []
    bus.publish(Event(type="turn.start", session="child", parent="top"))
    bus.subscribe(lambda event: heard.append(event.session), "top")
    for session, parent in (("grandchild", "child"), ("other", None), ("child", "top")):
        bus.publish(Event(type="text.delta", session=session, parent=parent))
    assert heard == ["grandchild", "child"]


@pytest.mark.parametrize(("texts", "reason", "steps"), [(["a"] * 9, "doom_loop", 5), ([*"abcdefgh", "end"], "completed", 9)])
async def test_a_model_that_only_pauses_is_not_asked_for_ever(rig, texts, reason, steps):
    """``pause`` asks to be asked again; the fifth answer in a row that says the same ends the turn (S4.4)."""
    paused = [{"text": text, "finish": "pause"} for text in texts if text != "end"]
    result, _ = await rig.run(*paused, "end")
    assert (result.end_reason, result.steps) == (reason, steps)


async def test_a_filtered_answer_with_calls_says_that_it_was_filtered(rig):
    """What was cut off in the middle of a call says why (S4.6)."""
    call = {"name": "write", "arguments": {"path": "a.txt", "content": "x"}, "problem": "incomplete"}
    result, _ = await rig.run({"calls": [call], "finish": "content_filter"})
    assert result.end_reason == "model_error" and "filtered" in str(result.error) and not (rig.vault / "a.txt").exists()
