"""Observers, contributions, quarantine, the ledger, threads of plugins, and the watchdog."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import Any

import pytest
from moryflow.runtime.turn_task import Watchdog
from moryflow_sdk import Event, SystemBlock, ToolCall, ToolResult
from moryflow_sdk.support.secrets import know

CALL = ToolCall(id="c1", tool="read", args={})
EVENT = Event(type="turn.start", session="s1")


async def after(bench: Any, scope: Any, call: ToolCall = CALL, output: str = "") -> ToolResult:
    return await bench.dispatcher.transform(scope, "tool_after", ToolResult(output=output), call=call)


# ---------------------------------------------------------------- observers


async def test_observers_are_told_in_order_and_change_nothing(bench: Any):
    """Whatever an observer raises or returns is reported and changes nothing (S2.10)."""
    bench.user("a_raises", "@hookimpl\ndef event(event):\n    raise ValueError('no')\n")
    for name in ("b_plain", "c_async"):
        word = "async " if name == "c_async" else ""
        bench.user(
            name, f"seen = []\n@hookimpl\n{word}def event(event, turn):\n    seen.append((event.type, turn))\n    return 5\n"
        )
    scope = await bench.scope()
    await bench.dispatcher.observe(scope, EVENT)
    plugins = scope.plugin_set.plugins
    assert [plugins[name].object.seen[0][0] for name in ("b_plain", "c_async")] == ["turn.start"] * 2
    assert [(failure.plugin, failure.action) for failure in scope.failures] == [("a_raises", "ignored")]


async def test_an_observer_is_told_of_the_types_it_asks_for(bench: Any):
    """Others cost it nothing: they leave no line in the ledger either (S2.10)."""
    bench.user("mine", "seen = []\n@hookimpl(events=('turn.start', 'x'))\ndef event(event):\n    seen.append(event.type)\n")
    scope = await bench.scope()
    for kind in ("turn.start", "tool.start", "x"):
        await bench.dispatcher.observe(scope, EVENT.replace(type=kind))
    bench.dispatcher.observe_soon(scope, EVENT.replace(type="text.delta"))
    await bench.dispatcher.settle()
    assert scope.plugin_set.plugins["mine"].object.seen == ["turn.start", "x"]
    assert sum(row.count for row in scope.hook_calls()) == 2


async def test_an_event_is_also_known_by_the_names_that_other_hosts_have_for_it(bench: Any):
    """`session.idle` is `session.status` where that says idle, `session.compacted` a compaction that is done (S0.47, S2.7)."""
    names = "events=('session.idle', 'session.compacted', 'approval.requested')"
    bench.user("mine", f"seen = []\n@hookimpl({names})\ndef event(event):\n    seen.append(dict(event.data))\n")
    scope = await bench.scope()
    wanted = [{"status": "idle"}, {"kind": "compact", "state": "done"}, {"approval_id": "a"}]
    others = [{"status": "busy"}, {"kind": "compact", "state": "pending"}]
    kinds = ["session.status", "compaction", "permission.asked", "session.status", "compaction"]
    for kind, data in zip(kinds, [*wanted, *others], strict=True):
        await bench.dispatcher.observe(scope, EVENT.replace(type=kind, data=data))
    assert scope.plugin_set.plugins["mine"].object.seen == wanted


async def test_only_observers_choose_events(bench: Any):
    """A gate that would be asked only sometimes is a mistake, not a setting (S2.10)."""
    bench.user("mine", "@hookimpl(events='x')\ndef tool_gate(call):\n    return None\n")
    (record,) = [record for record in (await bench.start()).records if record.name == "mine"]
    assert record.status == "failed" and "events= is for the hook event" in record.error


async def test_deltas_go_through_a_bounded_queue(bench: Any):
    """A slow observer holds up nobody: deltas wait in a bounded queue, the oldest are dropped."""
    bench.user(
        "slow",
        """
        import asyncio
        seen = []
        @hookimpl
        async def event(event):
            await asyncio.sleep(0)
            seen.append(event.seq)
        """,
    )
    scope = await bench.scope()
    for number in range(1000):
        bench.dispatcher.observe_soon(scope, EVENT.replace(seq=number))
    await bench.dispatcher.settle()
    seen = scope.plugin_set.plugins["slow"].object.seen
    assert len(seen) == 256 and seen[-1] == 999 and seen == sorted(seen)


async def test_without_observers_a_delta_costs_nothing(bench: Any):
    scope = await bench.scope()
    bench.dispatcher.observe_soon(scope, EVENT)
    await bench.dispatcher.settle()
    assert bench.dispatcher._pump is None


# ---------------------------------------------------------------- contribute


async def test_blocks_are_collected_with_the_plugin_they_come_from(bench: Any):
    block = "@hookimpl\n{}def system_blocks(turn):\n    {}\n"
    bench.builtin("one", block.format("", "yield SystemBlock(id='1', text='a')"))
    bench.user("two", block.format("async ", "return [SystemBlock(id='2', text='b')]"))
    bench.user("three", block.format("", "yield SystemBlock(id='3', text='c')\n    raise ValueError('half')"))
    bench.user("none", block.format("", "return None"))
    scope = await bench.scope()
    assert await bench.dispatcher.contribute(scope, "system_blocks") == [
        ("one", SystemBlock(id="1", text="a")),
        ("two", SystemBlock(id="2", text="b")),
    ]
    assert [failure.plugin for failure in scope.failures] == ["three"]


# ---------------------------------------------------------------- quarantine


@pytest.mark.parametrize(("body", "outcome"), [("raise ValueError('no')", "failed"), ("time.sleep(0.05)", "timeout")])
async def test_the_third_failure_of_a_session_quarantines(bench: Any, body: str, outcome: str):
    """Three failures or three overruns, then skipped for the session, reported once, and brought back by name."""
    bench.builtin(
        "bad",
        f"import time\ncalls = []\n@hookimpl(timeout=0.02)\ndef tool_after(result):\n    calls.append(1)\n    {body}\n",
    )
    bench.user("good", "@hookimpl\ndef tool_after(result):\n    return result.replace(output='good')\n")
    scope = await bench.scope()
    for _ in range(6):
        assert (await after(bench, scope)).output == "good"
    calls = scope.plugin_set.plugins["bad"].object.calls
    assert len(calls) == 3
    assert [(failure.outcome, failure.quarantined, failure.count) for failure in scope.failures] == [
        (outcome, False, 1),
        (outcome, False, 2),
        (outcome, True, 3),
    ]
    assert scope.failures[2].as_event() == {
        "plugin": "bad", "hook": "tool_after", "reason": scope.failures[2].error, "count": 3,
    }  # fmt: skip
    outcomes = [row.outcome for row in scope.hook_calls() if row.plugin == "bad"]
    assert outcomes == [outcome] * 3 + ["quarantined"] * 3
    assert scope.quarantine.names() == [("bad", "tool_after")]


async def test_failures_and_overruns_are_counted_apart(bench: Any):
    source = """
    import time
    calls = []
    @hookimpl(timeout=0.05)
    def tool_after(result):
        calls.append(1)
        if len(calls) % 2: raise ValueError
        time.sleep(0.1)
    """
    bench.builtin("both", source)
    scope = await bench.scope()
    for _ in range(4):
        await after(bench, scope)
    assert not any(failure.quarantined for failure in scope.failures)
    await after(bench, scope)
    assert scope.failures[-1].quarantined


async def test_a_redactor_is_never_quarantined(bench: Any):
    from moryflow.hooks.dispatcher import Withheld

    bench.user("redacts", "@hookimpl(on_failure='withhold')\ndef tool_after(result):\n    raise ValueError\n")
    scope = await bench.scope()
    for _ in range(6):
        with pytest.raises(Withheld):
            await after(bench, scope)
    assert not any(failure.quarantined for failure in scope.failures)


async def test_a_new_version_of_a_plugin_starts_afresh(bench: Any):
    source = "@hookimpl\ndef tool_after(result):\n    raise ValueError\n"
    bench.user("mine", source)
    scope = await bench.scope()
    for _ in range(4):
        await after(bench, scope)
    bench.user("mine", "@hookimpl\ndef tool_after(result):\n    return result.replace(output='fixed')\n")
    scope.plugin_set = await bench.start(previous=scope.plugin_set)
    assert (await after(bench, scope)).output == "fixed"


# ---------------------------------------------------------------- the ledger


async def test_calls_that_changed_nothing_are_one_row_with_count_and_time(bench: Any):
    """Counters and times for what changed nothing, a row and a delta for what did (ARCHITECTURE §4, ledger)."""
    bench.builtin("quiet", "@hookimpl\ndef tool_after(result): ...\n")
    bench.user("loud", "@hookimpl\ndef tool_after(result):\n    return result.replace(output='x', title='t')\n")
    scope = await bench.scope()
    for _ in range(3):
        await after(bench, scope)
    rows = scope.hook_calls()
    quiet = [row for row in rows if row.plugin == "quiet"]
    loud = [row for row in rows if row.plugin == "loud"]
    assert [(row.outcome, row.count, row.delta, row.position) for row in quiet] == [("ok", 3, None, 0)]
    change = {"output": "x", "title": "t", "was": {"output": "", "title": ""}}
    assert [(row.outcome, row.count, row.delta) for row in loud] == [("changed", 1, change)] * 3
    row = loud[0]
    assert (row.session, row.turn, row.step, row.hook, row.call_id, row.position) == ("s1", "t1", 1, "tool_after", "c1", 1)
    assert row.plugin_hash == scope.plugin_set.plugins["loud"].hash and row.us > 0
    assert scope.hook_calls() == []


async def test_what_a_gate_said_is_written_down(bench: Any):
    """Its whole verdict, so that a changed gate can be compared with it (invariant 10)."""
    bench.user("strict", "@hookimpl\ndef tool_gate(call):\n    return Deny('no', next_step='ask')\n")
    bench.user("silent", "@hookimpl\ndef tool_gate(call): ...\n")
    scope = await bench.scope()
    await bench.dispatcher.gates(scope, "tool_gate", call=CALL)
    rows = {row.plugin: (row.outcome, row.delta) for row in scope.hook_calls()}
    assert rows == {"strict": ("ok", {"decision": "deny", "reason": "no", "next_step": "ask"}), "silent": ("ok", None)}


async def test_what_a_redactor_removes_is_not_written_down(bench: Any):
    """Neither what it was given nor what plugins before it made of that; their sizes are (invariant 10)."""
    add = "@hookimpl{}\ndef tool_after(result):\n    return result.replace(output={})\n"
    bench.user("a_note", add.format("", "result.output + ' (noted)'"))
    bench.user("b_redact", add.format("(on_failure='withhold')", "result.output.replace('secret', '***')"))
    bench.user("c_sign", add.format("", "result.output + ' --'"))
    scope = await bench.scope()
    await after(bench, scope, output="secret")
    note, redact, sign = (row.delta for row in scope.hook_calls())
    assert note == {"output": {"withheld": 14}, "was": {"output": {"withheld": 6}}}
    assert redact == {"output": "*** (noted)", "was": {"output": {"withheld": 14}}}
    assert sign == {"output": "*** (noted) --", "was": {"output": "*** (noted)"}}


async def test_blocks_for_the_system_prompt_are_recorded_by_size_and_hash(bench: Any):
    """The bill of a plugin counts what it adds; what is not a block costs the plugin, not the turn (invariant 5)."""
    bench.user("a_block", "@hookimpl\ndef system_blocks():\n    return [SystemBlock(id='a', text='12345')]\n")
    bench.user("b_wrong", "@hookimpl\ndef system_blocks():\n    return ['text']\n")
    scope = await bench.scope()
    assert [plugin for plugin, _ in await bench.dispatcher.contribute(scope, "system_blocks")] == ["a_block"]
    good, bad = scope.hook_calls()
    assert (good.outcome, good.delta) == ("changed", {"blocks": [{"id": "a", "chars": 5, "hash": "5994471abb01112a"}]})
    assert bad.outcome == "failed" and "SystemBlock" in scope.failures[0].error


async def test_the_chain_lists_calls_in_order_and_of_one_call(bench: Any):
    """``tool run --json`` prints the chain: hook, plugin, outcome and microseconds, in order (CONTRACT §2)."""
    bench.builtin("one", "@hookimpl\ndef tool_after(result): ...\n@hookimpl\ndef tool_gate(call): ...\n")
    bench.user("two", "@hookimpl\ndef tool_after(result):\n    raise ValueError\n")
    scope = await bench.scope()
    scope.ledger.keep = True
    await bench.dispatcher.gates(scope, "tool_gate", call=CALL)
    await after(bench, scope)
    scope.hook_calls()
    await after(bench, scope, CALL.replace(id="c2"))
    chain = scope.ledger.chain()
    assert [(item["hook"], item["plugin"], item["outcome"]) for item in chain] == [
        ("tool_gate", "one", "ok"),
        ("tool_after", "one", "ok"),
        ("tool_after", "two", "failed"),
        ("tool_after", "one", "ok"),
        ("tool_after", "two", "failed"),
    ]
    assert [item["plugin"] for item in scope.ledger.chain("c2")] == ["one", "two"] and all("us" in item for item in chain)


async def test_a_huge_change_is_recorded_by_its_size(bench: Any):
    bench.user(
        "big",
        "@hookimpl\ndef tool_after(result):\n    return result.replace(output='x' * 200_000, metadata={'a': ['y' * 70_000]})\n",
    )
    scope = await bench.scope()
    await after(bench, scope)
    (row,) = scope.hook_calls()
    assert row.delta["fields"] == ["metadata", "output"] and row.delta["too_large"] < 200_000
    assert len(str(row.delta)) < 200


async def test_what_a_plugin_is_given_is_kept_when_asked_for(bench: Any):
    """For `replay`: as JSON, secrets hidden; not what a redactor has yet to see, nor what is too large (S2.20)."""
    bench.user("a_look", "@hookimpl\ndef tool_after(result): ...\n")
    bench.user("b_redact", "@hookimpl(on_failure='withhold')\ndef tool_after(result): ...\n")
    bench.user("c_look", "@hookimpl\ndef tool_after(result): ...\n")
    scope = await bench.scope()
    know(["hidden-word-4711"])
    await after(bench, scope, output="hidden-word-4711")
    assert {row.input is None for row in scope.hook_calls()} == {True}
    scope.ledger.keeps_inputs = True
    await after(bench, scope, output="x hidden-word-4711")
    kept = {row.plugin: row.input for row in scope.hook_calls()}
    assert (kept["a_look"], kept["b_redact"]) == (None, None)
    assert kept["c_look"]["result"] == {"output": "x [redacted]"} and kept["c_look"]["call"]["id"]
    await after(bench, scope, output="y" * 300_000)
    assert {row.input is None for row in scope.hook_calls()} == {True}


# ---------------------------------------------------------------- threads


async def test_plain_functions_of_a_third_party_plugin_run_on_its_one_thread(bench: Any):
    """One daemon worker thread per third-party plugin, calls serial; built-ins run on the loop (ARCHITECTURE §4)."""
    source = "import threading\nseen = []\n@hookimpl\ndef tool_after(result):\n    seen.append(threading.current_thread())\n"
    bench.user("mine", source)
    bench.user("other", source)
    bench.builtin("inside", source)
    bench.builtin("apart", source.replace("@hookimpl", "@hookimpl(blocking=True)"))
    scope = await bench.scope()
    for _ in range(3):
        await after(bench, scope)
    threads = {name: set(plugin.object.seen) for name, plugin in scope.plugin_set.plugins.items()}
    assert threads["inside"] == {threading.current_thread()}
    (mine,), (other,) = threads["mine"], threads["other"]
    assert mine is not other and mine.daemon and mine.name == "moryflow-mine"
    assert threading.current_thread() not in threads["apart"]


async def test_calls_of_one_plugin_are_serial_and_those_of_two_are_not(bench: Any):
    source = (
        "import time\nlog = []\n@hookimpl\ndef tool_gate(call):\n    log.append('in'); time.sleep(0.05); log.append('out')\n"
    )
    bench.user("mine", source)
    scope = await bench.scope()
    await asyncio.gather(*(bench.dispatcher.gates(scope, "tool_gate", call=CALL) for _ in range(4)))
    assert scope.plugin_set.plugins["mine"].object.log == ["in", "out"] * 4
    assert scope.failures == [], "waiting for one's turn is not overrunning"


async def test_a_plugin_whose_thread_hangs_is_broken_and_the_others_go_on(bench: Any):
    """Abandoned at its deadline; transforms and observers of it are skipped from then on (invariant 9)."""
    bench.user(
        "hangs",
        """
        import time
        calls = []
        @hookimpl(timeout=0.1)
        def tool_after(result):
            calls.append("after")
            time.sleep(20)
        @hookimpl
        def event(event):
            calls.append("event")
        """,
    )
    bench.user("good", "@hookimpl\ndef tool_after(result):\n    return result.replace(output='good')\n")
    scope = await bench.scope()
    for _ in range(3):
        assert (await asyncio.wait_for(after(bench, scope), 300)).output == "good"
    await bench.dispatcher.observe(scope, EVENT)
    assert scope.plugin_set.plugins["hangs"].object.calls == ["after"]
    assert len(scope.failures) == 1 and scope.failures[0].outcome == "timeout"
    assert scope.plugin_set.plugins["hangs"].life.broken


async def test_those_who_wait_behind_a_hanging_call_are_told(bench: Any):
    bench.user("hangs", "import time\n@hookimpl(timeout=0.1)\ndef tool_gate(call):\n    time.sleep(20)\n")
    scope = await bench.scope()
    calls = (bench.dispatcher.gates(scope, "tool_gate", call=CALL) for _ in range(5))
    answers = await asyncio.wait_for(asyncio.gather(*calls), 300)
    assert [[verdict.cause for _, verdict in answer] for answer in answers] == [["hook_failure"]] * 5


async def test_a_turn_cancelled_in_a_hanging_call_still_breaks_the_plugin(bench: Any):
    """The deadline is kept also when nobody waits for the call any more (invariant 9)."""
    counted = (
        "import time\ncalls = []\n@hookimpl(timeout=0.2)\ndef tool_gate(call):\n    calls.append(1)\n    time.sleep(600)\n"
    )
    bench.user("hangs", counted)
    scope = await bench.scope()
    work = asyncio.ensure_future(bench.dispatcher.gates(scope, "tool_gate", call=CALL))
    hangs = scope.plugin_set.plugins["hangs"]
    while not hangs.object.calls:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await asyncio.sleep(0.3)
    await bench.dispatcher.gates(scope, "tool_gate", call=CALL)
    assert hangs.life.broken and hangs.object.calls == [1]


async def test_a_blocking_built_in_that_overruns_is_asked_again(bench: Any):
    """Losing a built-in for the whole process would cost more than a thread."""
    source = """
    import time
    calls = []
    @hookimpl(blocking=True, timeout=0.1)
    def tool_gate(call):
        calls.append(1)
        if len(calls) == 1: time.sleep(5)
        return Allow()
    """
    bench.builtin("inside", source)
    scope = await bench.scope()
    answers = [await bench.dispatcher.gates(scope, "tool_gate", call=CALL) for _ in range(2)]
    assert [answer[0][1].decision for answer in answers] == ["deny", "allow"]


async def test_ctrl_c_raised_by_a_plugin_in_its_thread_is_its_failure(bench: Any):
    """Only the main thread gets the person's Ctrl-C; from any other it is a plugin's own doing."""
    bench.user("odd", "@hookimpl\ndef tool_gate(call):\n    raise KeyboardInterrupt\n")
    scope = await bench.scope()
    ((_, verdict),) = await bench.dispatcher.gates(scope, "tool_gate", call=CALL)
    assert verdict.cause == "hook_failure"


def test_exit_does_not_wait_for_threads_of_plugins(bench: Any):
    """A plugin in an endless call costs the process nothing at its end (invariant 9)."""
    bench.user("hangs", "import time\n@hookimpl(timeout=0.1)\ndef tool_gate(call):\n    time.sleep(600)\n")
    code = """
import asyncio, sys
from pathlib import Path
from types import SimpleNamespace
from moryflow.hooks.dispatcher import Dispatcher
from moryflow.hooks.ledger import Ledger
from moryflow.plugins.discovery import PluginSettings
from moryflow.plugins import dispose, load_plugin_set, start
from moryflow.hooks.ledger import Quarantine
from moryflow_sdk import ToolCall
config = SimpleNamespace(section=lambda dotted: {}, origin=lambda dotted: None)
async def main():
    loaded = await start(load_plugin_set(home=Path(sys.argv[1]), builtins=(), settings=PluginSettings(), config=config))
    scope = SimpleNamespace(plugin_set=loaded, ledger=Ledger(), quarantine=Quarantine(), session="s", turn="t", step=1,
                            view=lambda name: None, report=lambda failure: print(failure.outcome))
    await Dispatcher().gates(scope, "tool_gate", call=ToolCall(id="c", tool="t", args={}))
    await dispose(loaded)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code, str(bench.home)], text=True, capture_output=True, env=dict(os.environ))
    assert (done.returncode, done.stdout, done.stderr) == (0, "timeout\n", "")


# ---------------------------------------------------------------- the watchdog


async def test_a_plugin_that_blocks_the_loop_is_named_with_its_line(bench: Any):
    """A watchdog names a plugin that blocks the loop; it cannot stop it (ARCHITECTURE §4)."""
    bench.user("blocks", "import time\n@hookimpl\nasync def tool_gate(call):\n    time.sleep(1.5)\n")
    scope = await bench.scope()
    watchdog = Watchdog(lambda: scope.plugin_set, scope.report, limit=0.1)
    watchdog.start()
    await asyncio.sleep(0.15)
    assert scope.failures == []
    await bench.dispatcher.gates(scope, "tool_gate", call=CALL)
    await asyncio.sleep(0.01)
    watchdog.stop()
    (failure,) = scope.failures
    assert (failure.plugin, failure.outcome, failure.line) == ("blocks", "blocked", 5)
    assert failure.file.endswith("blocks.py")
