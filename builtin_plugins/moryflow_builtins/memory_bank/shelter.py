"""Guard the bank against calls that could change it unseen: shell commands, MCP servers, tools that name no files."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from moryflow_sdk import ToolCall, ToolResult, Turn

from .bank import FOLDER, MADE_BY, is_there
from .snapshot import Snapshot, keep, reopen, restore, take

CHANGED = ("changed", "the memory-bank writer", "everything was put back", "propose the change with memory_propose")
MADE = ("made", "a person", "it was taken away again", MADE_BY)
"""What a command did to the bank, who may do that, what was done about it, and the next step."""

_held: dict[tuple[str, str], Snapshot] = {}
"""Snapshots of calls that run now, by turn and call. Made just before the body, gone when its result is known."""

MOST_HELD = 64
"""Calls whose turn ended with an open question leave an entry behind; the oldest are dropped."""


async def hold(call: ToolCall, turn: Turn) -> None:
    """Remember what the bank holds. A question that the body asks later does not begin anew: it has run already."""
    if is_held(call, turn):
        return
    vault = str(turn.vault)
    _held[turn.id, call.id] = await asyncio.to_thread(take, vault) if is_there(vault) else Snapshot(vault)
    while len(_held) > MOST_HELD:
        del _held[next(iter(_held))]


def is_held(call: ToolCall, turn: Turn) -> bool:
    """Whether a snapshot waits for this call's result."""
    return (turn.id, call.id) in _held


async def compare(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | None:
    """Put the bank back if the call has changed it, and make an error of its result that says so."""
    before = _held.pop((turn.id, call.id))
    if not before.items and not is_there(before.vault):
        return None
    return await asyncio.to_thread(_compared, before, call, result, turn)


def _compared(before: Snapshot, call: ToolCall, result: ToolResult, turn: Any) -> ToolResult | None:
    now = take(before.vault)
    names = before.changed(now)
    if not names:
        return None
    done, who, undone, step = CHANGED if before.items else MADE
    reopen(before)
    now = take(before.vault)
    place = turn.data_dir / "undone" / f"{time.strftime('%Y%m%d-%H%M%S')}-{call.id}"
    try:
        kept = keep(now, before.changed(now), place)
    except OSError as error:
        said = f"{call.tool} {done} {_listed(names)}, and it could not be undone: {error.strerror}"
        return _spoken(result, said, names, step)
    left = restore(before, now, turn)
    said = f"{call.tool} {done} {_listed(names)}, which only {who} may do; "
    said += f"{_listed(left)} could not be put back" if left else undone
    if kept:
        said += f" (what it wrote is kept in {place})"
    return _spoken(result, said, names, step)


def _spoken(result: ToolResult, said: str, names: list[str], step: str) -> ToolResult:
    output = f"error: memory bank: {said}. Next: {step}\n\n{result.output}"
    metadata = {**result.metadata, "memory_bank": {"restored": names}}
    return result.replace(status="error", code="memory_bank", output=output.rstrip(), metadata=metadata)


def _listed(names: list[str]) -> str:
    files = [name for name in names if name != FOLDER] or names
    return ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")


def note_change(vault: str, name: str, fresh: Snapshot) -> None:
    """Tell running comparisons that the writer has changed a file, so that nobody undoes it."""
    for snapshot in _held.values():
        if snapshot.vault != vault:
            continue
        for changed in (name, *_folders(name)):
            item = fresh.items.get(changed)
            if item is not None:
                snapshot.items[changed] = item


def _folders(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]
