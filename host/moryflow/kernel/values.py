"""What a transform may return, and how a change is written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from moryflow_sdk import (
    Allow,
    Ask,
    ChatParams,
    CompactionPlan,
    Deny,
    Frozen,
    Message,
    Stop,
    SystemPrompt,
    ToolCall,
    ToolResult,
    Verdict,
)

DELTA_LIMIT = 65536
"""Characters of JSON that one change may take in the store."""
_TYPES: dict[str, type[Frozen]] = {
    "chat_system": SystemPrompt,
    "chat_params": ChatParams,
    "tool_before": ToolCall,
    "tool_after": ToolResult,
    "compaction": CompactionPlan,
}


class Nonsense(Exception):
    """A hook returned something that it may not."""


@dataclass(frozen=True, slots=True)
class Change:
    """A value after a transform, and JSON of what is new about it."""

    value: Any
    delta: Any


def changed(hook: str, before: Any, returned: Any) -> Change | None:
    """Return what a transform changed, ``None`` if nothing.

    A changed value is built anew from its fields, so that it is validated and frozen however a plugin made it.

    :raises Nonsense: it has the wrong type or breaks a rule of the hook.
    """
    if returned is before:
        return None
    value = _accepted(hook, before, returned)
    return None if value is before else Change(value, _delta(hook, before, value))


def _accepted(hook: str, before: Any, returned: Any) -> Any:
    if hook == "chat_messages":
        return _messages(before, returned)
    expected = _TYPES[hook]
    if not isinstance(returned, expected):
        raise Nonsense(f"{hook} must return {expected.__name__} or None, not {type(returned).__name__}")
    if returned == before:
        return before
    value = _rebuilt(expected, returned)
    if hook == "tool_before" and (value.id != before.id or value.tool != before.tool):
        raise Nonsense("tool_before may change the arguments, not the id or the tool")
    return value


def judged(hook: str, returned: Any) -> Verdict | None:
    """Return what a gate said, built anew from its fields.

    :raises Nonsense: it is not a verdict.
    """
    if returned is None:
        return None
    if type(returned) not in (Allow, Ask, Deny, Stop):
        raise Nonsense(f"{hook} must return Allow, Ask, Deny, Stop or None, not {type(returned).__name__}")
    return _rebuilt(type(returned), returned)


def _rebuilt(expected: type[Any], value: Any) -> Any:
    try:
        return expected(**{name: getattr(value, name) for name in expected.model_fields})
    except (ValueError, AttributeError, TypeError) as error:
        raise Nonsense(f"not a valid {expected.__name__}: {error}") from error


def _messages(before: Sequence[Message], returned: Any) -> tuple[Message, ...]:
    if not isinstance(returned, list | tuple):
        raise Nonsense(f"chat_messages must return a sequence of Message or None, not {type(returned).__name__}")
    items = cast("Sequence[Any]", returned)
    if len(items) == len(before) and all(new is old for new, old in zip(items, before, strict=True)):
        return cast("tuple[Message, ...]", before)
    known = {id(message) for message in before}
    messages = tuple(item if id(item) in known else _message(item) for item in items)
    _check_pairs(messages)
    return messages


def _message(item: Any) -> Message:
    if not isinstance(item, Message):
        raise Nonsense(f"chat_messages must return messages, not {type(item).__name__}")
    return _rebuilt(Message, item)


def _check_pairs(messages: Sequence[Message]) -> None:
    """Refuse a list in which a call lacks its result, or a result its call; no provider accepts one."""
    open_calls: set[str] = set()
    for message in messages:
        if message.role == "tool":
            if message.call_id not in open_calls:
                raise Nonsense(f"the result of call {message.call_id!r} does not follow its call")
            open_calls.remove(message.call_id)
            continue
        if open_calls:
            raise Nonsense(f"call {sorted(open_calls)[0]!r} is separated from its result")
        open_calls = {request.id for request in message.tool_calls}
    if open_calls:
        raise Nonsense(f"call {sorted(open_calls)[0]!r} has lost its result")


def _delta(hook: str, before: Any, after: Any) -> Any:
    """Return JSON of what changed: fields with their new values; for messages, the part that was replaced."""
    if hook != "chat_messages":
        new = {name: value for name in type(after).model_fields if (value := getattr(after, name)) != getattr(before, name)}
        long = {name for name, value in new.items() if isinstance(value, str) and len(value) > DELTA_LIMIT}
        return {
            **after.model_dump(mode="json", include=new.keys() - long),
            **{name: {"too_large": len(new[name])} for name in long},
        }
    start, end = _common(before, after), 0
    rest_before, rest_after = before[start:], after[start:]
    end = _common(rest_before[::-1], rest_after[::-1])
    inserted = rest_after[: len(rest_after) - end]
    return {
        "at": start,
        "removed": len(rest_before) - end,
        "inserted": [message.model_dump(mode="json", exclude_defaults=True) for message in inserted],
    }


def _common(left: Sequence[Any], right: Sequence[Any]) -> int:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one is not other and one != other:
            return index
    return min(len(left), len(right))
