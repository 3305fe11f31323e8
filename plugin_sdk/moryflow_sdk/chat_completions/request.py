"""A request: the endpoint that it goes to, and its encoding.

Each message is encoded only once, so that step 500 encodes only its new messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import takewhile
from json.encoder import encode_basestring
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from moryflow_sdk.field_types import thaw
from moryflow_sdk.models import SUMMARY_MARK, ChatParams, Message, ModelRequest, ToolRequest, ToolSchema

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Endpoint:
    """A server that speaks chat completions.

    :param base_url: for example ``https://api.openai.com/v1``; ``/chat/completions`` is added if it is missing.
    :param label: the name of the server for people, for example ``openai``; errors begin with it.
    :param key: sent as bearer token; empty for none.
    :param key_source: where the key is set, for error messages: ``the environment variable OPENAI_API_KEY``.
    :param url_source: where the address is set, likewise.
    :param output_field: the field for the output limit; OpenAI's newer models accept only ``max_completion_tokens``.
    :param short_ids: whether tool call ids must be nine letters or digits (Mistral).
    :param send_reasoning: whether to send earlier ``reasoning_content`` back (DeepSeek needs it between tool calls).
    :param system_messages: whether the server accepts ``several``; with ``one``, a summary is sent as a user message.
    :param timeout: seconds without a byte until the call counts as stalled.
    """

    base_url: str
    label: str
    key: str = field(default="", repr=False)
    key_source: str = "the provider's configuration"
    url_source: str = "the provider's configuration"
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    output_field: str = "max_tokens"
    short_ids: bool = False
    send_reasoning: bool = False
    system_messages: Literal["one", "several"] = "one"
    timeout: float = 300.0

    @cached_property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine, and so needs neither a proxy nor a key."""
        return (urlsplit(self.base_url).hostname or "") in _LOOPBACK

    @cached_property
    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.base_url.lower().startswith("https:")

    @cached_property
    def public_url(self) -> str:
        """The address without user name, password and query, for messages."""
        parts = urlsplit(self.base_url)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, host, parts.path, "", ""))

    def url(self, path: str) -> str:
        """Return the address of `path` (``/chat/completions``), with the base URL's query, such as Azure's ``api-version``."""
        parts = urlsplit(self.base_url)
        base = parts.path.rstrip("/").removesuffix("/chat/completions")
        return urlunsplit((parts.scheme, parts.netloc, base + path, parts.query, ""))


_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_quoted = encode_basestring
"""Encodes a string as JSON, faster than an encoder for any value does."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,40}\Z")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}\Z")
_NOTED = Message(role="assistant", text="Noted.")
_OURS = frozenset({"model", "messages", "stream", "stream_options", "tools"})


class Encoder:
    """Encodes requests for one endpoint.

    It keeps the encoded system prompt and tools, which seldom change, and the encoded messages before the last answer, which
    stay the same during a turn.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._system = lru_cache(maxsize=2)(partial(_encode_text, "system"))
        self._tools: tuple[ToolSchema, ...] = ()
        self._tools_bytes = b""
        self._wire_of_settled = ""
        self._settled: list[Message] = []
        self._settled_bytes: list[bytes] = []

    def body(self, request: ModelRequest, name: str, *, usage: bool = True) -> bytes:
        """Return the body of a streaming request to the model called `name`; `usage` asks for token counts."""
        head = {"model": name, "stream": True, **self._params(request.params)}
        if usage:
            head["stream_options"] = {"include_usage": True}
        parts = [_dumps(head)[:-1], b',"messages":[', b",".join(self._messages(request)), b"]"]
        if request.tools:
            parts += [b',"tools":', self._encoded_tools(request.tools)]
        return b"".join([*parts, b"}"])

    def _messages(self, request: ModelRequest) -> list[bytes]:
        """Return the encoded messages.

        The templates of many open models accept one system message, at the beginning. For them, the leading system messages
        are joined, a summary becomes a user message with its mark as the first line, and later system messages become user
        messages. The same templates refuse two user messages in a row, so a summary gets an answer, and other neighbours are
        joined. Images of tool results follow the results, because a tool message is text.
        """
        messages, images = request.messages, request.model.images
        leading = list(takewhile(lambda message: message.role == "system", messages))
        texts, summary = [message.text for message in leading], list[Message]()
        if self._endpoint.system_messages == "one":
            texts = ["\n\n".join(message.text for message in leading if not _is_summary(message))]
            summary = [message for message in leading if _is_summary(message)]
        head = [self._system(text) for text in texts if text]
        return head + self._conversation([*summary, *messages[len(leading) :]], images)

    def _conversation(self, messages: list[Message], images: bool) -> list[bytes]:
        """Return the encoded messages after the system prompt, reusing those that the previous request encoded."""
        wire, encode = self._wire(images)
        known = len(self._settled)
        if wire != self._wire_of_settled or messages[:known] != self._settled:
            self._wire_of_settled, self._settled, self._settled_bytes, known = wire, [], [], 0
        # An answer is never joined with messages before it, so everything before the last answer is settled.
        last = next((at for at in range(len(messages) - 1, known, -1) if messages[at].role == "assistant"), known)
        self._settled_bytes += self._encoded(messages[known:last], images, wire, encode)
        self._settled = messages[:last]
        return self._settled_bytes + self._encoded(messages[last:], images, wire, encode)

    def _encoded(self, messages: Sequence[Message], images: bool, wire: str, encode: Callable[[Message], bytes]) -> list[bytes]:
        if self._endpoint.system_messages == "one":
            messages = list(_alternating(messages))
        if images and any(message.images for message in messages):
            return list(_with_images(messages, wire, encode))
        return [message.encoded(wire, encode) for message in messages]

    def _wire(self, images: bool) -> tuple[str, Callable[[Message], bytes]]:
        short, reasoning = self._endpoint.short_ids, self._endpoint.send_reasoning
        name = f"openai{'+images' * images}{'+short' * short}{'+reasoning' * reasoning}"
        return name, partial(_encode, images=images, short=short, reasoning=reasoning)

    def _params(self, params: ChatParams) -> dict[str, Any]:
        named = {
            "temperature": params.temperature,
            "top_p": params.top_p,
            self._endpoint.output_field: params.max_tokens,
            "response_format": None if params.response_format is None else thaw(params.response_format),
        }
        extra = {key: value for key, value in thaw(params.extra).items() if key not in _OURS}
        return {**{key: value for key, value in named.items() if value is not None}, **extra}

    def _encoded_tools(self, tools: tuple[ToolSchema, ...]) -> bytes:
        if len(tools) != len(self._tools) or any(a is not b for a, b in zip(tools, self._tools, strict=True)):
            self._tools_bytes = _dumps([_tool(tool) for tool in tools])
            self._tools = tools
        return self._tools_bytes


def _tool(tool: ToolSchema) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _with_images(messages: Sequence[Message], wire: str, encode: Callable[[Message], bytes]) -> Iterator[bytes]:
    """Yield encoded messages, with the images of tool results after the last result of their step."""
    held: list[Message] = []
    for message in messages:
        if held and message.role != "tool":
            yield from _image_messages(held)
        yield message.encoded(wire, encode)
        if message.role == "tool" and message.images:
            held.append(message)
    yield from _image_messages(held)


def _encode(message: Message, *, images: bool, short: bool, reasoning: bool) -> bytes:
    match message.role:
        case "tool":
            content = message.text if images or not message.images else f"{message.text}\n{_image_note(message)}".lstrip()
            call = _quoted(wire_id(message.call_id, short=short))
            return _bytes(f'{{"role":"tool","tool_call_id":{call},"content":{_quoted(content)}}}')
        case "assistant":
            return _bytes(_assistant(message, short=short, reasoning=reasoning))
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
        of_person = message.role in ("user", "system")
        if asked and (not of_person or _is_summary(asked[-1])):
            yield _join_messages(asked)
            if of_person:
                yield _NOTED
            asked = []
        if of_person:
            asked.append(message)
        else:
            yield message
    if asked:
        yield _join_messages(asked)


def _join_messages(asked: Sequence[Message]) -> Message:
    """Return successive messages joined into one user message."""
    if len(asked) == 1:
        return asked[0]
    text = "\n\n".join(text for each in asked if (text := _user_text(each)))
    return Message(role="user", text=text, images=tuple(image for each in asked for image in each.images))


def _user_text(message: Message) -> str:
    """Return the text of a message that is sent as a user message."""
    return message.text if message.role == "user" or _is_summary(message) else f"[system]\n{message.text}"


def _is_summary(message: Message) -> bool:
    return message.role == "system" and message.text.startswith(SUMMARY_MARK)


def _encode_text(role: str, text: str) -> bytes:
    return _bytes(f'{{"role":"{role}","content":{_quoted(text)}}}')


def _assistant(message: Message, *, short: bool, reasoning: bool) -> str:
    content = _quoted(message.text) if message.text else "null" if message.tool_calls else '""'
    thought = f',"reasoning_content":{_quoted(message.reasoning)}' if reasoning and message.reasoning else ""
    asked = ",".join([_call(call, short=short) for call in message.tool_calls])
    calls = f',"tool_calls":[{asked}]' if asked else ""
    return f'{{"role":"assistant","content":{content}{thought}{calls}}}'


def _call(call: ToolRequest, *, short: bool) -> str:
    function = f'{{"name":{_quoted(call.name)},"arguments":{_quoted(call.arguments or "{}")}}}'
    return f'{{"id":{_quoted(wire_id(call.id, short=short))},"type":"function","function":{function}}}'


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
