"""litellm against a loopback server in the shape of Anthropic's; one import for the whole file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from moryflow.testing.replies import LoopbackServer, Reply, failure
from moryflow_builtins.litellm_models import LitellmModels
from moryflow_sdk import ChatParams, Message, ModelError, ModelRequest, ReasoningDelta, TextDelta, ToolSchema
from moryflow_sdk.support.settings import ModelsSettings
from stream_corpus import replies

KEY = "sk-ant-SECRET-KEY"
CORPUS = Path(__file__).parents[2] / "data" / "corpus" / "streams.jsonl"
CASES = [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]
MORE = Path(__file__).parents[2] / "data" / "streams" / "anthropic_extra.jsonl"
EXTRA = [json.loads(line) for line in MORE.read_text(encoding="utf-8").splitlines()]
ANTHROPIC = [case for case in CASES if case["format"] == "anthropic_messages"] + EXTRA
PLAIN_CODES = ("incomplete", "timeout", "protocol", "too_large", "context", "empty")
LS = ToolSchema(name="ls", description="List", parameters={"type": "object", "properties": {"path": {"type": "string"}}})


def provider(server: LoopbackServer, *, timeout: float = 1.0, **own: Any) -> LitellmModels:
    settings = {"providers": {"anthropic": {"baseUrl": server.address, **own}}, "timeout": timeout}
    return LitellmModels(ModelsSettings.model_validate(settings), {"ANTHROPIC_API_KEY": KEY})


async def play(server: LoopbackServer, *, tools: bool = True, **own: Any) -> tuple[list[Any], ModelError | None]:
    """The events of one call, and its error."""
    serving = provider(server, **own)
    model = serving.find("anthropic/claude-x")
    assert model is not None
    summary = Message(role="system", text="【会话摘要】\n## Goal\nMend it.")
    messages = (Message(role="system", text="rules"), summary, Message(role="user", text="hi"))
    events: list[Any] = []
    try:
        request = ModelRequest(model=model, messages=messages, tools=(LS,) if tools else ())
        async for event in serving.stream(request):
            events.append(event)  # noqa: PERF401 (what came before an error counts)
    except ModelError as error:
        assert "SECRET" not in str(error)
        return events, error
    return events, None


def sse(*events: dict[str, Any]) -> Reply:
    body = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return Reply(body.encode(), content_type="text/event-stream")


COUNTS = {"input_tokens": 7, "output_tokens": 1, "cache_read_input_tokens": 3}
HEAD = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "m", "stop_reason": None, "usage": COUNTS}
START = {"type": "message_start", "message": HEAD}


def block(index: int, first: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    inner = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return [
        {"type": "content_block_start", "index": index, "content_block": first},
        *inner,
        {"type": "content_block_stop", "index": index},
    ]


def said(text: str, index: int = 0) -> list[dict[str, Any]]:
    return block(index, {"type": "text", "text": ""}, {"type": "text_delta", "text": text})


def called(id: str, *pieces: str, index: int = 0) -> list[dict[str, Any]]:
    first = {"type": "tool_use", "id": id, "name": "ls", "input": {}}
    return block(index, first, *[{"type": "input_json_delta", "partial_json": piece} for piece in pieces])


def end(reason: str) -> list[dict[str, Any]]:
    return [
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]


def refusal(status: int, kind: str, message: str, **headers: str) -> Reply:
    return Reply(
        json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode(), status=status, headers=headers
    )


async def test_text_reasoning_and_token_counts_come_through() -> None:
    """The control (S4.6, S2.26)."""
    thought = block(0, {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "hm"})
    with LoopbackServer(sse(START, *thought, *said("Hello", 1), *end("end_turn"))) as server:
        events, error = await play(server)
    assert error is None
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == "hm"
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Hello"
    finished = events[-1]
    assert (finished.reason, finished.usage.input, finished.usage.output, finished.usage.cached) == ("stop", 10, 5, 3)


async def test_what_is_sent_has_the_key_the_tools_and_cache_marks() -> None:
    """The system prompt and the last message are marked, so that the service caches what a long session repeats (S4.6)."""
    with LoopbackServer(sse(START, *said("a"), *end("end_turn"))) as server:
        await play(server)
    request = server.requests[0]
    assert request.headers["x-api-key"] == KEY and request.path == "/v1/messages"
    assert request.body["tools"][0]["name"] == "ls"
    assert [block["text"][:7] for block in request.body["system"]] == ["rules", "【会话摘要】\n"]  # D17
    assert len(request.body["messages"]) == 1 and json.dumps(request.body).count("cache_control") <= 4
    assert "cache_control" in json.dumps(request.body["system"]) and "cache_control" in json.dumps(request.body["messages"])
    assert server.connections == 1


CALLS: dict[str, tuple[Reply, list[tuple[str, str | None]], str]] = {
    "two calls": (
        sse(START, *called("t1", '{"pa', 'th":"."}'), *called("t2", '{"path":"b"}', index=1), *end("tool_use")),
        [('{"path":"."}', None), ('{"path":"b"}', None)],
        "tool_calls",
    ),
    "broken arguments": (sse(START, *called("t1", '{"pa'), *end("tool_use")), [('{"pa', None)], "tool_calls"),
    "length": (sse(START, *called("t1", '{"path":"."}'), *end("max_tokens")), [('{"path":"."}', "truncated")], "length"),
    "context window": (
        sse(START, *called("t1", '{"path":"."}'), *end("model_context_window_exceeded")),
        [('{"path":"."}', "truncated")],
        "length",
    ),
    "cut": (sse(START, *called("t1", '{"path":"."}')), [('{"path":"."}', "incomplete")], "incomplete"),
    "cut badly": (sse(START, *called("t1", '{"path":"."}')).but(end="cut"), [('{"path":"."}', "incomplete")], "incomplete"),
    "reset": (sse(START, *called("t1", '{"path":"."}')).but(end="reset"), [('{"path":"."}', "incomplete")], "incomplete"),
}


@pytest.mark.parametrize("name", CALLS)
async def test_calls_come_out_whole_or_marked(name: str) -> None:
    """litellm invents a plain end for a stream that was cut; nothing may run from it (S4.6)."""
    reply, expected, reason = CALLS[name]
    with LoopbackServer(reply) as server:
        events, error = await play(server)
    end = error or events[-1]
    assert [(call.arguments, call.problem) for call in end.tool_calls] == expected
    assert (error.code if error else events[-1].reason) == reason


async def test_ids_are_unique() -> None:
    """Empty and doubled ids come from proxies (S4.6)."""
    steps = [*called("", '{"path":"."}'), *called("t", "{}", index=1), *called("t", "{}", index=2)]
    with LoopbackServer(sse(START, *steps, *end("tool_use"))) as server:
        events, _ = await play(server)
    ids = [call.id for call in events[-1].tool_calls]
    assert len(set(ids)) == 3 and all(ids)


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": f"Overloaded {KEY}"}}
FAILURES: dict[str, tuple[Reply, str, float | None]] = {
    "401": (refusal(401, "authentication_error", f"invalid x-api-key {KEY}"), "auth", None),
    "404": (refusal(404, "not_found_error", "model: claude-x"), "not_found", None),
    "429": (refusal(429, "rate_limit_error", "slow", **{"retry-after": "7"}), "rate_limit", 7.0),
    "400": (refusal(400, "invalid_request_error", "no"), "bad_request", None),
    "context": (refusal(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"), "context", None),
    "529": (refusal(529, "overloaded_error", "Overloaded"), "overloaded", None),
    "overloaded in the stream": (sse(START, *said("a"), OVERLOADED), "overloaded", None),
    "cut text": (sse(START, *said("a")), "incomplete", None),
    "stall": (sse(START, *said("a")).but(end="stall"), "timeout", None),
    "silent": (Reply(end="silent"), "timeout", None),
    "empty": (Reply(b"", content_type="text/event-stream"), "empty", None),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_failures_are_told_apart_without_the_key_and_tried_once(name: str) -> None:
    """The host decides about trying again (S4.7, D55)."""
    reply, code, wait = FAILURES[name]
    with LoopbackServer(reply) as server:
        _, error = await play(server)
    assert error is not None and (error.code, error.retry_after) == (code, wait)
    assert error.message.startswith("anthropic") and "litellm" not in error.message
    assert len(server.requests) == 1


async def other_way(server: LoopbackServer, name: str, **own: Any) -> ModelError:
    """The error of a call that goes through OpenAI's own client inside litellm."""
    prefix = name.partition("/")[0]
    settings = {"providers": {prefix: {"baseUrl": server.url, "apiKey": KEY, **own}}, "timeout": 2.0}
    serving = LitellmModels(ModelsSettings.model_validate(settings), {"AZURE_API_VERSION": "2024-10-21"})
    model = serving.find(name)
    assert model is not None
    with pytest.raises(ModelError) as caught:
        async for _ in serving.stream(ModelRequest(model=model, messages=(Message(role="user", text="hi"),))):
            pass
    assert "SECRET" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("name", ["anthropic/claude-x", "litellm/openai/m", "azure/m"])
async def test_a_redirect_does_not_carry_the_key_away(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """httpx would take off ``Authorization`` on the way, but neither ``x-api-key`` nor ``api-key`` (R29)."""
    monkeypatch.setenv("AZURE_API_VERSION", "2024-10-21")
    with LoopbackServer() as other:
        with LoopbackServer(Reply(status=307, headers={"location": f"{other.address}/v1/messages"})) as server:
            if name.startswith("anthropic"):
                assert (await play(server))[1] is not None
            else:
                await other_way(server, name)
            assert server.requests
        assert other.requests == []


async def test_a_redirect_is_not_followed_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a proxy litellm uses other transports (R29)."""
    with LoopbackServer(*[Reply(status=307, headers={"location": "http://other.invalid/v1/messages"})] * 2) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.address)
        monkeypatch.delenv("NO_PROXY", raising=False)
        _, error = await play(proxy, baseUrl="http://models.invalid")
        assert error is not None and [request.path for request in proxy.requests] == ["http://models.invalid/v1/messages"]


@pytest.mark.parametrize("status", [429, 500])
async def test_nobody_but_the_host_tries_again(status: int) -> None:
    """OpenAI's client inside litellm would, twice (D55)."""
    with LoopbackServer(*[refusal(status, "x", "m")] * 3) as server:
        error = await other_way(server, "litellm/openai/m")
        assert len(server.requests) == 1 and error.retryable


@pytest.mark.parametrize("code", ["content_policy_violation", "content_filter"])
async def test_a_refused_content_is_told_by_its_code(code: str) -> None:
    """Such an answer is a plain 400 in litellm, and its text need not say why (S4.7)."""
    with LoopbackServer(failure(400, "no", code=code)) as server:
        assert (await other_way(server, "litellm/openai/m")).code == "content_filter"


async def test_no_server_is_unreachable() -> None:
    """With the next step (S4.7)."""
    with LoopbackServer() as server:
        pass
    _, error = await play(server)
    assert error is not None and error.code == "unreachable" and error.next_step


async def test_headers_and_another_key_come_from_the_configuration() -> None:
    """One entry of the configuration means the same whoever serves the model (S4.7)."""
    with LoopbackServer(sse(START, *said("a"), *end("end_turn"))) as server:
        await play(server, apiKey="sk-ant-OTHER-SECRET", headers={"X-Team": "a"})
    assert (server.requests[0].headers["x-api-key"], server.requests[0].headers["x-team"]) == ("sk-ant-OTHER-SECRET", "a")


@pytest.mark.parametrize("case", ANTHROPIC, ids=[f"{case['id']}-{case['name']}" for case in ANTHROPIC])
async def test_the_corpus_in_anthropics_form(case: dict[str, Any]) -> None:
    """What the corpus expects of a host is what comes out here (S4.6)."""
    with LoopbackServer(*replies(case)) as server:
        events, error = await play(server)
    calls = error.tool_calls if error else events[-1].tool_calls
    if any(call.problem == "incomplete" for call in calls) and not error:
        turn = "error:incomplete"  # the host ends the turn once each call has its result
    elif error is None:
        turn = "continue" if calls or events[-1].reason == "pause" else "end"
    elif error.code in PLAIN_CODES:
        turn = f"error:{error.code}"
    else:
        turn = "error:retryable" if error.retryable else "error:fatal"
    wanted = [(e["turn"], [result["call"] for result in e["results"]]) for e in (case["expect"], *case.get("either", []))]
    given = {id for _, ids in wanted for id in ids}
    assert (turn, [call.id if call.id in given else "<generated>" for call in calls]) in wanted
    assert "SECRET" not in str(error)


async def test_signed_thoughts_go_back_to_anthropic_and_the_effort_is_its_own() -> None:
    """Anthropic refuses a tool turn without them, and to think in the turn of another model (S4.6)."""
    pieces = ({"type": "thinking_delta", "thinking": "I "}, {"type": "thinking_delta", "thinking": "look."})
    signed = block(0, {"type": "thinking", "thinking": ""}, *pieces, {"type": "signature_delta", "signature": "sig"})
    sealed = block(1, {"type": "redacted_thinking", "data": "sealed"})
    reply = sse(START, *signed, *sealed, *called("toolu_1", "{}", index=2), *end("tool_use"))
    params = ChatParams(reasoning_effort="low")
    with LoopbackServer(reply, otherwise=sse(START, *said("done"), *end("end_turn"))) as server:
        serving = provider(server)
        model = serving.find("anthropic/claude-sonnet-4-5")
        assert model is not None
        first = ModelRequest(model=model, messages=(Message(role="user", text="hi"),), tools=(LS,), params=params)
        finished = [event async for event in serving.stream(first)][-1]
        answer = Message(role="assistant", tool_calls=finished.tool_calls, extra=finished.extra, origin=finished.origin)
        result = Message(role="tool", call_id="toolu_1", text="x")
        for asked in (answer, answer.replace(origin="another service")):
            request = first.replace(messages=(*first.messages, asked, result))
            assert [event async for event in serving.stream(request)][-1].reason == "stop"
    begun, own, foreign = (request.body for request in server.requests)
    assert begun["thinking"]["budget_tokens"] > 0 and own["thinking"]["budget_tokens"] > 0
    blocks = [{"type": "thinking", "thinking": "I look.", "signature": "sig"}, {"type": "redacted_thinking", "data": "sealed"}]
    assert [part for part in own["messages"][1]["content"] if "thinking" in part["type"]] == blocks
    assert "thinking" not in foreign and not [part for part in foreign["messages"][1]["content"] if "thinking" in part["type"]]
