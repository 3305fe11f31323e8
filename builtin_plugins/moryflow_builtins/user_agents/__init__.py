"""The user's own agents: Markdown files in ``~/.moryflow/agents``, and in the folders that the configuration names."""

from __future__ import annotations

from typing import Annotated

from moryflow_sdk import Agent, Diagnostic, PluginContext, hookimpl
from moryflow_sdk.support.own_files import files_below, own_files
from moryflow_sdk.support.settings import Meta, Settings

name = "user_agents"
config_path = "agents.runtime.userAgents"


class UserAgentSettings(Settings):
    """Where agents are read from, beside Moryflow's own folder."""

    paths: Annotated[tuple[str, ...], Meta("folders whose agents are read in place, such as ~/.claude/agents")] = ()


config_model = UserAgentSettings
CHECK = "moryflow agent check"


@hookimpl
def agents(ctx: PluginContext) -> list[Agent | Diagnostic]:
    """Read every agent file; a file that is wrong is left out and reported."""
    found: dict[str, Agent] = {}
    files, problems = own_files(ctx.home / "agents", ".md", next_step=CHECK)
    others, missing = files_below(ctx.config.paths, ".md", next_step=CHECK)
    problems += missing
    for path in [*files, *others]:
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
