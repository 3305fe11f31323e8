"""Pieces of tool calls that went astray: what is valid JSON is not always whole, so it must not run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from moryflow.testing.replies import chunk
from moryflow_sdk import Finished, ModelError, ToolRequest
from moryflow_sdk.chat_completions.answer import Answer
from moryflow_sdk.chat_completions.endpoint import Endpoint
from moryflow_sdk.chat_completions.sse import AnswerReader

ENDPOINT = Endpoint("http://127.0.0.1:1/v1", "openai")
WHOLE = '{"path":"a"}'
RUNS = [("ls", WHOLE)]
NOTHING: list[tuple[str, str]] = []


def requests(*lines: Any, done: bool = True) -> tuple[ToolRequest, ...]:
    """The calls of a stream; a chunk is an object, or text that is sent as it is."""
    answer, reader = Answer(ENDPOINT), AnswerReader()
    texts = [line if isinstance(line, str) else f"data: {json.dumps(line)}" for line in lines]
    body = "".join(f"{text}\n\n" for text in [*texts, *(["data: [DONE]"] if done else [])]).encode()
    for value in [*reader.feed(body), *reader.close()]:
        list(answer.feed(value))
    try:
        return next((event.tool_calls for event in answer.finish() if isinstance(event, Finished)), ())
    except ModelError as error:
        return error.tool_calls


def runnable(*lines: Any, done: bool = True) -> list[tuple[str, str]]:
    """What a host would run: no problem, a name, and no arguments or a JSON object without a key given twice."""
    found = [call for call in requests(*lines, done=done) if call.name and not call.problem]
    return [(call.name, call.arguments) for call in found if not call.arguments or _is_object(call.arguments)]


def _is_object(text: str) -> bool:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError
        return dict(pairs)

    try:
        return isinstance(json.loads(text, object_pairs_hook=once), dict)
    except ValueError:
        return False


def piece(arguments: Any = ..., name: Any = ..., index: Any = ..., id: Any = ...) -> dict[str, Any]:
    """A chunk with a piece of a call; what is not given is not in it."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not ...}
    found = {key: value for key, value in (("index", index), ("id", id)) if value is not ...}
    return chunk(tool_calls=[{**found, "function": function}])


END = chunk("tool_calls")
LS = {"name": "ls", "arguments": WHOLE}
FIRST, REST = WHOLE[:5], WHOLE[5:]

PLACES: dict[str, tuple[list[Any], list[tuple[str, str]]]] = {
    "an index, then only the id": ([piece("", "ls", 0, "x"), piece(FIRST, id="x"), piece(REST, id="x")], RUNS),
    "an id, then only the index": ([piece("", "ls", id="x"), piece(FIRST, index=0), piece(REST, index=0)], NOTHING),
    "the id in a later piece": ([piece("", "ls", 0), piece(WHOLE, index=0, id="x")], RUNS),
    "an index that moves": ([piece("", "ls", 0, "x"), piece(FIRST, index=1), piece(REST, index=2)], NOTHING),
    "an index that is one off": ([piece("", "ls", 0, "x"), piece(WHOLE, index=1)], NOTHING),
    "another id each time": ([piece("", "ls", id="x"), piece(FIRST, id="y"), piece(REST, id="z")], NOTHING),
    "another id and the name each time": ([piece(t, "ls", 0, i) for t, i in (("", "x"), (FIRST, "y"), (REST, "z"))], NOTHING),
    "a piece in the middle at another index": (
        [piece('{"path":"a', "ls", 0, "x"), piece("/b", index=1), piece('"}', index=0)],
        NOTHING,
    ),
    "a piece in the middle in the old form": (
        [piece('{"path":"a', "ls", 0, "x"), chunk(function_call={"arguments": "/b"}), piece('"}', index=0)],
        NOTHING,
    ),
    "a piece in the middle in a list": (
        [piece('{"path":"a', "ls", 0, "x"), chunk(tool_calls=[["/b"]]), piece('"}', index=0)],
        NOTHING,
    ),
    "a piece in the middle that is not an object": (
        [piece('{"path":"a', "ls", 0, "x"), chunk(tool_calls=[{"index": 0, "function": "/b"}]), piece('"}', index=0)],
        NOTHING,
    ),
    "a whole call beside a piece astray": ([piece(WHOLE, "ls", 0, "x"), piece('{"a":1}', index=7)], RUNS),
    "a call in pieces beside a broken one": (
        [piece("{broken", "read", 0, "y"), piece(FIRST, "ls", 1, "x"), piece(REST, index=1)],
        RUNS,
    ),
    "no arguments beside others": ([piece("", "pwd", 0, "x"), piece(WHOLE, "ls", 1, "y")], [("pwd", ""), *RUNS]),
    "an empty list as arguments": ([piece([], "ls", 0, "x")], NOTHING),
    "false as arguments": ([piece(False, "ls", 0, "x")], NOTHING),
    "the same call said twice": ([piece(WHOLE, "ls", 0, "x"), piece(WHOLE, "ls", 0, "x")], NOTHING),
    "nothing first, then everything": ([piece("{}", "ls", 0, "x"), piece(WHOLE, "ls", 0, "x")], NOTHING),
    "both forms": (
        [
            chunk(
                function_call={"name": "ls", "arguments": WHOLE},
                tool_calls=piece(WHOLE, "ls")["choices"][0]["delta"]["tool_calls"],
            )
        ],
        RUNS,
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_piece_that_went_astray_never_leaves_a_call_that_runs_without_it(name: str) -> None:
    """Nothing runs from incomplete or ambiguous arguments; what is odd but clear is understood (S4.6)."""
    pieces, expected = PLACES[name]
    assert runnable(*pieces, END) == expected


def test_a_call_that_begins_behind_the_reason_needs_an_end_of_its_own() -> None:
    """It was not whole when the reason came (S4.7)."""
    late = [piece(WHOLE, "ls", 0, "x"), END, piece("", "pwd", 1, "y")]
    assert {call.problem for call in requests(*late, done=False)} == {"incomplete"}
    assert len(runnable(*late)) == len(runnable(*late, END, done=False)) == 2


def test_an_answer_that_broke_off_is_not_made_whole_by_a_later_reason() -> None:
    """What the server said first holds (S4.7)."""
    assert runnable(piece(WHOLE, "ls", 0, "x"), chunk("error"), chunk("stop")) == NOTHING
    assert runnable(piece(WHOLE, "ls", 0, "x"), chunk("MALFORMED_FUNCTION_CALL")) == NOTHING


def test_of_several_answers_without_an_index_the_first_counts() -> None:
    """One answer was asked for; the calls of two are not one plan (S4.6)."""
    both = [piece(WHOLE, "ls", 0, id)["choices"][0] for id in ("x", "y")]
    for choice in both:
        del choice["index"]
    assert runnable({"choices": both}, END) == RUNS
