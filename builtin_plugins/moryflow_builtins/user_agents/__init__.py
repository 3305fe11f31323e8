"""The user's own agents: Markdown files in ``~/.moryflow/agents``."""

from __future__ import annotations

from moryflow_sdk import Agent, Diagnostic, PluginContext, hookimpl
from moryflow_sdk.support.own_files import own_files

name = "user_agents"
CHECK = "moryflow agent check"


@hookimpl
def agents(ctx: PluginContext) -> list[Agent | Diagnostic]:
    """Read every agent file; a file that is wrong is left out and reported."""
    found: dict[str, Agent] = {}
    files, problems = own_files(ctx.home / "agents", ".md", next_step=CHECK)
    for path in files:
        from moryflow_sdk.support.agent_files import read_agent

        agent, wrong = read_agent(path)
        problems += [problem.replace(next_step=CHECK) for problem in wrong]
        if agent is None:
            continue
        other = found.get(agent.id.lower())
        if other is not None:
            text = f"the id {agent.id!r} is taken by {other.source}"
            problems.append(Diagnostic(file=str(path), code="agent_duplicate", message=text, next_step=CHECK))
            continue
        found[agent.id.lower()] = agent
    return [*found.values(), *problems]
