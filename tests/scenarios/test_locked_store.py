"""Another program keeps the write lock of the session database while a turn works."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from contextlib import closing

import pytest
from moryflow import RunOptions
from moryflow.store import open_store, sql_store
from moryflow_sdk import MoryflowError

PLUGIN = """
    import pathlib
    @tool(domain="read")
    def count(path: str) -> str:
        "Count."
        with pathlib.Path(path).open("a") as file:
            file.write("x")
        return "counted"

    @hookimpl
    def tools():
        return [count]
"""


@pytest.fixture
def place(rig, monkeypatch):
    """A rig whose store is not patient, with a tool that counts how often it ran."""
    monkeypatch.setattr(sql_store, "FIRST_PAUSE", 0.01)
    rig.plugin("counting", PLUGIN)
    rig.allow_all()
    return rig


@contextlib.contextmanager
def locked(rig):
    """Another program that keeps the write lock."""
    with closing(sqlite3.connect(rig.home / "sessions.db", isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


@contextlib.asynccontextmanager
async def impatient(rig):
    """A host that waits only a moment for a lock."""
    async with rig.host() as host:
        host.__dict__["store"] = open_store(rig.home, patience=0.02)
        yield host


def turns(rig):
    """Return a script of one call and an answer, and the file in which the call leaves a trace."""
    trace = rig.vault / "trace"
    return rig.script(rig.call("count", path=str(trace)), {"text": "done"}), trace


async def results(host, session):
    """Return (status, output) of every tool node."""
    return [(n.payload["status"], n.payload["output"]) for n in await host.store.path(session.id) if n.kind == "tool"]


def when_started(session, act):
    """Call `act` once the tool runs."""

    def hear(event):
        if event.type == "tool.start" and event.data["state"] == "running":
            act()

    session.subscribe(hear)


async def test_a_result_waits_in_memory_for_the_lock_and_the_turn_goes_on(place):
    """The call ran once, has its result, and the person saw why the turn waited (SECURITY 3)."""
    model, trace = turns(place)
    waits = []
    async with impatient(place) as host:
        session = await host.new_session(place.vault, model=model)
        with contextlib.ExitStack() as stack:

            def hear(event):
                if event.type == "tool.start" and event.data["state"] == "running":
                    stack.enter_context(locked(place))
                if event.type == "session.status" and event.data["status"] == "retry":
                    waits.append(event.data["reason"])
                    if len(waits) == 3:
                        stack.close()

            session.subscribe(hear)
            result = await session.prompt("go")
        assert result.end_reason == "completed" and result.text == "done"
        assert await results(host, session) == [("ok", "counted")] and trace.read_text() == "x"
    assert len(waits) == 3 and "locked" in waits[0]


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_result_that_the_lock_outlives_is_lost_and_its_call_is_not_run_again(place, monkeypatch, stopped):
    """The turn ends with the error, by its timeout or by Ctrl-C; the next one names the call as interrupted (S0.68)."""
    monkeypatch.setattr(sql_store, "LOCK_TIMEOUT", 600 if stopped else 0.05)
    model, trace = turns(place)
    async with impatient(place) as host:
        session = await host.new_session(place.vault, model=model)
        with contextlib.ExitStack() as stack:
            when_started(session, lambda: stack.enter_context(locked(place)))

            def hear(event):
                if stopped and event.type == "session.status" and event.data["status"] == "retry":
                    session.cancel()

            session.subscribe(hear)
            result = await session.prompt("go")
        assert stopped or (result.end_reason == "host_error" and result.error.code == "locked")
    async with impatient(place) as host:
        session = await host.resume(place.vault, session.id, model=place.script({"text": "going on"}))
        assert (await session.prompt("and?")).text == "going on"
        ((status, told),) = await results(host, session)
        assert status != "ok" and "interrupted" in told and trace.read_text() == "x"


async def test_a_call_without_a_model_that_cannot_be_stored_says_why(place):
    """Not only that the turn ended with host_error: what happened, where, and what helps (CONTRACT §1)."""
    async with place.host() as host:
        session = await host.new_session(place.vault, model=place.script("unused"))
        with closing(sqlite3.connect(place.home / "sessions.db")) as other:
            other.execute("CREATE TRIGGER full BEFORE INSERT ON nodes BEGIN SELECT RAISE(ABORT, 'no room'); END")
            other.commit()
        with pytest.raises(MoryflowError, match="no room") as raised:
            await session.call("count", json.dumps({"path": str(place.vault / "counted")}), RunOptions())
        assert raised.value.next_step


async def test_a_call_without_a_model_keeps_its_stored_result_when_the_turn_ends_badly(place):
    """An error that the tool gave is its result, whatever went wrong after it was stored (CONTRACT §1)."""
    source = """
        @hookimpl
        def event(event, turn):
            if event.type == "turn.finish":
                turn.session_state["seen"] = True
    """
    place.plugin("observer", source)
    async with place.host() as host:
        session = await host.new_session(place.vault, model=place.script("unused"))
        with closing(sqlite3.connect(place.home / "sessions.db")) as other:
            full = "WHEN NEW.value LIKE '%seen%' BEGIN SELECT RAISE(ABORT, 'no room'); END"
            other.execute(f"CREATE TRIGGER full BEFORE INSERT ON plugin_state {full}")
            other.commit()
        done = await session.call("count", json.dumps({"path": str(place.vault)}), RunOptions())
    assert (done.result.status, done.exit_code) == ("error", 1)
