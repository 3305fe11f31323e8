"""Take the snapshots of a step."""

from __future__ import annotations

import asyncio

from moryflow_sdk import ToolError, Turn

from .records import Record, Records
from .shadow import Shadow


def shadow_of(turn: Turn) -> Shadow:
    """Return the shadow repository of the turn's vault."""
    return Shadow(turn.data_dir, turn.vault, turn.config, home=turn.home)


async def begin(turn: Turn) -> None:
    """Record the files as they are before the step changes them, once per step."""
    state = turn.state
    if "before" in state or "off" in turn.session_state:
        return
    taking = asyncio.create_task(asyncio.to_thread(shadow_of(turn).snapshot))
    if not (await asyncio.wait((taking,), timeout=1.0))[0]:
        turn.emit("notice", text=f"recording the files of {turn.vault}, so that changes can be undone")
    try:
        tree = await taking
    except (ToolError, OSError) as error:
        _say_off(turn, str(error))
        return
    state["before"] = {"tree": tree, "step": turn.step}


async def finish(turn: Turn, node: str) -> None:
    """Record the files as the step left them; a step that changed none leaves no record.

    :param node: the step's answer; a turn that broke off does not know it, and the session's path is read for it.
    """
    before = turn.state.pop("before")
    shadow = shadow_of(turn)
    try:
        tree = await asyncio.to_thread(shadow.snapshot)
    except (ToolError, OSError) as error:
        _say_off(turn, str(error))
        return
    if tree != before["tree"]:
        answer = node or next((n.id for n in reversed(await turn.history.path()) if n.kind == "assistant"), "")
        Records(shadow.folder, turn.session).add(Record(answer, turn.id, before["step"], before["tree"], tree))


def _say_off(turn: Turn, reason: str) -> None:
    """Tell once per session that files cannot be brought back."""
    turn.session_state["off"] = reason
    turn.emit("notice", text=f"changes to files cannot be undone in this session: {reason}")
