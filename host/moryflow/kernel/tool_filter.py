"""Which tools an agent and a model are offered; any other is refused when called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from moryflow_sdk import Agent, ModelInfo, Tool

from moryflow.hooks.plugin_set import RegisteredTool

from .turn_context import TurnContext


def offered_tools(scope: TurnContext) -> Mapping[str, RegisteredTool]:
    """Return the tools of this turn's agent and model, by name; the same ones all through the turn."""
    if scope.offered is None:
        agent, model = scope.agent, scope.model
        tools = scope.plugin_set.tools.items()
        known = {name: owned for name, owned in tools if _is_offered(owned.tool, agent, model)}
        scope.offered = {name: owned for name, owned in known.items() if _has_use(owned, scope)}
    return scope.offered


def named(tool: str, patterns: Iterable[str]) -> bool:
    """Whether one of `patterns`, names or globs, names `tool`."""
    return any(fnmatchcase(tool, pattern) for pattern in patterns)


def _is_offered(tool: Tool, agent: Agent, model: ModelInfo | None) -> bool:
    if agent.tools is not None and not named(tool.name, agent.tools):
        return False
    if named(tool.name, agent.deny_tools):
        return False
    return model is None or tool.offered is None or tool.offered(model)


def _has_use(owned: RegisteredTool, scope: TurnContext) -> bool:
    """Whether a tool is of use in this turn, as its plugin says; one whose plugin cannot say is not offered."""
    if owned.tool.offered_in is None:
        return True
    try:
        return bool(owned.tool.offered_in(scope.view(owned.plugin)))
    except Exception:  # other people's code
        return False
