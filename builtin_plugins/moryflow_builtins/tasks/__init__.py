"""``task``: let another agent do a part of the work, in a child session.

The host (``turn.spawn``) controls what a child may do, what it may spend and who is asked; this module is only the tool.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated

from moryflow_sdk import (
    Agent,
    SpawnResult,
    SystemBlock,
    Tool,
    ToolContext,
    ToolError,
    ToolResult,
    Turn,
    hookimpl,
    task_target,
    tool,
)
from moryflow_sdk.field_types import Between
from moryflow_sdk.support.settings import Meta, Settings
from moryflow_sdk.support.texts import did_you_mean

name = "tasks"
services = ("history", "info", "spawn")
config_path = "agents.runtime.tasks"


class TaskSettings(Settings):
    """How deep agents may start agents, and how long a sub-agent may work.

    :ivar depth: how many levels of sub-agents there may be; 0 means none.
    :ivar minutes: how many minutes a sub-agent may work before it is stopped.
    """

    strictest = {"depth": 0, "minutes": 1}

    depth: Annotated[int, Meta(ge=0, le=3, strict=True)] = 1
    minutes: Annotated[float, Meta(gt=0, le=1440, strict=True)] = 120


config_model = TaskSettings


@tool(
    domain="task",
    targets=lambda args: (task_target(args["agent"]),),
    parallel_safe=True,
    timeout=86_500,
    offered_in=lambda turn: turn.config.depth > (turn.parent is not None),  # at the lowest level it is left out
    remarks=("description",),
)
async def task(
    agent: Annotated[str, "id of the agent that shall do it"],
    prompt: Annotated[str, Between(1), "all it needs to know; it sees nothing of this conversation"],
    ctx: ToolContext,
    description: Annotated[str, "three to five words for the user"] = "",
    task_id: Annotated[str | None, "go on with this earlier task instead of beginning a new one"] = None,
    background: Annotated[bool, "do not wait; its result comes later as a note"] = False,
) -> ToolResult:
    """Let another agent do a part of the work in a session of its own and get back what it answers.

    For work that can be told in one message: searching widely, or several independent parts, one call each in one step.
    """
    chosen = _agent_named(ctx, agent)
    depth: int = ctx.config.depth
    above = await ctx.spawn.depth()
    if above >= depth:
        raise ToolError("a sub-agent starts no agents of its own", code="too_deep", next_step="do this part yourself")
    if above + 1 >= depth:
        chosen = chosen.replace(deny_tools=(*chosen.deny_tools, TOOL))
    try:
        async with asyncio.timeout(ctx.config.minutes * 60):
            result = await ctx.spawn(chosen, prompt, session=task_id, title=description, background=background)
    except TimeoutError as error:
        text = f"{chosen.id} worked longer than {ctx.config.minutes:g} minutes and was stopped"
        raise ToolError(text, code="timeout") from error
    head = f"{chosen.id}: {description or prompt.splitlines()[0][:60]}"
    if background:
        return ToolResult(
            output=f"{chosen.id} works in the background as {result.session}; its result will come as a note. Go on meanwhile.",
            title=f"{head} (in the background)",
            metadata={"session": result.session, "agent": chosen.id, "end_reason": "running", "background": True},
        )
    if ctx.state.get("asked") != (here := f"{ctx.id} {ctx.step}"):  # a continued turn has the state of the turn before
        ctx.state["asked"] = here
        await ctx.info.note(GO_ON, title="tasks")  # once a step, however many tasks ended in it
    calls = Counter(call.tool for call in await ctx.history.calls(session=result.session))
    return _result(result, chosen.id, head, calls)


@hookimpl
def tools() -> list[Tool]:
    """Offer ``task``."""
    return [task]


@hookimpl
async def system_blocks(turn: Turn) -> list[SystemBlock]:
    """List the agents that this agent may start, if ``task`` is offered to it."""
    if turn.model is None or not turn.model.tools or turn.model.only_tools or not turn.agent.may_use(TOOL):
        return []
    agents = turn.spawn.agents()
    if not agents or await turn.spawn.depth() >= turn.config.depth:
        return []
    room = max(LIST // len(agents), LEAST)
    lines = [f"- {agent.id}: {_shortened(agent.description or agent.name, room - len(agent.id))}" for agent in agents]
    return [SystemBlock(id="agents", text="Agents that the task tool can start:\n" + "\n".join(lines))]


# The characters of the list of agents, above which descriptions are shortened, and what each agent gets of them at least.
LIST, LEAST = 16_000, 60


def _shortened(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: max(most, 20) - 1]}…"


TOOL = "task"
# The synthetic message after the results of a step.
GO_ON = "Read the results of the tasks above, check what matters, and go on with what the user asked for."
WHY = {
    "max_steps": "it reached its limit of steps",
    "doom_loop": "it went in circles and was ended",
    "budget": "the budget of the turn is used up",
    "prompt_too_long": "its conversation no longer fits into the model",
    "model_error": "its model failed",
    "plugin_failed": "a plugin failed under --strict",
    "host_error": "the host failed",
    "stopped": "the user stopped it",
    "interrupted": "it was interrupted",
    "denied": "a rule ended it",
    "approval_required": "it waits for the user's answer, and goes on when the session does; if it has not, pass its task_id",
}


def _agent_named(ctx: ToolContext, wanted: str) -> Agent:
    known = {agent.id: agent for agent in ctx.spawn.agents()}
    if wanted in known:
        return known[wanted]
    hint = did_you_mean(wanted, known) or f"; the agents are {', '.join(sorted(known)) or 'none'}"
    raise ToolError(f"there is no agent {wanted[:80]!r} to start{hint}", code="unknown_agent")


def _result(result: SpawnResult, agent: str, head: str, calls: Counter[str]) -> ToolResult:
    counted = ", ".join(f"{tool} {count}" for tool, count in calls.most_common(8))
    steps = f"{result.steps} step{'s' if result.steps != 1 else ''}"
    summary = f"{agent} {result.session}: {result.end_reason}, {steps}{f', calls: {counted}' if counted else ''}"
    fine = result.end_reason == "completed"
    why = result.error or ("" if fine else WHY.get(result.end_reason, result.end_reason))
    why = why if fine else f"{agent} did not finish: {why}"
    answer = result.text or ("(it gave no answer)" if fine else "")
    denied = len(result.denied)
    refused = f"{denied} of its calls {'was' if denied == 1 else 'were'} refused" if denied else ""
    hint = f"[{summary}; to ask it more, pass task_id={result.session}]"
    return ToolResult(
        status="ok" if fine else "error",
        code=None if fine else result.end_reason,
        output="\n\n".join(filter(None, (why, answer, refused, hint))),
        title=f"{head} ({result.end_reason}, {steps})",
        metadata={
            "session": result.session,
            "agent": agent,
            "end_reason": result.end_reason,
            "summary": summary,
            "calls": dict(calls),
            "steps": result.steps,
            "usage": result.usage.model_dump(),
            "cost": result.cost,
            "denied": denied,
        },
    )
