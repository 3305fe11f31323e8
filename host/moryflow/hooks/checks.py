"""Check what a hook returns: its type, finite numbers, a bounded amount of text. Describe each change for the ledger."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from hashlib import sha256
from json import dumps
from typing import TYPE_CHECKING, Any, cast

from moryflow_sdk import (
    Allow,
    Ask,
    ChatParams,
    CompactionPlan,
    Deny,
    Frozen,
    FrozenDict,
    Message,
    Stop,
    SystemBlock,
    SystemPrompt,
    ToolCall,
    ToolResult,
    Verdict,
)

if TYPE_CHECKING:
    from .plugin_set import Implementation

# Characters of JSON that the old or the new side of one change may take in the store.
DELTA_LIMIT = 65536
VERDICTS = (Allow, Ask, Deny, Stop)
_TYPES: dict[str, type[Frozen]] = {
    "chat_system": SystemPrompt,
    "chat_params": ChatParams,
    "tool_before": ToolCall,
    "tool_after": ToolResult,
    "compaction": CompactionPlan,
}


class InvalidHookResult(Exception):
    """A hook returned a value that it may not return."""


def check_result(hook: str, before: Any, returned: Any, chain: Sequence[Implementation]) -> tuple[Any, dict[str, Any]] | None:
    """Return the value that a transform changed and the change as JSON, or ``None`` if nothing changed.

    A changed value is built anew from its fields, so that it is validated and frozen however the plugin made it.

    :param chain: the implementation that returned the value, and those that are called after it.
    :raises InvalidHookResult: the value has the wrong type or breaks a rule of the hook.
    """
    if returned is before:
        return None
    value = _accept(hook, before, returned)
    return None if value is before else (value, _delta(hook, before, value, chain))


def _accept(hook: str, before: Any, returned: Any) -> Any:
    if hook == "chat_messages":
        return _messages(before, returned)
    expected = _TYPES[hook]
    if not isinstance(returned, expected):
        raise InvalidHookResult(f"{hook} must return {expected.__name__} or None, not {type(returned).__name__}")
    if returned == before:
        return before
    value = _check_bounds(hook, _rebuild(expected, returned), before)
    if hook == "tool_before" and (value.id != before.id or value.tool != before.tool):
        raise InvalidHookResult("tool_before may change the arguments, not the id or the tool")
    return value


def check_blocks(returned: Any, by: Implementation) -> tuple[SystemBlock, ...]:
    """Return the blocks that ``system_blocks`` contributed; those of a plugin are built anew from their fields.

    :raises InvalidHookResult: an item is not a block, or its text is too long.
    """
    items = cast("tuple[Any, ...]", returned)
    for item in items:
        if not isinstance(item, SystemBlock):
            raise InvalidHookResult(f"system_blocks must return SystemBlock items, not {type(item).__name__}")
    found = items if by.tier == "builtin" else tuple([_rebuild(SystemBlock, item) for item in items])
    _check_bounds("system_blocks", SystemPrompt(blocks=found))
    return found


def summary_of(block: SystemBlock) -> dict[str, Any]:
    """Return what the ledger keeps of a block: not its text, but a hash to compare it with another block's."""
    return {"id": block.id, "chars": len(block.text), "hash": sha256(block.text.encode("utf-8", "replace")).hexdigest()[:16]}


def check_verdict(hook: str, returned: Any, by: Implementation) -> Verdict | None:
    """Return the verdict of a gate, built anew from its fields, so that the plugin keeps no reference to it.

    :raises InvalidHookResult: `returned` is not a verdict.
    """
    if returned is None:
        return None
    if type(returned) not in VERDICTS:
        raise InvalidHookResult(f"{hook} must return Allow, Ask, Deny, Stop or None, not {type(returned).__name__}")
    verdict = _rebuild(type(returned), returned)
    return verdict if by.tier == "builtin" else revalidate(_check_bounds(hook, verdict))


def copy_for_plugin(value: Any) -> Any:
    """Return a deep copy of a frozen value, for code of a plugin.

    Python cannot stop code from changing a frozen value, so plugins get a copy of what is judged, asked, recorded and run.
    It is copied field by field: serialising and parsing it would take twice as long, at every hook.
    """
    if not isinstance(value, Frozen):
        return value
    made = copy(value)
    fields = vars(made)
    for name, held in fields.items():
        if held.__class__ not in _UNCHANGING:
            fields[name] = _copy_held(held)
    return made


_UNCHANGING = frozenset({str, int, float, bool, type(None), bytes})


def _copy_held(held: Any) -> Any:
    if isinstance(held, dict):
        return FrozenDict({key: _copy_held(item) for key, item in cast("dict[str, Any]", held).items()})
    if isinstance(held, tuple):
        return tuple([_copy_held(item) for item in cast("tuple[Any, ...]", held)])
    return copy_for_plugin(held)


def revalidate(value: Any) -> Any:
    """Return a frozen value that a plugin made, built anew and validated, so that the plugin keeps no reference to it.

    :raises ValueError: the value is not valid.
    """
    return type(value).model_validate(value.model_dump()) if isinstance(value, Frozen) else value


def _rebuild(expected: type[Any], value: Any) -> Any:
    try:
        return expected(**{name: getattr(value, name) for name in expected.model_fields})
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidHookResult(f"not a valid {expected.__name__}: {error}") from error


def _check_bounds(hook: str, value: Any, before: Any = None) -> Any:
    if problem := _out_of_bounds(hook, value, before):
        raise InvalidHookResult(f"{hook} returned a value that is not accepted: {problem}")
    return value


def _messages(before: Sequence[Message], returned: Any) -> tuple[Message, ...]:
    if not isinstance(returned, list | tuple):
        raise InvalidHookResult(f"chat_messages must return a sequence of Message or None, not {type(returned).__name__}")
    items = cast("Sequence[Any]", returned)
    if len(items) == len(before) and all(new is old for new, old in zip(items, before, strict=True)):
        return cast("tuple[Message, ...]", before)
    known = {id(message) for message in before}
    messages = tuple(item if id(item) in known else _message(item) for item in items)
    _check_pairs(messages)
    new = [message for message in messages if id(message) not in known]
    for message in new:
        _check_bounds("chat_messages", message)
    size, limit = sum(map(_text_size, new)), TEXT_LIMITS["chat_messages"]
    if size > limit:
        problem = f"text holds {size:,} characters in {len(new)} new messages; at most {limit:,} are taken"
        raise InvalidHookResult(f"chat_messages returned messages that are not accepted: {problem}")
    return messages


def _message(item: Any) -> Message:
    if not isinstance(item, Message):
        raise InvalidHookResult(f"chat_messages must return messages, not {type(item).__name__}")
    return _rebuild(Message, item)


def _check_pairs(messages: Sequence[Message]) -> None:
    """Refuse a list in which a call has no result or a result has no call: no provider accepts it."""
    open_calls: set[str] = set()
    for message in messages:
        if message.role == "tool":
            if message.call_id not in open_calls:
                raise InvalidHookResult(f"the result of call {message.call_id!r} does not follow its call")
            open_calls.remove(message.call_id)
            continue
        if open_calls:
            raise InvalidHookResult(f"call {sorted(open_calls)[0]!r} is separated from its result")
        open_calls = {request.id for request in message.tool_calls}
    if open_calls:
        raise InvalidHookResult(f"call {sorted(open_calls)[0]!r} has lost its result")


def _delta(hook: str, before: Any, after: Any, chain: Sequence[Implementation]) -> dict[str, Any]:
    """Return a change as JSON: the changed fields with their new values and, under ``was``, their old values.

    Text that a redactor has not seen yet, or may have removed, is not recorded; only its size is.
    """
    visible = not any(item.withholds for item in chain[1:])
    if hook == "chat_messages":
        return _splice(before, after, visible)
    names = [name for name in type(after).model_fields if getattr(after, name) != getattr(before, name)]
    clean = visible and not chain[0].withholds
    was = _fields_as_json(before, names, clean)
    if clean and "output" in was and after.output_id:
        was["output"] = {"stored": after.output_id}  # the whole output is stored as an artifact
    return {**_fields_as_json(after, names, visible), "was": was}


def _fields_as_json(value: Frozen, names: Sequence[str], visible: bool) -> dict[str, Any]:
    """Return fields of `value` as JSON. Unless `visible`, return only the size of each, as for a text that is too large."""
    fields = {name: getattr(value, name) for name in names}
    if not visible:
        return {name: {"withheld": len(str(item))} for name, item in fields.items()}
    long = {name: len(item) for name, item in fields.items() if isinstance(item, str) and len(item) > DELTA_LIMIT}
    short = value.model_dump(mode="json", include={name for name in fields if name not in long})
    dumps(short)  # an integer of thousands of digits is not JSON: fail here, in this plugin's call, not in the commit
    return {**short, **{name: {"too_large": size} for name, size in long.items()}}


def _splice(before: Sequence[Message], after: Sequence[Message], visible: bool) -> dict[str, Any]:
    start = _common(before, after)
    rest_before, rest_after = before[start:], after[start:]
    end = _common(rest_before[::-1], rest_after[::-1])
    inserted = rest_after[: len(rest_after) - end]
    items = [message.model_dump(mode="json", exclude_defaults=True) for message in inserted]
    written = items if visible else [{"withheld": len(message.text)} for message in inserted]
    return {"at": start, "removed": len(rest_before) - end, "inserted": written}


def _common(left: Sequence[Any], right: Sequence[Any]) -> int:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one is not other and one != other:
            return index
    return min(len(left), len(right))


_MI = 1 << 20
# Characters of text that one hook may add to the value it was given. A million characters are about 250,000 tokens.
TEXT_LIMITS: Mapping[str, int] = {
    "chat_system": _MI,
    "system_blocks": _MI,
    "chat_params": _MI,
    "compaction": _MI,
    "tool_before": 4 * _MI,
    "chat_messages": 32 * _MI,
    "tool_after": 64 * _MI,
    "tool_gate": 1 << 16,
    "tool_decided": 1 << 16,
}
_RANGES: Mapping[str, tuple[float, float]] = {"temperature": (0, 2), "top_p": (0, 1), "max_tokens": (1, 10**9)}
_SHOWN = 40


def _out_of_bounds(hook: str, value: Frozen, before: Frozen | None = None) -> str:
    """Return what is wrong with a value that `hook` returned, naming field and value; empty if nothing is.

    :param before: the value that the hook was given; its own text does not count.
    """
    for field, number in _leaves(value):
        if isinstance(number, float) and not math.isfinite(number):
            return f"{field} is {number}, not a finite number"
        if isinstance(number, int) and number.bit_length() > 1024:
            return f"{field} is a number of {number.bit_length()} bits"
    if isinstance(value, ChatParams):
        for field, (least, most) in _RANGES.items():
            number = getattr(value, field)
            if number is not None and not least <= number <= most and (before is None or getattr(before, field) != number):
                return f"{field} is {str(number)[:_SHOWN]}, not between {least:g} and {most:g}"
    added, limit = _text_size(value) - (0 if before is None else _text_size(before)), TEXT_LIMITS[hook]
    if added > limit:
        field = max(type(value).model_fields, key=lambda name: _text_size(getattr(value, name)))
        return f"{field} holds {added:,} characters of new text; at most {limit:,} are taken"
    return ""


def _text_size(value: Any) -> int:
    return sum(len(leaf) for _, leaf in _leaves(value) if isinstance(leaf, str | bytes))


def _leaves(value: Any, field: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, str | bytes | int | float):
        yield field, value
    elif isinstance(value, Frozen):
        for name in type(value).model_fields:
            yield from _leaves(getattr(value, name), f"{field}.{name}".lstrip("."))
    elif isinstance(value, Mapping):
        for name, item in cast("Mapping[Any, Any]", value).items():
            yield field, str(name)
            yield from _leaves(item, f"{field}.{name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _leaves(item, f"{field}[{index}]")
