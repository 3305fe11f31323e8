"""The invariants of ARCHITECTURE §2, each shown by a whole host: read these tests first.

Beside them: :mod:`test_one_door` (1), :mod:`test_gates` (3, 4), :mod:`test_answers` (2, 8), :mod:`test_cancel` (1, 6),
:mod:`test_pins` (what a server may offer). Each fails when the invariant is broken on purpose.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
from pathlib import Path

import moryflow
import moryflow.base.builtins
import pytest
from moryflow import RunOptions
from moryflow.plugins.manifest import settings_of_plugins
from moryflow.store.messages import ContextBuilder
from moryflow_sdk import Rule, Ruling, thaw

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


FAILS = """
    import time

    @hookimpl
    {kind}def {hook}(call):
        {body}
"""


@pytest.mark.parametrize("body", ["raise RuntimeError('broken')", "return 7", "return call.replace(args=1)"])
async def test_a_transform_that_fails_changes_nothing(rig, body):
    """It raises or returns nonsense: the call stays as it was, and runs (invariant 3)."""
    rig.allow_all()
    (rig.vault / "a.txt").write_text("alpha")
    rig.plugin("fails", FAILS.format(kind="", hook="tool_before", body=body))
    await rig.run(rig.call("read", path="a.txt"), {"text": "done"})
    [node] = [node for node in rig.path if node.kind == "tool"]
    assert (node.payload["status"], rig.calls[0].args) == ("ok", '{"path":"a.txt"}')


@pytest.mark.parametrize("mode", ["agent", "full_access"])
@pytest.mark.parametrize("body", ["raise RuntimeError('broken')", "return 7", "time.sleep(9)"])
async def test_a_gate_that_fails_denies_in_every_mode(rig, mode, body):
    """Also one that does not answer in its two seconds; the cause tells it apart from a rule (invariants 3 and 9)."""
    rig.allow_all()
    (rig.vault / "a.txt").write_text("alpha")
    rig.plugin("fails", FAILS.format(kind="", hook="tool_gate", body=body))
    async with rig.host() as host:
        done = await host.call_tool("read", {"path": "a.txt"}, vault=rig.vault, mode=mode)
    assert (done.result.status, done.ruling.cause) == ("denied", "hook_failure")


@pytest.mark.parametrize("mode", ["agent", "full_access"])
@pytest.mark.parametrize("gone", ["deleted", "broken"])
async def test_a_missing_gate_is_not_an_allow(rig, mode, gone):
    """A plugin that had a gate and is not loaded any more: every call asks, until it is disabled by name (invariant 4)."""
    rig.allow_all()
    (rig.vault / "a.txt").write_text("alpha")
    file = rig.plugin("guard", FAILS.format(kind="", hook="tool_gate", body="return Allow()"))

    async def read():
        async with rig.host() as host:
            return await host.call_tool("read", {"path": "a.txt"}, vault=rig.vault, mode=mode)

    assert (await read()).result.status == "ok"
    file.unlink() if gone == "deleted" else file.write_text("def (")
    done = await read()
    assert (done.result.status, done.ruling.by) == ("denied", "headless") and "guard" in done.ruling.reason
    config = json.loads((rig.home / "config.jsonc").read_text())
    (rig.home / "config.jsonc").write_text(json.dumps(config | {"disabledPlugins": ["guard"]}))
    assert (await read()).result.status == "ok"


async def test_a_bad_plugin_agent_or_setting_never_stops_the_host(rig):
    """Each is named with its place, and a turn runs (invariant 5)."""
    rig.plugin("bad", "this is no Python")
    (rig.home / "agents").mkdir()
    (rig.home / "agents" / "bad.md").write_text("---\nmode: [\n---\nx")
    (rig.home / "config.jsonc").write_text('{"agents": {"runtime": {"truncation": {"maxBytes": "much"}}}}')
    result, _ = await rig.run({"text": "done"})
    assert result.text == "done"
    async with rig.host() as host:
        [record] = [each for each in host.plugin_set.records if each.name == "bad"]
        assert (record.status, record.stage, record.line) == ("failed", "import", 2)
        assert any("bad.md" in note for each in host.plugin_set.records for note in each.notes)
        [wrong] = host.config.checked(settings_of_plugins(host.plugin_set)).problems
        assert (wrong.line, "maxBytes" in wrong.message) == (1, True)


async def test_the_context_depends_on_the_path_alone(rig):
    """Another host sends the same messages again: nothing in memory adds to them (invariant 7)."""
    rig.allow_all()
    (rig.vault / "a.txt").write_text("alpha")
    rig.plugin(
        "keeps",
        """
        import json, pathlib

        @hookimpl
        def chat_messages(messages):
            with pathlib.Path(__file__).with_suffix(".log").open("a") as out:
                out.write(json.dumps([message.model_dump(mode="json") for message in messages]) + "\\n")
    """,
    )
    await rig.run(rig.call("read", path="a.txt"), {"text": "done"})
    seen = [json.loads(line) for line in (rig.home / "plugins" / "keeps.log").read_text().splitlines()]
    until = [node for node in rig.path if node.kind != "marker"]
    again = [[m.model_dump(mode="json") for m in ContextBuilder().build(until[:count])] for count in (1, 3)]
    assert seen == again


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
    """``always`` is session state, read at each gate; every turn records the plugin set it has (invariant 8)."""
    outside = rig.vault.parent / "outside.txt"
    outside.write_text("far")
    asked, sets = [], set()

    def watch(host, event):
        sets.add(host.plugin_set.id)
        if event.type == "permission.asked":
            asked.append(event)
            asyncio.get_running_loop().create_task(host.approvals.reply(event.data["approval_id"], "always"))

    result, events = await rig.run(
        rig.call("read", path=str(outside)), rig.call("read", path=str(outside)), {"text": "done"}, on_ask="prompt", watch=watch
    )
    assert (result.end_reason, len(asked)) == ("completed", 1)
    async with rig.host() as host:
        runs = await host.store.runs(result.session)
    [own] = sets
    assert len(own) >= 16 and [event.data["plugin_set"] for event in events if event.type == "turn.start"] == [own]
    assert [run.plugin_set for run in runs] == [own]


async def test_a_change_of_mode_holds_from_the_next_gate_on(rig):
    """Also in the middle of a turn, and back again (invariant 8, S0.68)."""
    calls = [rig.call("bash", command=f"echo {number}") for number in range(4)]
    modes = iter(["full_access", "agent", "agent"])
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script(*calls, {"text": "done"}))

        async def switch():
            await session.set_mode(next(modes))

        def watch(event):
            if event.type == "tool.result" and event.data["call_id"] != "call_4_1":
                tasks.append(asyncio.get_running_loop().create_task(switch()))

        tasks = []
        host.bus.subscribe(watch)
        await session.prompt("go")
        rows = await host.store.calls(session=session.id)
    assert [(row.decision, row.ruling.get("mode", "agent")) for row in rows] == [
        ("deny", "agent"),
        ("allow", "full_access"),
        ("deny", "agent"),
        ("deny", "agent"),
    ]


@pytest.mark.parametrize("how", ["by a rule", "by a person", "by the mode", "by nobody"])
async def test_every_decision_leaves_a_line(rig, how):
    """Which rule, file, mode and arguments (hash), and who answered: with the call and in the audit (invariant 10)."""
    decision = "allow" if how == "by a rule" else "ask"
    rig.config(permission={"rules": [{"domain": "read", "pattern": "vault:/**", "decision": decision}]})
    (rig.vault / "a.txt").write_text("alpha")

    def answer(event):
        if event.type == "permission.asked":
            asyncio.get_running_loop().create_task(host.approvals.reply(event.data["approval_id"], "once"))

    async with rig.host() as host:
        host.bus.subscribe(answer)
        mode = "full_access" if how == "by the mode" else "agent"
        session = await host.new_session(
            rig.vault, model=rig.script(rig.call("read", path="a.txt"), {"text": "done"}), mode=mode
        )
        await session.prompt("go", options=RunOptions(on_ask="prompt" if how == "by a person" else "deny"))
        [row] = await host.store.calls(session=session.id)
    ruling = Ruling(**thaw(row.ruling))
    by = {"by a rule": "rule", "by a person": "user", "by the mode": "mode", "by nobody": "headless"}[how]
    outcome = "deny" if how == "by nobody" else "allow"
    assert (row.decision, ruling.decision, ruling.by, ruling.mode) == (outcome, outcome, by, mode)
    assert (row.hash, row.args) == (hashlib.sha256(b'{"path":"a.txt"}').hexdigest(), '{"path":"a.txt"}')
    config = str(rig.home / "config.jsonc")
    assert ruling.rule == Rule(
        domain="read", pattern="vault:/**", decision=decision, source="user", file=config, line=1, index=0
    ) and (how == "by a rule" or f"rule ask 'vault:/**' ({config}:1)" in ruling.reason)
    [file] = (rig.home / "logs" / "agent-audit").iterdir()
    [line] = [line for line in map(json.loads, file.read_text().splitlines()) if line["type"] == "decision"]
    told = (
        line["decision"],
        line["by"],
        line["mode"],
        line["argsHash"],
        line["rulePattern"],
        line["ruleFile"],
        line["ruleLine"],
    )
    assert told == (outcome, by, mode, row.hash, "vault:/**", config, 1)


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
    without = tuple(name for name in moryflow.base.builtins.BUILTINS if not name.endswith(".truncation"))
    await rig.run(rig.call("read", path="a.txt"), {"text": "done"}, builtins=without)
    node = next(node for node in rig.path if node.kind == "tool")
    assert len(node.payload["output"]) <= 4 * 51200 + 200


SAYS = """
    class Own(Deny): ...

    @hookimpl
    def tool_before(call):
        return {said}
"""


@pytest.mark.parametrize(
    ("said", "status", "ended"),
    [
        ("Deny('not here')", "denied", "completed"),
        ("Own('not here')", "denied", "completed"),
        ("Ask('not here')", "denied", "completed"),
        ("Stop('not here', end_reason='denied')", "denied", "denied"),
        ("Allow('all of it')", "ok", "completed"),
        ("1 / 0", "ok", "completed"),
    ],
)
async def test_a_verdict_from_tool_before_counts_as_that_of_a_gate(rig, said, status, ended):
    """A denial denies, in full access too where it must not be lifted; only a failure fails open (D9, S2.11)."""
    rig.allow_all()
    rig.plugin("early", SAYS.format(said=said))
    (rig.vault / "a.txt").write_text("alpha")
    result, events = await rig.run(rig.call("read", path="a.txt"), {"text": "done"})
    (shown,) = [event.data for event in events if event.type == "tool.result"]
    assert (shown["status"], result.end_reason) == (status, ended)
    assert ("alpha" in shown["output"]) == (status == "ok")


async def test_an_allow_from_tool_before_lifts_nothing(rig):
    """The rule that asks still asks (ARCHITECTURE §3)."""
    rig.plugin("early", SAYS.format(said="Allow('all of it')"))
    _, events = await rig.run(rig.call("bash", command="echo a"), {"text": "done"})
    (shown,) = [event.data for event in events if event.type == "tool.result"]
    assert shown["status"] == "denied"
