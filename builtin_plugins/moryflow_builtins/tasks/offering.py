"""Which agents an agent is told of. The text is the same for the whole session, so that prompt caches hold."""

from __future__ import annotations

from fnmatch import fnmatchcase

from moryflow_sdk import Agent, SystemBlock, Turn

TOOL = "task"


async def roster(turn: Turn) -> list[SystemBlock]:
    """Return the block that lists the agents, or nothing where ``task`` is not offered."""
    if turn.model is None or not turn.model.tools or not _has_tool(turn.agent):
        return []
    agents = turn.spawn.agents()
    if not agents or await turn.spawn.depth() >= turn.config.depth:
        return []
    lines = [f"- {agent.id}: {agent.description or agent.name}" for agent in agents]
    return [SystemBlock(id="agents", text="Agents that the task tool can start:\n" + "\n".join(lines))]


def _has_tool(agent: Agent) -> bool:
    named = agent.tools is None or any(fnmatchcase(TOOL, pattern) for pattern in agent.tools)
    return named and not any(fnmatchcase(TOOL, pattern) for pattern in agent.deny_tools)
