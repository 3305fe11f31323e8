"""What a tool's own code starts ends with its call, without a word (invariant 9)."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from moryflow import open_host

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are looked up in /proc")

TOOLS = """
from moryflow_sdk import *
import asyncio, subprocess

KEPT = []

@tool(domain="read")
def starts(command: str) -> str:
    "Start a program and leave it."
    KEPT.append(subprocess.Popen(["sh", "-c", command]))
    return "started"

@tool(domain="read")
def runs(command: str) -> str:
    "Run a program to its end."
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True).stdout

@tool(domain="read", parallel_safe=True)
async def awaits(command: str, seconds: float = 0) -> str:
    "Start a program from a coroutine."
    process = await asyncio.create_subprocess_exec("sh", "-c", command)
    KEPT.append(process)
    await asyncio.sleep(seconds)
    return f"still runs: {process.returncode is None}"

@tool(domain="read")
def fails(command: str) -> str:
    "Start a program and fail."
    KEPT.append(subprocess.Popen(["sh", "-c", command]))
    raise ValueError("no")

@tool(domain="read", timeout=0.5)
def hangs(command: str) -> str:
    "Start a program and wait for it."
    subprocess.run(["sh", "-c", command])
    return "never"

@hookimpl
def tools():
    return [starts, runs, awaits, fails, hangs]

@hookimpl
def tool_gate(call):
    return Allow()
"""

Sleeping = Callable[[str], list[str]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the tools."""
    (tmp_path / "plugins").mkdir(mode=0o700)
    (tmp_path / "plugins/mine.py").write_text(TOOLS)
    (tmp_path / "plugins/mine.py").chmod(0o600)
    return tmp_path


def zombies() -> list[str]:
    """Return the children of this process that have ended and wait to be reaped."""
    tasks = Path("/proc/self/task").glob("*/children")
    children = [pid for place in tasks for pid in place.read_text().split()]
    return [pid for pid in children if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"]


async def call(host: Any, name: str, home: Path, **arguments: Any) -> Any:
    vault = home / "vault"
    vault.mkdir(exist_ok=True)
    return (await host.call_tool(name, arguments, vault=vault)).result


@pytest.mark.parametrize("tool", ["starts", "runs", "awaits", "fails", "hangs"])
@pytest.mark.parametrize(
    "command",
    ["exec sleep {}", "sleep {} >&- 2>&- & sleep 0.1", "setsid sleep {} >&- 2>&- & sleep 0.1", "trap '' TERM; sleep {} & wait"],
)
async def test_what_a_tool_started_ends_with_its_call(
    home: Path, tool: str, command: str, sleeping: Sleeping, capfd: Any
) -> None:
    """Children, orphans, other sessions; also when the body fails or overruns (invariant 9, SECURITY §3)."""
    if tool == "runs" and not command.endswith("0.1"):
        pytest.skip("it would wait for ever")
    seconds = f"6{secrets.randbelow(10**9)}"
    async with await open_host(home, environ={}, wait=300) as host:
        before = zombies()  # of a test before this one in the same process
        result = await call(host, tool, home, command=command.format(seconds))
        assert result.code != "denied" and not sleeping(seconds)
        assert set(zombies()) <= set(before)
        await asyncio.sleep(0.1)
    assert "Unknown child" not in "".join(capfd.readouterr())


async def test_a_call_beside_it_keeps_its_own(home: Path, sleeping: Sleeping) -> None:
    """Who ends first takes nothing from the others; the last leaves nothing (D67)."""
    seconds = f"6{secrets.randbelow(10**9)}"
    async with await open_host(home, environ={}, wait=300) as host:
        calls = [call(host, "awaits", home, command=f"exec sleep {seconds}", seconds=wait) for wait in (0, 1)]
        results = await asyncio.gather(*calls)
    assert [result.output for result in results] == ["still runs: True"] * 2
    assert not sleeping(seconds)


async def test_the_hosts_own_children_are_let_be(home: Path, sleeping: Sleeping) -> None:
    """What ran before, and what carries the mark of a call, is somebody else's."""
    seconds = f"6{secrets.randbelow(10**9)}"
    before = await asyncio.create_subprocess_exec("sleep", seconds)
    async with await open_host(home, environ={}, wait=300) as host:
        waiting = asyncio.ensure_future(call(host, "awaits", home, command="true", seconds=1))
        await asyncio.sleep(0.3)
        marked = await asyncio.create_subprocess_exec("sleep", seconds, env={**os.environ, "MORYFLOW_CALL": "another"})
        await waiting
        assert len(sleeping(seconds)) == 2
    for process in (before, marked):
        process.kill()
        await process.wait()
