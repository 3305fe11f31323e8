"""What the next model call is sent: system prompt, messages, tools, parameters."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from moryflow_sdk import ChatParams, Message, ModelInfo, ModelRequest, SystemBlock, SystemPrompt, ToolSchema, thaw

from .context import ContextBuilder
from .offer import offered_tools
from .scope import TurnScope

CHAT_PURPOSES = ("main", "child")


class RequestBuilder:
    """Builds the requests of one turn; what cannot change within a turn is made once."""

    def __init__(self, scope: TurnScope, context: ContextBuilder, model: ModelInfo) -> None:
        self._scope = scope
        self._model = model
        self.context = context
        self._system: Message | None = None
        self._tools: tuple[ToolSchema, ...] | None = None
        self._overhead: tuple[Callable[[str], float], float] | None = None

    async def build(self) -> ModelRequest:
        """Return the request for the session as it stands now."""
        scope = self._scope
        messages = self.context.build(scope.live.hold.path)
        if scope.purpose in CHAT_PURPOSES:
            messages = list(await scope.around.dispatcher.transform(scope, "chat_messages", messages))
        system = await self._head()
        return ModelRequest(
            model=self._model,
            messages=(system, *messages) if system.text else tuple(messages),
            tools=self.schemas(),
            params=await self._params(),
            purpose=scope.purpose,
            session=scope.session,
        )

    async def overhead(self, size: Callable[[str], float]) -> float:
        """Return what is sent besides the messages, measured with `size`: the system prompt and the tools."""
        if self._overhead is None or self._overhead[0] is not size:
            tools = "".join(f"{tool.name}{tool.description}{json.dumps(thaw(tool.parameters))}" for tool in self.schemas())
            self._overhead = (size, size((await self._head()).text + tools))
        return self._overhead[1]

    async def _head(self) -> Message:
        if self._system is None:
            self._system = Message(role="system", text=(await self.system_prompt()).text)
        return self._system

    async def system_prompt(self) -> SystemPrompt:
        """Return the turn's system prompt: the base, what transforms made of it, then the blocks nobody can remove (D52)."""
        scope = self._scope
        base = first_prompt(scope)
        if scope.purpose not in CHAT_PURPOSES:
            return base
        dispatcher = scope.around.dispatcher
        changed = await dispatcher.transform(scope, "chat_system", base)
        blocks = await dispatcher.contribute(scope, "system_blocks")
        owned = tuple(block.replace(plugin=plugin) for plugin, block in blocks)
        return changed.replace(blocks=(*changed.blocks, *owned))

    def schemas(self) -> tuple[ToolSchema, ...]:
        """Return the tools as the model is told of them."""
        if not self._model.tools or self._scope.purpose not in CHAT_PURPOSES:
            return ()
        if self._tools is None:
            offered = offered_tools(self._scope)
            self._tools = tuple(
                ToolSchema(name=name, description=owned.tool.description, parameters=owned.tool.parameters)
                for name, owned in sorted(offered.items())
            )
        return self._tools

    async def _params(self) -> ChatParams:
        scope = self._scope
        params = first_params(scope)
        if scope.purpose == "complete":
            return params
        return await scope.around.dispatcher.transform(scope, "chat_params", params)


def first_params(scope: TurnScope) -> ChatParams:
    """Return the parameters before any plugin: the agent's own, else those that go with a prompt of the person's."""
    custom = scope.around.config.section("agents.runtime.prompt")
    chosen = dict(custom.get("params", {})) if custom.get("mode") == "custom" else {}
    settings = scope.agent.settings
    return ChatParams(
        temperature=_first(settings.temperature, chosen.get("temperature")),
        top_p=_first(settings.top_p, chosen.get("topP")),
        max_tokens=_first(settings.max_tokens, chosen.get("maxTokens")),
    )


def first_prompt(scope: TurnScope) -> SystemPrompt:
    """Return the system prompt before any plugin."""
    base = SystemBlock(id="base", text=scope.around.base_prompt(scope))
    return SystemPrompt(blocks=(base, SystemBlock(id="place", text=f"Working folder: {scope.vault}", stable=False)))


def _first(own: Any, other: Any) -> Any:
    return other if own is None else own
