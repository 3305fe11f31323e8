"""A plugin with settings and state: so many commands for each session, and no more.

``turn.session_state`` is stored with the session: a restart keeps it, and ``undo`` takes it back. Module globals are not
state.

Try it: ``moryflow run --config '{"plugins": {"call_budget": {"most": 1}}}' "Run ls twice"``.
"""

from __future__ import annotations

from moryflow_sdk import Deny, ToolCall, ToolResult, Turn, hookimpl
from pydantic import BaseModel, PositiveInt


class Settings(BaseModel, frozen=True):
    """What ``plugins.call_budget`` may say; a wrong value is named with its file and line."""

    tool: str = "bash"
    most: PositiveInt = 20


config_model = Settings


@hookimpl
def tool_gate(call: ToolCall, turn: Turn) -> Deny | None:
    """Deny the call when the budget is used up."""
    settings: Settings = turn.config
    if call.tool == settings.tool and turn.session_state.get("calls", 0) >= settings.most:
        return Deny(f"{settings.tool} was called {settings.most} times in this session", next_step="say what is left to do")
    return None


@hookimpl
def tool_after(call: ToolCall, result: ToolResult, turn: Turn) -> None:
    """Count what ran."""
    if call.tool == turn.config.tool and result.status != "denied":
        turn.session_state["calls"] = turn.session_state.get("calls", 0) + 1
