"""The corpus of malformed streams, at the provider: what text and which calls come out, or which error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moryflow.kernel.tool_call import parse
from moryflow.testing.replies import LoopbackServer
from moryflow_builtins.openai_compatible import OpenAICompatible
from moryflow_sdk import Finished, Message, ModelError, ModelRequest, TextDelta, ToolError, ToolRequest
from moryflow_sdk.support.settings import ModelsSettings
from stream_corpus import replies

CORPUS = Path(__file__).parents[2] / "data" / "corpus" / "streams.jsonl"
CASES = [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]
OPENAI = [case for case in CASES if case["format"] == "openai_chat"]
EXTRA = Path(__file__).parents[2] / "data" / "streams" / "openai_extra.jsonl"
MORE = [json.loads(line) for line in EXTRA.read_text(encoding="utf-8").splitlines()]
TOOLS = {"ls": {"path"}, "read": {"path"}, "write": {"path", "content"}, "bash": {"command"}, "grep": {"pattern", "path"}}


def outcome(call: ToolRequest) -> str:
    """What a host would answer to `call`, without running it."""
    if call.problem:
        return call.problem
    if call.name not in TOOLS:
        return "unknown_tool"
    try:
        arguments = parse(call.arguments)
    except ToolError:
        return "invalid_args"
    good = all(isinstance(value, str) for value in arguments.values())
    return "ok" if good and set(arguments) == TOOLS[call.name] else "invalid_args"


def kind(error: ModelError) -> str:
    """The corpus's word for an error."""
    if error.code in ("incomplete", "timeout", "protocol", "too_large", "context", "empty"):
        return f"error:{error.code}"
    return "error:retryable" if error.retryable else "error:fatal"


async def observe(server: LoopbackServer, case: dict[str, Any]) -> dict[str, Any]:
    """Play `case` and return what was seen, in the corpus's terms."""
    server.add(*replies(case))
    patience = 1.0 if case["expect"]["turn"] == "error:timeout" else 60.0
    provider = OpenAICompatible(
        ModelsSettings(timeout=patience), {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-SECRET-KEY"}
    )
    model = provider.find("openai/m")
    assert model is not None
    text: list[str] = []
    calls: tuple[ToolRequest, ...] = ()
    turn = message = ""
    try:
        async for event in provider.stream(ModelRequest(model=model, messages=(Message(role="user", text="hi"),))):
            if isinstance(event, TextDelta):
                text.append(event.text)
            if isinstance(event, Finished):
                calls = event.tool_calls
                turn = "continue" if calls or event.reason == "pause" else "end"
        if any(call.problem == "incomplete" for call in calls):
            turn = "error:incomplete"  # the host ends the turn once each call has its result
    except ModelError as error:
        calls, turn, message = error.tool_calls, kind(error), str(error)
    finally:
        await provider.aclose()
    return {"turn": turn, "text": "".join(text), "calls": calls, "message": message}


def matches(seen: dict[str, Any], expect: dict[str, Any], generated: set[str]) -> bool:
    """Whether what was `seen` is what `expect` describes."""
    if seen["turn"] != expect["turn"] or ("text" in expect and seen["text"] != expect["text"]):
        return False
    found = [("<generated>" if call.id in generated else call.id, outcome(call)) for call in seen["calls"]]
    return found == [(result["call"], result["code"]) for result in expect["results"]]


@pytest.mark.parametrize("case", OPENAI, ids=[f"{case['id']}-{case['name']}" for case in OPENAI])
async def test_each_malformed_stream_gives_the_expected_calls_or_error(case: dict[str, Any]) -> None:
    """No call with incomplete arguments comes out whole, and no key is in a message (S4.6, S4.7, R27)."""
    with LoopbackServer() as server:
        seen = await observe(server, case)
    check(seen, case)


@pytest.fixture(scope="module")
def one_server() -> Iterator[LoopbackServer]:
    """One server for many cases; each uses up what it was given."""
    with LoopbackServer() as server:
        yield server


@pytest.mark.parametrize("case", MORE, ids=[f"{case['id']}-{case['name']}" for case in MORE])
async def test_each_further_stream_gives_the_expected_calls_or_error(case: dict[str, Any], one_server: LoopbackServer) -> None:
    """The same for some twenty more of each kind (S4.6, S4.7, R27)."""
    check(await observe(one_server, case), case)


def check(seen: dict[str, Any], case: dict[str, Any]) -> None:
    """Compare what was `seen` with what the case expects."""
    wanted = [case["expect"], *case.get("either", [])]
    given = {result["call"] for expect in wanted for result in expect["results"]}
    generated = {call.id for call in seen["calls"]} - given
    assert any(matches(seen, expect, generated) for expect in wanted), (seen["turn"], seen["message"], seen["calls"])
    assert "SECRET" not in seen["message"]
    assert len({call.id for call in seen["calls"]}) == len(seen["calls"])
