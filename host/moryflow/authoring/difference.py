"""The first difference between two JSON values, with a few words of context from each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

AROUND = 30
"""Characters of a text that are shown on either side of the first difference."""


@dataclass(frozen=True)
class ValueDifference:
    """The first place where two values differ: a path such as ``messages[2].text, line 3``."""

    path: str
    before: Any
    after: Any

    def lines(self) -> list[str]:
        """Return the difference as two lines for a person."""
        before, after = _excerpts(self.before, self.after)
        return [f"- {before}", f"+ {after}"]


def first_difference(before: Any, after: Any, path: str = "") -> ValueDifference | None:
    """Return the first difference between two JSON values, in the order of the first; ``None`` when they are equal."""
    if before == after:
        return None
    if isinstance(before, dict) and isinstance(after, dict):
        return _in_mapping(cast("dict[str, Any]", before), cast("dict[str, Any]", after), path)
    if isinstance(before, list) and isinstance(after, list):
        return _in_list(cast("list[Any]", before), cast("list[Any]", after), path)
    if isinstance(before, str) and isinstance(after, str) and "\n" in before + after:
        line = before[: _common(before, after)].count("\n") + 1
        return ValueDifference(f"{path}, line {line}" if path else f"line {line}", before, after)
    return ValueDifference(path, before, after)


def _in_mapping(before: dict[str, Any], after: dict[str, Any], path: str) -> ValueDifference | None:
    for key in [*before, *(key for key in after if key not in before)]:
        place = f"{path}.{key}" if path else key
        found = first_difference(before.get(key), after.get(key), place)
        if found is not None:
            return found
    return ValueDifference(path, before, after)  # a field that is there and null is not one that is missing


def _in_list(before: list[Any], after: list[Any], path: str) -> ValueDifference | None:
    for index, (one, other) in enumerate(zip(before, after, strict=False)):
        found = first_difference(one, other, f"{path}[{index}]")
        if found is not None:
            return found
    index = min(len(before), len(after))
    rest = (before[index] if len(before) > index else None, after[index] if len(after) > index else None)
    return ValueDifference(f"{path}[{index}]", *rest) if rest[0] != rest[1] else ValueDifference(path, before, after)


def _common(before: str, after: str) -> int:
    for index, (one, other) in enumerate(zip(before, after, strict=False)):
        if one != other:
            return index
    return min(len(before), len(after))


def _excerpts(before: Any, after: Any) -> tuple[str, str]:
    import json

    if not (isinstance(before, str) and isinstance(after, str)):
        texts = [json.dumps(value, ensure_ascii=False, default=str) for value in (before, after)]
        before, after = ("(nothing)" if text == "null" else text for text in texts)
    start = max(0, _common(before, after) - AROUND)
    return _cut(before, start), _cut(after, start)


def _cut(text: str, start: int) -> str:
    shown = text[start : start + 4 * AROUND].replace("\n", "⏎")
    return f"{'…' if start else ''}{shown}{'…' if len(text) > start + 4 * AROUND else ''}"
