"""The memory bank: what a project knows about itself, read before what is risky, written only as a person agreed.

Without a folder ``memory-bank`` in the vault none of this does anything: one look at the disk a turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from moryflow_sdk import (
    Agent,
    Command,
    Deny,
    Message,
    Ruling,
    SystemBlock,
    TargetRequest,
    Tool,
    ToolCall,
    ToolContext,
    ToolResult,
    Turn,
    file_target,
    hookimpl,
    task_target,
    tool,
)

from .bank import (
    FOLDER,
    READ_TOOLS,
    READER,
    WRITER,
    MemoryBankSettings,
    bank_of,
    bank_path,
    page_of_skill,
    runs_unseen,
    usable_bank,
)

name = "memory_bank"
services = ("emit", "files", "history", "spawn")
config_model = MemoryBankSettings
config_path = "agents.runtime.memoryBank"
gate = True


def _read_target(args: Mapping[str, Any]) -> Sequence[TargetRequest]:
    return (file_target(bank_path(str(args["target"])), "read"),)


def _writer_target(_: Mapping[str, Any]) -> Sequence[TargetRequest]:
    return (task_target(WRITER),)


def _with_a_bank(turn: Turn) -> bool:
    return usable_bank(turn) is not None


@tool(domain="read", targets=_read_target, offered_in=_with_a_bank)
async def memory_propose(
    target: Annotated[str, "the file of memory-bank/, for example details/patterns.md"],
    draft: Annotated[str, "Markdown to put there: conclusion first, its boundary, a pointer"],
    ctx: ToolContext,
    replaces: Annotated[str, "whole lines of the file that the draft takes the place of, as they stand there"] = "",
    why: Annotated[str, "one sentence: why it is worth keeping"] = "",
) -> ToolResult:
    """Propose something worth keeping in the memory bank. Nothing is written: the person is asked."""
    from .proposals import propose

    return await propose(ctx, target, draft, replaces, why)


@tool(domain="task", targets=_writer_target, offered_in=_with_a_bank)
async def memory_write(
    ctx: ToolContext, proposal: Annotated[str, "the id of the proposal; may be left out when there is one"] = ""
) -> ToolResult:
    """Have a proposal written after the person has replied mb:write to it. The writer does it; you never do."""
    from .writer import write

    return await write(ctx, proposal)


@hookimpl
def tools() -> list[Tool]:
    """Offer proposing and writing where there is a bank."""
    return [memory_propose, memory_write]


@hookimpl
def agents() -> list[Agent]:
    """Offer the reader, which answers with a package. No agent may call the writer."""
    return [
        Agent(
            id=READER,
            name="Memory reader",
            description="Reads the memory bank and key sources for a question; answers with a context package.",
            mode="subagent",
            prompt=page_of_skill("memory-reader-prompt.md"),
            tools=READ_TOOLS,
            max_steps=20,
            source=name,
            needs=FOLDER,
        )
    ]


@hookimpl
def commands() -> Sequence[Command]:
    """Add ``moryflow memory-bank``."""
    return [Command(name="memory-bank", help="Make and check the memory bank of this folder.", cli=_group)]


@hookimpl
def system_blocks(turn: Turn) -> list[SystemBlock]:
    """Add the protocol and MEMORY.md, but not for the reader and the writer, which have their own instructions."""
    bank = usable_bank(turn)
    if bank is None or (turn.spawned is not None and turn.agent.id in (READER, WRITER)):
        return []
    from .guard import get_ready
    from .prompt import block_of

    get_ready(turn)
    return [block_of(turn, bank)]


@hookimpl
def chat_messages(messages: Sequence[Message], turn: Turn) -> Sequence[Message] | None:
    """Let reads count only while the model sees them; mark messages that speak for reading first or for a proposal."""
    if usable_bank(turn) is None:
        return None
    from .prompt import add_message_hints, forget_after_compaction

    forget_after_compaction(messages, turn)
    return add_message_hints(messages, turn)


@hookimpl
def tool_before(call: ToolCall) -> ToolCall | None:
    """Keep the reader out of the background: the agent waits for what it finds."""
    if call.args.get("agent") != READER or not call.args.get("background"):
        return None
    return call.replace(args={**call.args, "background": False})


@hookimpl(before="permission")
async def tool_gate(call: ToolCall, turn: Turn) -> Deny | None:
    """Guard the bank, and the reading before a risky write."""
    if turn.parent is None and not any(target.domain == "edit" for target in call.targets):
        return None
    from .guard import judge

    return await judge(call, turn)


@hookimpl(timeout=10)
async def tool_decided(call: ToolCall, ruling: Ruling, turn: Turn) -> None:
    """Remember what the bank holds just before a call runs that could change it unseen."""
    if ruling.decision != "allow" or not runs_unseen(call, turn):
        return
    bank = bank_of(turn)
    if bank is None or not bank.problem:
        from .change_guard import hold

        await hold(call, turn)


@hookimpl(timeout=10)
async def tool_after(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | None:
    """Undo forbidden changes of the bank, note what was read, add hints."""
    if usable_bank(turn) is None:
        if not runs_unseen(call, turn):
            return None
        from .change_guard import compare, is_held

        return await compare(call, result, turn) if is_held(call, turn) else None
    from .guard import review_result

    return await review_result(call, result, turn)


def _group() -> Any:
    from .cli import memory_bank

    return memory_bank
