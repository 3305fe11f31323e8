"""Bodies of tools: where they run, how long they may, and what is left of the plugin when one never ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moryflow import RunOptions, open_host
from moryflow.hooks.threads import MAX_REPLACED
from moryflow.kernel.tool_call import BUILTIN_TIMEOUT, TIMEOUT, Deadline, run_body
from moryflow_sdk import ToolCall, ToolError

TOOLS = """
    import asyncio, threading, time

    @tool
    def work(seconds: float) -> str:
        "Work."
        time.sleep(seconds)
        return threading.current_thread().name

    together = threading.Barrier(4)

    @tool
    def meets() -> str:
        "Wait for three others that run at the same time."
        together.wait()
        return "met"

    @tool(timeout=0.1)
    def hangs() -> str:
        "Hang."
        time.sleep(600)

    @tool(timeout=0.1)
    async def stubborn() -> str:
        "Hang, and do not listen."
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                pass

    @tool
    def fails() -> str:
        "Fail."
        raise TimeoutError("the printer did not answer")

    @hookimpl
    def tool_gate(call):
        return Deny("seen") if call.tool == "seen" else None

    @hookimpl
    def tools():
        return [work, meets, hangs, stubborn, fails]
"""


async def run(started: Any, name: str, **arguments: Any) -> Any:
    return await run_body(Deadline(started.tools[name]), arguments)


async def test_plain_tools_run_on_a_thread_of_their_plugin(bench: Any):
    bench.user("mine", TOOLS)
    started = await bench.start()
    assert await run(started, "work", seconds=0) == "moryflow-mine"
    with pytest.raises(TimeoutError, match="printer"):
        await run(started, "fails")


async def test_tools_of_a_built_in_run_side_by_side(bench: Any):
    bench.builtin("inside", TOOLS)
    started = await bench.start()
    assert await asyncio.gather(*(run(started, "meets") for _ in range(4))) == ["met"] * 4
    with pytest.raises(ToolError, match="longer than"):
        await run(started, "hangs")
    assert await run(started, "work", seconds=0) == "moryflow-inside"


async def test_every_tool_has_a_deadline(bench: Any):
    """One minute for other people's code that names none, wherever it was found (invariant 9)."""
    bench.user("mine", TOOLS)
    bench.builtin("inside", TOOLS.replace("work", "busy"))
    tools = (await bench.start()).tools
    found_in_file = tools["busy"]._replace(tool=replace(tools["busy"].tool, source="/h/tools/t.py"))
    owned = (tools["work"], found_in_file, tools["busy"], tools["hangs"])
    assert [Deadline(each).seconds for each in owned] == [TIMEOUT, TIMEOUT, BUILTIN_TIMEOUT, 0.1]


@pytest.mark.parametrize("name", ["hangs", "stubborn"])
async def test_a_tool_that_never_ends_is_given_up_and_its_author_told_where_more_is_allowed(bench: Any, name: str):
    """The result says how long it was and which line says otherwise (invariant 9)."""
    file = bench.user("mine", TOOLS)
    started = await bench.start()
    with pytest.raises(ToolError, match="was abandoned") as raised:
        await asyncio.wait_for(run(started, name), 300)
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if f"def {name}" in text) - 1
    assert raised.value.code == "timeout"
    assert raised.value.next_step == f"to allow more time, set @tool(timeout=SECONDS) in mine.py:{line}"


@pytest.mark.parametrize(
    ("tier", "source", "more_time", "step"),
    [
        ("builtin", "/h/tools/todo.sh", "ask Ada", "ask Ada"),
        ("builtin", "/h/tools/apart.py", "", "to allow more time, set @tool(timeout=SECONDS) in apart.py"),
        ("builtin", "", "ask Ada", "ask Ada"),
        ("builtin", "", "", None),
        ("user", "part", "ask Ada", "ask Ada"),
        ("user", "part", "", "to allow more time, set @tool(timeout=SECONDS) in part"),
    ],
)
async def test_a_timeout_says_what_the_tool_says_of_it_or_names_the_decorator(
    bench: Any, tier: Any, source: str, more_time: str, step: str | None
):
    """A program or a server has no decorator; how it is configured, its plugin knows (invariant 9)."""
    bench.user("mine", TOOLS)
    known = (await bench.start()).tools["hangs"]
    owned = known._replace(tier=tier, tool=replace(known.tool, source=source, more_time=more_time))
    assert (Deadline(owned).timeout_error().next_step or None) == step


async def test_a_hanging_tool_costs_its_plugin_a_thread_and_not_its_gates(bench: Any):
    """The thread is replaced; a plugin whose tools hang again and again is broken, and its gates deny (invariant 3)."""
    bench.user("mine", TOOLS)
    scope = await bench.scope()
    started = scope.plugin_set
    for _ in range(MAX_REPLACED):
        with pytest.raises(ToolError, match="abandoned"):
            await run(started, "hangs")
        assert await run(started, "work", seconds=0) == "moryflow-mine"
        assert await gated(bench, scope) == []
    with pytest.raises(ToolError, match="abandoned"):
        await run(started, "hangs")
    with pytest.raises(ToolError, match="was disabled for this process") as raised:
        await run(started, "work", seconds=0)
    assert raised.value.code == "plugin_broken"
    assert [verdict.cause for _, verdict in await gated(bench, scope)] == ["hook_failure"]


async def test_a_call_that_waited_behind_a_hanging_tool_is_made_on_the_next_thread(bench: Any):
    bench.user("mine", TOOLS)
    scope = await bench.scope()
    outcomes = await asyncio.gather(run(scope.plugin_set, "hangs"), gated(bench, scope), return_exceptions=True)
    assert isinstance(outcomes[0], ToolError) and outcomes[1] == []


async def gated(bench: Any, scope: Any) -> list[Any]:
    return await bench.dispatcher.gates(scope, "tool_gate", call=ToolCall(id="c", tool="other", args={}))


async def test_the_time_in_which_a_person_is_asked_does_not_count(tmp_path: Path):
    """A tool that asks waits for its person as long as they need (S4.9)."""
    folder = tmp_path / "plugins"
    folder.mkdir(mode=0o700)
    (folder / "asks.py").write_text(
        "from moryflow_sdk import *\n@tool(domain='read', timeout=1.0)\nasync def asks(ctx: ToolContext) -> str:\n    'Ask.'\n"
        "    await ctx.ask(Ask('really?'))\n    return 'answered'\n@hookimpl\ndef tools():\n    return [asks]\n"
    )
    (tmp_path / "config.jsonc").write_text(
        '{"agents": {"runtime": {"permission": {"rules": [{"domain": "read", "pattern": "*", "decision": "allow"}]}}}}'
    )
    async with await open_host(tmp_path, environ={}) as host:

        def asked(event: Any) -> None:
            if event.type == "permission.asked":
                loop = asyncio.get_running_loop()
                loop.call_later(
                    1.5, lambda: replies.append(loop.create_task(host.approvals.reply(event.data["approval_id"], "once")))
                )

        replies: list[Any] = []
        host.bus.subscribe(asked)
        outcome = await host.call_tool("asks", {}, vault=folder, options=RunOptions(on_ask="prompt"))
    assert (outcome.result.status, outcome.result.output) == ("ok", "answered")


@pytest.mark.parametrize("name", ["hangs", "stubborn"])
def test_the_process_ends_although_a_tool_did_not(tmp_path: Path, name: str):
    """Neither a thread nor a task that never ends holds up exit (ARCHITECTURE §4).

    The tool sleeps ten minutes; on a machine with much else to do, Python alone may take half of one to start.
    """
    folder = tmp_path / "plugins"
    folder.mkdir(mode=0o700)
    (folder / "mine.py").write_text(
        "from moryflow_sdk import *\n" + TOOLS.replace("\n    ", "\n").replace("@tool(", "@tool(domain='read', ")
    )
    environment = {"MORYFLOW_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "moryflow", "tool", "run", name]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1 and "longer than 0.1 s" in done.stderr and "Traceback" not in done.stderr
