"""Gates fail closed: one that raises, overruns, returns nonsense or is broken has denied (invariant 3)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from moryflow_sdk import Allow, Ask, Deny, Ruling, Stop, ToolCall

CALL = ToolCall(id="c1", tool="read", args={})


async def test_every_gate_is_asked_in_order_with_its_name(bench: Any):
    bench.builtin("allows", "@hookimpl\ndef tool_gate(call):\n    return Allow()\n")
    bench.installed("asks", "@hookimpl\nasync def tool_gate(call, turn):\n    return Ask(reason=turn.plugin)\n")
    bench.user("denies", "@hookimpl\ndef tool_gate():\n    return Deny(reason='no')\n")
    bench.user("silent", "@hookimpl\ndef tool_gate(call): ...\n")
    bench.user("stops", "@hookimpl\ndef tool_gate(call):\n    return Stop(reason='end')\n")
    scope = await bench.scope()
    verdicts = await bench.dispatcher.gates(scope, "tool_gate", call=CALL)
    assert verdicts == [
        ("allows", Allow()),
        ("asks", Ask(reason="asks")),
        ("denies", Deny(reason="no")),
        ("stops", Stop(reason="end")),
    ]


FAILING = [
    "raise ValueError('no')",
    "raise SystemExit(0)",
    "class Odd(BaseException): ...\n    raise Odd()",
    "class Odd(BaseException):\n        def __str__(self): raise self\n    raise Odd()",
    "class Odd:\n        def __repr__(self): raise SystemExit(self)\n    raise SystemExit(Odd())",
    "return True",
    "return 'deny'",
    "return Allow",
    "made = Allow(); vars(made).update(decision='deny'); return made",
    "made = Deny('x'); vars(made).update(reason=5); return made",
    "import asyncio; raise asyncio.CancelledError()",
    "raise TimeoutError('mine')",
]


@pytest.mark.parametrize("how", ["builtin plain", "user plain", "builtin async", "user async"])
@pytest.mark.parametrize("body", FAILING)
@pytest.mark.parametrize("hook", ["tool_gate", "tool_decided"])
async def test_a_gate_that_fails_denies(bench: Any, hook: str, body: str, how: str):
    """A gate that raises or returns nonsense means deny, told apart from policy (invariant 3)."""
    tier, kind = how.split()
    getattr(bench, tier)("guard", f"@hookimpl\n{'async ' if kind == 'async' else ''}def {hook}(call):\n    {body}\n")
    scope = await bench.scope()
    context = {"call": CALL, **({"ruling": Ruling(decision="allow")} if hook == "tool_decided" else {})}
    ((plugin, verdict),) = await bench.dispatcher.gates(scope, hook, **context)
    assert plugin == "guard" and isinstance(verdict, Deny)
    assert (verdict.cause, verdict.bypass) == ("hook_failure", "never")
    assert "guard" in verdict.reason
    (failure,) = scope.failures
    assert (failure.outcome, failure.action) == ("failed", "denied") and failure.file.endswith("guard.py")
    assert [row.outcome for row in scope.hook_calls()] == ["failed"]


SPIN = """import time, asyncio
def spin(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
"""
SLOW = SPIN + "@hookimpl(timeout=0.1{how})\n{kind}def tool_gate(call):\n    {wait}\n    return Allow()\n"


def slow(kind: str, wait: str) -> str:
    """Return the source of a gate that may take 0.1 s; a ``threaded`` one has a thread."""
    how = ", blocking=True" if kind == "threaded " else ""
    return SLOW.format(kind=kind.removeprefix("threaded "), wait=wait, how=how)


@pytest.mark.parametrize(
    ("tier", "kind", "wait"),
    [
        ("user", "", "time.sleep(0.4)"),
        ("user", "async ", "await asyncio.sleep(20)"),
        ("builtin", "", "time.sleep(0.3)"),
        ("builtin", "threaded ", "time.sleep(2)"),
        ("builtin", "async ", "await asyncio.sleep(20)"),
        ("user", "async ", "time.sleep(0.3)"),
    ],
)
async def test_a_gate_that_takes_too_long_denies(bench: Any, tier: str, kind: str, wait: str):
    """Overrunning means deny, and nothing waits for ever (invariants 3 and 9)."""
    getattr(bench, tier)(
        "guard",
        slow(kind, wait),
    )
    scope = await bench.scope()
    ((_, verdict),) = await asyncio.wait_for(bench.dispatcher.gates(scope, "tool_gate", call=CALL), 300)
    assert isinstance(verdict, Deny) and verdict.cause == "hook_failure" and "longer than 0.1 s" in verdict.reason
    assert scope.failures[0].outcome == "timeout"


async def test_a_gate_whose_thread_was_given_up_denies_without_being_called(bench: Any):
    """A broken plugin's gates deny without being called, for this process (ARCHITECTURE §4)."""
    counted = "import time\ncalls = []\n@hookimpl(timeout=0.1)\ndef tool_gate(call):\n    calls.append(1)\n    time.sleep(20)\n"
    bench.user("guard", counted)
    scope = await bench.scope()
    for _ in range(6):
        ((_, verdict),) = await bench.dispatcher.gates(scope, "tool_gate", call=CALL)
        assert isinstance(verdict, Deny) and verdict.cause == "hook_failure"
    assert scope.plugin_set.plugins["guard"].object.calls == [1]
    assert len(scope.failures) == 1, "reported once, when it broke"
    assert [row.outcome for row in scope.hook_calls()] == ["timeout"] + ["skipped"] * 5


async def test_a_gate_that_ignores_its_cancellation_denies_while_it_lingers(bench: Any):
    """One that cannot be cancelled holds up nobody either (invariant 9)."""
    source = """
    import asyncio
    told = []
    @hookimpl(timeout=0.1)
    async def tool_gate(call):
        while not told:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                pass
        return Allow()
    """
    bench.user("stubborn", source)
    scope = await bench.scope()
    for outcome in ("timeout", "skipped"):
        ((_, verdict),) = await asyncio.wait_for(bench.dispatcher.gates(scope, "tool_gate", call=CALL), 300)
        assert isinstance(verdict, Deny)
        assert scope.hook_calls()[0].outcome == outcome
    scope.plugin_set.plugins["stubborn"].object.told.append("to end")
    stray = scope.plugin_set.plugins["stubborn"].life.stray
    await asyncio.wait((stray,))
    assert stray.done()


async def test_a_gate_is_never_quarantined(bench: Any):
    """However often a gate fails, it is asked again and denies again (ARCHITECTURE §4)."""
    bench.user("guard", "@hookimpl\ndef tool_gate(call):\n    raise ValueError\n")
    scope = await bench.scope()
    for _ in range(10):
        ((_, verdict),) = await bench.dispatcher.gates(scope, "tool_gate", call=CALL)
        assert isinstance(verdict, Deny)
    assert not any(failure.quarantined for failure in scope.failures)
    assert [row.outcome for row in scope.hook_calls()] == ["failed"] * 10


async def test_a_plain_gate_that_returns_a_coroutine_is_awaited(bench: Any):
    """A decorator often makes a plain function of an asynchronous one; its verdict counts all the same."""
    for tier in ("builtin", "user"):
        source = "async def later(): return Deny(reason='late')\n@hookimpl\ndef tool_gate(call):\n    return later()\n"
        getattr(bench, tier)(f"of_{tier}", source)
    scope = await bench.scope()
    verdicts = await bench.dispatcher.gates(scope, "tool_gate", call=CALL)
    assert [verdict.reason for _, verdict in verdicts] == ["late", "late"]


async def test_a_cancelled_turn_is_cancelled_and_not_a_failure(bench: Any):
    """The person's stop goes through a hook that waits; it is not the hook's fault."""
    bench.user("waits", "import asyncio\n@hookimpl\nasync def tool_gate(call):\n    await asyncio.sleep(1.5)\n")
    bench.builtin("also", "import asyncio\n@hookimpl\nasync def tool_gate(call):\n    await asyncio.sleep(0.01)\n")
    scope = await bench.scope()
    work = asyncio.ensure_future(bench.dispatcher.gates(scope, "tool_gate", call=CALL))
    await asyncio.sleep(0.05)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert scope.failures == []
