"""What a person is shown before they confirm."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from typing import Any

from moryflow_sdk import Turn

from .comparing import Change
from .taking import shadow_of
from .undoing import Done, Plan

_LINES = 200
"""Lines of the diff that are shown; the rest is counted."""

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(line: str) -> str:
    """Return one line with control characters made visible: contents and names of files drive no terminal."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], line)


async def shown(turn: Turn, plan: Plan) -> str:
    """Return the plan in words, with the diff that carrying it out would make."""
    lines = [visible(f"{plan.verb}: {plan.title or '(no text)'}")]
    changes = [change for change in plan.changes if change.now != change.then]
    if not changes:
        return "\n".join([*lines, "no files change", *_left_out(plan)])
    hashes = [change.then.hash for change in changes if change.then]
    contents = await asyncio.to_thread(shadow_of(turn).contents, hashes) if hashes else {}
    lines += [visible(f"{_mark(change)} {change.path}{_since(change)}") for change in changes]
    lines += _left_out(plan)
    diff = [visible(line) for change in changes for line in _diff(change, contents)]
    rest = [f"… {len(diff) - _LINES} more lines"] if len(diff) > _LINES else []
    return "\n".join([*lines, "", *diff[:_LINES], *rest])


def document(plan: Plan, touched: Sequence[str] | None) -> dict[str, Any]:
    """Return the plan as JSON; `touched` is what was restored, ``None`` when nothing was done."""
    return {
        "session": plan.session,
        "active": plan.target if touched is not None else plan.source,
        "done": touched is not None,
        "files": [change.path for change in plan.changes],
        "restored": list(touched or ()),
        "changed_since": [change.path for change in plan.foreign],
        "changed_by_others": list(plan.others),
        "not_included": [{"path": path, "reason": reason} for path, reason in plan.missing],
        "notes": list(plan.notes),
    }


def overwritten(done: Done) -> list[str]:
    """Return how to see what was overwritten of somebody else's."""
    return [visible(f"what was overwritten is kept: {command}") for command in done.kept]


def _left_out(plan: Plan) -> list[str]:
    """Return what stays as it is, a line each."""
    others = [f"left alone: {path} was changed by somebody else while the agent worked" for path in plan.others]
    missing = [f"not included: {path}: {reason}" for path, reason in plan.missing]
    return [visible(line) for line in (*others, *missing, *(f"not included: {note}" for note in plan.notes))]


def _mark(change: Change) -> str:
    if change.then is None:
        return "-"
    return "+" if change.now is None else "~"


def _since(change: Change) -> str:
    if change.foreign:
        return "  (changed since, not by the agent)"
    return f"  (while {', '.join(change.commands)} ran; by it, or by you)" if change.commands else ""


def _diff(change: Change, contents: dict[str, bytes]) -> Iterator[str]:
    old = _text(change.content)
    new = _text(contents[change.then.hash] if change.then else b"")
    if old is None or new is None:
        yield f"binary file {change.path} differs"
        return
    from_name = change.path if change.now else "/dev/null"
    to_name = change.path if change.then else "/dev/null"
    yield from unified_diff(old.splitlines(), new.splitlines(), from_name, to_name, lineterm="")


def _text(content: bytes) -> str | None:
    if b"\0" in content[:8000]:
        return None
    return content.decode(errors="replace")
