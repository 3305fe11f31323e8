"""The fields of an answer that the protocol does not have are kept as they came, however they came."""

from __future__ import annotations

from typing import Any

import pytest
from moryflow_sdk import Finished
from moryflow_sdk.chat_completions import Answer, Endpoint
from moryflow_sdk.chat_completions.sse import DONE
from moryflow_sdk.field_types import thaw


def played(*deltas: dict[str, Any], key: str = "delta") -> Finished:
    answer = Answer(Endpoint("http://x/v1", "x"))
    for delta in deltas:
        list(answer.feed({"choices": [{"index": 0, key: delta}]}))
    list(answer.feed({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
    list(answer.feed(DONE))
    *_, finished = answer.finish()
    assert isinstance(finished, Finished)
    return finished


def summary(text: str, **more: Any) -> dict[str, Any]:
    return {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": text, **more}]}


def sealed(data: str, id: str) -> dict[str, Any]:
    return {"type": "reasoning.encrypted", "index": 0, "data": data, "id": id}


TWO_SEALED = {"reasoning_details": [sealed("1", "c1"), sealed("2", "c2")]}


def thought(text: str, signature: str = "") -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature}


def mistral(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}


@pytest.mark.parametrize(
    ("deltas", "kept"),
    [
        ([{"reasoning_content": "a"}, {"reasoning_content": "a"}, {"content": "x"}], {"reasoning_content": "aa"}),
        ([{"reasoning": "a", "x_sig": "s1"}, {"reasoning": "b", "x_sig": "s1"}], {"reasoning": "ab", "x_sig": "s1"}),
        (
            [summary("a"), summary("b"), summary("", signature="s"), TWO_SEALED],
            {
                "reasoning_details": [
                    {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "s"},
                    sealed("1", "c1"),
                    sealed("2", "c2"),
                ]
            },
        ),
        (
            [{"thinking_blocks": [thought(*one)]} for one in (("a",), ("b",), ("", "s1"), ("c",), ("", "s2"))],
            {"thinking_blocks": [thought("ab", "s1"), thought("c", "s2")]},
        ),
        ([{"content": [mistral("a")]}, {"content": [mistral("b")]}, {"content": "x"}], {
            "content": [mistral("ab"), {"type": "text", "text": "x"}]
        }),
        ([{"extra_content": {"google": {"thought_signature": "s"}}, "content": "x"}], {
            "extra_content": {"google": {"thought_signature": "s"}}
        }),
        ([{"content": "x", "refusal": None, "annotations": [], "audio": None}], {}),
    ],
    ids=["deepseek", "unknown", "openrouter", "litellm", "mistral", "gemini", "nothing"],
)  # fmt: skip
def test_pieces_of_a_stream_are_joined(deltas: list[dict[str, Any]], kept: dict[str, Any]) -> None:
    """Texts grow, blocks stay apart, what is said again stays once (S4.6)."""
    assert thaw(played(*deltas).extra) == kept


def test_an_answer_that_comes_whole_is_kept_as_it_came() -> None:
    """Two blocks that came together are never pieces of one (S4.6)."""
    blocks = {"thinking_blocks": [thought("a", "s1"), thought("b", "s2")], "content": "x"}
    assert thaw(played(blocks, key="message").extra) == {"thinking_blocks": blocks["thinking_blocks"]}


def test_fields_of_a_call_stay_with_the_call() -> None:
    """Gemini signs the first of parallel calls (S4.6)."""
    first = {"index": 0, "id": "a", "type": "function", "extra_content": {"s": "x"}, "function": {"name": "ls", "mark": 1}}
    more = {"index": 0, "function": {"arguments": "{}"}}
    second = {"index": 1, "id": "b", "function": {"name": "ls", "arguments": "{}"}}
    found = played({"tool_calls": [first]}, {"tool_calls": [more]}, {"tool_calls": [second]})
    assert [thaw(call.extra) for call in found.tool_calls] == [{"extra_content": {"s": "x"}, "function": {"mark": 1}}, {}]


def test_a_field_that_cannot_be_stored_costs_nothing_else() -> None:
    """Nested too deeply, or no number (invariant 5)."""
    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    found = played({"content": "x", "deep": deep, "odd": float("nan"), "good": 1}).extra
    assert found["good"] == 1 and found["odd"] is None
