"""The encoding of a request.

Each message is encoded only once, so that step 500 encodes only its new messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import takewhile
from json.encoder import encode_basestring
from typing import Any, cast

from moryflow_sdk.errors import ModelError
from moryflow_sdk.field_types import thaw
from moryflow_sdk.models import SUMMARY_MARKS, Message, ModelRequest, ToolRequest, ToolSchema

from .endpoint import Endpoint, effort_fields
from .kept_fields import OF_CALL, OF_FUNCTION, OF_MESSAGE, THOUGHTS, has_text
from .profile import Profile
from .sent_schemas import is_strict, sent_schema

_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_quoted = encode_basestring
"""Encodes a string as JSON, faster than an encoder for any value does."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,40}\Z")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}\Z")
_NOTED = Message(role="assistant", text="Noted.")
_OURS = frozenset({"model", "messages", "stream", "stream_options", "tools"})
_BLANK = " "
"""Stands for the reasoning of an answer that has none. Kimi takes an empty text for a missing one; litellm sends this too."""
_UNSIGNED = {"google": {"thought_signature": "skip_thought_signature_validator"}}
"""What Gemini's documentation says to send with calls that Gemini did not make."""
_TAKES_BOTH = r"(?i)(.*/)?(gpt-(?!oss)|chatgpt|o\d|claude|grok|gemini-[3-9])"
"""Models whose services take a schema beside tools, also behind a gateway that is not known."""
_NO_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "no_tool",
        "description": "There is nothing to call here: answer in words.",
        "parameters": {"type": "object", "properties": {}},
    },
}
"""Named if a conversation has calls but no tool is offered: Bedrock and Anthropic refuse a history of calls without tools."""


@dataclass(frozen=True)
class Wire:
    """How a message is encoded. Each message keeps its bytes for each wire, by :attr:`name`."""

    images: bool = False
    short: bool = False
    origin: str = ""
    reasoning: bool | None = None
    fills: bool = False
    signs: bool = False
    without: frozenset[str] = frozenset()

    @cached_property
    def name(self) -> str:
        return repr((self.images, self.short, self.origin, self.reasoning, self.fills, self.signs, sorted(self.without)))


class Encoder:
    """Encodes requests for one endpoint. It keeps the encoded system prompt and tools, which seldom change."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._system = lru_cache(maxsize=2)(partial(_encode_text, "system"))
        self._tools: tuple[ToolSchema, ...] = ()
        self._tools_bytes, self._tools_of_gemini = b"", False

    def body(self, request: ModelRequest, name: str, profile: Profile | None = None) -> bytes:
        """Return the body of a streaming request to the model called `name`.

        :param profile: what the server has said about the model.
        """
        profile = profile or Profile()
        parts = [_dumps(self.head(request, name, profile))[:-1], b',"messages":[']
        parts += [b",".join(self._messages(request, profile)), b"]"]
        tools = tuple(tool for tool in request.tools if tool.name not in profile.withheld)
        if tools:
            parts += [b',"tools":', self._encoded_tools(tools, "gemini" in name.lower())]
        elif (
            request.model.tools and not request.params.answer_schema and any(message.tool_calls for message in request.messages)
        ):
            parts += [b',"tools":', _dumps([_NO_TOOL])]
        return b"".join([*parts, b"}"])

    def head(self, request: ModelRequest, name: str, profile: Profile) -> dict[str, Any]:
        """Return the parameters of a request, without those that the server refuses."""
        asked = {"model": name, "stream": True, **self.parameters(request, profile), "stream_options": {"include_usage": True}}
        return {key: value for key, value in asked.items() if key not in profile.without}

    def parameters(self, request: ModelRequest, profile: Profile) -> dict[str, Any]:
        """Return the parameters that somebody asked for, under the names of the server."""
        params = request.params
        named = {
            "temperature": params.temperature,
            "top_p": params.top_p,
            profile.output_field or self.endpoint.output_field: params.max_tokens,
            "response_format": None if params.response_format is None else thaw(params.response_format),
        }
        named["response_format"] = named["response_format"] or self._answer_format(request)
        named |= effort_fields(self.endpoint.effort, params.reasoning_effort)
        extra = {key: value for key, value in thaw(params.extra).items() if key not in _OURS}
        return {**{key: value for key, value in named.items() if value is not None}, **extra}

    def _answer_format(self, request: ModelRequest) -> dict[str, Any] | None:
        schema = thaw(request.params.answer_schema)
        mode = self.endpoint.json_mode
        if schema is None or (mode == "alone" and request.tools and not re.match(_TAKES_BOTH, request.model.name)):
            return None
        if mode == "object":
            return {"type": "json_object"}
        if schema.get("type") != "object":  # OpenAI takes no other
            return None
        strict = {"strict": True} if is_strict(schema) else {}
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **strict}}

    def learn(self, error: ModelError, request: ModelRequest, name: str, profile: Profile) -> bool:
        """Take from a refusal of `request` what to change; return whether it is worth sending again."""
        fields = {key for message in request.messages for call in message.tool_calls for key in call.extra}
        fields |= {key for message in request.messages for key in message.extra}
        sent, tools = self.head(request, name, profile), [tool.name for tool in request.tools]
        return profile.learn(error, sent, fields - profile.fields_without, tools)

    def left_out(self, request: ModelRequest, profile: Profile) -> list[str]:
        """Return what of `request` the server does not take, in words."""
        asked = [key for key in self.parameters(request, profile) if key in profile.without]
        return asked + [f"the tool {tool.name}" for tool in request.tools if tool.name in profile.withheld]

    def _messages(self, request: ModelRequest, profile: Profile) -> list[bytes]:
        """Return the encoded messages.

        The templates of many open models accept one system message, at the beginning. For them, the leading system messages
        are joined, a summary becomes a user message with its mark as the first line, and later system messages become user
        messages. The same templates refuse two user messages in a row, so a summary gets an answer, and other neighbours are
        joined. Images of tool results follow the results, because a tool message is text.
        """
        messages, images = request.messages, request.model.images
        leading = list(takewhile(lambda message: message.role == "system", messages))
        texts, summary = [message.text for message in leading], list[Message]()
        if self.endpoint.system_messages == "one":
            texts = ["\n\n".join(message.text for message in leading if not _is_summary(message))]
            summary = [message for message in leading if _is_summary(message)]
        head = [self._system(text) for text in texts if text]
        return head + self._encoded([*summary, *messages[len(leading) :]], self.wire(images, profile))

    def _encoded(self, messages: Sequence[Message], wire: Wire) -> list[bytes]:
        if self.endpoint.system_messages == "one":
            messages = list(_alternating(messages))
        if wire.images and any(message.images for message in messages):
            return list(_with_images(messages, wire))
        encode = partial(_encode, wire=wire)
        return [message.encoded(wire.name, encode) for message in messages]

    def wire(self, images: bool, profile: Profile) -> Wire:
        """Return how messages are encoded for the server."""
        endpoint = self.endpoint
        return Wire(
            images=images,
            short=endpoint.short_ids,
            origin=endpoint.origin,
            reasoning=endpoint.send_reasoning,
            fills=endpoint.wants_reasoning or profile.wants_reasoning,
            signs=endpoint.wants_signature or profile.wants_signature,
            without=frozenset(profile.fields_without),
        )

    def _encoded_tools(self, tools: tuple[ToolSchema, ...], gemini: bool) -> bytes:
        known = gemini is self._tools_of_gemini and len(tools) == len(self._tools)
        if not known or any(a is not b for a, b in zip(tools, self._tools, strict=True)):
            self._tools_bytes = _dumps([_tool(tool, gemini) for tool in tools])
            self._tools, self._tools_of_gemini = tools, gemini
        return self._tools_bytes


def _tool(tool: ToolSchema, gemini: bool) -> dict[str, Any]:
    """Return a tool as it is sent; Bedrock refuses one without a description."""
    parameters = sent_schema(tool.parameters, gemini=gemini)
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description or tool.name, "parameters": parameters},
    }


def _with_images(messages: Sequence[Message], wire: Wire) -> Iterator[bytes]:
    """Yield encoded messages, with the images of tool results after the last result of their step."""
    held: list[Message] = []
    for message in messages:
        if held and message.role != "tool":
            yield from _image_messages(held)
        yield message.encoded(wire.name, partial(_encode, wire=wire))
        if message.role == "tool" and message.images:
            held.append(message)
    yield from _image_messages(held)


def _encode(message: Message, *, wire: Wire) -> bytes:
    images = wire.images
    match message.role:
        case "tool":
            content = message.text if images or not message.images else f"{message.text}\n{_image_note(message)}".lstrip()
            call = _quoted(wire_id(message.call_id, short=wire.short))
            return _bytes(f'{{"role":"tool","tool_call_id":{call},"content":{_quoted(content)}}}')
        case "assistant":
            return _bytes(_assistant(message, wire))
        case "system":
            return _encode_text("user", _user_text(message))
        case _ if not message.images:
            return _encode_text("user", message.text)
        case _ if not images:
            return _encode_text("user", f"{message.text}\n{_image_note(message)}".lstrip())
        case _:
            text = [{"type": "text", "text": message.text}] if message.text else []
            return _dumps({"role": "user", "content": [*text, *_images(message)]})


def _alternating(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield messages such that no two user messages follow each other.

    A summary is answered by a line of ours, so that the prompt after it stays a separate message; others are joined.
    """
    asked: list[Message] = []
    for message in messages:
        of_user = message.role in ("user", "system")
        if asked and (not of_user or _is_summary(asked[-1])):
            yield _join_messages(asked)
            if of_user:
                yield _NOTED
            asked = []
        if of_user:
            asked.append(message)
        else:
            yield message
    if asked:
        yield _join_messages(asked)


def _join_messages(asked: Sequence[Message]) -> Message:
    if len(asked) == 1:
        return asked[0]
    text = "\n\n".join(text for each in asked if (text := _user_text(each)))
    return Message(role="user", text=text, images=tuple(image for each in asked for image in each.images))


def _user_text(message: Message) -> str:
    return message.text if message.role == "user" or _is_summary(message) else f"[system]\n{message.text}"


def _is_summary(message: Message) -> bool:
    return message.role == "system" and message.text.startswith(tuple(SUMMARY_MARKS.values()))


def _encode_text(role: str, text: str) -> bytes:
    return _bytes(f'{{"role":"{role}","content":{_quoted(text)}}}')


def _assistant(message: Message, wire: Wire) -> str:
    own = bool(message.origin) and message.origin == wire.origin
    content = _quoted(message.text) if message.text else "null" if message.tool_calls else '""'
    if own and has_text(message.extra.get("content"), message.text):
        content = _json(message.extra["content"])
    fields = _kept(message.extra, OF_MESSAGE, wire) if own else {}
    if wire.reasoning is False:
        fields = {key: value for key, value in fields.items() if key not in THOUGHTS}
    elif wire.reasoning and not message.origin and message.reasoning:
        fields["reasoning_content"] = message.reasoning
    if wire.fills and not fields.get("reasoning_content"):
        fields["reasoning_content"] = (own and wire.reasoning is not False and message.reasoning) or _BLANK
    kept = f",{_json(fields)[1:-1]}" if fields else ""
    if not message.tool_calls:
        return f'{{"role":"assistant","content":{content}{kept}}}'
    signs = wire.signs and not (own and any(call.extra.get("extra_content") for call in message.tool_calls))
    calls = ",".join([_call(call, wire, own, signs and not at) for at, call in enumerate(message.tool_calls)])
    return f'{{"role":"assistant","content":{content}{kept},"tool_calls":[{calls}]}}'


def _call(call: ToolRequest, wire: Wire, own: bool, signs: bool) -> str:
    fields = _kept(call.extra, OF_CALL, wire) if own and call.extra else {}
    within: Any = call.extra.get("function") if own else None
    inside = _kept(cast("dict[str, Any]", within), OF_FUNCTION, wire) if isinstance(within, dict) else {}
    more = f",{_json(inside)[1:-1]}" if inside else ""
    if signs:
        fields["extra_content"] = _UNSIGNED
    kept = f",{_json(fields)[1:-1]}" if fields else ""
    function = f'{{"name":{_quoted(call.name)},"arguments":{_quoted(call.arguments or "{}")}{more}}}'
    return f'{{"id":{_quoted(wire_id(call.id, short=wire.short))},"type":"function","function":{function}{kept}}}'


def _kept(extra: Mapping[str, Any], known: frozenset[str], wire: Wire) -> dict[str, Any]:
    """Return the fields that a service added to its answer; none may take the place of a field of the protocol."""
    return {key: value for key, value in extra.items() if key not in known and key not in wire.without}


def wire_id(id: str, *, short: bool = False) -> str:
    """Return `id`, or a digest of it if a provider would refuse it; a call and its result get the same.

    OpenAI accepts 40 characters, Anthropic letters, digits, ``_`` and ``-``, Mistral exactly nine letters or digits.
    """
    pattern = _SHORT_ID if short else _ID
    if pattern.match(id):
        return id
    import hashlib

    return hashlib.sha256(id.encode(errors="replace")).hexdigest()[:9]


def _images(message: Message) -> list[dict[str, Any]]:
    return [{"type": "image_url", "image_url": {"url": f"data:{i.media_type};base64,{i.data}"}} for i in message.images]


def _image_note(message: Message) -> str:
    return f"[{len(message.images)} image(s) left out: this model is not known to see images]"


def _image_messages(held: list[Message]) -> Iterator[bytes]:
    for message in held:
        yield message.encoded("openai:images", _encode_images)
    held.clear()


def _encode_images(message: Message) -> bytes:
    note = {"type": "text", "text": f"[images of the result of call {message.call_id}]"}
    return _dumps({"role": "user", "content": [note, *_images(message)]})


def _dumps(value: Mapping[str, Any] | Sequence[Any]) -> bytes:
    return _bytes(_json(value))


def _bytes(text: str) -> bytes:
    """Encode `text` as UTF-8. Lone surrogates become ``?``, because no server accepts them."""
    return text.encode(errors="replace")
