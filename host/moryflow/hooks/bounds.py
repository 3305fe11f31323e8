"""What a value from a hook may hold: finite numbers, and no more text than anyone could send to a model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

from moryflow_sdk import ChatParams, Frozen

_MI = 1 << 20
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
"""Characters of all text together that one hook may add to what it was given. A million characters are some 250,000 tokens."""
_RANGES: Mapping[str, tuple[float, float]] = {"temperature": (0, 2), "top_p": (0, 1), "max_tokens": (1, 10**9)}
_SHOWN = 40


def out_of_bounds(hook: str, value: Frozen, before: Frozen | None = None) -> str:
    """Return what is wrong with a value that `hook` returned, with field and value; empty when nothing is.

    :param before: what the hook was given; what was there before is not counted.
    """
    for field, number in _numbers(value):
        if isinstance(number, float) and not math.isfinite(number):
            return f"{field} is {number}, not a finite number"
        if isinstance(number, int) and number.bit_length() > 1024:
            return f"{field} is a number of {number.bit_length()} bits"
    if isinstance(value, ChatParams):
        for field, (least, most) in _RANGES.items():
            number = getattr(value, field)
            if number is not None and not least <= number <= most and (before is None or getattr(before, field) != number):
                return f"{field} is {str(number)[:_SHOWN]}, not between {least:g} and {most:g}"
    added, limit = text_size(value) - (0 if before is None else text_size(before)), TEXT_LIMITS[hook]
    if added > limit:
        field = max(type(value).model_fields, key=lambda name: text_size(getattr(value, name)))
        return f"{field} holds {added:,} characters of new text; at most {limit:,} are taken"
    return ""


def text_size(value: Any) -> int:
    """Return the characters of all text in `value`, keys included."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Frozen):
        return sum(text_size(getattr(value, name)) for name in type(value).model_fields)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return sum(len(str(key)) + text_size(item) for key, item in items)
    if isinstance(value, list | tuple):
        return sum(text_size(item) for item in cast("list[Any]", value))
    return 0


def _numbers(value: Any, field: str = "") -> Iterator[tuple[str, int | float]]:
    """Yield each number in `value`, with its place: ``extra.limits[2]``."""
    if isinstance(value, int | float):
        yield field, value
    elif isinstance(value, Frozen):
        for name in type(value).model_fields:
            yield from _numbers(getattr(value, name), f"{field}.{name}".lstrip("."))
    elif isinstance(value, Mapping):
        for name, item in cast("Mapping[Any, Any]", value).items():
            yield from _numbers(item, f"{field}.{name}".lstrip("."))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _numbers(item, f"{field}[{index}]")
