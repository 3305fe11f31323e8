"""Ask for care where nothing is asked any more."""

from __future__ import annotations

from moryflow_sdk import SystemBlock, SystemPrompt, Turn, hookimpl

CARE = "Nobody is asked before your tools run. Before you change or delete a file, say which and why."


@hookimpl
def chat_system(system: SystemPrompt, turn: Turn) -> SystemPrompt | None:
    """In full access only, and the same text twice for the same turn."""
    return system.append(SystemBlock(id="care", text=CARE)) if turn.mode == "full_access" else None
