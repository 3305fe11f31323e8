"""A model call beside the conversation: no chat hooks, counted toward cost, never nested."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from moryflow_sdk import ChatParams, Finished, Message, ModelError, ModelRequest, PluginError, TextDelta

if TYPE_CHECKING:
    from moryflow.kernel.scope import TurnScope


class CompleteService:
    """Asks the turn's model, or another one."""

    def __init__(self, scope: TurnScope, plugin: str) -> None:
        self._scope = scope
        self._plugin = plugin
        self._busy = False

    async def __call__(
        self,
        messages: str | Sequence[Message],
        *,
        model: str | None = None,
        system: str = "",
        params: ChatParams | None = None,
        timeout: float = 60.0,
    ) -> str:
        """Return the answer's text.

        :raises ModelError: the call failed or took longer than `timeout` seconds.
        """
        if self._busy:
            raise PluginError(f"plugin {self._plugin!r} asked a model while it was asking one; complete() does not nest")
        self._busy = True
        try:
            async with asyncio.timeout(timeout):
                return await self._answer(messages, model, system, params or ChatParams())
        except TimeoutError as error:
            raise ModelError(f"the model did not answer within {timeout:g} s", code="timeout") from error
        finally:
            self._busy = False

    async def _answer(self, messages: str | Sequence[Message], model: str | None, system: str, params: ChatParams) -> str:
        scope = self._scope
        current = scope.model.id if scope.model else None
        provider, info = scope.around.models(scope.plugin_set).choose(model, current)
        turns = [Message(role="user", text=messages)] if isinstance(messages, str) else list(messages)
        head = [Message(role="system", text=system)] if system else []
        request = ModelRequest(model=info, messages=(*head, *turns), params=params, purpose="complete", session=scope.session)
        parts: list[str] = []
        async for event in provider.stream(request):
            if isinstance(event, TextDelta):
                parts.append(event.text)
            elif isinstance(event, Finished):
                scope.extra_usage.append((event.usage, info.cost(event.usage)))
        return "".join(parts)
