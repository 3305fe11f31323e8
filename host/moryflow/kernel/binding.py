"""What an answer holds for: the very question that was shown, and the very objects behind its targets (R11, R12, R18)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from moryflow_sdk import Ruling, Target, ToolCall

from moryflow.sessions import ApprovalRow

from .arguments import digest


def bound(call: ToolCall, ruling: Ruling) -> str:
    """Return the hash of what is asked: the arguments, what they lead to, why, and what *always* would store."""
    asked = {
        "hash": call.hash,
        "targets": [target.model_dump() for target in call.targets],
        "reason": ruling.reason,
        "remember": [item.model_dump() for item in ruling.remember],
    }
    return digest(json.dumps(asked, sort_keys=True).encode())


def seen(call: ToolCall) -> list[dict[str, Any] | None]:
    """Return which objects the targets of `call` are; what is no file has none."""
    return [_object(target) for target in call.targets]


def renewed(call: ToolCall, ruling: Ruling, rows: Iterable[ApprovalRow]) -> Ruling:
    """Return `ruling` with a sentence on what has changed since `call` was answered for, if its targets have."""
    answered = [row.request for row in rows if row.state == "replied"]
    said = list(_differences(answered[-1], call)) if answered else []
    return ruling.replace(reason="; ".join((*said, ruling.reason))) if said else ruling


def _object(target: Target) -> dict[str, Any] | None:
    if target.path is None:
        return None
    return {"path": target.path, "identity": target.identity.model_dump() if target.identity else None}


def _differences(before: Mapping[str, Any], call: ToolCall) -> Iterable[str]:
    texts: Sequence[str] = before.get("targets", ())
    objects: Sequence[Mapping[str, Any] | None] = before.get("seen", ())
    for text, then, target in zip(texts, objects, call.targets, strict=False):
        now = _object(target)
        if text != target.text:
            yield f"{target.given} leads to {target.text} now, and led to {text} when this was answered before"
        elif then is None or now is None or then == now:
            continue
        elif then["path"] != now["path"]:
            yield f"{text} is {now['path']} now, and was {then['path']} when this was answered before"
        elif now["identity"] is None:
            yield f"{text} is not there any more, and was when this was answered before"
        elif then["identity"] is None:
            yield f"{text} is there now, and was not when this was answered before"
        else:
            yield f"{text} is another object now than when this was answered before"
