"""The stream of events: exact, across connections, servers and processes (CONTRACT 4, ARCHITECTURE 10)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked_command
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from moryflow.base.events import Bus, now
from moryflow.server.events import BACKLOG, HEARTBEAT_SECONDS, EventFollower, Filter, Reader, frame
from moryflow.store import Commit, Store, open_store
from moryflow_sdk import Event

from .conftest import MORYFLOW, Server

DURABLE = ["turn.start", "session.status", "step.start", "step.finish", "session.title", "turn.finish", "session.status"]


def _durable(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if "_id" in event and event["type"] not in ("open", "reset")]


def test_a_turn_is_seen_as_it_happens(shared: Server) -> None:
    """Durable events carry their number, deltas stand between them in their order and carry none (S2.10)."""
    events = shared.whole_turn(shared.session("Hello there."))
    assert [event["type"] for event in _durable(events)] == DURABLE
    assert all(event["_id"] == event["seq"] for event in _durable(events))
    types = [event["type"] for event in events]
    text = "".join(event["text"] for event in events if event["type"] == "text.delta")
    assert text == "Hello there."
    assert types.index("step.start") < types.index("text.delta") < types.index("step.finish")


def test_who_comes_back_gets_exactly_what_it_missed(server: Server) -> None:
    """From any place, by Last-Event-ID or `after`; nothing twice, nothing lost (S2.10)."""
    session = server.session("One.", "Two.")
    server.whole_turn(session)
    server.whole_turn(session)
    with server.stream("/events?after=0") as stream:
        everything = [next(stream.frames())]
        while len(everything) < 13:
            everything.append(next(stream.frames()))
    everything = _durable(everything)
    assert [event["_id"] for event in everything] == sorted(event["_id"] for event in everything)
    for place in range(0, 12, 2):
        last = everything[place]["_id"]
        for path, header in (("/events", last), (f"/events?after={last}", None), (f"/sessions/{session}/events", last)):
            with server.stream(path, header) as stream:
                stream.until("open", seq=last)
                rest = [next(stream.frames()) for _ in everything[place + 1 :]]
            assert rest == everything[place + 1 :]


def test_a_killed_server_loses_nothing_for_those_who_come_back(start: Callable[..., Server]) -> None:
    """kill -9 in the middle of a turn; the next server on the same port goes on after the last number (D: one truth)."""
    server = start()
    files = server.home.parent / "files"
    session = server.session({"calls": [{"name": "hold", "arguments": {}}]}, "Done.")
    with server.stream() as stream:
        server.post(f"/sessions/{session}/prompt", {"text": "hold"}, 202)
        last = stream.until("tool.start", state="running")["_id"]
        server.end(signal.SIGKILL)
        assert list(stream.frames()) == []
    again = start(port=server.port)
    assert again.token == server.token
    (files / "go").touch()
    with again.stream("/event", last) as stream:
        again.post(f"/sessions/{session}/resume", {}, 202)
        stream.until("session.status", status="idle")
        ids = [event["_id"] for event in _durable(stream.seen)]
        assert ids == sorted(set(ids))
        assert min(ids) > last
        results = [event for event in stream.seen if event["type"] == "tool.result"]
    assert results[0]["status"] == "interrupted"


@pytest.mark.parametrize(("after", "reason"), [(10_000_000, "newer"), (2, "older")])
def test_a_place_that_is_not_ours_is_told_to_begin_anew(server: Server, after: int, reason: str) -> None:
    """Never silent: one `reset`, with the place that goes with a fresh snapshot."""
    first = server.session("One.")
    server.whole_turn(first)
    second = server.session("Two.")
    server.whole_turn(second)
    assert server.ask("DELETE", f"/sessions/{first}").status == 200
    with server.stream("/events", after) as stream:
        reset = stream.until("reset")
        assert reset["reason"] == reason
        assert reset["seq"] == stream.until("open")["seq"] == server.get(f"/sessions/{second}")["seq"]


def test_a_run_in_another_process_is_seen(server: Server, tmp_path: Path) -> None:
    """What a terminal does is in the same table, so every client sees it (ARCHITECTURE 10)."""
    script = tmp_path / "other.json"
    script.write_text('["From a terminal."]')
    with server.stream("/global/event") as stream:
        stream.until("open")
        forked_command.run(
            [*MORYFLOW, "run", "-q", "-m", f"script:{script}", "--vault", str(server.vault), "hello"],
            check=True, cwd=server.vault, env={**os.environ, "MORYFLOW_HOME": str(server.home)},
        )  # fmt: skip
        stream.until("session.status", status="idle")
        assert [event["type"] for event in _durable(stream.seen)] == DURABLE
    [session] = server.get("/sessions")
    assert server.get(f"/sessions/{session['id']}")["nodes"][-1]["payload"]["text"] == "From a terminal."


def test_only_what_is_asked_for_comes(shared: Server) -> None:
    """By session and by type; other hosts' names are taken, and sent beside ours (D: the seeds' names)."""
    watched, other = shared.session("One."), shared.session("Two.")
    with shared.stream(f"/events?session={watched}&types=session.idle,turn.finish") as stream:
        stream.until("open")
        shared.whole_turn(other)
        shared.whole_turn(watched)
        assert stream.until("turn.finish")["session"] == watched
        assert stream.until("session.status")["status"] == "idle"
        assert len(stream.seen) == 3
    assert shared.ask("GET", "/events?session=nobody").status == 404
    assert shared.ask("GET", "/events?after=x").status == 422


def test_what_a_sub_agent_does_belongs_to_its_session(shared: Server) -> None:
    """A stream of one session has the events of those below it."""
    call = {"calls": [{"name": "task", "arguments": {"agent": "general", "prompt": "look", "description": "look"}}]}
    session = shared.session(call, "The child.", "The parent.")
    events = shared.whole_turn(session)
    assert {event["session"] for event in events} > {session}


def test_two_names_of_one_event_are_sent(shared: Server) -> None:
    """`approval.requested` comes beside `permission.asked`, without a number of its own."""
    session = shared.session({"calls": [{"name": "danger", "arguments": {"what": "x"}}]}, "Done.")
    with shared.stream() as stream:
        shared.post(f"/sessions/{session}/prompt", {"text": "go"}, 202)
        asked = stream.until("permission.asked")
        beside = stream.until("approval.requested")
        assert "_id" not in beside
        assert beside["approval_id"] == asked["approval_id"]
        shared.post(f"/sessions/{session}/cancel")
        stream.until("session.status", status="idle")


def test_a_reader_that_takes_nothing_costs_a_bounded_amount() -> None:
    """A megabyte waits for it at most; then it is told to begin anew."""
    reader = Reader(Filter(), 0)
    for _ in range(100):
        reader.put(b"x" * (BACKLOG // 10))
    assert reader.reset == "slow"
    assert asyncio.run(reader.take(0)) == b""


def test_a_stream_that_says_nothing_has_a_heartbeat(tmp_path: Path) -> None:
    """Every 10 seconds unless something is told, so that both sides notice a connection that is gone (CONTRACT 4, R27)."""
    assert HEARTBEAT_SECONDS == 10.0
    asyncio.run(_beats(open_store(tmp_path / "home")))


async def _beats(store: Store) -> None:
    follower = EventFollower(store, Bus(), heartbeat=0.01)
    await follower.start()
    frames = follower.frames(None, Filter(), {})
    opening = [await anext(frames), await anext(frames)]
    assert b"event: open" in opening[1]
    assert [await anext(frames) for _ in range(3)] == [b": \n\n"] * 3
    await frames.aclose()  # type: ignore[attr-defined]
    follower.stop()
    store.close()


def test_one_event_larger_than_the_bound_is_still_sent() -> None:
    """A single large event is not a sign of a slow reader."""
    reader = Reader(Filter(), 0)
    reader.put(b"x" * (2 * BACKLOG))
    assert not reader.reset


@settings(max_examples=25)
@given(
    cuts=some.lists(some.integers(0, 30), min_size=1, max_size=6), foreign=some.lists(some.booleans(), min_size=30, max_size=30)
)
def test_whatever_is_written_by_whom_each_number_comes_once(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], foreign: list[bool]
) -> None:
    """With two writers, and readers that come at any time, each reader gets all that is behind its place, in order."""
    asyncio.run(_property(open_store(tmp_path_factory.mktemp("home")), cuts, foreign))


async def _property(store: Store, cuts: list[int], foreign: list[bool]) -> None:
    bus = Bus()
    follower = EventFollower(store, bus)
    await follower.start()
    row = await store.create(vault="/v", agent="a", mode="agent")
    hold = await store.hold(row.id)
    readers: list[tuple[int, asyncio.Task[list[int]]]] = []
    for number, elsewhere in enumerate(foreign):
        for cut in (cut for cut in cuts if cut == number):
            readers.append((cut, asyncio.create_task(_collect(follower, cut, 30))))
            await asyncio.sleep(0)
        done = await hold.commit(Commit(events=[Event(type="note", session=row.id, ts=now())]))
        if not elsewhere:
            bus.publish(done.events[0])
    for cut, task in readers:
        assert await asyncio.wait_for(task, 60) == list(range(cut + 1, 31))
    follower.stop()
    hold.release()
    store.close()


async def _collect(follower: EventFollower, after: int, last: int) -> list[int]:
    found: list[int] = []
    async for data in follower.frames(after, Filter(types=["note"]), {}):
        parts = data.decode().split("\n\n")
        found += [int(part.splitlines()[0][4:]) for part in parts if "event: note" in part]
        if last in found:
            break
    return found


def test_half_a_character_does_not_end_the_stream() -> None:
    """A file name that is not UTF-8 is sent as an escape."""
    data = frame(Event(type="tool.result", session="s", seq=1, data={"output": "\udcff"}))
    assert b"\\udcff" in data
