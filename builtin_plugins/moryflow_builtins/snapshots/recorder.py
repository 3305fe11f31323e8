"""Record the changes of calls: a snapshot before the first of those that run at once, and one after the last."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from moryflow_sdk import ToolError, Turn

from .journal import Change, add, all_changes, file_of, of_answers
from .shadow import Shadow, VaultTree

# Seconds after which a snapshot that is being taken is announced.
NOTICE_DELAY = 1.0


def shadow_of(turn: Turn) -> Shadow:
    return Shadow(turn.data_dir, turn.vault, turn.config, home=turn.home)


async def begin(turn: Turn, call: str) -> None:
    """Record that `call` is about to run; take a snapshot if no other call runs."""
    if "off" in turn.session_state:
        return
    change = _open_change(turn)
    if change is None:
        snapshot = await _take_snapshot(turn)
        if snapshot is None:
            return
        change = turn.state["change"] = {"turn": turn.id, "node": turn.node, "calls": [], **snapshot._asdict()}
        _write(turn, change)
    change["calls"].append(call)


async def end(turn: Turn, call: str) -> None:
    """Record that `call` has ended; take a snapshot if no other call runs."""
    change = _open_change(turn)
    if change is None or call not in change["calls"]:
        return
    change["calls"].remove(call)
    if not change["calls"]:
        turn.state.pop("change", None)
        if snapshot := await _take_snapshot(turn):
            _write(turn, change, snapshot.tree)


def _open_change(turn: Turn) -> dict[str, Any] | None:
    """Return the open change of this step, but not one that a killed host left."""
    found = turn.state.get("change")
    return found if found and found["turn"] == turn.id and found["node"] == turn.node else None


async def _take_snapshot(turn: Turn) -> VaultTree | None:
    """Take a snapshot; if that fails, emit a notice and record no more files in this session."""
    shadow = shadow_of(turn)
    taking = asyncio.create_task(asyncio.to_thread(shadow.snapshot))
    if not (await asyncio.wait((taking,), timeout=NOTICE_DELAY))[0]:
        count = f"{shadow.changed:,} files" if shadow.changed > 1 else "the files"
        turn.emit("notice", text=f"recording {count} of {turn.vault}, so that changes can be undone")
    try:
        return await taking
    except (ToolError, OSError) as error:
        reason = turn.session_state["off"] = str(error)
        turn.emit("notice", text=f"changes to files cannot be undone in this session: {reason}")
        return None


def _write(turn: Turn, change: Mapping[str, Any], after: str = "") -> None:
    above = turn.spawned.node if turn.spawned is not None else ""
    made = Change(f"{turn.id}:{change['number']}", turn.node, above, change["tree"], change["number"], after)
    add(file_of(shadow_of(turn).folder, turn.session), made)


async def forget(turn: Turn, sessions: Sequence[str], heirs: Mapping[str, Sequence[str]]) -> None:
    """Remove the changes of `sessions`; those of answers that other sessions share (`heirs`) are first copied to these."""
    try:
        await asyncio.to_thread(_forget, shadow_of(turn), sessions, heirs)
    except (ToolError, OSError) as error:
        turn.emit("notice", text=f"recorded contents of files were not removed: {error}")


def _forget(shadow: Shadow, sessions: Sequence[str], heirs: Mapping[str, Sequence[str]]) -> None:
    mine = [file for session in sessions if (file := file_of(shadow.folder, session)).exists()]
    known = all_changes(shadow)
    for heir, nodes in heirs.items():  # those of a fork are perhaps still in the file of its original, which may go next
        add(file_of(shadow.folder, heir), *of_answers(known, nodes))
    for file in mine:
        file.unlink()
    if mine:
        changes = all_changes(shadow).values()
        shadow.prune({tree for change in changes for tree in (change.before, change.after) if tree})
