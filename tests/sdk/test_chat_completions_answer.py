"""Answers put together from chunks: every odd way in which servers send text, calls and reasons."""

from __future__ import annotations

import json
from typing import Any

import pytest
from moryflow.testing.replies import chunk
from moryflow_sdk import Finished, ModelError, ReasoningDelta, TextDelta, ToolInputDelta, Usage
from moryflow_sdk.chat_completions.answer import ARGUMENTS_LIMIT, TEXT_LIMIT, Answer
from moryflow_sdk.chat_completions.endpoint import Endpoint
from moryflow_sdk.chat_completions.sse import DONE

ENDPOINT = Endpoint("http://127.0.0.1:1/v1", "openai", key="sk-SECRET-KEY")


class Played:
    """What came of some chunks."""

    def __init__(self, *chunks: Any, done: bool = True) -> None:
        answer = Answer(ENDPOINT)
        events: list[Any] = []
        self.error: ModelError | None = None
        try:
            for item in [*chunks, *([DONE] if done else [])]:
                events += answer.feed(item)
            events += answer.finish()
        except ModelError as error:
            self.error = error
        self.text = "".join(event.text for event in events if isinstance(event, TextDelta))
        self.reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
        self.inputs = [event for event in events if isinstance(event, ToolInputDelta)]
        self.finished = next((event for event in events if isinstance(event, Finished)), None)
        self.requests = self.error.tool_calls if self.error else self.finished.tool_calls if self.finished else ()

    @property
    def calls(self) -> list[tuple[str, str, str | None]]:
        return [(call.name, call.arguments, call.problem) for call in self.requests]

    @property
    def ids(self) -> list[str]:
        return [call.id for call in self.requests]


def item(index: Any = 0, id: Any = "x", name: Any = "ls", arguments: Any = '{"path":"."}') -> dict[str, Any]:
    """A tool call delta; a value of ... leaves the field out."""
    function = {"name": name, "arguments": arguments}
    found = {"index": index, "id": id, "function": {k: v for k, v in function.items() if v is not ...}}
    return {key: value for key, value in found.items() if value is not ...}


def called(*items: Any, reason: str | None = "tool_calls") -> Played:
    """Each item in a chunk of its own."""
    return Played(*[chunk(tool_calls=[one]) for one in items], chunk(reason))


GOOD = ("ls", '{"path":"."}', None)

CALLS: dict[str, tuple[list[Any], list[Any]]] = {
    "whole": ([item()], [GOOD]),
    "in pieces": ([item(arguments='{"pa'), item(id=..., name=..., arguments='th":"."}')], [GOOD]),
    "id and name repeated": ([item(arguments='{"pa'), item(arguments='th":"."}')], [GOOD]),
    "name in pieces": ([item(name="l", arguments=""), item(name="s", id=...)], [GOOD]),
    "name repeated before arguments": ([item(arguments=""), item(id=...)], [GOOD]),
    "null fields": ([item(arguments=""), item(id=None, name=None)], [GOOD]),
    "another id per piece": ([item(arguments='{"pa'), item(id="y", name=..., arguments='th":"."}')], [GOOD]),
    "index as text": ([item("0", arguments='{"pa'), item(0, name=..., arguments='th":"."}')], [GOOD]),
    "index as float": ([item(0.0, arguments='{"pa'), item(0, name=..., arguments='th":"."}')], [GOOD]),
    "index missing": ([item(..., arguments='{"pa'), item(..., id=..., name=..., arguments='th":"."}')], [GOOD]),
    "index missing, by id": ([item(..., "x"), item(..., "y")], [GOOD, GOOD]),
    "index huge": ([item(10**9)], [GOOD]),
    "index negative": ([item(-1)], [GOOD]),
    "indexes out of order": ([item(2, "a"), item(0, "b", "pwd", "{}")], [GOOD, ("pwd", "{}", None)]),
    "interleaved": (
        [item(0, "a", "ls", '{"pa'), item(1, "b", "ls", '{"pa'), item(0, ..., ..., 'th":"."}'), item(1, ..., ..., 'th":"."}')],
        [GOOD, GOOD],
    ),
    "all at index 0, other ids": ([item(0, "a"), item(0, "b")], [GOOD, GOOD]),
    "all at index 0, no ids": ([item(0, ...), item(0, ...)], [GOOD, GOOD]),
    "all at index 0, other names": ([item(0, ...), item(0, ..., "pwd", "{}")], [GOOD, ("pwd", "{}", None)]),
    "arguments as object": ([item(arguments={"path": "."})], [("ls", '{"path": "."}', None)]),
    "arguments as list": ([item(arguments=["."])], [("ls", '["."]', None)]),
    "arguments null": ([item(arguments=None)], [("ls", "", None)]),
    "arguments missing": ([item(arguments=...)], [("ls", "", None)]),
    "function missing": ([{"index": 0, "id": "x"}], [("", "", None)]),
    "function null": ([{"index": 0, "id": "x", "function": None}], [("", "", None)]),
    "name null": ([item(name=None)], [("", '{"path":"."}', None)]),
    "name a list": ([item(name=["ls"])], [("", '{"path":"."}', None)]),
    "name with a blank": ([item(name=" ls")], [(" ls", '{"path":"."}', None)]),
    "broken arguments stay broken": ([item(arguments='{"path":"no')], [("ls", '{"path":"no', None)]),
    "two objects": ([item(arguments='{"path":"."}{"path":"/"}')], [("ls", '{"path":"."}{"path":"/"}', None)]),
    "items that are none": ([None, "ls", 5, item()], [GOOD]),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_way_to_send_a_call_gives_that_call(name: str) -> None:
    """Pieces are keyed by index, and no piece lands in the wrong call (S4.6)."""
    items, expected = CALLS[name]
    played = called(*items)
    assert played.error is None
    assert played.calls == expected
    assert played.finished is not None and played.finished.reason == "tool_calls"


@pytest.mark.parametrize("name", CALLS)
def test_what_is_shown_of_a_call_while_it_comes_is_what_it_becomes(name: str) -> None:
    """Pieces of arguments come under the id that the finished call has (S4.6)."""
    played = called(*CALLS[name][0])
    arguments = {call.id: call.arguments for call in played.requests}
    for call_id in {event.call for event in played.inputs} & set(arguments):
        pieces = [event.text for event in played.inputs if event.call == call_id]
        assert "".join(pieces) == arguments[call_id] or pieces[0] == arguments[call_id], pieces


def test_arguments_are_shown_piece_by_piece() -> None:
    """A call's arguments can be watched while the model writes them (S4.6)."""
    played = called(item(arguments='{"pa'), item(id=..., name=..., arguments='th":"."}'))
    assert [(event.call, event.name, event.text) for event in played.inputs] == [("x", "ls", '{"pa'), ("x", "ls", 'th":"."}')]


@pytest.mark.parametrize("ids", [["", ""], [..., ...], [None, None], ["x", "x"], ["x", ""], ["\x00", "a\nb"], ["i" * 300, {}]])
def test_every_call_has_an_id_of_its_own(ids: list[Any]) -> None:
    """Empty, missing, doubled and unusable ids are replaced by generated ones (S4.6)."""
    played = called(*[item(index, id) for index, id in enumerate(ids)])
    assert len(played.ids) == len(set(played.ids)) == 2
    assert all(id and len(id) <= 200 and id.isprintable() for id in played.ids)
    assert played.calls == [GOOD, GOOD]


def test_good_ids_are_kept() -> None:
    """The id a provider gave comes back to it in the result (S4.6)."""
    assert called(item(0, "call_A-1"), item(1, "7")).ids == ["call_A-1", "7"]


def test_a_list_of_whole_calls_without_index_or_id_is_several_calls() -> None:
    """A whole JSON answer carries its calls in one list (S4.6)."""
    played = Played(chunk("tool_calls", tool_calls=[item(..., ...), item(..., ...)]))
    assert played.calls == [GOOD, GOOD]


def test_the_old_function_call_form_works() -> None:
    """``function_call`` has neither index nor id (S4.6)."""
    halves = [{"name": "ls", "arguments": '{"pa'}, {"arguments": 'th":"."}'}]
    played = Played(*[chunk(function_call=half) for half in halves], chunk("function_call"))
    assert played.calls == [GOOD] and played.ids[0]


def test_a_huge_name_is_cut() -> None:
    """Names are shown in messages (R27)."""
    name = called(item(name="a" * 100_000)).calls[0][0]
    assert len(name) == 257


def test_arguments_over_the_limit_are_dropped_and_the_call_cannot_run() -> None:
    """Memory stays bounded, and the model is told why (R27)."""
    piece = "a" * (ARGUMENTS_LIMIT // 4)
    played = called(item(arguments="{"), *[item(id=..., name=..., arguments=piece)] * 5)
    assert played.calls == [("ls", "", "args_too_large")]


def test_a_call_of_an_answer_that_hit_its_length_limit_cannot_run() -> None:
    """Arguments that look whole may lack their last part (S4.6)."""
    played = called(item(), reason="length")
    assert played.finished is not None and played.finished.reason == "length"
    assert played.calls == [("ls", '{"path":"."}', "truncated")]


def test_a_call_of_a_filtered_answer_cannot_run() -> None:
    """A filter cuts where it likes (S4.6)."""
    assert called(item(), reason="content_filter").calls == [("ls", '{"path":"."}', "incomplete")]


REASONS = {
    "stop": "stop", "STOP": "stop", "end_turn": "stop", "eos_token": "stop", "banana": "stop", "tool_calls": "stop",
    "length": "length", "MAX_TOKENS": "length", "max_tokens": "length", "content_filter": "content_filter",
    "SAFETY": "content_filter", "pause_turn": "pause",
}  # fmt: skip


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_for_text(reason: str) -> None:
    """Reasons of other protocols come through gateways; an unknown one is a plain end (S4.6)."""
    played = Played(chunk(content="a"), chunk(reason))
    assert played.finished is not None and (played.finished.reason, played.text) == (REASONS[reason], "a")


@pytest.mark.parametrize(
    "delta",
    [
        {"refusal": "no"},
        {"refusal": {"reason": "policy"}},
        {"refusal": "no", "content": ""},
    ],
)
def test_a_refusal_is_one_wherever_it_stands(delta: dict[str, Any]) -> None:
    """In a field of its own or as a part of the content (S4.6)."""
    played = Played(chunk(**delta), chunk("end_turn"))
    assert played.finished is not None and played.finished.reason == "refusal"


@pytest.mark.parametrize("reason", ["stop", "banana", "function_call", True, 7, ["stop"], {"a": 1}])
def test_a_call_that_was_finished_runs_whatever_the_reason_says(reason: Any) -> None:
    """Servers say ``stop`` after calls (S4.6)."""
    assert called(item(), reason=reason).calls == [GOOD]


def test_a_length_limit_is_not_undone_by_a_later_reason() -> None:
    """The first reason that matters stands (S4.6)."""
    played = Played(chunk("length", content="a"), chunk("stop"))
    assert played.finished is not None and played.finished.reason == "length"


@pytest.mark.parametrize("reason", ["error", "abort", "network_error"])
def test_an_answer_that_ends_with_an_error_is_incomplete(reason: str) -> None:
    """Gateways report a failed upstream as a reason (S4.7)."""
    assert called(item(), reason=reason).calls == [("ls", '{"path":"."}', "incomplete")]
    error = Played(chunk(content="a"), chunk(reason)).error
    assert error is not None and error.code == "incomplete"


@pytest.mark.parametrize("reason", [None, "", False, 0])
def test_calls_without_a_reason_do_not_run(reason: Any) -> None:
    """``[DONE]`` alone does not say that the arguments are whole (S4.6)."""
    assert called(item(), reason=reason).calls == [("ls", '{"path":"."}', "incomplete")]


def test_text_without_a_reason_is_whole_when_the_server_says_done() -> None:
    """Some servers never send a reason (S4.6)."""
    assert Played(chunk(content="a")).text == "a"


def test_a_cut_stream_is_incomplete_and_not_an_answer() -> None:
    """Neither a reason nor ``[DONE]`` (S4.7)."""
    played = Played(chunk(content="a"), done=False)
    assert played.error is not None and (played.error.code, played.text) == ("incomplete", "a")


def test_calls_of_a_cut_stream_are_kept_and_cannot_run() -> None:
    """Each call that was seen gets a result that says why (S4.6, S4.7)."""
    played = Played(chunk(content="a"), chunk(tool_calls=[item()]), done=False)
    assert (played.text, played.calls) == ("a", [("ls", '{"path":"."}', "incomplete")])


def test_a_reason_is_enough_without_done() -> None:
    """Many servers leave ``[DONE]`` out (S4.6)."""
    assert Played(chunk("stop", content="a"), done=False).finished is not None


@pytest.mark.parametrize("chunks", [[], [{}], [None], [[]], [{"choices": []}], [chunk()], [chunk("tool_calls")]])
def test_no_answer_at_all_is_empty(chunks: list[Any]) -> None:
    """The host must not store an empty turn as success (S4.7)."""
    played = Played(*chunks)
    assert played.error is not None and played.error.code == "empty"


def test_an_empty_answer_that_was_ended_on_purpose_is_an_answer() -> None:
    """After its tools a model may have nothing to add (S4.6)."""
    assert Played(chunk("stop")).finished == Finished(origin=ENDPOINT.origin)


TEXTS: dict[str, tuple[Any, str]] = {
    "parts": ({"choices": [{"delta": {"content": [{"type": "text", "text": "a"}, "b", 5, None, {"type": "x"}]}}]}, "ab"),
    "refusal": ({"choices": [{"delta": {"refusal": "no"}}]}, "no"),
    "message": ({"choices": [{"message": {"content": "a"}}]}, "a"),
    "delta null": ({"choices": [{"delta": None, "message": {"content": "a"}}]}, "a"),
    "two choices": ({"choices": [{"index": 1, "delta": {"content": "b"}}, {"index": 0, "delta": {"content": "a"}}]}, "a"),
    "list of chunks": ([chunk(content="a"), chunk(content="b")], "ab"),
    "null calls": (chunk(content="a", tool_calls=None), "a"),
    "empty calls": (chunk(content="a", tool_calls=[]), "a"),
    "calls that are none": (chunk(content="a", tool_calls="ls"), "a"),
    "numbers": ({"choices": [{"delta": {"content": [5, "a"]}}, 7, None]}, "a"),
    "surrogate pair": (chunk(content="\ud83d\ude00"), "\U0001f600"),
    "lone surrogate": (chunk(content="a\ud83db"), "a\ufffdb"),
    "looks like a call": (chunk(content='<tool_call>{"name":"bash"}</tool_call>'), '<tool_call>{"name":"bash"}</tool_call>'),
}


@pytest.mark.parametrize("name", TEXTS)
def test_each_way_to_send_text_gives_the_text(name: str) -> None:
    """Text stays text, whatever it looks like (S4.6)."""
    sent, expected = TEXTS[name]
    played = Played(sent, chunk("stop"))
    assert (played.text, played.calls) == (expected, [])


def test_a_surrogate_pair_split_over_two_pieces_is_one_character() -> None:
    """Servers cut at sixteen bits (invalid UTF-8 from any source)."""
    assert Played(chunk(content="a\ud83d"), chunk(content="\ude00b"), chunk("stop")).text == "a\U0001f600b"
    assert Played(chunk(content="a\ud83d"), chunk("stop")).text == "a\ufffd"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_apart_from_the_answer(field: str) -> None:
    """Both names are in use (S4.6)."""
    played = Played(chunk(**{field: "hm"}), chunk(content=[{"type": "thinking", "thinking": [{"text": "so"}]}]), chunk("stop"))
    assert (played.reasoning, played.text) == ("hmso", "")


CACHED = {"cached_tokens": 3}
USAGES: list[tuple[Any, Usage]] = [
    ({"prompt_tokens": 5, "completion_tokens": 2}, Usage(input=5, output=2)),
    ({"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": CACHED}, Usage(input=5, output=2, cached=3)),
    ({"prompt_tokens": 5, "prompt_cache_hit_tokens": 4}, Usage(input=5, cached=4)),
    ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 30}}, Usage(input=5, cached=5)),
    ({"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 7}}, Usage(output=9, reasoning=7)),
    ({"prompt_tokens": -5, "completion_tokens": "2"}, Usage()),
    ({"prompt_tokens": None, "completion_tokens": 1e300}, Usage()),
    ({"prompt_tokens": True, "prompt_tokens_details": None}, Usage()),
    ("lots", Usage()),
]


@pytest.mark.parametrize(("counts", "expected"), USAGES)
def test_token_counts_and_nonsense_in_their_place(counts: Any, expected: Usage) -> None:
    """A provider's nonsense counts as zero and is never an error (S2.26)."""
    played = Played(chunk("stop", content="a"), {"choices": [], "usage": counts})
    assert played.finished is not None and played.finished.usage == expected


ERRORS: list[tuple[Any, str]] = [
    ({"error": {"message": "m", "code": "context_length_exceeded"}}, "context"),
    ({"error": {"message": "maximum context length is 10 tokens", "code": 400}}, "context"),
    ({"error": {"message": "m", "type": "overloaded_error"}}, "overloaded"),
    ({"error": {"message": "m", "code": 429}}, "rate_limit"),
    ({"error": {"message": "m", "code": "insufficient_quota", "type": "insufficient_quota"}}, "auth"),
    ({"error": {"message": "m", "code": "invalid_api_key"}}, "auth"),
    ({"error": {"message": "m", "code": "502"}}, "overloaded"),
    ({"error": {"message": "m", "type": "invalid_request_error"}}, "bad_request"),
    ({"error": "boom"}, "overloaded"),
    ({"error": {"code": "content_policy_violation"}}, "content_filter"),
    ({"object": "error", "message": "m", "code": 404}, "not_found"),
    ([{"error": {"code": 403, "message": "m", "status": "PERMISSION_DENIED"}}], "auth"),
    ({"error": [[[{"message": "m", "code": 400}]]]}, "bad_request"),
    ({"error": {"message": {"deep": ["sk-SECRET-KEY"]}, "code": 500}}, "overloaded"),
    ({"choices": [{"index": 0, "delta": {}, "error": {"message": "m", "code": 429}}]}, "rate_limit"),
    ({"choices": [{"index": 0, "delta": {"error": {"message": "m", "code": 401}}}]}, "auth"),
    ({"type": "error", "message": "m", "code": 429}, "rate_limit"),
]


@pytest.mark.parametrize(("sent", "code"), ERRORS)
def test_an_error_inside_the_stream_is_that_error_and_stops_the_calls(sent: Any, code: str) -> None:
    """The class decides whether the host tries again (S4.7, D55)."""
    played = Played(chunk(tool_calls=[item()]), sent)
    assert played.error is not None
    assert (played.error.code, played.calls) == (code, [("ls", '{"path":"."}', "incomplete")])
    assert "SECRET" not in str(played.error)


def test_an_error_in_half_characters_can_be_written_down() -> None:
    """A lone surrogate in a message must not break whoever prints or stores it (S4.7)."""
    error = Played({"error": {"message": "m \ud800 n", "code": 400}}).error
    assert str(error).encode().decode() == str(error) and "m \ufffd n" in str(error)


NO_ERRORS: list[Any] = [
    {},
    {"type": "ping"},
    {"error": None, "choices": []},
    {"choices": [], "prompt_filter_results": []},
    {"choices": [{"index": 0, "delta": {}}], "base_resp": {"status_code": 0, "status_msg": ""}, "status": "error"},
    {"code": 0, "message": "success", "success": True, "status": "in_progress"},
    {"choices": [{"index": 0, "delta": {"error": None}, "error": None}]},
]


@pytest.mark.parametrize("sent", NO_ERRORS)
def test_what_only_looks_like_an_error_is_none(sent: Any) -> None:
    """Servers add fields of their own (S4.6)."""
    assert Played(chunk(content="a"), sent, chunk("stop")).text == "a"


@pytest.mark.parametrize("sent", [5, 5.5, True, "text", [1], [[1]]])
def test_a_chunk_that_is_no_object_is_an_error_and_not_skipped(sent: Any) -> None:
    """A skipped piece could change what a call means (S4.6)."""
    played = Played(chunk(tool_calls=[item()]), sent, chunk("tool_calls"))
    assert played.error is not None and played.error.code == "protocol"


def test_an_answer_without_end_is_stopped() -> None:
    """16 Mi characters are more than any model writes (R27)."""
    piece = chunk(content="a" * (TEXT_LIMIT // 8))
    played = Played(*[piece] * 9)
    assert played.error is not None and played.error.code == "too_large"


def test_arguments_in_many_pieces_take_linear_time() -> None:
    """Pieces are joined once (R27)."""
    pieces = [chunk(tool_calls=[{"index": 0, "function": {"arguments": " "}}])] * 200_000
    first, last = chunk(tool_calls=[item(arguments='{"path":')]), chunk(tool_calls=[item(arguments='"."}')])
    played = Played(first, *pieces, last, chunk("x"))
    assert json.loads(played.calls[0][1]) == {"path": "."}
