"""A host killed in the middle of a tool, and the session that goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from moryflow import RunOptions


def start(rig, *arguments):
    environ = {**os.environ, "MORYFLOW_HOME": str(rig.home), "HOME": str(rig.vault.parent)}
    command = [sys.executable, "-m", "moryflow", *arguments]
    return subprocess.Popen(
        command, cwd=rig.vault, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(file: Path, process) -> None:
    deadline = time.monotonic() + 200
    while not file.exists():
        assert time.monotonic() < deadline and process.poll() is None, process.stderr.read()
        time.sleep(0.02)


async def test_a_turn_killed_in_a_tool_is_resumed_and_the_tool_is_not_run_twice(rig):
    """kill -9 in a tool: the call gets one interrupted result and is never silently run again (S4.19, S1.6)."""
    rig.allow_all()
    model = rig.script(rig.call("bash", command="echo ran >> count.txt; sleep 60"), {"text": "unreached"})
    process = start(rig, "run", "-m", model, "go")
    count = rig.vault / "count.txt"
    wait_for(count, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    process.stderr.close()

    async with rig.host() as host:
        session = await host.resume(rig.vault, model=rig.script({"text": "I was interrupted."}))
        result = await session.prompt("go on")
        path = await host.store.path(session.id)
        runs = await host.store.runs(session.id)
    assert [(run.state, run.end_reason) for run in runs] == [("ended", "interrupted"), ("ended", "completed")]
    assert count.read_text() == "ran\n"
    assert [node.payload["status"] for node in path if node.kind == "tool"] == ["interrupted"]
    assert [node.kind for node in path] == ["user", "assistant", "tool", "user", "assistant"]
    assert result.text == "I was interrupted."


async def test_a_call_that_was_answered_later_and_killed_while_it_ran_is_not_run_twice(rig):
    """Its record is that of its answer, on every resume; a second record would let it run again (S4.19, S2.15, D65)."""
    count = rig.vault / "count.txt"
    async with rig.host() as host:
        script = rig.script(rig.call("bash", command="echo ran >> count.txt; sleep 60"), {"text": "unreached"})
        session = await host.new_session(rig.vault, model=script)
        await session.prompt("go", options=RunOptions(on_ask="fail"))
        [question] = await host.store.approvals(state="pending")
        await host.approvals.reply(question.id, "once")
    process = start(rig, "run", "--continue", "-m", rig.script({"text": "unreached"}))
    wait_for(count, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    async with rig.host() as host:
        session = await host.resume(rig.vault, model=rig.script({"text": "I was interrupted."}))
        await session.resume()
        calls = await host.store.calls(session=session.id)
    assert count.read_text() == "ran\n"
    assert [(call.tool, call.state) for call in calls] == [("bash", "interrupted")]


async def test_interrupt_stops_the_turn_with_its_exit_code(rig):
    """SIGINT stops the turn: exit code 130, nothing left open (S2.15)."""
    rig.allow_all()
    process = start(
        rig,
        "run",
        "-m",
        rig.script(rig.call("bash", command="echo x > begun; sleep 60"), {"text": "no"}),
        "go",
        "--output",
        "json",
    )
    wait_for(rig.vault / "begun", process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert json.loads(out)["end_reason"] == "stopped"
