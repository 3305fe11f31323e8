"""What an answer holds for: exactly the question that was shown and the objects behind its targets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from moryflow_sdk import Ask, Ruling, Target, ToolCall

from moryflow.kernel.tool_arguments import digest
from moryflow.store import ApprovalRow


def question_hash(call: ToolCall, ruling: Ruling) -> str:
    """Return the hash of what is asked: the arguments, what they lead to, why, what it reads, what *always* would store."""
    asked = {
        "hash": call.hash,
        "targets": [target.model_dump() for target in call.targets],
        "reason": ruling.reason,
        "remember": [item.model_dump() for item in ruling.remember],
        "contents": contents_read(ruling),
    }
    return digest(json.dumps(asked, sort_keys=True).encode())


def contents_read(ruling: Ruling) -> dict[str, str]:
    """Return what the questions behind `ruling` depend on besides their words."""
    asks = (verdict for _, verdict in ruling.verdicts if isinstance(verdict, Ask))
    return {name: state for ask in asks for name, state in ask.contents.items()}


def target_objects(call: ToolCall) -> list[dict[str, Any] | None]:
    """Return which objects the targets of `call` are; what is no file has none."""
    return [_object(target) for target in call.targets]


def folder_of(call: ToolCall) -> str | None:
    """Return where the commands of `call` run, if it runs any."""
    return next((target.folder.text for target in call.targets if target.folder is not None), None)


def with_changes(call: ToolCall, ruling: Ruling, rows: Iterable[ApprovalRow], preview: str) -> Ruling:
    """Return `ruling` with a sentence on what has changed since `call` was answered for, if its targets or its preview have."""
    answered = [row.request for row in rows if row.state == "replied"]
    said = [*_differences(answered[-1], call), *_changed(answered[-1], ruling)] if answered else []
    if answered and not said and answered[-1].get("preview", preview) != preview:
        said = ["what it does has changed since this was answered before"]
    return ruling.replace(reason="; ".join((*said, ruling.reason))) if said else ruling


def _changed(before: Mapping[str, Any], ruling: Ruling) -> Iterable[str]:
    """Name what has other contents than when it was answered for."""
    then: Mapping[str, str] = before.get("contents", {})
    for name, state in contents_read(ruling).items():
        if then.get(name, state) != state:
            yield f"{name} has changed since this was answered before"


def _object(target: Target) -> dict[str, Any] | None:
    """Return the object behind `target`; behind a command, the folder it runs in."""
    if target.folder is not None:
        return _object(target.folder)
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
            named = text if target.folder is None else f"the folder of {text}"
            yield f"{named} is {now['path']} now, and was {then['path']} when this was answered before"
        elif now["identity"] is None:
            yield f"{text} is not there any more, and was when this was answered before"
        elif then["identity"] is None:
            yield f"{text} is there now, and was not when this was answered before"
        else:
            named = text if target.folder is None else f"the folder of {text}"
            yield f"{named} is another object now than when this was answered before"
