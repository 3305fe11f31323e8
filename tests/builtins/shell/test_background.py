"""Commands in the background: a handle with tail and stop, ended with the session (issue F)."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import secrets
import sys
import time
from asyncio.subprocess import PIPE
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from moryflow import RunOptions
from moryflow.runtime.session_commands import delete_session, run_slash

BUILTINS = tuple(f"moryflow_builtins.{name}" for name in ("permission", "shell", "tasks", "user_agents"))


@pytest.fixture
def shells(bench: Any) -> Any:
    """A bench with the shell, in which every command is allowed and runs outside the sandbox."""
    bench.builtins = (*bench.builtins, *BUILTINS)
    bench.config(permission={"rules": [{"domain": "bash", "pattern": "*", "decision": "allow"}]})
    return bench


def bash(command: str, **more: Any) -> dict[str, Any]:
    return {"calls": [{"name": "bash", "arguments": {"command": command, "background": True, **more}}]}


def look(outcome_id: str, **more: Any) -> dict[str, Any]:
    return {"calls": [{"name": "bash_output", "arguments": {"id": outcome_id, **more}}]}


def running(mark: str) -> bool:
    """Whether a process has `mark` among its words."""
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in place.read_bytes():
                return True
        except OSError:
            continue
    return False


def gone(mark: str) -> bool:
    deadline = time.monotonic() + 20
    while running(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not running(mark)


def script(bench: Any, *turns: dict[str, Any]) -> str:
    """Write a script of its own; return the model's name."""
    file = bench.home.parent / f"{secrets.token_hex(4)}.json"
    file.write_text(json.dumps(turns), encoding="utf-8")
    return f"script:{file}"


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (a process of another program is waited for)
            await asyncio.sleep(0.02)


def tools_of(session: Any, path: list[Any]) -> list[str]:
    return [str(node.payload["output"]) for node in path if node.kind == "tool"]


async def test_a_command_goes_on_after_its_call_and_is_looked_at_and_stopped(shells: Any):
    """The call returns at once; each look shows what is new; a stop ends it with all that it started."""
    mark = secrets.token_hex(8)
    async with shells.host() as host:
        session = await host.new_session(
            shells.vault, model=script(shells, bash(f"echo up; sleep 300; echo {mark}"), {"text": "ok"})
        )
        assert (await session.prompt("serve")).end_reason == "completed"
        (said,) = tools_of(session, list(await host.store.path(session.id)))
        name = said.split()[0]
        assert said.startswith("bg_")
        await until(partial(running, mark))
        await session.set_model(
            script(shells, look(name, wait=20), look(name), look(name, stop=True), look(name), {"text": "ok"})
        )
        await session.prompt("look")
        outputs = tools_of(session, list(await host.store.path(session.id)))[1:]
        assert outputs[:3] == [f"up\n[{name} runs]", f"[{name} runs]", f"[{name} was stopped]"]
        assert "there are: none" in outputs[3]
        assert gone(mark)


async def test_a_note_says_when_it_has_ended(shells: Any):
    """With its exit code and the end of its output, which the model reads with the next prompt."""
    async with shells.host() as host:
        session = await host.new_session(
            shells.vault, model=script(shells, bash("echo built; exit 3"), {"text": "a"}, {"text": "b"})
        )
        await session.prompt("build")
        module = sys.modules["moryflow_builtins.shell.background"]
        await until(lambda: all(one.task.done() for one in module.commands_of(session.id)))
        await session.prompt("and?")
        notes = [node.payload["text"] for node in await host.store.path(session.id) if node.kind == "note"]
        assert len(notes) == 1 and "exit code 3" in notes[0] and "built" in notes[0]


async def test_commands_end_with_the_host_and_with_a_deleted_session(shells: Any):
    """Nothing is left when `run` or `chat` ends, whatever ignores a polite signal included."""
    first, second = secrets.token_hex(8), secrets.token_hex(8)
    async with shells.host() as host:
        for mark in (first, second):
            command = bash(f"(setsid sh -c 'sleep 300; echo {mark}' &); sleep 300; echo {mark}")
            session = await host.new_session(shells.vault, model=script(shells, command, {"text": "ok"}))
            await session.prompt("serve")
            await until(partial(running, mark))
        await session.settle()
        session.release()
        await delete_session(host, session.row)
        assert await asyncio.to_thread(gone, second)
        assert running(first)
    assert gone(first)


async def test_the_command_of_a_host_that_was_killed_is_ended_by_the_next(shells: Any):
    """Its mark is on the disk before it starts."""
    mark = secrets.token_hex(8)
    model = script(
        shells, bash(f"sleep 300; echo {mark}"), {"calls": [{"name": "bash", "arguments": {"command": "sleep 300"}}]}
    )
    environ = {**os.environ, "MORYFLOW_HOME": str(shells.home)}
    command = [sys.executable, "-m", "moryflow", "run", "-m", model, "serve"]
    process = await asyncio.create_subprocess_exec(*command, env=environ, cwd=shells.vault, stdout=PIPE, stderr=PIPE)
    await until(partial(running, mark))
    process.kill()
    await process.wait()
    shells.cli("tool", "list")
    shells.cli("tool", "run", "bash", "--command", "true")
    assert gone(mark)


async def test_at_most_eight_run_at_once(shells: Any):
    """The ninth is refused with the next step."""
    async with shells.host() as host:
        model = script(shells, *[bash(f"sleep 300 {number}") for number in range(9)], {"text": "ok"})
        session = await host.new_session(shells.vault, model=model)
        await session.prompt("many", options=RunOptions(max_steps=20))
        outputs = tools_of(session, list(await host.store.path(session.id)))
        assert len([text for text in outputs if text.startswith("bg_")]) == 8
        assert "8 commands run in the background already" in outputs[-1]


async def test_a_rule_holds_in_the_background_too(shells: Any):
    """The same command is judged, whatever the call says beside it (R1)."""
    shells.config(permission={"rules": [{"domain": "bash", "pattern": "sleep *", "decision": "deny"}]})
    outcome = await shells.run([bash("sleep 300"), {"text": "ok"}])
    assert [node["status"] for node in outcome.tools()] == ["denied"]


async def test_a_command_that_cannot_be_run_says_so_in_a_note(shells: Any):
    """Who waits for its output learns it at once (issue F)."""
    (shells.vault / "sub").mkdir()
    async with shells.host() as host:
        module = importlib.import_module("moryflow_builtins.shell.background")
        session = await host.new_session(
            shells.vault, model=script(shells, bash("true", workdir="sub"), {"text": "a"}, {"text": "b"})
        )
        host.bus.subscribe(lambda event: (shells.vault / "sub").rmdir() if event.data.get("state") == "running" else None)
        await session.prompt("go")
        await until(lambda: all(one.task.done() for one in module.commands_of(session.id)))
        await session.prompt("and?")
        notes = [node.payload["text"] for node in await host.store.path(session.id) if node.kind == "note"]
        assert len(notes) == 1 and "was not run" in notes[0]


async def test_jobs_lists_commands_beside_sub_agents(shells: Any):
    """`/jobs`: what works for a session, whichever plugin began it (issue F)."""
    agents = shells.home / "agents"
    agents.mkdir(parents=True, mode=0o700)
    text = f"---\nid: slow\ndescription: d\nmodel: {script(shells, {'text': 'late', 'delay': 30})}\n---\nWork."
    (agents / "slow.md").write_text(text, encoding="utf-8")
    (agents / "slow.md").chmod(0o600)
    both = bash("sleep 300")
    task = {"agent": "slow", "prompt": "go", "description": "count", "background": True}
    both["calls"].append({"name": "task", "arguments": task})
    async with shells.host() as host:
        session = await host.new_session(shells.vault, model=script(shells, both, {"text": "ok"}))
        await session.prompt("go", options=RunOptions(on_ask="deny"))
        listed = (await run_slash(host, session, "jobs", "")).text.splitlines()
        assert "runs  sleep 300" in listed[0] and "the agent slow works  count" in listed[1]
        await session.children.aclose()
        assert len((await run_slash(host, session, "jobs", "")).text.splitlines()) == 1
