"""The invariants of ARCHITECTURE §2 that only a whole host can show. Each fails when the invariant is broken on purpose."""

from __future__ import annotations

import ast
import json
import sqlite3
from pathlib import Path

import moryflow
import moryflow.builtins

COUNT = """
    import json, pathlib
    LOG = pathlib.Path(__file__).with_suffix(".log")
    def _log(*row):
        with LOG.open("a") as out:
            out.write(json.dumps(row) + "\\n")

    @hookimpl
    def tool_before(call):
        _log("before", call.id)

    @hookimpl
    def tool_gate(call):
        _log("gate", call.id, call.hash, dict(call.args))
        return Allow()

    @hookimpl
    def tool_decided(call, ruling):
        _log("decided", call.id, ruling.decision)

    @hookimpl
    def tool_after(call, result):
        _log("after", call.id, result.status)
"""


def log_of(file: Path):
    return [json.loads(line) for line in file.with_suffix(".log").read_text().splitlines()]


async def test_every_call_passes_the_whole_chain_exactly_once(rig):
    """Main agent and ``tool run`` use the same door, once per call (invariant 1)."""
    rig.allow_all()
    file = rig.plugin("count", COUNT)
    (rig.vault / "a.txt").write_text("alpha")
    await rig.run(rig.call("read", path="a.txt"), {"text": "done"})
    async with rig.host() as host:
        outcome = await host.call_tool("read", {"path": "a.txt"}, vault=rig.vault)
    assert outcome.result.output.strip().endswith("alpha")
    stages = [row[0] for row in log_of(file)]
    assert stages == ["before", "gate", "decided", "after"] * 2


def test_only_the_door_reaches_a_tool_body():
    """Only the door and ``bodies.py``, which runs a body under its deadline, touch ``tool.function`` (invariant 1)."""
    root = Path(moryflow.__file__).parent
    users = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "function" and "tool" in ast.unparse(node.value).lower()
    }
    assert users <= {"kernel/invoke.py", "kernel/bodies.py"}


async def test_what_was_judged_is_what_runs(rig):
    """A transform's arguments are judged; a gate that mutates its copy changes nothing (invariant 2, R11)."""
    rig.allow_all()
    rig.plugin(
        "rewrite",
        """
        @hookimpl
        def tool_before(call):
            return call.replace(args={**call.args, "text": call.args["text"] + "!"})

        @tool(domain="read")
        def echo(text: str) -> str:
            "Echo."
            return text

        @hookimpl
        def tools():
            return [echo]
    """,
    )
    rig.plugin(
        "zz_mutate",
        """
        @hookimpl
        def tool_gate(call):
            dict.__setitem__(call.args, "text", "EVIL")
            return Allow()
    """,
    )
    await rig.run(rig.call("echo", text="hi"), {"text": "done"})
    node = next(node for node in rig.path if node.kind == "tool")
    assert node.payload["output"] == "hi!"
    assert json.loads(rig.calls[0].args) == {"text": "hi!"}


async def test_nobody_is_told_before_it_is_on_disk(rig):
    """When an event arrives its node can be read by another process (invariant 6)."""
    rig.allow_all()
    (rig.vault / "a.txt").write_text("alpha")
    seen = []

    def watch(host, event):
        if event.type == "tool.result":
            with sqlite3.connect(rig.home / "sessions.db") as other:
                seen.append(other.execute("select count(*) from nodes where kind='tool'").fetchone()[0])

    await rig.run(rig.call("read", path="a.txt"), {"text": "done"}, watch=watch)
    assert seen == [1]


async def test_tool_nodes_stand_in_call_order(rig):
    """Parallel calls finish in any order; their nodes do not (invariant 6, D67)."""
    rig.allow_all()
    rig.plugin(
        "slow",
        """
        import asyncio

        @tool(domain="read", parallel_safe=True)
        async def nap(seconds: float) -> str:
            "Nap."
            await asyncio.sleep(seconds)
            return str(seconds)

        @hookimpl
        def tools():
            return [nap]
    """,
    )
    calls = [{"name": "nap", "arguments": {"seconds": s}} for s in (0.3, 0.2, 0.0)]
    _, events = await rig.run({"calls": calls}, {"text": "done"})
    assert [node.payload["output"] for node in rig.path if node.kind == "tool"] == ["0.3", "0.2", "0.0"]
    starts = [event for event in events if event.type == "tool.start" and event.data["state"] == "running"]
    results = [event for event in events if event.type == "tool.result"]
    assert max(e.seq for e in starts) < min(e.seq for e in results)


async def test_a_grant_holds_at_once_and_the_generation_stays(rig):
    """``always`` is session state, read at each gate; the plugin set of a turn does not change (invariant 8)."""
    outside = rig.vault.parent / "outside.txt"
    outside.write_text("far")
    asked = []

    def watch(host, event):
        if event.type == "permission.asked":
            asked.append(event)
            import asyncio

            asyncio.get_running_loop().create_task(host.approvals.reply(event.data["approval_id"], "always"))

    result, events = await rig.run(
        rig.call("read", path=str(outside)), rig.call("read", path=str(outside)), {"text": "done"}, on_ask="prompt", watch=watch
    )
    assert (result.end_reason, len(asked)) == ("completed", 1)
    assert len({event.data["plugin_set"] for event in events if event.type == "turn.start"}) == 1


async def test_every_decision_leaves_a_line(rig):
    """Which rule, which mode, which arguments (hash), who answered (invariant 10)."""
    rig.allow_all()
    (rig.vault / "a.txt").write_text("alpha")
    await rig.run(rig.call("read", path="a.txt"), rig.call("write", path="../x", content="no"), {"text": "done"})
    for row in rig.calls:
        ruling = row.ruling
        assert row.decision in ("allow", "deny")
        assert row.hash
        assert "decision" in ruling
    lines = [line for file in (rig.home / "logs" / "agent-audit").iterdir() for line in file.read_text().splitlines()]
    assert len([line for line in lines if json.loads(line).get("argsHash")]) == 2


async def test_the_context_is_protected_whatever_plugins_do(rig):
    """A hook that floods a result meets the host's cap of four times the limit (invariant 11)."""
    rig.allow_all()
    (rig.vault / "a.txt").write_text("alpha")
    rig.plugin(
        "flood",
        """
        @hookimpl
        def tool_after(result):
            return result.replace(output="x" * 3_000_000)
    """,
    )
    without = tuple(name for name in moryflow.builtins.BUILTINS if not name.endswith(".truncation"))
    await rig.run(rig.call("read", path="a.txt"), {"text": "done"}, builtins=without)
    node = next(node for node in rig.path if node.kind == "tool")
    assert len(node.payload["output"]) <= 4 * 51200 + 200
