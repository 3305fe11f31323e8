"""Calls that a model writes as text: one JSON object becomes a call, everything else stays what it is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow_sdk import Finished, ModelEvent, ReasoningDelta, TextDelta, ToolRequest
from moryflow_sdk.chat_completions.written_calls import written_calls

CALL = '{"name": "read", "arguments": {"path": "a b.md"}}'


async def played(pieces: list[str], *, finished: Finished | None = None) -> tuple[list[str], Finished]:
    """Return the texts that a person sees, and the end of the answer."""

    async def answer() -> AsyncIterator[ModelEvent]:
        yield ReasoningDelta(text="hm")
        for piece in pieces:
            yield TextDelta(text=piece)
        yield finished or Finished()

    events = [event async for event in written_calls(answer(), {"read", "ls"})]
    assert isinstance(events[-1], Finished)
    return [event.text for event in events if isinstance(event, TextDelta)], events[-1]


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        f"\n{CALL}\n",
        f"```json\n{CALL}\n```",
        f"```\n{CALL}```",
        f"<tool_call>\n{CALL}\n</tool_call>",
        '{"arguments": {"path": "a b.md"}, "name": "read"}',
        '{"type": "function", "name": "read", "parameters": {"path": "a b.md"}}',
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_a_lone_object_that_names_an_offered_tool_is_a_call(text: str, size: int) -> None:
    """However the stream cuts it, and in the frames that models put around it (S4.7)."""
    texts, end = await played([text[start : start + size] for start in range(0, len(text), size)])
    [call] = end.tool_calls
    assert (texts, end.reason, call.name, json.loads(call.arguments)) == ([], "tool_calls", "read", {"path": "a b.md"})
    assert call.problem is None and call.id


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"I would call {CALL}", "stop"),
        (f"{CALL} reads it.", "stop"),
        (CALL.replace("read", "bash"), "stop"),
        (CALL, "length"),
        (CALL[:-1], "stop"),
        ('{"name": "read"}', "stop"),
        ('{"name": "read", "arguments": "a"}', "stop"),
        ('{"name": "read", "arguments": {}, "version": 3}', "stop"),
        (f"{CALL}{CALL}", "stop"),
        ("```python\nprint(1)\n```", "stop"),
        ("", "stop"),
    ],
)
async def test_everything_else_stays_text(text: str, reason: str) -> None:
    """A model that explains a call, names another tool or was cut does not call (invariant 1)."""
    texts, end = await played(list(text), finished=Finished(reason=reason))
    assert ("".join(texts), end.tool_calls, end.reason) == (text, (), reason)


async def test_text_is_held_back_only_while_it_can_be_a_call() -> None:
    """Streaming stays (S2.4); a call that came as one is passed on."""
    assert (await played(["The", " end"]))[0] == ["The", " end"]
    assert (await played(["```", "python", "\nx"]))[0] == ["```", "python", "\nx"]
    real = Finished(reason="tool_calls", tool_calls=(ToolRequest(id="1", name="ls"),))
    assert await played([CALL], finished=real) == ([CALL], real)


@given(st.lists(st.sampled_from(["{", '"name"', ":", " ", '"x"', "`", "```json", "}", "<tool_call>", "word", ","])))
async def test_no_text_is_lost_or_doubled(pieces: list[str]) -> None:
    """What is not a call reaches the user whole and in order (S2.4)."""
    texts, end = await played(pieces)
    assert end.tool_calls or "".join(texts) == "".join(pieces)
