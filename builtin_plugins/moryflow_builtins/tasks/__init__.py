"""``task``: hand a part of the work to another agent, in a child session of its own.

What a child may do, what it spends and who is asked is the host's business (``turn.spawn``); this is the tool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from moryflow_sdk import SystemBlock, TargetRequest, Tool, ToolContext, ToolResult, Turn, hookimpl, task_target, tool
from moryflow_sdk.field_types import Between
from moryflow_sdk.support.settings import Meta, Settings

name = "tasks"
services = ("history", "info", "spawn")
config_path = "agents.runtime.tasks"


class TaskSettings(Settings):
    """How deep agents may start agents, and how long a sub-agent may work.

    :ivar depth: how many levels of sub-agents there may be; 0 means none.
    :ivar minutes: after these a sub-agent is stopped.
    """

    depth: Annotated[int, Meta(ge=0, le=3, strict=True)] = 1
    minutes: Annotated[float, Meta(gt=0, le=1440, strict=True)] = 120


config_model = TaskSettings


def _target(args: Mapping[str, Any]) -> Sequence[TargetRequest]:
    return (task_target(args["agent"]),)


def _may_start(turn: Turn) -> bool:
    """Whether an agent may still be started below this one; at the lowest level the tool is left out."""
    return turn.config.depth > (turn.parent is not None)


@tool(domain="task", targets=_target, parallel_safe=True, timeout=86_500, offered_in=_may_start, remarks=("description",))
async def task(
    agent: Annotated[str, "id of the agent that shall do it"],
    prompt: Annotated[str, Between(1), "all it needs to know; it sees nothing of this conversation"],
    ctx: ToolContext,
    description: Annotated[str, "three to five words for the person"] = "",
    task_id: Annotated[str | None, "go on with this earlier task instead of beginning a new one"] = None,
    background: Annotated[bool, "do not wait; its result comes later as a note"] = False,
) -> ToolResult:
    """Let another agent do a part of the work in a session of its own and get back what it answers.

    For work that can be told in one message: searching widely, or several independent parts, one call each in one step.
    """
    from .child import Order, run_task

    return await run_task(ctx, Order(agent, prompt, description, task_id, background))


@hookimpl
def tools() -> list[Tool]:
    """Offer ``task``."""
    return [task]


@hookimpl
async def system_blocks(turn: Turn) -> list[SystemBlock]:
    """List the agents that this agent may start."""
    from .child import roster

    return await roster(turn)
