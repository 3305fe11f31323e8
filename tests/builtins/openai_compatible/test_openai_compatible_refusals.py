"""A request that names what it refuses is sent again without it, over real loopback HTTP."""

from __future__ import annotations

import pytest
from moryflow.testing.replies import LoopbackServer, Reply, failure, text
from moryflow_sdk import ChatParams, Message, ModelError, ModelInfo, ModelRequest, Status, ToolRequest, ToolSchema
from moryflow_sdk.chat_completions import ChatClient, Endpoint

MODEL = ModelInfo(id="openai/m", name="m", provider="openai_compatible")
TOOLS = tuple(ToolSchema(name=name, description=name, parameters={"type": "object"}) for name in ("ls", "odd"))


async def ask(server: LoopbackServer, params: ChatParams, times: int = 1) -> list[str]:
    """Return what a person is told during some calls with one client."""
    client = ChatClient(Endpoint(server.url, "acme", timeout=5.0))
    call = ToolRequest(id="a", name="ls", extra={"note": 1})
    history = (
        Message(role="user", text="hi"),
        Message(role="assistant", tool_calls=(call,), extra={"reasoning": "hm"}, origin=client.endpoint.origin),
        Message(role="tool", call_id="a", text="x"),
    )
    request = ModelRequest(model=MODEL, messages=history, tools=TOOLS, params=params)
    try:
        events = [event for _ in range(times) async for event in client.stream(request, "m")]
    finally:
        await client.aclose()
    return [event.text for event in events if isinstance(event, Status) and event.lasting]


REFUSALS: list[tuple[Reply, str, str]] = [
    (failure(400, "Unsupported value: 'temperature' does not support 0.2 with this model."), "temperature", "acme refuses"),
    (failure(400, "bad", param="temperature"), "temperature", "acme refuses temperature for m"),
    (failure(400, "Provider returned error", metadata={"raw": "'top_p' is unsupported"}), "top_p", "acme refuses top_p"),
    (failure(422, "Extra inputs are not permitted: top_p"), "top_p", "acme refuses top_p"),
    (failure(400, "litellm.UnsupportedParamsError: azure does not support parameters: ['top_p']"), "top_p", "acme refuses"),
    (failure(400, "unknown field stream_options"), "stream_options", ""),
    (
        failure(400, "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."),
        "max_tokens",
        "",
    ),
    (failure(500, "Cannot use custom grammar constraints with tools."), "response_format", "acme refuses response_format"),
    (failure(400, "Function calling with a response mime type: 'application/json' is unsupported"), "response_format", "acme"),
]


@pytest.mark.parametrize(("reply", "gone", "said"), REFUSALS)
async def test_a_parameter_that_a_refusal_names_is_left_out_from_then_on(reply: Reply, gone: str, said: str) -> None:
    """It is tried once more, remembered, and said once if somebody asked for it (S4.6, D74)."""
    params = ChatParams(temperature=0.2, top_p=0.5, max_tokens=9, response_format={"type": "json_schema"})
    with LoopbackServer(reply, text("fine"), text("fine")) as server:
        told = await ask(server, params, times=2)
    bodies = [recorded.body for recorded in server.requests]
    assert [gone in body for body in bodies] == [True, False, False]
    assert all(bodies[1].get(key) == value for key, value in bodies[0].items() if key != gone)
    assert len(told) == bool(said) and all(line.startswith(said) for line in told)
    if gone == "max_tokens":
        assert bodies[1]["max_completion_tokens"] == 9


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("'messages.1' : property 'reasoning' is unsupported", "reasoning"),
        ("messages.1.assistant.tool_calls.0.note: Extra inputs are not permitted", "note"),
    ],
)
async def test_a_field_of_a_message_that_a_refusal_names_is_left_out(said: str, field: str) -> None:
    """Some services send what they do not take back (S4.6)."""
    with LoopbackServer(failure(400, said), text("fine")) as server:
        await ask(server, ChatParams())
    first, second = (str(recorded.body["messages"]) for recorded in server.requests)
    assert f"'{field}':" in first and f"'{field}':" not in second


@pytest.mark.parametrize(
    "said",
    [
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index 1",
        "Missing `reasoning_content` field in the assistant message at message index 1.",
    ],
)
async def test_a_service_that_misses_reasoning_gets_it_from_then_on(said: str) -> None:
    """Also if nobody knows the service by name; it gets the reasoning that it sent under another name (S4.6)."""
    with LoopbackServer(failure(400, said), text("fine")) as server:
        await ask(server, ChatParams())
    answer = server.requests[1].body["messages"][1]
    assert answer["reasoning_content"] == " " and answer["reasoning"] == "hm"


@pytest.mark.parametrize(
    "reply",
    [
        failure(400, "Invalid schema for function 'odd': array schema missing items.", param="tools[1].function.parameters"),
        failure(400, "Invalid schema for function 'odd': array schema missing items."),
        failure(400, "GenerateContentRequest.tools[0].function_declarations[1].parameters.properties: should be non-empty"),
    ],
)
async def test_a_tool_whose_schema_is_refused_is_withheld_and_named(reply: Reply) -> None:
    """One tool never costs the others (S4.6)."""
    with LoopbackServer(reply, text("fine")) as server:
        told = await ask(server, ChatParams())
    assert [tool["function"]["name"] for tool in server.requests[1].body["tools"]] == ["ls"]
    assert told == ["acme refuses the tool odd for m; the request goes without it"]


@pytest.mark.parametrize(
    "reply",
    [
        failure(400, "the messages are wrong"),
        failure(401, "temperature"),
        failure(400, "This model's maximum context length is 10 tokens; max_tokens counts too"),
    ],
)
async def test_other_refusals_are_errors_at_once(reply: Reply) -> None:
    """A word in a message is no reason to send everything again (S4.6)."""
    with LoopbackServer(reply, otherwise=text("fine")) as server, pytest.raises(ModelError):
        await ask(server, ChatParams(temperature=0.2, max_tokens=9))
    assert len(server.requests) == 1


async def test_a_service_that_refuses_everything_is_not_asked_for_ever() -> None:
    """Each change is made once (S4.6)."""
    with LoopbackServer(otherwise=failure(400, "'temperature' is wrong")) as server, pytest.raises(ModelError):
        await ask(server, ChatParams(temperature=0.2))
    assert len(server.requests) == 2
