"""Transforms fail open: one that raises, overruns or returns nonsense is skipped, unless it withholds (invariant 3)."""

from __future__ import annotations

from typing import Any

import pytest
from moryflow.hooks.dispatcher import Withheld
from moryflow_sdk import (
    HOOKS,
    ChatParams,
    CompactionPlan,
    FrozenDict,
    Message,
    SystemBlock,
    SystemPrompt,
    ToolCall,
    ToolRequest,
    ToolResult,
)

CALL = ToolCall(id="c1", tool="read", args={"path": "a"})
VALUES: dict[str, Any] = {
    "chat_system": SystemPrompt(blocks=(SystemBlock(id="a", text="a"),)),
    "chat_params": ChatParams(temperature=0.5),
    "tool_before": CALL,
    "tool_after": ToolResult(output="out"),
    "compaction": CompactionPlan(covered=("a",), first_kept="b", tokens_before=5),
    "chat_messages": (Message(role="user", text="hi"),),
}
ARGUMENT = {hook: HOOKS[hook].value for hook in VALUES}


FORCED = "vars(made := __import__('copy').copy({})).update({}); return made"
"""The body of a hook that changes a value around its checks."""


async def run(bench: Any, hook: str, *bodies: str, tier: str = "user", marks: str = "", value: Any = None) -> tuple[Any, Any]:
    """Pass the standard value of `hook` through one plugin for each body; return the value and the scope."""
    for number, body in enumerate(bodies):
        source = f"@hookimpl({marks})\ndef {hook}({ARGUMENT[hook]}):\n    {body}\n"
        getattr(bench, tier)(f"p{number}", source)
    scope = await bench.scope()
    context = {"call": CALL} if hook == "tool_after" else {}
    return await bench.dispatcher.transform(scope, hook, VALUES[hook] if value is None else value, **context), scope


CHANGES = {
    "chat_system": "return system.append(SystemBlock(id='b', text='b'))",
    "chat_params": "return params.replace(temperature=1.0)",
    "tool_before": "return call.replace(args={**call.args, 'limit': 5})",
    "tool_after": "return result.replace(output=result.output + '!')",
    "compaction": "return plan.replace(instructions='short')",
    "chat_messages": "return [*messages, Message(role='user', text='more')]",
}


@pytest.mark.parametrize("tier", ["builtin", "user"])
@pytest.mark.parametrize("hook", CHANGES)
async def test_a_new_value_is_handed_on_and_recorded(bench: Any, hook: str, tier: str):
    value, scope = await run(bench, hook, CHANGES[hook], "return None", tier=tier)
    assert value != VALUES[hook] and type(value) is type(VALUES[hook])
    rows = scope.hook_calls()
    assert [(row.plugin, row.outcome, row.count) for row in rows] == [("p0", "changed", 1), ("p1", "ok", 1)]
    assert rows[0].delta and rows[1].delta is None


@pytest.mark.parametrize("tier", ["builtin", "user"])
@pytest.mark.parametrize("hook", VALUES)
@pytest.mark.parametrize(
    "body",
    ["raise ValueError('no')", "return 5",
      "raise SystemExit(1)", "class Odd(BaseException): ...\n    raise Odd()", "return iter(())",
     "raise StopIteration", "import asyncio; raise asyncio.CancelledError()"],
)  # fmt: skip
async def test_one_that_fails_is_skipped_and_the_next_one_gets_the_value(bench: Any, hook: str, body: str, tier: str):
    """Fails open: the value stays as it was, the plugin is named, the chain goes on (invariant 3)."""
    value, scope = await run(bench, hook, body, CHANGES[hook], tier=tier)
    assert value != VALUES[hook]
    (failure,) = scope.failures
    assert (failure.plugin, failure.hook, failure.outcome, failure.action) == ("p0", hook, "failed", "skipped")
    assert failure.file.endswith("p0.py") and failure.line >= 2
    assert [row.outcome for row in scope.hook_calls()] == ["failed", "changed"]


@pytest.mark.parametrize(
    ("hook", "body", "error"),
    [
        ("tool_before", "return call.replace(id='other')", "not the id or the tool"),
        ("tool_before", "return call.replace(tool='bash')", "not the id or the tool"),
        (
            "tool_after",
            FORCED.format("result", "output=5"),
            "not a valid ToolResult",
        ),
        (
            "tool_after",
            FORCED.format("result", "status='fine'"),
            "not a valid ToolResult",
        ),
        ("chat_params", "return ToolResult()", "must return ChatParams"),
        ("chat_messages", "return ['text']", "must return messages"),
        ("chat_messages", "return 'text'", "a sequence of Message"),
    ],
)
async def test_nonsense_is_named(bench: Any, hook: str, body: str, error: str):
    """Nonsense counts as failing (invariant 3)."""
    value, scope = await run(bench, hook, body)
    assert value == VALUES[hook] and error in scope.failures[0].error


async def test_a_value_made_around_validation_is_frozen_again(bench: Any):
    """What was judged cannot change under anyone's hands: a hook's value is rebuilt (R11)."""
    value, _ = await run(
        bench,
        "tool_before",
        FORCED.format("call", "args={'deep': {'list': [1]}}"),
    )
    assert isinstance(value.args["deep"], FrozenDict) and value.args["deep"]["list"] == (1,)
    value, _ = await run(
        bench, "tool_before", "class Mine(ToolCall): ...\n    return Mine(id=call.id, tool=call.tool, args={'x': 1})"
    )
    assert type(value) is ToolCall


async def test_a_hook_cannot_change_what_it_was_given(bench: Any):
    """Values are frozen deeply; one who tries fails, and the value stays (R11)."""
    value, scope = await run(bench, "tool_before", "call.args['path'] = 'b'")
    assert value is CALL and "frozen" in scope.failures[0].error
    value, scope = await run(bench, "tool_before", "call.tool = 'bash'")
    assert value is CALL and len(scope.failures) == 1


async def test_an_equal_value_is_no_change(bench: Any):
    value, scope = await run(bench, "tool_after", "return result.replace(output=result.output)")
    assert value is VALUES["tool_after"]
    assert [row.outcome for row in scope.hook_calls()] == ["ok"]


# ---------------------------------------------------------------- withholding


@pytest.mark.parametrize("tier", ["builtin", "user"])
@pytest.mark.parametrize("body", ["raise ValueError('no')", "return 5"])
async def test_a_redactor_that_fails_withholds(bench: Any, tier: str, body: str):
    """on_failure="withhold": nothing is sent, and who it was is said (invariant 3)."""
    with pytest.raises(Withheld) as caught:
        await run(bench, "tool_after", body, tier=tier, marks="on_failure='withhold'")
    assert caught.value.plugin == "p0"


async def test_a_redactor_that_hangs_withholds_now_and_ever_after(bench: Any):
    """A broken redactor does not let values through (invariant 3)."""
    bench.user(
        "slow", "import time\n@hookimpl(on_failure='withhold', timeout=0.1)\ndef tool_after(result):\n    time.sleep(20)\n"
    )
    scope = await bench.scope()
    for _ in range(5):
        with pytest.raises(Withheld):
            await bench.dispatcher.transform(scope, "tool_after", ToolResult(), call=CALL)
    assert [(failure.outcome, failure.action) for failure in scope.failures] == [("withheld", "withheld")]
    assert {row.outcome for row in scope.hook_calls()} == {"withheld"}


# ---------------------------------------------------------------- messages

ASKED = Message(role="assistant", tool_calls=(ToolRequest(id="c1", name="read"), ToolRequest(id="c2", name="read")))
PAIRED = (
    Message(role="user", text="hi"),
    ASKED,
    Message(role="tool", call_id="c1", text="1"),
    Message(role="tool", call_id="c2", text="2"),
    Message(role="assistant", text="done"),
)


@pytest.mark.parametrize(
    "body",
    [
        "return messages[:2] + messages[3:]",
        "return messages[:1] + messages[2:]",
        "return messages[:2]",
        "return [*messages[:2], Message(role='user', text='x'), *messages[2:]]",
        "return messages[::-1]",
        "return [*messages, messages[2]]",
    ],
)
async def test_a_list_that_separates_a_call_from_its_result_is_skipped(bench: Any, body: str):
    """Calls and results stay paired: no provider accepts anything else."""
    value, scope = await run(bench, "chat_messages", body, value=PAIRED)
    assert value is PAIRED and len(scope.failures) == 1


@pytest.mark.parametrize(
    ("body", "delta"),
    [
        ("return messages[4:]", {"at": 0, "removed": 4, "inserted": []}),
        ("return [*messages[:4], Message(role='user', text='x'), messages[4]]",
         {"at": 4, "removed": 0, "inserted": [{"role": "user", "text": "x"}]}),
        ("return [messages[0].replace(text='ho'), *messages[1:]]",
         {"at": 0, "removed": 1, "inserted": [{"role": "user", "text": "ho"}]}),
        ("return ()", {"at": 0, "removed": 5, "inserted": []}),
        ("return [messages[0], *messages]", {"at": 1, "removed": 0, "inserted": [{"role": "user", "text": "hi"}]}),
    ],
)  # fmt: skip
async def test_a_changed_list_is_recorded_by_the_part_that_changed(bench: Any, body: str, delta: dict[str, Any]):
    """From the recorded change and the list before, the list after can be rebuilt (ARCHITECTURE §4, ledger)."""
    value, scope = await run(bench, "chat_messages", body, value=PAIRED)
    (row,) = scope.hook_calls()
    assert row.delta == delta
    new = tuple(Message(**item) for item in delta["inserted"])
    assert PAIRED[: delta["at"]] + new + PAIRED[delta["at"] + delta["removed"] :] == value


async def test_messages_that_stay_keep_their_encoded_bytes(bench: Any):
    """A step costs what is new: messages a hook left alone are the same objects."""
    value, _ = await run(bench, "chat_messages", "return [*messages, Message(role='user', text='x')]", value=PAIRED)
    assert all(new is old for new, old in zip(value, PAIRED, strict=False))


OUT_OF_BOUNDS = {
    "chat_params": [
        ("params.replace(temperature=float('nan'))", "temperature is nan"),
        ("params.replace(top_p=float('inf'))", "top_p is inf"),
        ("params.replace(temperature=-0.5)", "temperature is -0.5, not between 0 and 2"),
        ("params.replace(max_tokens=0)", "max_tokens is 0"),
        ("params.replace(max_tokens=10**30)", "max_tokens is 1000000"),
        ("params.replace(extra={'a': {'b': [1, float('-inf')]}})", "extra.a.b[1] is -inf"),
        ("params.replace(extra={'seed': 1 << 5000})", "extra.seed is a number of 5001 bits"),
        ("params.replace(response_format={'x': 'y' * 2_000_000})", "response_format holds 2,000,"),
    ],
    "chat_system": [("system.append(SystemBlock(id='b', text='x' * 50_000_000))", "blocks holds 50,000,")],
    "chat_messages": [
        ("[*messages, Message(role='user', text='x' * 50_000_000)]", "text holds 50,000,"),
        ("[*messages, *[Message(role='user', text='x' * 4_000_000)] * 10]", "in 10 new messages"),
    ],
    "tool_before": [
        ("call.replace(args={'path': 'a', 'limit': float('nan')})", "args.limit is nan"),
        ("call.replace(args={'path': 'x' * 5_000_000})", "args holds 4,999,"),
    ],
    "tool_after": [("result.replace(metadata={'share': float('nan')})", "metadata.share is nan")],
    "compaction": [("plan.replace(instructions='x' * 2_000_000)", "instructions holds 2,000,")],
}


@pytest.mark.parametrize("tier", ["builtin", "user"])
@pytest.mark.parametrize(("hook", "made", "said"), [(hook, *row) for hook, rows in OUT_OF_BOUNDS.items() for row in rows])
async def test_a_value_out_of_bounds_is_named_and_the_one_before_stands(bench: Any, hook: str, made: str, said: str, tier: str):
    """Plugin, field and value are named; the next plugin gets what was there before (invariant 3, D42)."""
    value, scope = await run(bench, hook, f"return {made}", CHANGES[hook], tier=tier)
    (failure,) = scope.failures
    assert said in failure.error and (failure.plugin, failure.hook, failure.action) == ("p0", hook, "skipped")
    assert value != VALUES[hook] and "nan" not in repr(value) and len(repr(value)) < 10_000


async def test_what_was_too_large_before_a_hook_is_not_held_against_it(bench: Any):
    """A person's own long prompt does not switch off the plugins that shorten it or leave its size (invariant 3)."""
    long = SystemPrompt(blocks=(SystemBlock(id="a", text="x" * 2_000_000),))
    body = "return system.replace(blocks=(system.blocks[0].replace(text='y' * 1_999_999),))"
    value, scope = await run(bench, "chat_system", body, value=long)
    assert value.text.startswith("y") and not scope.failures


async def test_system_blocks_and_verdicts_are_bounded_too(bench: Any):
    """A block of 50 MB is left out; a verdict with such a reason is a gate that failed (invariant 3)."""
    bench.user("long", "@hookimpl\ndef system_blocks():\n    return [SystemBlock(id='b', text='x' * 50_000_000)]\n")
    bench.user("wordy", "@hookimpl\ndef tool_gate():\n    return Allow('x' * 50_000_000)\n")
    scope = await bench.scope()
    assert await bench.dispatcher.contribute(scope, "system_blocks") == []
    ((_, verdict),) = await bench.dispatcher.gates(scope, "tool_gate", call=CALL)
    assert verdict.decision == "deny" and verdict.cause == "hook_failure"
    assert [failure.plugin for failure in scope.failures] == ["long", "wordy"]
    assert all("at most" in failure.error for failure in scope.failures)


async def test_a_hook_that_takes_what_it_is_not_given_fails_by_name(bench: Any):
    """Whoever calls the hook without an argument of its specification is no reason for a KeyError (issue C)."""
    bench.user("p0", "@hookimpl\ndef tool_after(call, result):\n    return result.replace(output='!')\n")
    scope = await bench.scope()
    result = await bench.dispatcher.transform(scope, "tool_after", VALUES["tool_after"])
    assert result == VALUES["tool_after"]
    [row] = scope.hook_calls()
    assert (row.plugin, row.outcome) == ("p0", "failed")
    assert "it takes 'call'" in str(row)
