"""What is sent: messages, tools, images, and that each message is encoded once."""

from __future__ import annotations

import json
from copy import copy
from typing import Any

import pytest
from moryflow_builtins.openai_compatible import SERVICES
from moryflow_sdk import ChatParams, Image, Message, ModelInfo, ModelRequest, ToolRequest, ToolSchema
from moryflow_sdk.chat_completions import Endpoint
from moryflow_sdk.chat_completions.profile import Profile
from moryflow_sdk.chat_completions.request import Encoder, wire_id
from moryflow_sdk.models import SUMMARY_MARKS

PNG = Image(media_type="image/png", data="QUJD")


def sent(
    *messages: Message,
    images: bool = False,
    tools: tuple[ToolSchema, ...] = (),
    params: ChatParams = ChatParams(),  # noqa: B008  it is frozen
    name: str = "m",
    **endpoint: Any,
) -> dict[str, Any]:
    """The parsed body of a request."""
    model = ModelInfo(id=f"openai/{name}", name=name, provider="p", images=images)
    request = ModelRequest(model=model, messages=messages, tools=tools, params=params)
    return json.loads(Encoder(Endpoint("http://x/v1", "openai", **endpoint)).body(request, "m"))


def test_a_call_and_its_result_keep_their_id() -> None:
    """A provider pairs them by id (S4.6)."""
    call = ToolRequest(id="call_1", name="read", arguments='{"path":"a"}')
    found = sent(Message(role="assistant", tool_calls=(call,)), Message(role="tool", call_id="call_1", text="x"))["messages"]
    assert found == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path":"a"}'}}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "x"},
    ]


def test_ids_that_a_provider_would_refuse_are_replaced_on_both_sides() -> None:
    """A session may go on with another provider (S4.6)."""
    for id, short in (("call 1", False), ("x" * 64, False), ("call_1", True), ("é", False)):
        call = ToolRequest(id=id, name="read")
        found = sent(Message(role="assistant", tool_calls=(call,)), Message(role="tool", call_id=id), short_ids=short)[
            "messages"
        ]
        assert found[0]["tool_calls"][0]["id"] == found[1]["tool_call_id"] == wire_id(id, short=short)
        assert len(wire_id(id, short=short)) == 9 and wire_id(id, short=short).isalnum()
    assert wire_id("abcdefghi", short=True) == "abcdefghi"


SYSTEM = (
    Message(role="system", text="rules"),
    Message(role="system", text="more rules"),
    Message(role="system", text=f"{SUMMARY_MARKS['zh']}\n## Goal\nMend it."),
    Message(role="user", text="hi"),
    Message(role="system", text="late"),
)


def test_a_provider_of_one_system_message_gets_the_summary_as_a_marked_user_message() -> None:
    """Templates of many open models take one system message, at the head (D17)."""
    assert sent(*SYSTEM)["messages"] == [
        {"role": "system", "content": "rules\n\nmore rules"},
        {"role": "user", "content": "【会话摘要】\n## Goal\nMend it."},
        {"role": "assistant", "content": "Noted."},
        {"role": "user", "content": "hi\n\n[system]\nlate"},
    ]


def test_a_provider_of_one_system_message_never_gets_two_user_messages_in_a_row() -> None:
    """Its templates raise on them: neighbours become one with all their images, a prompt behind a summary stays (D17)."""
    found = sent(
        SYSTEM[2],
        Message(role="user", text="broken off", images=(PNG,)),
        Message(role="user", text="[note from the host]\nstopped"),
        Message(role="user", text="again", images=(PNG,)),
        Message(role="assistant", text="done"),
        Message(role="user", text="thanks"),
        images=True,
    )["messages"]
    assert [message["role"] for message in found] == ["user", "assistant", "user", "assistant", "user"]
    assert found[2]["content"][0]["text"] == "broken off\n\n[note from the host]\nstopped\n\nagain"
    assert len(found[2]["content"]) == 3 and found[4] == {"role": "user", "content": "thanks"}
    found = sent(Message(role="user", text="kept"), SYSTEM[2], Message(role="user", text="go on"))["messages"]
    assert [message["role"] for message in found] == ["user", "assistant", "user"]
    assert found[0]["content"].startswith("kept\n\n【会话摘要】") and found[2]["content"] == "go on"


def test_a_provider_of_several_system_messages_gets_the_summary_as_one() -> None:
    """Behind the system prompt, at the head (S0.24, D17)."""
    roles = [message["role"] for message in sent(*SYSTEM, system_messages="several")["messages"]]
    assert roles == ["system", "system", "system", "user", "user"]


def test_images_of_tool_results_follow_all_results_of_the_step() -> None:
    """Nothing may stand between a call's results (S4.6)."""
    calls = (ToolRequest(id="a", name="read"), ToolRequest(id="b", name="read"))
    found = sent(
        Message(role="assistant", tool_calls=calls),
        Message(role="tool", call_id="a", images=(PNG,)),
        Message(role="tool", call_id="b", text="x"),
        Message(role="user", text="look", images=(PNG,)),
        images=True,
    )["messages"]
    assert [message["role"] for message in found] == ["assistant", "tool", "tool", "user", "user"]
    assert found[3]["content"][1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    assert [part["type"] for part in found[4]["content"]] == ["text", "image_url"]


def test_images_for_a_model_without_eyes_become_a_note() -> None:
    """The model is told that something is missing (S4.6)."""
    found = sent(Message(role="user", text="look", images=(PNG,)), Message(role="tool", call_id="a", images=(PNG,)))["messages"]
    assert all("left out" in message["content"] for message in found) and found[0]["content"].startswith("look\n")


def test_what_a_service_added_to_its_answer_goes_back_to_it_alone() -> None:
    """Under its own name, also within a call; nothing takes the place of a field of the protocol (S4.6)."""
    here = Endpoint("http://x/v1", "openai").origin
    extra = {"reasoning_content": "hm", "reasoning_details": [{"data": "x"}], "role": "system", "tool_calls": []}
    call = ToolRequest(id="a", name="ls", extra={"extra_content": {"s": 1}, "id": "b", "function": {"note": "n", "name": "rm"}})
    message = Message(role="assistant", text="a", reasoning="hm", tool_calls=(call,), extra=extra, origin=here)
    found = sent(message)["messages"][0]
    assert (found["role"], found["reasoning_content"], found["reasoning_details"]) == ("assistant", "hm", [{"data": "x"}])
    assert found["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "ls", "arguments": "{}", "note": "n"}, "extra_content": {"s": 1}}
    ]
    assert "reasoning_content" not in sent(message, send_reasoning=False)["messages"][0]
    for elsewhere in (message.replace(origin="other"), message.replace(origin="")):
        plain = sent(elsewhere)["messages"][0]
        assert plain.keys() == {"role", "content", "tool_calls"}
        assert plain["tool_calls"][0].keys() == {"id", "type", "function"}


def test_content_in_parts_goes_back_in_parts_while_it_says_the_same() -> None:
    """Mistral's thoughts are parts of its content; a text that was changed since is what is sent (S4.6)."""
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "a"}]
    message = Message(role="assistant", text="a", extra={"content": parts}, origin=Endpoint("http://x/v1", "openai").origin)
    assert sent(message)["messages"][0]["content"] == parts
    assert sent(message.replace(text="changed"))["messages"][0]["content"] == "changed"
    odd = ToolRequest(id="a", name="ls", extra={"function": "x"})
    assert sent(message.replace(tool_calls=(odd,), extra={"content": "x"}))["messages"][0]["content"] == "a"


def test_a_service_that_wants_reasoning_gets_a_blank_one_for_the_answers_of_others() -> None:
    """DeepSeek and Kimi refuse a history without it, also one that began elsewhere; Gemini wants a signature (S4.6)."""
    message = Message(role="assistant", tool_calls=(ToolRequest(id="a", name="ls"), ToolRequest(id="b", name="ls")))
    assert sent(message, wants_reasoning=True)["messages"][0]["reasoning_content"] == " "
    calls = sent(message, wants_signature=True)["messages"][0]["tool_calls"]
    assert calls[0]["extra_content"]["google"]["thought_signature"] and "extra_content" not in calls[1]
    earlier = Message(role="assistant", text="a", reasoning="hm")
    assert sent(earlier, send_reasoning=True)["messages"][0]["reasoning_content"] == "hm"


def test_a_history_with_calls_always_names_a_tool() -> None:
    """Bedrock refuses one without; a model that can call none gets none (S4.6)."""
    history = (Message(role="assistant", tool_calls=(ToolRequest(id="a", name="ls"),)), Message(role="tool", call_id="a"))
    assert [tool["function"]["name"] for tool in sent(*history)["tools"]] == ["no_tool"]
    assert "tools" not in sent(Message(role="user", text="hi"))


def test_tools_are_sent_as_functions() -> None:
    """The schema goes as it is (S4.6)."""
    tool = ToolSchema(name="ls", description="List", parameters={"type": "object", "properties": {}})
    assert sent(Message(role="user", text="hi"), tools=(tool,))["tools"] == [
        {
            "type": "function",
            "function": {"name": "ls", "description": "List", "parameters": {"type": "object", "properties": {}}},
        }
    ]


def test_a_message_is_encoded_once_for_all_steps() -> None:
    """Step 500 costs what is new (figures: 1-2 ms)."""
    message = Message(role="user", text="hi")
    encoder = Encoder(Endpoint("http://x/v1", "openai"))
    request = ModelRequest(model=ModelInfo(id="openai/m", name="m", provider="p"), messages=(message,))
    encoder.body(request, "m")
    kept = message.encoded(encoder.wire(images=False, profile=Profile()).name, lambda _: b"made again")
    assert json.loads(kept) == {"role": "user", "content": "hi"}


def test_a_changed_copy_of_a_message_is_encoded_anew() -> None:
    """What a hook redacted is what is sent, however it made the copy (S4.6)."""
    secret = Message(role="user", text="the key is hunter2")
    assert sent(secret)["messages"][0]["content"] == "the key is hunter2"
    changed = copy(secret)
    vars(changed).update(text="gone")
    for message in (changed, secret.replace(text="gone")):
        assert sent(message)["messages"][0]["content"] == "gone"


def test_half_characters_do_not_break_a_request() -> None:
    """Lone surrogates may come from any source (S4.6)."""
    assert sent(Message(role="user", text="a\ud83db"))["messages"][0]["content"] == "a?b"


@pytest.mark.parametrize("system_messages", ["one", "several"])
def test_a_conversation_that_grows_or_changes_is_sent_as_if_it_were_sent_first(system_messages: str) -> None:
    """What an encoder keeps of the request before never shows in the next one: added, replaced, left out, another model."""
    call = ToolRequest(id="c1", name="read", arguments="{}")
    asked, image = Message(role="assistant", tool_calls=(call,)), Message(role="tool", call_id="c1", text="x", images=(PNG,))
    talk = [*SYSTEM[:4], asked, image, Message(role="user", text="a"), Message(role="system", text="late"), asked, image]
    talk += [Message(role="assistant", text="done"), Message(role="user", text="b"), Message(role="user", text="c")]
    requests = [(talk[:end], images) for images in (True, False) for end in range(1, len(talk) + 1)]
    requests += [
        (talk, True),
        ([*talk[:6], *talk[7:]], True),
        ([*talk[:3], Message(role="user", text="else"), *talk[4:]], True),
    ]
    endpoint = Endpoint("http://x/v1", "openai", system_messages=system_messages)  # type: ignore[arg-type]
    encoder = Encoder(endpoint)
    for messages, images in requests:
        model = ModelInfo(id="openai/m", name="m", provider="p", images=images)
        request = ModelRequest(model=model, messages=tuple(messages))
        assert encoder.body(request, "m") == Encoder(endpoint).body(request, "m")


@pytest.mark.parametrize(
    ("service", "high", "none"),
    [
        ("openai", {"reasoning_effort": "high"}, {"reasoning_effort": "none"}),
        ("openrouter", {"reasoning": {"effort": "high"}}, {"reasoning": {"effort": "none"}}),
        ("deepseek", {"thinking": {"type": "enabled"}, "reasoning_effort": "high"}, {"thinking": {"type": "disabled"}}),
        ("moonshot", {"reasoning_effort": "high"}, {"thinking": {"type": "disabled"}}),
        ("qwen", {"enable_thinking": True, "thinking_budget": 16_384}, {"enable_thinking": False}),
        (
            "vllm",
            {"chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "high"}},
            {"chat_template_kwargs": {"enable_thinking": False}},
        ),
    ],
)
def test_an_effort_is_asked_for_as_the_service_knows_it(service: str, high: Any, none: Any) -> None:
    """One word of ours, many of theirs; nothing is sent if nobody asked (S4.6)."""
    message = Message(role="user", text="hi")
    usual = sent(message).keys()
    for effort, wanted in (("high", high), ("none", none)):
        body = sent(message, params=ChatParams(reasoning_effort=effort), effort=SERVICES[service].effort)
        assert {key: value for key, value in body.items() if key not in usual} == wanted


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
STRICT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
LOOSE = {"type": "object", "properties": {"n": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("mode", "name", "schema", "tools", "wanted"),
    [
        ("schema", "m", SCHEMA, True, STRICT),
        ("schema", "m", LOOSE, True, {"type": "json_schema", "json_schema": {"name": "answer", "schema": LOOSE}}),
        ("schema", "m", {"type": "array"}, True, None),
        ("object", "m", SCHEMA, True, {"type": "json_object"}),
        ("alone", "m", SCHEMA, True, None),
        ("alone", "m", SCHEMA, False, STRICT),
        ("alone", "openai/gpt-5", SCHEMA, True, STRICT),
        ("alone", "gpt-oss-120b", SCHEMA, True, None),
    ],
)
def test_a_schema_goes_into_the_mode_that_the_service_has(mode: str, name: str, schema: Any, tools: bool, wanted: Any) -> None:
    """A server that would force each answer into it, and so forbid calls, is only told in words (S0.79, S4.6)."""
    offered = (ToolSchema(name="ls", description="List", parameters={"type": "object"}),) if tools else ()
    params = ChatParams(answer_schema=schema)
    body = sent(Message(role="user", text="hi"), tools=offered, params=params, name=name, json_mode=mode)
    assert body.get("response_format") == wanted
