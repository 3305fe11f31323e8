"""Which tools an agent and a model are told of (S4.9, S4.10); what is not offered is refused when called (R23)."""

from __future__ import annotations

from fnmatch import fnmatchcase

from moryflow_sdk import Agent, ModelInfo, Tool

from .records import OwnedTool
from .scope import TurnScope


def offered_tools(scope: TurnScope) -> dict[str, OwnedTool]:
    """Return the tools of this turn's agent and model, by name."""
    agent, model = scope.agent, scope.model
    return {name: owned for name, owned in scope.plugin_set.tools.items() if _is_offered(owned.tool, agent, model)}


def _is_offered(tool: Tool, agent: Agent, model: ModelInfo | None) -> bool:
    if agent.tools is not None and not any(fnmatchcase(tool.name, pattern) for pattern in agent.tools):
        return False
    if any(fnmatchcase(tool.name, pattern) for pattern in agent.deny_tools):
        return False
    return model is None or tool.offered is None or tool.offered(model)
