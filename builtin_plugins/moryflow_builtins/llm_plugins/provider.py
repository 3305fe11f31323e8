"""Models of packages as ``llm/NAME``: the asynchronous variant if there is one, else the plain one on a thread."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Any, Literal

from moryflow_sdk import (
    BaseProvider,
    Finished,
    Message,
    ModelError,
    ModelEvent,
    ModelInfo,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
    ToolRequest,
    Usage,
    redact,
)
from moryflow_sdk.errors import ModelErrorCode
from moryflow_sdk.support.threads import on_daemon_thread

from .packages import RegisteredModel

PREFIX = "llm/"
# Parameters that models of packages may have under the same name.
_SHARED = ("temperature", "top_p", "max_tokens", "reasoning_effort")


class LlmModels(BaseProvider):
    """The models that all packages registered."""

    name = "llm_plugins"
    prefixes = (PREFIX,)

    def __init__(self, models: Iterable[RegisteredModel]) -> None:
        self._models: dict[str, RegisteredModel] = {}
        self._aliases: dict[str, RegisteredModel] = {}
        for each in models:
            self._models.setdefault(str(each.any.model_id), each)
            self._aliases |= {alias: each for alias in each.aliases if alias not in self._aliases}

    def find(self, model: str) -> ModelInfo | None:
        name = model.removeprefix(PREFIX)
        found = self._models.get(name) or self._aliases.get(name) if name != model else None
        return _info(found.any) if found else None

    def known(self) -> Iterable[str]:
        return [f"{PREFIX}{name}" for name in self._models]

    async def available(self) -> Sequence[ModelInfo]:
        return [_info(each.any) for each in self._models.values()]

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        registered = self._models[request.model.name]
        model = registered.any
        key = ""
        try:
            key = model.get_key() or ""
            response = _response(request, model, is_async=registered.async_model is not None)
            events = response.astream_events() if registered.async_model else _from_thread(response.stream_events())
            async with aclosing(events):
                async for event in events:
                    if event.type == "text" and event.chunk:
                        yield TextDelta(text=event.chunk)
                    elif event.type == "reasoning" and event.chunk:
                        yield ReasoningDelta(text=event.chunk)
            calls, usage, messages = response.tool_calls(), response.usage(), response.messages()
            if registered.async_model:
                calls, usage, messages = await calls, await usage, await messages
        except Exception as error:  # the boundary around the package's code
            raise _error(error, request.model, key) from error
        yield _finished(request.model, calls, usage, messages)


def _info(model: Any) -> ModelInfo:
    return ModelInfo(
        id=f"{PREFIX}{model.model_id}",
        name=str(model.model_id),
        provider=LlmModels.name,
        tools=bool(model.supports_tools),
        images=any(kind.startswith("image/") for kind in model.attachment_types),
    )


async def _from_thread(events: Any) -> AsyncGenerator[Any]:
    """Yield what a plain generator yields on a thread. When this is closed, the thread stops at its next event."""
    loop, queue, ended = asyncio.get_running_loop(), asyncio.Queue[Any](), object()
    closed = False

    def work() -> None:
        for event in events:
            if closed:
                return
            loop.call_soon_threadsafe(queue.put_nowait, event)

    done = asyncio.wrap_future(on_daemon_thread(work, "moryflow-llm-model"))
    done.add_done_callback(lambda _: queue.put_nowait(ended))
    try:
        while (event := await queue.get()) is not ended:
            yield event
        await done
    finally:
        closed = True
        done.cancel()


def _finished(info: ModelInfo, calls: Sequence[Any], usage: Any, messages: Sequence[Any]) -> Finished:
    """Return the end of an answer. What a service signed goes back to it with the next request."""
    asked = tuple(
        ToolRequest(id=call.tool_call_id or f"call_{number}", name=call.name, arguments=json.dumps(call.arguments))
        for number, call in enumerate(calls)
    )
    signed = any(part.provider_metadata for message in messages for part in message.parts)
    reason: Literal["tool_calls", "stop"] = "tool_calls" if asked else "stop"
    return Finished(
        reason=reason,
        tool_calls=asked,
        usage=Usage(input=usage.input or 0, output=usage.output or 0),
        extra={"messages": [message.to_dict() for message in messages]} if signed else {},
        origin=info.id if signed else "",
    )


# ---------------------------------------------------------------- requests


def _response(request: ModelRequest, model: Any, *, is_async: bool) -> Any:
    """Return the answer that is asked for, before it is read.

    Newer packages read ``prompt.messages``, older ones the conversation's responses: both have the whole history.
    """
    import llm

    conversation = llm.AsyncConversation(model=model) if is_async else llm.Conversation(model=model)
    kind = llm.AsyncResponse if is_async else llm.Response
    system = "\n\n".join(message.text for message in request.messages if message.role == "system")
    history: list[Any] = [llm.system(system)] if system else []
    turn: list[Message] = []
    for message in request.messages:
        if message.role != "assistant":
            turn += [message] if message.role != "system" else []
            continue
        asked = _asked(turn, request.messages)
        spoken = _spoken(message, request.model)
        kept: Any = {"model": model.model_id, "prompt": {}, "messages": [each.to_dict() for each in spoken]}
        past = kind.from_dict(kept, model=model)
        past.prompt = _past_prompt(model, asked, system, history)
        history, turn = [*past.prompt.messages, *spoken], []
        conversation.responses.append(past)
    asked = _asked(turn, request.messages)
    tools = [_tool(each) for each in request.tools] if model.supports_tools else None
    schema = request.params.answer_schema if model.supports_schema and not tools else None
    return conversation.prompt(
        asked.pop("prompt"),
        system=system or None,
        messages=history,
        tools=tools,
        schema=json.loads(json.dumps(schema)) if schema else None,
        options=_options(request, model),
        **asked,
    )


def _past_prompt(model: Any, asked: dict[str, Any], system: str, history: Sequence[Any]) -> Any:
    """Return a prompt of the past, with the messages that the model had read."""
    from llm.models import Prompt

    sent = model.prompt(messages=list(history), **asked).prompt.messages
    return Prompt(model=model, system=system or None, messages=sent, **asked)


def _asked(turn: Sequence[Message], messages: Sequence[Message]) -> dict[str, Any]:
    """Return the user's words, images and the results of tools that lead to an answer."""
    import llm

    names = {call.id: call.name for message in messages for call in message.tool_calls}
    results = [
        llm.ToolResult(name=names.get(each.call_id, ""), output=each.text, tool_call_id=each.call_id, attachments=_images(each))
        for each in turn
        if each.role == "tool"
    ]
    said = [each for each in turn if each.role == "user"]
    return {
        "prompt": "\n\n".join(each.text for each in said),
        "attachments": [image for each in said for image in _images(each)],
        "tool_results": results,
    }


def _images(message: Message) -> list[Any]:
    import llm

    return [llm.Attachment(type=each.media_type, content=base64.b64decode(each.data)) for each in message.images]


def _spoken(message: Message, info: ModelInfo) -> list[Any]:
    """Return an earlier answer: as the same model gave it if it was signed, else its text and calls."""
    import llm
    from llm.parts import ToolCallPart

    if message.origin == info.id and message.extra.get("messages"):
        return [llm.Message.from_dict(each) for each in json.loads(json.dumps(message.extra["messages"]))]
    calls: list[Any] = []
    for call in message.tool_calls:
        arguments: Any = {}
        with suppress(ValueError):
            arguments = json.loads(call.arguments or "{}")
        calls.append(ToolCallPart(call.name, arguments if isinstance(arguments, dict) else {}, call.id))
    return [llm.assistant(*([message.text] if message.text else []), *calls)]


def _tool(schema: Any) -> Any:
    import llm

    return llm.Tool(schema.name, schema.description, json.loads(json.dumps(schema.parameters)))


def _options(request: ModelRequest, model: Any) -> dict[str, Any]:
    """Return the parameters that the model knows by our names, and those that were meant for it alone."""
    params, known = request.params, model.Options.model_fields
    ours = {name: getattr(params, name) for name in _SHARED if name in known}
    return {name: value for name, value in ours.items() if value is not None} | dict(params.extra)


def _error(error: Exception, info: ModelInfo, key: str) -> ModelError:
    """Return the error of a package as ours. It is told apart by its class and status alone, as packages raise anything."""
    import llm

    text = redact(f"{info.id}: {error}".split("\n", 1)[0][:500] or type(error).__name__, key)
    if isinstance(error, llm.NeedsKeyException):
        command = re.search(r"llm keys set [^' ]+", text)
        return ModelError(text, code="missing", next_step=command[0] if command else "llm keys set NAME")
    status = getattr(error, "status_code", None) or getattr(getattr(error, "response", None), "status_code", None)
    codes: dict[int, ModelErrorCode] = {401: "auth", 403: "auth", 404: "not_found", 408: "timeout", 429: "rate_limit"}
    kinds = {kind.__name__ for kind in type(error).__mro__}
    code: ModelErrorCode = "protocol"
    if isinstance(status, int):
        code = codes.get(status, "overloaded" if status >= 500 else "bad_request")
    elif kinds & {"TimeoutError", "TimeoutException", "APITimeoutError"}:
        code = "timeout"
    elif kinds & {"ConnectError", "APIConnectionError", "ConnectionError"}:
        code = "unreachable"
    elif kinds & {"ValidationError"}:
        code = "bad_request"
    return ModelError(text, code=code, status=status if isinstance(status, int) else None)
