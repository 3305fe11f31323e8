"""Instruction files: AGENTS.md, or CLAUDE.md, of the person, of the project, and of folders below it.

They are text for the model. Nothing in them sets a permission, runs, or is looked at by the host.
"""

from __future__ import annotations

from collections.abc import Sequence

from moryflow_sdk import Command, Event, SystemBlock, ToolCall, ToolResult, Turn, hookimpl

from .files import Instructions, InstructionSettings, block, instructions_for, is_address, note_nested, remarks

name = "instructions"
services = ("emit", "info")
config_model = InstructionSettings
config_path = "agents.runtime.instructions"


@hookimpl
async def system_blocks(turn: Turn) -> Sequence[SystemBlock]:
    """Add what the files say to the stable part of the system prompt."""
    if not turn.config.enabled:
        return []

    pages: Sequence[Instructions] = ()
    if any(map(is_address, turn.config.files)):
        from .pages import fetch_instructions

        pages = await fetch_instructions(turn.config, turn.data_dir)
    found = instructions_for(turn.vault, turn.home, turn.config, pages)
    text = block(found, turn.vault)
    if (said := remarks(found, turn.vault)) and said != turn.session_state.get("said"):
        turn.session_state["said"] = said  # once a session, and again when it is something else
        turn.emit("notice", text=said)
    if (names := [item.name(turn.vault) for item in found if item.text]) != turn.session_state.get("files", []):
        turn.session_state["files"] = names  # for those who count what a session was told
    return [SystemBlock(id="instructions", text=text)] if text else []


@hookimpl
async def tool_after(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | None:
    """Tell the model of instructions in the folder of a file that it has just read, once, and again when they have changed."""
    if call.domain == "read" and result.status == "ok" and turn.config.enabled:
        await note_nested(call, turn)
    return None


@hookimpl(events="compaction")
def event(event: Event, turn: Turn | None) -> None:
    """After a compaction the notes are no longer in sight, so that the next read tells of them again."""
    if event.type == "compaction" and event.data.get("state") == "done" and turn is not None:
        turn.session_state.pop("stamps", None)


@hookimpl
def commands() -> Sequence[Command]:
    """Add ``moryflow instructions``."""
    return [Command("instructions", "Show which instruction files are read, in which order, and what they cost.", _cli)]


def _cli() -> object:
    from .cli import instructions

    return instructions
