"""What a node of each kind holds, for those that come from a file: that its hash is right does not say that it can be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _perhaps(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _object(value: Any) -> bool:
    return value is None or isinstance(value, Mapping)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_text, value.values()))


def counts(value: Any) -> bool:
    """Tell whether these are the tokens of an answer or a turn, by their names."""
    return isinstance(value, Mapping) and all(map(_count, value.values()))


def _details(value: Any) -> bool:
    protected = (value or {}).get("protected", ()) if _object(value) else None
    return isinstance(protected, tuple) and all(map(_text, protected))


def _several(required: tuple[str, ...], optional: tuple[str, ...] = ()) -> Check:
    """Return the check of a list of objects with these texts."""

    def check(value: Any) -> bool:
        return isinstance(value, tuple) and all(
            isinstance(item, Mapping)
            and all(_text(item.get(name)) for name in required)
            and all(_perhaps(item.get(name)) for name in optional)
            for item in value
        )

    return check


_IMAGES = _several(("media_type", "data"))
_FIELDS: Mapping[str, Mapping[str, Check]] = {
    "user": {"text": _text, "images": _IMAGES, "files": _several(("path", "text"))},
    "assistant": {
        "text": _text, "reasoning": _text, "calls": _several(("id", "name"), ("arguments", "problem")), "usage": counts,
        "model": _perhaps, "finish": _perhaps,
    },
    "tool": {
        "call_id": _text, "tool": _text, "status": _text, "output": _text, "title": _perhaps, "code": _perhaps,
        "metadata": _object, "output_id": _perhaps, "path": _perhaps, "images": _IMAGES,
    },
    "compaction": {"summary": _text, "first_kept_node_id": _perhaps, "details": _details},
    "prune": {"nodes": _texts},
    "note": {"text": _text, "title": _perhaps, "task": _object},
    "marker": dict.fromkeys(("mode", "model", "agent", "label", "void", "node"), _perhaps),
}  # fmt: skip
_NEEDED: Mapping[str, tuple[str, ...]] = {"tool": ("call_id",), "compaction": ("summary",)}


def payload_problem(kind: str, payload: Mapping[str, Any]) -> str:
    """Return what keeps the payload of a `kind` of node from being read; empty when nothing does.

    Fields that are not known are let be: they are carried on and change nothing.
    """
    for name in _NEEDED.get(kind, ()):
        if name not in payload:
            return f"{name!r} is missing in the payload"
    for name, check in _FIELDS[kind].items():
        if name in payload and not check(payload[name]):
            return f"{name!r} in the payload is not what a node of kind {kind!r} holds there"
    return ""
