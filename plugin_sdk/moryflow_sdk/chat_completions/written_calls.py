"""A tool call that a model wrote as the text of its answer: one JSON object with ``name`` and ``arguments``.

Small models, and models behind servers that do not know their form of a call, answer like this. It is judged as usual.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from typing import Any, cast

from moryflow_sdk.models import Finished, ModelEvent, TextDelta, ToolRequest

from .answer import new_id

_FENCES = ("```json", "```", "<tool_call>")
_FIRST_KEYS = ('"name"', '"arguments"', '"parameters"', '"type"')
_CALL = re.compile(r"\s*(?:```(?:json)?|<tool_call>)?\s*(\{.*\})\s*(?:```|</tool_call>)?\s*", re.DOTALL)


async def written_calls(events: AsyncIterator[ModelEvent], offered: Collection[str]) -> AsyncGenerator[ModelEvent]:
    """Yield `events`, but as a call an answer whose whole text is one call of a tool in `offered`.

    An answer with other words beside the object stays text: a model that explains a call does not make it. Text is held back
    only while it can still become such an answer.
    """
    held: list[ModelEvent] = []
    text, may_be_call = "", True
    async for event in events:
        if isinstance(event, TextDelta) and may_be_call:
            text += event.text
            held.append(event)
            may_be_call = _may_be_call(text)
        if may_be_call and isinstance(event, TextDelta):
            continue
        if isinstance(event, Finished) and may_be_call and event.reason == "stop" and (call := _call(text, offered)):
            held, event = [], event.replace(reason="tool_calls", tool_calls=(call,))
        if isinstance(event, TextDelta | Finished):
            for piece in held:
                if piece is not event:
                    yield piece
            held = []
        yield event


def _may_be_call(text: str) -> bool:
    """Whether an answer that begins with `text` can be a call."""
    text = text.lstrip()
    if any(fence.startswith(text) for fence in _FENCES):
        return True
    fence = next((fence for fence in _FENCES if text.startswith(fence)), "")
    text = text[len(fence) :].lstrip()
    key = text[1:].lstrip()
    return not text or (text[0] == "{" and any(key.startswith(known) or known.startswith(key) for known in _FIRST_KEYS))


def _call(text: str, offered: Collection[str]) -> ToolRequest | None:
    found = _CALL.fullmatch(text)
    try:
        value: Any = json.loads(found[1]) if found else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    call = cast("dict[str, Any]", value)
    name, arguments = call.get("name"), call.get("arguments", call.get("parameters"))
    if not isinstance(name, str) or name not in offered or not isinstance(arguments, dict):
        return None
    if set(call) - {"name", "arguments", "parameters", "type", "id"}:
        return None
    return ToolRequest(id=new_id(), name=name, arguments=json.dumps(arguments, ensure_ascii=False))
