"""A read-only mode.

Use it to look at a folder that must not change: nothing is written and no command runs, whatever the rules and the mode say.

Try it: ``moryflow run --config '{"plugins": {"read_only": {"on": true}}}' "Where is the bug?"``.
"""

from __future__ import annotations

from moryflow_sdk import Deny, SystemBlock, ToolCall, Turn, hookimpl
from pydantic import BaseModel

CHANGES = {"edit", "bash", "mcp", "tool"}


class Settings(BaseModel, frozen=True):
    """What ``plugins.read_only`` may say."""

    on: bool = False


config_model = Settings


@hookimpl
def tool_gate(call: ToolCall, turn: Turn) -> Deny | None:
    """Deny whatever may change something."""
    if turn.config.on and call.domain in CHANGES:
        return Deny("this conversation only reads", next_step="say what you would change, as a diff")
    return None


@hookimpl
def system_blocks(turn: Turn) -> list[SystemBlock]:
    """Tell the model before it tries."""
    return [SystemBlock(id="read_only", text="You only read: no tool may change anything.")] if turn.config.on else []
