"""What the host sends to a model: conversation, system prompt, tools and parameters, after plugins have changed them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from moryflow_sdk import (
    ChatParams,
    Message,
    ModelError,
    ModelInfo,
    ModelRequest,
    SystemBlock,
    SystemPrompt,
    ToolSchema,
    thaw,
)
from moryflow_sdk.models import Effort

from moryflow.store.messages import ContextBuilder, begin_with_prompt

from .tool_call import offered_tools
from .turn_context import HOST_STATE, TurnContext


class RequestBuilder:
    """Builds the requests of one turn. The parts that cannot change within a turn are built once."""

    def __init__(self, scope: TurnContext, context: ContextBuilder, model: ModelInfo) -> None:
        self._scope = scope
        self._model = model
        self.context = context
        self._system: Message | None = None
        self._tools: tuple[ToolSchema, ...] | None = None
        self._overhead: dict[Callable[[str], float], float] = {}
        self._added, self._removed = "", ""
        self._added_size: dict[Callable[[str], float], float] = {}

    def fits(self, model: ModelInfo) -> bool:
        """Whether `model` can take the session as it stands: its tools, its images, and about its size."""
        messages = self.context.build(self._scope.live.hold.path)
        tokens = sum(len(message.text) for message in messages) / 4
        large = bool(model.context_window) and tokens > (model.context_window or 0)
        blind = any(message.images for message in messages) and model.images is False
        return not (large or blind or (self.schemas() and not model.tools))

    def switch(self, model: ModelInfo) -> None:
        """Send the next requests to another model, which may be offered other tools."""
        self._model, self._tools = model, None
        self._overhead.clear()

    async def build(self) -> ModelRequest:
        """Return the request for the session as it stands now."""
        scope = self._scope
        messages = self.context.build(scope.live.hold.path)
        changed = await scope.around.dispatcher.transform(scope, "chat_messages", messages)
        self._added = self._removed = ""
        self._added_size.clear()
        if changed is not messages:
            view, messages = messages, begin_with_prompt(list(changed))  # a plugin may have removed the first messages
            await self._weigh(view, messages)
        system = await self._system_message()
        return ModelRequest.model_construct(
            model=self._model,
            messages=(system, *messages) if system.text else tuple(messages),
            tools=self.schemas(),
            params=await scope.around.dispatcher.transform(scope, "chat_params", first_params(scope)),
            purpose=scope.purpose,
            session=scope.session,
        )

    async def _weigh(self, view: Sequence[Message], changed: Sequence[Message]) -> None:
        """Remember what plugins added to the view and removed from it: the view is measured before plugins see it."""
        before, after = set(map(id, view)), set(map(id, changed))
        self._added = "".join(message.text for message in changed if id(message) not in before)
        self._removed = "".join(message.text for message in view if id(message) not in after)
        self._added_size.clear()
        tokens = (sum(len(message.text) for message in changed) + await self._fixed_size(len)) / 4
        window = self._model.context_window
        if window and tokens > window and len(self._added) > len(self._removed):
            message = f"with what plugins add to it, the conversation does not fit the window of the model: about {tokens:.0f}"
            raise ModelError(
                f"{message} tokens of {window}",
                code="context",
                next_step="moryflow hook list",
            )

    async def overhead(self, size: Callable[[str], float]) -> float:
        """Return the size of everything sent besides the view: system prompt, tools, and what plugins added last time.

        :param size: measures a text.
        """
        fixed = await self._fixed_size(size)
        if size not in self._added_size:  # a plugin may rewrite every message, and each step asks several times
            self._added_size[size] = max(0.0, size(self._added) - size(self._removed))
        return fixed + self._added_size[size]

    async def _fixed_size(self, size: Callable[[str], float]) -> float:
        schemas = self.schemas()
        if size not in self._overhead:
            tools = "".join(f"{tool.name}{tool.description}{json.dumps(thaw(tool.parameters))}" for tool in schemas)
            self._overhead[size] = size((await self._system_message()).text + tools)
        return self._overhead[size]

    async def _system_message(self) -> Message:
        if self._system is None:
            self._system = Message(role="system", text=(await self.system_prompt()).text)
        return self._system

    async def system_prompt(self) -> SystemPrompt:
        """Return the turn's system prompt: the base, changed by ``chat_system``, then the blocks that no plugin can remove."""
        scope = self._scope
        dispatcher = scope.around.dispatcher
        changed = await dispatcher.transform(scope, "chat_system", first_prompt(scope))
        blocks = await dispatcher.contribute(scope, "system_blocks")
        owned = tuple(block.replace(plugin=plugin) for plugin, block in blocks)
        return changed.replace(blocks=(*changed.blocks, *owned))

    def schemas(self) -> tuple[ToolSchema, ...]:
        if not self._model.tools:
            return ()
        offered = offered_tools(self._scope)
        if self._tools is None or len(offered) != len(self._tools):
            self._overhead.clear()
            self._tools = tuple(
                ToolSchema(name=name, description=owned.tool.description, parameters=owned.tool.parameters)
                for name, owned in offered.items()
            )
        return self._tools


def first_params(scope: TurnContext) -> ChatParams:
    """Return the parameters before plugins change them: the agent's own, else those configured with a custom prompt."""
    custom = scope.around.config.section("agents.runtime.prompt")
    chosen = dict(custom.get("params", {})) if custom.get("mode") == "custom" else {}
    settings = scope.agent.settings
    return ChatParams(
        temperature=_first_given(settings.temperature, chosen.get("temperature")),
        top_p=_first_given(settings.top_p, chosen.get("topP")),
        max_tokens=_first_given(settings.max_tokens, chosen.get("maxTokens")),
        reasoning_effort=_effort(scope),
        answer_schema=scope.schema,
    )


def _effort(scope: TurnContext) -> Effort | None:
    """Return how long the model should reason: what the user chose for the session, else the agent's, else the model's."""
    chosen = scope.live.state.get(HOST_STATE, {}).get("effort")
    return chosen or scope.agent.settings.reasoning_effort or (scope.model.reasoning_effort if scope.model else None)


def first_prompt(scope: TurnContext) -> SystemPrompt:
    """Return the system prompt before plugins change it."""
    base = SystemBlock(id="base", text=scope.around.base_prompt(scope))
    return SystemPrompt(blocks=(base, SystemBlock(id="place", text=f"Working folder: {scope.vault}", stable=False)))


def _first_given(own: Any, other: Any) -> Any:
    return other if own is None else own
