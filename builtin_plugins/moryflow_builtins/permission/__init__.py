"""Permission: what a call may do is decided by rules, the last that matches (S0.31–S0.49).

The decision is made in :mod:`.gate`, which the commands use too, so that what is explained is what happens.
"""

from __future__ import annotations

from typing import Any

from moryflow_sdk import ToolCall, Turn, Verdict, hookimpl
from pydantic import BaseModel, ConfigDict

name = "permission"
services = ("files", "history", "rules")
gate = True
config_path = "mcp"


class Configured(BaseModel):
    """Which MCP servers a person has configured; their tools are allowed by default (D7)."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    servers: dict[str, Any] = {}


config_model = Configured


@hookimpl
async def tool_gate(call: ToolCall, turn: Turn) -> Verdict:
    """Judge a call by the rules of the person, of the session and of the agent."""
    from .gate import decide, is_long, policy_of

    policy = policy_of(turn)
    if not is_long(call):
        return decide(policy, call).verdict
    import asyncio

    return (await asyncio.to_thread(decide, policy, call)).verdict
