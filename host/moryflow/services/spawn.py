"""Child sessions for plugins. What a plugin cannot choose here: whose child it is, what it may do, and who started it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moryflow_sdk import Agent, PluginError, Rule, SpawnResult

from moryflow.kernel.turn_context import SpawnRequest

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import Subagents, TurnContext


class SpawnService:
    """Starts children for one plugin in one turn."""

    def __init__(self, scope: TurnContext, plugin: str) -> None:
        self._scope = scope
        self._plugin = plugin

    async def __call__(
        self,
        agent: str | Agent,
        prompt: str,
        *,
        session: str | None = None,
        rules: Sequence[Rule] = (),
        metadata: Mapping[str, Any] | None = None,
        title: str = "",
        background: bool = False,
    ) -> SpawnResult:
        """Run `prompt` in a child session; see :class:`moryflow_sdk.services.Spawn`."""
        wish = SpawnRequest(agent, prompt, session, tuple(rules), metadata or {}, title[:200], background)
        return await self._children.run(self._scope, self._plugin, wish)

    def agents(self) -> Sequence[Agent]:
        """Return the agents that another agent may start."""
        known = self._children.agents().values()
        return [agent for agent in known if agent.mode in ("subagent", "all") and not agent.hidden and self._has(agent.needs)]

    def _has(self, needed: str) -> bool:
        return not needed or (self._scope.vault / needed).exists()

    async def depth(self) -> int:
        """Return how many sessions stand above this one."""
        return await self._children.depth(self._scope)

    @property
    def _children(self) -> Subagents:
        if self._scope.children is None:
            raise PluginError(f"plugin {self._plugin!r} cannot start an agent here: this turn runs nothing")
        return self._scope.children
