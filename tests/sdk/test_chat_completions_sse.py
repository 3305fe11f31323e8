"""From bytes to JSON values: every way to cut, end and decorate an event stream."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from moryflow_sdk import ModelError
from moryflow_sdk.chat_completions.answer import Answer
from moryflow_sdk.chat_completions.endpoint import Endpoint
from moryflow_sdk.chat_completions.sse import DONE, AnswerReader


def read(*pieces: bytes, line_limit: int = 1 << 20, body_limit: int = 1 << 22) -> list[Any]:
    """Everything a reader makes of `pieces`; the mark is the text DONE, an error its code."""
    reader = AnswerReader(line_limit=line_limit, body_limit=body_limit)
    values: list[Any] = []
    try:
        for piece in pieces:
            values += reader.feed(piece)
        values += reader.close()
    except ModelError as error:
        values.append(f"error:{error.code}")
    return ["DONE" if value is DONE else value for value in values]


A, B = {"a": 1}, {"b": "é"}

STREAMS: dict[str, tuple[bytes, list[Any]]] = {
    "plain": (b'data: {"a": 1}\n\ndata: [DONE]\n\n', [A, "DONE"]),
    "no blank after the colon": (b'data:{"a":1}\n\ndata:[DONE]\n\n', [A, "DONE"]),
    "crlf": (b'data: {"a": 1}\r\n\r\ndata: [DONE]\r\n\r\n', [A, "DONE"]),
    "cr": (b'data: {"a": 1}\r\rdata: [DONE]\r\r', [A, "DONE"]),
    "mixed ends": (b'data: {"a": 1}\n\r\ndata: [DONE]\r\r\n', [A, "DONE"]),
    "byte order mark": (b'\xef\xbb\xbfdata: {"a": 1}\n\n', [A]),
    "byte order mark and JSON": (b'\xef\xbb\xbf{"a": 1}', [A, "DONE"]),
    "comments and other fields": (b': hi\nid: 1\nretry: 5\nevent: x\ndata: {"a": 1}\n\n: bye\n\n', [A]),
    "no empty lines": (b'data: {"a": 1}\ndata: {"a": 1}\ndata: [DONE]\n', [A, A, "DONE"]),
    "one value on two lines": (b'data: {"a":\ndata: 1}\n\ndata: [DONE]\n\n', [A, "DONE"]),
    "one value on two lines, crlf": (b'data: {"a":\r\ndata: 1}\r\n\r\ndata: [DONE]\r\n\r\n', [A, "DONE"]),
    "no end of line at the end": (b'data: {"a": 1}\n\ndata: [DONE]', [A, "DONE"]),
    "blank around the mark": (b"data:  [DONE] \n\n", ["DONE"]),
    "nothing after the mark": (b'data: [DONE]\n\ndata: {"a": 1}\n\ndata: garbage\n\n', ["DONE"]),
    "empty data": (b'data:\n\ndata: \n\ndata\n\ndata: {"a": 1}\n\n', [A]),
    "leading empty lines": (b'\n\r\n\ndata: {"a": 1}\n\n', [A]),
    "utf-8": ('data: {"b": "é"}\n\n'.encode(), [B]),
    "bad bytes in text": (b'data: {"b": "\xff\xe9"}\n\n', ["error:protocol"]),
    "cut inside a value": (b'data: {"a": 1}\n\ndata: {"a"', [A]),
    "garbage": (b'data: {"a": 1}\n\ndata: nonsense\n\ndata: {"a": 1}\n\n', [A, "error:protocol"]),
    "garbage and the mark": (b'data: {"a": 1}\n\ndata: {"b\ndata: [DONE]\n\n', [A, "error:protocol"]),
    "error event": (b'event: error\ndata: {"message": "m"}\n\n', [{"error": {"message": "m"}}]),
    "error event, wrapped": (b'event: error\ndata: {"error": {"a": 1}}\n\n', [{"error": A}]),
    "event name ends with its event": (b'event: error\n\ndata: {"a": 1}\n\n', [A]),
    "JSON": (b'{"a": 1}', [A, "DONE"]),
    "pretty JSON": (b'\n{\n  "a": 1\n}\n', [A, "DONE"]),
    "JSON list": (b'[{"a": 1}]', [[A], "DONE"]),
    "cut JSON": (b'{"a": [1', ["error:incomplete"]),
    "HTML": (b"<html><body>Not found</body></html>", ["error:protocol"]),
    "words": (b"Internal Server Error", ["error:protocol"]),
    "nothing": (b"", []),
    "only comments": (b": a\n\n: b\n\n", []),
    "nested too deeply": (b"data: " + b"[" * 100_000 + b"\n\n", ["error:protocol"]),
    "number too long": (b'data: {"a": ' + b"9" * 5000 + b"}\n\n", ["error:protocol"]),
    "NUL": (b'data: {"a": 1}\n\n\x00\x00\n\n', [A]),
    "utf-16": ('data: {"a": 1}\n\n'.encode("utf-16"), ["error:protocol"]),
}


@pytest.mark.parametrize("name", STREAMS)
def test_each_stream_gives_its_values(name: str) -> None:
    """Servers write event streams in every way the standard allows, and in some it does not (S4.6)."""
    body, expected = STREAMS[name]
    assert read(body) == expected


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_size_of_network_reads_changes_nothing(name: str, size: int) -> None:
    """A line end or a character may lie across two reads (S4.6)."""
    body, expected = STREAMS[name]
    body = body[:20_000]
    cut = [body[start : start + size] for start in range(0, len(body), size)]
    assert read(*cut) == (expected if len(body) < 20_000 else read(body))


CALL = b'{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"x"}]}}]}'
pieces = st.sampled_from(
    [*(bytes([byte]) for byte in b'\n\r{}[]" :\xff'), b"data:", b"data: ", b"\r\n", b"\n\n", b'{"a": 1}', b"[DONE]", b": c",
     b"event: error", b"error: ", b"\xef\xbb\xbf", b"<html>", b"null", CALL]
)  # fmt: skip
streams = st.lists(st.one_of(pieces, st.binary(max_size=6)), max_size=25).map(b"".join)


@given(body=streams, cuts=st.lists(st.integers(0, 200), max_size=8))
@settings(max_examples=400)
def test_any_bytes_cut_anywhere_give_the_same_values(body: bytes, cuts: list[int]) -> None:
    """What is read depends on the bytes and never on how they came (S4.6)."""
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    assert read(*[body[a:b] for a, b in pairwise(edges)]) == read(body)


FIELDS = [
    *("choices", "delta", "message", "content", "tool_calls", "function", "name", "arguments", "index", "id", "error", "usage"),
    *("finish_reason", "code", "prompt_tokens", "type", "text", "thinking", "detail", "object", "function_call"),
]
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=15,
)


@given(chunks=st.lists(values, max_size=6), delta=values, item=values)
@example(chunks=[{"choices": [{"delta": {"tool_calls": {"index": [], "function": {"name": {}}}}}]}], delta=None, item=None)
@settings(max_examples=400)
def test_any_json_gives_an_answer_or_a_model_error(chunks: list[Any], delta: Any, item: Any) -> None:
    """A provider's nonsense is never an exception of another kind (invariant 5)."""
    answer = Answer(Endpoint("http://x/v1", "x"))
    shaped = [{"choices": [{"delta": delta}]}, {"choices": [{"delta": {"tool_calls": [item]}}]}]
    try:
        for chunk in [*chunks, *shaped, DONE]:
            list(answer.feed(chunk))
        list(answer.finish())
    except ModelError:
        pass
    ids = [call.id for call in answer.add_unfinished(ModelError("", code="protocol")).tool_calls]
    assert len(set(ids)) == len(ids)


def test_one_endless_line_is_stopped_with_a_bounded_buffer() -> None:
    """The limit holds before any parsing (R27)."""
    reader = AnswerReader(line_limit=1000, body_limit=1 << 30)
    with pytest.raises(ModelError) as caught:
        for _ in range(100):
            list(reader.feed(b"a" * 100))
    assert caught.value.code == "too_large"


def test_an_endless_answer_is_stopped() -> None:
    """Comments count too (R27)."""
    assert read(*[b": keep-alive\n\n"] * 500, body_limit=1000) == ["error:too_large"]


def test_what_the_reader_gives_is_what_was_written() -> None:
    """The control for the fuzzing above (S4.6)."""
    written = [{"choices": [{"delta": {"content": text}}]} for text in ("a", "é\n", "\u2028", '"\\')]
    body = "".join(f"data: {json.dumps(value, ensure_ascii=False)}\n\n" for value in written).encode()
    assert read(body) == written
