"""Everything that can go wrong between us and a server, over real loopback HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from moryflow.testing.replies import LoopbackServer, Reply, chunk, failure, stream, text, usage
from moryflow_sdk import ChatParams, Finished, Message, ModelError, ModelInfo, ModelRequest, TextDelta
from moryflow_sdk.chat_completions import ChatClient, Endpoint

KEY = "sk-SECRET-KEY-1234"
MODEL = ModelInfo(id="openai/m", name="m", provider="openai_compatible")
REQUEST = ModelRequest(model=MODEL, messages=(Message(role="user", text="hi"),))


def endpoint(url: str, **changes: Any) -> Endpoint:
    settings: dict[str, Any] = {
        "label": "openai",
        "key": KEY,
        "key_source": "the environment variable OPENAI_API_KEY",
        "url_source": "the environment variable OPENAI_BASE_URL",
        "timeout": 0.3,
        **changes,
    }
    return Endpoint(url, **settings)


async def ask(url: str, request: ModelRequest = REQUEST, **changes: Any) -> tuple[str, Finished]:
    """Text and end of one call."""
    client = ChatClient(endpoint(url, **changes))
    try:
        events = [event async for event in client.stream(request, "m")]
    finally:
        await client.aclose()
    assert isinstance(events[-1], Finished)
    return "".join(event.text for event in events if isinstance(event, TextDelta)), events[-1]


async def fails(reply: Reply, **changes: Any) -> ModelError:
    """The error that `reply` gives."""
    with LoopbackServer(reply) as server, pytest.raises(ModelError) as caught:
        await ask(server.url, **changes)
    assert "SECRET" not in str(caught.value) and "SECRET" not in repr(caught.value)
    assert caught.value.next_step or caught.value.code in ("incomplete", "empty", "too_large"), "what can a person do?"
    return caught.value


STATUSES: list[tuple[Reply, str]] = [
    (failure(400, "bad"), "bad_request"),
    (failure(400, "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens"), "context"),
    (failure(400, "m", code="context_length_exceeded"), "context"),
    (failure(400, "the request exceeds the available context size, try increasing it"), "context"),
    (failure(400, "prompt is too long: 210000 tokens > 200000 maximum"), "context"),
    (failure(400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000"), "context"),
    (failure(400, "max_tokens is too large: 100000. This model supports at most 16384 completion tokens"), "bad_request"),
    (failure(400, "m", code="content_policy_violation"), "content_filter"),
    (failure(401, f"Incorrect API key provided: {KEY}"), "auth"),
    (failure(402, "Insufficient balance"), "auth"),
    (failure(403, "no"), "auth"),
    (failure(404, "The model `m` does not exist"), "not_found"),
    (failure(405, "no"), "bad_request"),
    (failure(408, "slow"), "timeout"),
    (failure(413, "Request too large for model in tokens per minute"), "context"),
    (failure(422, "field required"), "bad_request"),
    (failure(429, "slow down"), "rate_limit"),
    (failure(429, "You exceeded your current quota, please check your plan and billing", code="insufficient_quota"), "auth"),
    (failure(500, "boom"), "overloaded"),
    (failure(502, "boom"), "overloaded"),
    (failure(503, "boom"), "overloaded"),
    (failure(504, "boom"), "timeout"),
    (failure(529, "overloaded"), "overloaded"),
    (Reply(b"<html><h1>Bad gateway</h1></html>", status=502, content_type="text/html"), "overloaded"),
    (Reply(b"", status=500), "overloaded"),
    (Reply(b"[" * 60_000, status=500), "overloaded"),
    (Reply(b"\xff\xfe", status=418), "bad_request"),
    (Reply([b"x" * 65536] * 64, status=400), "bad_request"),
]


@pytest.mark.parametrize(("reply", "code"), STATUSES, ids=[f"{reply.status}-{i}" for i, (reply, _) in enumerate(STATUSES)])
async def test_each_status_is_told_apart_and_never_shows_the_key(reply: Reply, code: str) -> None:
    """Whether the host tries again, asks for a key or compacts depends on it (S4.7, D55)."""
    error = await fails(reply)
    assert (error.code, error.status) == (code, reply.status)
    assert "openai" in error.message and len(error.message) < 1000


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_refused_and_the_key_does_not_follow_it(status: int) -> None:
    """A redirect would carry the key to another host (R29)."""
    with LoopbackServer() as other:
        error = await fails(Reply(status=status, headers={"location": f"{other.url}/chat/completions?key={KEY}"}))
        assert other.requests == []
    assert error.code == "protocol" and "redirect" in error.message and "OPENAI_BASE_URL" in error.next_step


WAITS: list[tuple[Reply, float | None]] = [
    (failure(429, retry_after=7), 7.0),
    (failure(429, retry_after="0.5"), 0.5),
    (failure(503, retry_after=2), 2.0),
    (failure(429, retry_after="-3"), 0.0),
    (failure(429, retry_after="soon"), None),
    (failure(429, retry_after="nan"), None),
    (failure(429, retry_after="inf"), 1e9),
    (failure(429).but(headers={"retry-after-ms": "1500", "retry-after": "9"}), 1.5),
    (failure(429, "You exceeded your current quota", details=[{"retryDelay": "34s"}]), 34.0),
    (failure(429), None),
]


@pytest.mark.parametrize(("reply", "seconds"), WAITS)
async def test_the_time_to_wait_is_passed_on(reply: Reply, seconds: float | None) -> None:
    """Header, milliseconds, and what Google says instead (D55)."""
    assert (await fails(reply)).retry_after == seconds


async def test_a_date_to_wait_for_becomes_seconds() -> None:
    """``Retry-After`` may be an HTTP date; one in the past means now (D55)."""
    soon = await fails(failure(429, retry_after=format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)))
    past = await fails(failure(429, retry_after="Wed, 21 Oct 2015 07:28:00 GMT"))
    assert soon.retry_after is not None and 50 < soon.retry_after <= 60
    assert past.retry_after == 0.0


BODIES: list[tuple[Reply, str]] = [
    (Reply(json.dumps({"error": {"message": "m", "code": "rate_limit_exceeded"}}).encode()), "rate_limit"),
    (Reply(json.dumps({"error": {"message": f"bad {KEY}", "code": "invalid_api_key"}}).encode()), "auth"),
    (Reply(b"<!doctype html><html>login</html>", content_type="text/html"), "protocol"),
    (Reply(b"Service warming up", content_type="text/plain"), "protocol"),
    (Reply(b""), "empty"),
    (Reply(b"", status=204), "empty"),
    (stream(chunk(content="a"), done=False), "incomplete"),
    (stream(chunk(content="a"), done=False, end="cut"), "incomplete"),
    (stream(chunk(content="a"), done=False, end="reset"), "incomplete"),
    (stream(done=False, end="reset"), "unreachable"),  # nothing of it had come: it is tried again (D55)
    (Reply(end="refuse"), "unreachable"),
    (stream(chunk(content="a"), done=False, end="stall"), "timeout"),
    (stream(done=False, end="stall"), "timeout"),
    (Reply(end="silent"), "timeout"),
    (Reply(b"not gzip at all", headers={"content-encoding": "gzip"}), "protocol"),
    (Reply([b": keep-alive\n\n"] * 1000, pause=0.05, content_type="text/event-stream"), "timeout"),
]


@pytest.mark.parametrize(("reply", "code"), BODIES, ids=range(len(BODIES)))
async def test_a_broken_answer_is_named_for_what_it_is(reply: Reply, code: str) -> None:
    """Cut, stalled, empty and foreign answers are never taken for an answer (S4.7)."""
    error = await fails(reply)
    assert error.code == code


GOOD: list[Reply] = [
    text("Hello world"),
    text("Hello world").but(content_type="application/octet-stream"),
    text("Hello world").but(status=201),
    text("Hello world").but(chunking=1),
    Reply(gzip.compress(b"".join(text("Hello world").body)), headers={"content-encoding": "gzip"}),  # type: ignore[arg-type]
    Reply(json.dumps({"choices": [{"message": {"content": "Hello world"}, "finish_reason": "stop"}]}).encode()),
    Reply(json.dumps({"choices": [{"message": {"content": "Hello world"}}]}, indent=2).encode()),
    stream(chunk("stop", content="Hello world"), done=False, end="reset"),
    stream(chunk("stop", content="Hello world"), done=False, end="cut"),
    stream(chunk("stop", content="Hello world"), end="stall"),
]


@pytest.mark.parametrize("reply", GOOD, ids=range(len(GOOD)))
async def test_an_answer_that_is_whole_is_taken_however_it_comes(reply: Reply) -> None:
    """Once the model said why it stopped, a connection that ends badly loses nothing (S4.6)."""
    with LoopbackServer(reply) as server:
        said, finished = await ask(server.url)
    assert (said, finished.reason) == ("Hello world", "stop")


async def test_no_server_names_the_address_without_its_password() -> None:
    """The next step says where the address comes from (S4.7)."""
    with pytest.raises(ModelError) as caught:
        await ask("http://user:hunter2@127.0.0.1:9/v1")
    error = caught.value
    assert error.code == "unreachable" and error.retryable
    assert "http://127.0.0.1:9/v1" in error.message and "OPENAI_BASE_URL" in error.next_step
    assert "hunter2" not in str(error)


@pytest.mark.parametrize("url", ["localhost:8000", "http://", "http://[::1", "http://a b/", "ftp://x/v1", "http://x:99999", ""])
async def test_a_broken_address_is_named_as_such(url: str) -> None:
    """A wrong variable is the user's to fix, not to retry (S4.7)."""
    with pytest.raises(ModelError) as caught:
        await ask(url)
    assert caught.value.code == "bad_request" and "OPENAI_BASE_URL" in caught.value.next_step


@pytest.mark.parametrize("key", ["sk-SECRETé", "sk-SECRET\nX: y", "sk SECRET"])
async def test_a_key_that_cannot_be_sent_is_named_without_being_shown(key: str) -> None:
    """Pasting brings odd characters (S4.7)."""
    with LoopbackServer() as server, pytest.raises(ModelError) as caught:
        await ask(server.url, key=key)
    assert caught.value.code == "auth" and "SECRET" not in str(caught.value)
    assert server.requests == []


@pytest.mark.parametrize("name, value", [("X-Key", "SECRET\nY: 1"), ("X-Key", "SECRET€"), ("X Key", "SECRET"), ("ü", "SECRET")])
async def test_a_header_that_cannot_be_sent_is_named_without_being_shown(name: str, value: str) -> None:
    """Headers come from the configuration (S4.7)."""
    with LoopbackServer() as server, pytest.raises(ModelError) as caught:
        await ask(server.url, headers={name: value})
    assert caught.value.code == "bad_request" and "SECRET" not in str(caught.value)


async def test_token_counts_are_asked_for_and_left_out_where_a_server_refuses() -> None:
    """The refusal is remembered, so that it costs one request only (S2.26)."""
    with LoopbackServer(failure(400, "Unknown parameter: 'stream_options'"), text("a"), text("b")) as server:
        client = ChatClient(endpoint(server.url))
        for _ in range(2):
            assert [event async for event in client.stream(REQUEST, "m")][-1]
        await client.aclose()
    assert ["stream_options" in request.body for request in server.requests] == [True, False, False]


async def test_token_counts_after_the_end_are_waited_for() -> None:
    """They come in a chunk behind the reason (S2.26)."""
    with LoopbackServer(stream(chunk("stop", content="a"), usage(12, 3, 4)).but(pause=0.02)) as server:
        _, finished = await ask(server.url)
    assert (finished.usage.input, finished.usage.output, finished.usage.cached) == (12, 3, 4)


async def test_one_connection_serves_many_requests() -> None:
    """A step does not pay for a new connection (figures: a request costs 1-2 ms)."""
    with LoopbackServer() as server:
        client = ChatClient(endpoint(server.url))
        for _ in range(5):
            assert [event async for event in client.stream(REQUEST, "m")]
        await client.aclose()
        assert (len(server.requests), server.connections) == (5, 1)


async def test_a_kept_connection_that_the_server_has_closed_costs_nothing() -> None:
    """Servers close idle connections just when a request is on its way; on a new connection the error counts (S4.7)."""
    with LoopbackServer(text("a"), Reply(end="refuse"), text("b"), Reply(end="refuse"), Reply(end="refuse")) as server:
        client = ChatClient(endpoint(server.url))
        for _ in range(2):
            assert [event async for event in client.stream(REQUEST, "m")]
        with pytest.raises(ModelError) as caught:
            assert [event async for event in client.stream(REQUEST, "m")]
        await client.aclose()
    assert (caught.value.code, len(server.requests)) == ("unreachable", 5)


async def test_closing_the_iterator_drops_the_connection_at_once() -> None:
    """A cancelled turn stops costing tokens (S2.26)."""
    reply = stream(*[chunk(content="a ")] * 1000).but(pause=0.5)  # its end comes after eight minutes
    with LoopbackServer(reply) as server:
        client = ChatClient(endpoint(server.url, timeout=60.0))
        async with contextlib.aclosing(client.stream(REQUEST, "m")) as events:
            assert await anext(events)
        await client.aclose()


async def test_cancelling_the_task_ends_a_silent_call() -> None:
    """Esc works while nothing comes (S2.26)."""
    with LoopbackServer(Reply(end="silent")) as server:
        task = asyncio.create_task(ask(server.url, timeout=60.0))
        await asyncio.to_thread(server.wait_for_request)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_a_client_works_in_one_event_loop_after_another() -> None:
    """A provider outlives the loop it was first used in (invariant 8)."""
    with LoopbackServer() as server:
        client = ChatClient(endpoint(server.url))

        async def once() -> Any:
            return [event async for event in client.stream(REQUEST, "m")][-1]

        assert asyncio.run(once()) == asyncio.run(once())


async def test_a_proxy_in_the_environment_is_not_used_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A local model must work behind a company's proxy settings (S4.7)."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with LoopbackServer() as server:
        assert (await ask(server.url))[0] == "ok"


async def test_the_request_says_what_was_asked() -> None:
    """Parameters that nobody set are not sent (S0.83)."""
    with LoopbackServer(text("a"), text("b")) as server:
        await ask(server.url)
        params = ChatParams(temperature=0.2, top_p=0.9, max_tokens=7, extra={"seed": 1, "model": "other", "stream": False})
        changes = {"headers": {"X-Team": "a"}, "output_field": "max_completion_tokens"}
        await ask(server.url + "/", REQUEST.replace(params=params), **changes)
    first, second = server.requests
    assert first.body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "hi"}],
    }
    assert first.headers["authorization"] == f"Bearer {KEY}" and second.headers["x-team"] == "a"
    assert {k: second.body[k] for k in ("temperature", "top_p", "max_completion_tokens", "seed", "model", "stream")} == {
        "temperature": 0.2, "top_p": 0.9, "max_completion_tokens": 7, "seed": 1, "model": "m", "stream": True,
    }  # fmt: skip
    assert first.headers["accept-encoding"] == "identity"  # a compressed stream is held back until a block is full
    assert first.path == second.path == "/v1/chat/completions"


async def test_another_machine_is_reached_through_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A company's proxy is used, and what NO_PROXY names is left alone (S4.7)."""
    with LoopbackServer(text("through the proxy")) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        monkeypatch.setenv("no_proxy", "inside.invalid")
        assert (await ask("http://model.invalid/v1"))[0] == "through the proxy"
        with pytest.raises(ModelError, match="cannot reach"):
            await ask("http://inside.invalid/v1")
    assert [request.path for request in proxy.requests] == ["http://model.invalid/v1/chat/completions"]


async def test_a_proxy_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong setting of the environment is an error with a next command, not a crash (S4.7)."""
    monkeypatch.setenv("http_proxy", "gopher://127.0.0.1:9")
    with pytest.raises(ModelError, match="proxy that the environment names") as caught:
        await ask("http://model.invalid/v1")
    assert caught.value.code == "unreachable" and "NO_PROXY" in caught.value.next_step


ADVICE = {
    "402": (failure(402, "no"), "check the balance"),
    "a wrong key as a bad request": (failure(400, "API key not valid. Please pass a valid API key."), "check the key in"),
    "a key that has expired, in a stream": (stream({"error": {"message": "API key expired"}}), "check the key in"),
    "no tools": (failure(400, "registry.ollama.ai/library/x does not support tools"), "calls tools with -m"),
}


NO_TOOLS = [
    failure(400, "`tools` is not supported in this model"),
    failure(400, "Function calling is not enabled for models/gemma-3-4b-it"),
    failure(400, "This model does not support function calling"),
    failure(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
    failure(400, "Unrecognized request argument supplied: tools"),
    failure(404, 'No endpoints found that support tool use. Try disabling "bash".'),
    failure(500, "tools param requires --jinja flag"),
]
"""What services say when a model cannot call tools: groq, Google, OpenAI, vLLM, OpenRouter, llama.cpp."""


@pytest.mark.parametrize("reply", NO_TOOLS)
async def test_a_model_without_tools_is_known_by_what_its_service_says(reply: Reply) -> None:
    """Each has its own words (S4.7)."""
    assert "models.NAME.tools to false" in (await fails(reply)).next_step


@pytest.mark.parametrize("name", ADVICE)
async def test_the_next_step_is_what_helps(name: str) -> None:
    """Not the advice for the status in general (S4.7)."""
    reply, advice = ADVICE[name]
    assert advice in (await fails(reply)).next_step


async def test_a_proxy_that_is_not_there_is_told_from_a_server_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the proxy, and the advice the variable (S4.7)."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(ModelError, match=r"the proxy at 127\.0\.0\.1:9: ") as caught:
        await ask("http://model.invalid/v1")
    assert "HTTP_PROXY" in caught.value.next_step


REASONS = {
    "length": (stream(chunk(content="half"), chunk("length")), "length"),
    "filtered": (stream(chunk(content="half"), chunk("content_filter")), "content_filter"),
    "refused in a field": (stream(chunk(refusal="I will not."), chunk("stop")), "refusal"),
    "refused by reason": (stream(chunk(content="No."), chunk("refusal")), "refusal"),
}


@pytest.mark.parametrize("name", REASONS)
async def test_the_reason_for_the_end_is_passed_on(name: str) -> None:
    """A cut, filtered or refused answer is told from a whole one (S4.6)."""
    reply, reason = REASONS[name]
    with LoopbackServer(reply) as server:
        assert (await ask(server.url))[1].reason == reason


async def test_a_name_and_password_in_the_address_are_sent_as_such() -> None:
    """A server behind basic authentication can be used (S4.7)."""
    with LoopbackServer() as server:
        await ask(server.url.replace("http://", "http://me:p%40ss@"))
    assert server.requests[0].headers["authorization"] == "Basic bWU6cEBzcw=="


async def test_a_call_that_is_stopped_while_it_loads_leaves_it_to_the_next() -> None:
    """Ctrl-C in the first moment of a process must not end every later call of it (S2.15)."""
    with LoopbackServer(text("hello")) as server:
        client = ChatClient(endpoint(server.url))
        loading: Future[Any] = Future()
        client._warm_up._future = loading
        first = asyncio.create_task(anext(client.stream(REQUEST, "m")))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.wait((first,))
        loading.set_result(None)
        events = [event async for event in client.stream(REQUEST, "m")]
        await client.aclose()
    assert isinstance(events[-1], Finished)
