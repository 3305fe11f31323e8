"""What is done with a result, in this order: undo, note, remind."""

from __future__ import annotations

from moryflow_sdk import ToolCall, ToolResult, Turn

from .bank import usable_bank
from .gating import reminded
from .package import checked_package, is_reader_task
from .reads import READER, note_package, note_reads, stamped
from .shelter import compare, is_held
from .writing import check_written


async def after(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | None:
    """Return what the model shall read of a call's result, ``None`` to leave it."""
    if is_held(call, turn):
        undone = await compare(call, result, turn)
        if undone is not None:
            return undone
    bank = usable_bank(turn)
    if bank is None:
        return None
    if turn.spawned is not None:
        refused = check_written(call, result, turn)
        if refused is not None:
            return refused
    note_reads(call, result, turn)
    final = stamped(result, call) if turn.agent.id == READER and turn.parent is not None else result
    if is_reader_task(call) and result.status == "ok":
        final, whole = await checked_package(result, turn, bank.required())
        if whole:
            note_package(turn)
    final = reminded(call, final, turn)
    return None if final is result else final
