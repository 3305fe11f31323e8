"""A host is killed while commands run: what they started is ended before the session goes on, and both sides are told."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="marks are read in /proc")

HOST = """
    import asyncio, sys
    from pathlib import Path
    from moryflow import open_host

    async def main():
        async with await open_host(Path(sys.argv[1])) as host:
            session = await host.new_session(sys.argv[2], model=sys.argv[3])
            await session.prompt("go")

    asyncio.run(main())
"""


def unconfined(rig):
    """Allow commands and sub-agents, and do without the sandbox: with it all of a command ends with the host."""
    allowed = [{"domain": domain, "pattern": "*", "decision": "allow"} for domain in ("bash", "task")]
    rig.config(permission={"rules": [*allowed, {"domain": "bash", "pattern": "sandbox:commands", "decision": "deny"}]})


def kill_while_asleep(rig, model, sleeping, seconds, count):
    """Run a turn in another process, and kill that with SIGKILL once `count` processes sleep."""
    argv = [sys.executable, "-c", dedent(HOST), str(rig.home), str(rig.vault), model]
    host = subprocess.Popen(argv, env={**os.environ, "MORYFLOW_HOME": str(rig.home)})
    try:
        while len(sleeping(seconds)) < count:
            assert host.poll() is None, "the turn ended"
            time.sleep(0.05)
    finally:
        host.send_signal(signal.SIGKILL)
        host.wait()
    assert len(sleeping(seconds)) == count, "they ended with the host; the test shows nothing"


async def test_what_a_killed_call_started_is_ended_before_the_session_goes_on(rig, sleeping):
    """Children in sessions of their own are found by the mark; the model and the person are told how many (S1.3, S0.36)."""
    unconfined(rig)
    seconds = f"6{secrets.randbelow(10**9)}"
    command = f"setsid sleep {seconds} & sleep {seconds} & wait"
    kill_while_asleep(rig, rig.script(rig.call("bash", command=command)), sleeping, seconds, 2)
    notices, left = [], []
    async with rig.host() as host:
        session = await host.resume(rig.vault, model=rig.script("I see"))

        def hear(event):
            notices.extend([event.data["text"]] if event.type == "session.notice" else [])
            left.append(len(sleeping(seconds)))

        session.subscribe(hear)
        result = await session.prompt("and now?")
        path = await host.store.path(session.id)
        calls = await host.store.calls(session=session.id)
    assert result.text == "I see" and set(left) == {0}
    outputs = [node.payload["output"] for node in path if node.kind == "tool"]
    assert outputs == ["interrupted: the host ended while it ran"]
    # the shell, the two sleeps, and nothing else
    assert notices == ["the host was ended while bash ran; 3 processes that still ran were ended"]
    assert [call.state for call in calls] == ["interrupted"]


async def test_what_a_killed_sub_agent_started_is_ended_before_its_parent_goes_on(rig, sleeping):
    """Nobody works for the sub-agent any more, so its parent answers for what its commands left (S2.3, S1.3)."""
    unconfined(rig)
    seconds = f"6{secrets.randbelow(10**9)}"
    task = rig.call("task", agent="general", description="sleep", prompt="sleep")
    kill_while_asleep(rig, rig.script(task, rig.call("bash", command=f"setsid sleep {seconds} & wait")), sleeping, seconds, 1)
    async with rig.host() as host:
        session = await host.resume(rig.vault, model=rig.script("I see"))
        await session.prompt("and now?")
        outputs = [node.payload["output"] for node in await host.store.path(session.id) if node.kind == "tool"]
    assert not sleeping(seconds)
    assert outputs == ["interrupted: the host ended while it ran"]


async def test_another_branch_goes_on_without_what_the_killed_call_started(rig, sleeping):
    """A person who steps back before the killed call gets rid of its processes too, and its record says what it is (S1.7)."""
    unconfined(rig)
    seconds = f"6{secrets.randbelow(10**9)}"
    script = rig.script(rig.call("bash", command=f"sleep {seconds}"))
    kill_while_asleep(rig, script, sleeping, seconds, 1)
    async with rig.host() as host:
        session = await host.resume(rig.vault, model=rig.script("fine"))
        path = await host.store.path(session.id)
        hold = await host.store.hold(session.id)
        await hold.switch(path[0].id)
        hold.release()
        assert (await session.prompt("something else")).text == "fine"
        assert [call.state for call in await host.store.calls(session=session.id)] == ["interrupted"]
    assert not sleeping(seconds)


async def test_a_call_of_a_living_host_is_let_be(rig):
    """Who opens the parent of a sub-agent that another process works in does not end that one's commands (S1.3)."""
    from moryflow.base.paths import call_mark
    from moryflow.runtime.session_lease import end_leftovers
    from moryflow.store import CallRow, Commit
    from moryflow_sdk.support.processes import marked_environment

    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script("x"))
        child = await host.store.begin_child(session.row, agent="explore", mode="agent", title="", origin={})
        row = CallRow("call_1", child.session.id, "t", "n", 1, "bash", "{}", "", "running")
        await child.commit(Commit(calls=[row]))
        mark = call_mark(rig.home, child.session.id, "n", "call_1")
        process = await asyncio.create_subprocess_exec("sleep", "60", env=marked_environment(mark))
        try:
            assert await end_leftovers(host.store, rig.home, session.id) == ([], "")
            assert process.returncode is None
            child.release()
            found = await end_leftovers(host.store, rig.home, session.id)
            assert "1 process that still ran was ended" in found[1]
            assert await process.wait() == -signal.SIGKILL
        finally:
            if process.returncode is None:
                process.kill()
