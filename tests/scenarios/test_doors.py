"""Every way to a tool's body passes the whole chain once, and the trace shows it (invariant 1, R11).

The ways are listed in :data:`WAYS`; a new one belongs there. Each calls ``mark``, whose body writes down that it ran.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter

import forked_command
import pytest
from moryflow import RunOptions

COUNTING = """
    import json, pathlib

    LOG = pathlib.Path("@LOG@")

    def note(what, turn, call):
        with LOG.open("a") as out:
            out.write(json.dumps([what, f"{turn.session} {call.id}"]) + "\\n")

    @hookimpl
    def tool_before(call, turn):
        note("tool_before", turn, call)

    @hookimpl
    def tool_gate(call, turn):
        note("tool_gate", turn, call)

    @hookimpl
    def tool_decided(call, turn):
        note("tool_decided", turn, call)

    @hookimpl
    def tool_after(call, result, turn):
        note("tool_after", turn, call)

    @tool(domain="read")
    def mark(ctx: ToolContext) -> str:
        \"\"\"Say that the body ran.\"\"\"
        note("body", ctx, ctx.call)
        return "ran"

    @tool(name="files__mark", domain="mcp", targets=lambda args: [mcp_target("files", "mark")])
    async def stub(ctx: ToolContext) -> str:
        \"\"\"Stand where a tool of an MCP server stands.\"\"\"
        note("body", ctx, ctx.call)
        return "ran"

    name = "counting"
    services = ("spawn",)

    @tool(domain="read")
    async def begin(ctx: ToolContext) -> str:
        \"\"\"Let a plugin start a child.\"\"\"
        return (await ctx.spawn("helper", "x")).text

    @hookimpl
    def tools():
        return [mark, stub, begin]
"""
EXTERNAL = """
import json, pathlib
from moryflow_sdk import ToolContext, tool

@tool(domain="read")
def outside(ctx: ToolContext) -> str:
    \"\"\"A tool of the person's own.\"\"\"
    with pathlib.Path("@LOG@").open("a") as out:
        out.write(json.dumps(["body", f"{ctx.session} {ctx.call.id}"]) + "\\n")
    return "ran"
"""
HOOKS = ("tool_before", "tool_gate", "tool_decided", "tool_after")
ONCE = {"body": 1, **dict.fromkeys(HOOKS, 1)}


class Doors:
    """A home where every way can be gone, and a log of what happened on it."""

    def __init__(self, rig):
        self.rig, self.log = rig, rig.home.parent / "log.jsonl"
        rig.plugin("counting", COUNTING.replace("@LOG@", str(self.log)))
        file = rig.home / "tools" / "outside.py"
        file.parent.mkdir(mode=0o700)
        file.write_text(EXTERNAL.replace("@LOG@", str(self.log)), encoding="utf-8")
        file.chmod(0o600)
        rig.config(
            tools={"external": {"enabled": True}},
            permission={"rules": [{"domain": domain, "pattern": "*", "decision": "allow"} for domain in ("mcp", "tool")]},
        )
        self.agent("helper", rig.call("mark"), {"text": "helped"})

    def agent(self, name, *turns):
        """Write an agent that has a script of its own."""
        script = self.rig.home.parent / f"{name}.json"
        script.write_text(json.dumps(turns))
        file = self.rig.home / "agents" / f"{name}.md"
        file.parent.mkdir(mode=0o700, exist_ok=True)
        head = {"id": name, "mode": "subagent", "model": f"script:{script}"}
        file.write_text(f"---\n{json.dumps(head)}\n---\nHelp.\n", encoding="utf-8")
        file.chmod(0o600)

    async def turn(self, *turns, prompt="go", on_ask="prompt", background=False):
        """Run a prompt, answering every question with once."""
        async with self.rig.host() as host:

            def answer(event):
                if event.type == "permission.asked":
                    asyncio.get_running_loop().create_task(host.approvals.reply(event.data["approval_id"], "once"))

            host.bus.subscribe(answer)
            session = await host.new_session(self.rig.vault, model=self.rig.script(*turns, {"text": "done"}))
            result = await session.prompt(prompt, options=RunOptions(on_ask=on_ask))
            if background:
                await session.children.settled()
            return result

    def command(self, *arguments, typed=""):
        """Run the real command; `typed` is its standard input."""
        environ = {**os.environ, "MORYFLOW_HOME": str(self.rig.home)}
        command = [sys.executable, "-m", "moryflow", *arguments]
        return forked_command.run(command, cwd=self.rig.vault, env=environ, input=typed, text=True)

    def counted(self):
        """Return what happened, by call; only of calls whose body ran."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []
        ran = [call for what, call in lines if what == "body"]
        return {call: dict(Counter(what for what, of in lines if of == call)) for call in ran}

    async def traced(self):
        """Return what the ledger says of the plugin's hooks, by call."""
        counts = {}
        async with self.rig.host() as host:
            for row in await host.store.sessions(50, purpose=None):
                for entry in await host.store.hook_calls(row.id, plugin="counting"):
                    counts.setdefault(f"{row.id} {entry.call_id}", Counter())[entry.hook] += entry.count
        return counts


@pytest.fixture
async def doors(rig):
    """A fresh home whose plugin has been tried out."""
    made = Doors(rig)
    async with rig.host() as host:
        assert "mark" in host.tools, [record.error for record in host.plugin_set.records if record.error]
    return made


async def main_agent(doors):
    """A call of the main agent."""
    await doors.turn(doors.rig.call("mark"))


async def side_by_side(doors):
    """Two calls of one step."""
    await doors.turn({"calls": [{"name": "mark", "arguments": {}}, {"name": "files__mark", "arguments": {}}]})


async def child(doors):
    """A call of a sub-agent."""
    await doors.turn(doors.rig.call("task", agent="helper", prompt="x"))


async def grandchild(doors):
    """A call of an agent that a sub-agent started."""
    doors.rig.config(tasks={"depth": 2})
    doors.agent("middle", doors.rig.call("task", agent="helper", prompt="x"), {"text": "helped"})
    await doors.turn(doors.rig.call("task", agent="middle", prompt="x"))


async def background_child(doors):
    """A call of a sub-agent in the background."""
    await doors.turn(doors.rig.call("task", agent="helper", prompt="x", background=True), background=True)


async def mentioned_child(doors):
    """A call of a sub-agent that a person called by its name."""
    await doors.turn(prompt="@helper do it")


async def child_of_a_plugin(doors):
    """A call of a child that a plugin started."""
    await doors.turn(doors.rig.call("begin"))


async def mcp_stub(doors):
    """A call of a tool that stands where a server's tool stands."""
    await doors.turn(doors.rig.call("files__mark"))


async def external_tool(doors):
    """A call of a file in the person's tools folder, which is asked about the first time."""
    await doors.turn(doors.rig.call("outside"))


async def api_call(doors):
    """What a server does for a client: one tool through the Host API."""
    async with doors.rig.host() as host:
        done = await host.call_tool("mark", {}, vault=doors.rig.vault)
        assert done.result.output == "ran"


async def command_line(doors):
    """moryflow tool run."""
    assert doors.command("tool", "run", "mark").stdout == "ran\n"


async def headless_run(doors):
    """moryflow run without a terminal."""
    model = doors.rig.script(doors.rig.call("mark"), {"text": "done"})
    assert doors.command("run", "-m", model, "go").returncode == 0


async def conversation(doors):
    """moryflow chat."""
    model = doors.rig.script(doors.rig.call("mark"), {"text": "done"})
    assert doors.command("chat", "-m", model, typed="go\n").stdout == "done\n"


async def events_on_standard_output(doors):
    """A program that reads stream-json."""
    model = doors.rig.script(doors.rig.call("mark"), {"text": "done"})
    done = doors.command("run", "-m", model, "--output", "stream-json", "go")
    assert json.loads(done.stdout.splitlines()[-1])["end_reason"] == "completed"


async def persons_command(doors):
    """A Markdown command of the person's, in chat."""
    file = doors.rig.home / "commands" / "stamp.md"
    file.parent.mkdir(mode=0o700)
    file.write_text("Mark it.\n", encoding="utf-8")
    file.chmod(0o600)
    model = doors.rig.script(doors.rig.call("mark"), {"text": "done"})
    assert doors.command("chat", "-m", model, typed="/stamp\n").stdout == "done\n"


async def fork(doors):
    """A session that was forked goes on."""
    await doors.turn()
    model = doors.rig.script(doors.rig.call("mark"), {"text": "done"})
    copy = doors.command("session", "fork").stdout.strip()
    assert doors.command("run", "-r", copy, "-m", model, "go").returncode == 0


async def child_answered_later(doors):
    """A call of a sub-agent whose question is answered after the turn had ended."""
    doors.rig.config(permission={"rules": [{"domain": "read", "pattern": "tool:mark", "decision": "ask"}]})
    async with doors.rig.host() as host:
        model = doors.rig.script(doors.rig.call("task", agent="helper", prompt="x"), {"text": "done"})
        session = await host.new_session(doors.rig.vault, model=model)
        await session.prompt("go", options=RunOptions(on_ask="fail"))
        assert not doors.counted()
        doors.log.unlink()
        [question] = await host.store.approvals(state="pending")
        await host.approvals.reply(question.id, "once")
        await session.resume(RunOptions(on_ask="fail"))


async def answered_later(doors):
    """A call whose question is answered after the turn had ended."""
    rules = [{"domain": "read", "pattern": "tool:mark", "decision": "ask"}]
    doors.rig.config(permission={"rules": rules})
    async with doors.rig.host() as host:
        session = await host.new_session(doors.rig.vault, model=doors.rig.script(doors.rig.call("mark"), {"text": "done"}))
        await session.prompt("go", options=RunOptions(on_ask="fail"))
        assert not doors.counted()
        doors.log.unlink()  # it is judged anew when it is taken up again
        [question] = await host.store.approvals(state="pending")
        await host.approvals.reply(question.id, "once")
        await session.resume(RunOptions(on_ask="fail"))


WAYS = (
    main_agent, side_by_side, child, grandchild, background_child, mentioned_child, child_of_a_plugin, mcp_stub, external_tool,
    api_call, command_line, headless_run, conversation, events_on_standard_output, persons_command, fork, answered_later,
    child_answered_later,
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_every_way_to_a_body_passes_each_hook_once(doors, way):
    """One tool_before, one tool_gate, one tool_decided and one tool_after for each body that ran (invariant 1)."""
    await way(doors)
    counted = doors.counted()
    ours = {call: counts for call, counts in counted.items() if counts.get("body")}
    bodies = 2 if way is side_by_side else 1
    assert len(ours) == bodies and all(counts == ONCE for counts in ours.values()), counted
    if way not in (answered_later, child_answered_later):  # there the ledger also has the judgement that ended in the question
        traced = await doors.traced()
        assert all(traced[call] == dict.fromkeys(HOOKS, 1) for call in ours)


LOOKING = (
    ("permission", "explain", "read", "a.md"),
    ("hook", "fire", "tool_gate", '{"call": {"id": "call_x", "tool": "mark", "args": {}}}'),
    ("session", "show", "--stats"),
    ("session", "tree"),
    ("trace",),
    ("trace", "--json"),
    ("session", "context"),
    ("session", "export"),
    ("session", "undo", "--dry-run"),
    ("tool", "show", "mark"),
    ("audit",),
)


async def test_looking_and_replaying_run_no_body(doors):
    """Replay calls the hooks of the plugin that is tried, and no tool; nor does any command that explains or shows."""
    file = doors.rig.home / "config.jsonc"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), "keepInputs": True}), encoding="utf-8")
    await doors.turn(doors.rig.call("mark"), doors.rig.call("task", agent="helper", prompt="x"))
    bodies = Counter(counts["body"] for counts in doors.counted().values())
    assert bodies == {1: 2}
    changed = doors.rig.home.parent / "counting.py"
    changed.write_text((doors.rig.home / "plugins" / "counting.py").read_text(encoding="utf-8"), encoding="utf-8")
    done = doors.command("replay", "--with", str(changed))
    assert done.returncode == 0, done.stdout + done.stderr
    for arguments in LOOKING:
        assert doors.command(*arguments).returncode == 0, arguments
    assert Counter(counts["body"] for counts in doors.counted().values()) == bodies


@pytest.mark.parametrize("given", ["[5]", "1 / 0", "None"])
async def test_a_tool_that_cannot_say_what_it_touches_is_not_run_and_the_turn_goes_on(rig, given):
    """A plugin's mistake in `targets` is an answer to the model, not the end of the turn (invariant 5)."""
    rig.plugin(
        "vague",
        f"""
        @tool(domain="read", targets=lambda args: {given})
        def vague(path: str) -> str:
            "Do it."
            raise SystemExit("it ran")
        @hookimpl
        def tools():
            return [vague]
    """,
    )
    result, events = await rig.run(rig.call("vague", path="a"), {"text": "on"})
    assert (result.end_reason, result.text) == ("completed", "on")
    told = next(event.data["output"] for event in events if event.type == "tool.result")
    assert "could not determine its targets" in told or given == "None"
