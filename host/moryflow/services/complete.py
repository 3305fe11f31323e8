"""A model call beside the conversation: no chat hooks, counted toward cost, never nested, recorded as a run of its own."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from moryflow_sdk import (
    Agent,
    ChatParams,
    Finished,
    Message,
    ModelError,
    ModelRequest,
    MoryflowError,
    PluginError,
    TextDelta,
    ToolError,
    Usage,
)

from moryflow.base.events import now
from moryflow.store import RunRow

if TYPE_CHECKING:
    from moryflow_sdk import ModelInfo, ModelProvider

    from moryflow.kernel.turn_context import TurnContext


class CompleteService:
    """Asks the turn's model, or another one."""

    def __init__(self, scope: TurnContext, plugin: str) -> None:
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
        agent: str | None = None,
        timeout: float = 60.0,
    ) -> str:
        """Return the answer's text; see :class:`moryflow_sdk.services.Complete`.

        :raises ModelError: the call failed or took longer than `timeout` seconds.
        """
        if self._busy:
            raise PluginError(f"plugin {self._plugin!r} asked a model while it was asking one; complete() does not nest")
        self._busy = True
        begun, usage, reason = now(), Usage(), "model_error"
        chosen = self._agent(agent)
        wish = model or (chosen.model if chosen else None)
        asked = wish or ""
        try:
            provider, info = self._model(wish)
            asked = info.id
            async with asyncio.timeout(timeout):
                answer, usage = await _answer(provider, self._request(messages, info, system, params, chosen))
            self._scope.extra_usage.append((usage, info.cost(usage)))
            reason = "completed"
            return answer
        except TimeoutError as error:
            raise ModelError(f"the model did not answer within {timeout:g} s", code="timeout") from error
        except asyncio.CancelledError:
            reason = "interrupted"
            raise
        finally:
            self._busy = False
            self._record(chosen, asked, reason, usage, begun)

    def _agent(self, name: str | None) -> Agent | None:
        if name is None:
            return None
        found = self._scope.plugin_set.agents.get(name)
        if found is None:
            raise ToolError(f"there is no agent {name!r}", code="unknown_agent")
        return found

    def _model(self, wish: str | None) -> tuple[ModelProvider, ModelInfo]:
        """Return the model to ask.

        :raises ModelError: nobody knows the model.
        """
        scope = self._scope
        current = scope.model.id if scope.model else scope.live.row.model or None  # a command's turn has none of its own
        try:
            return scope.around.models(scope.plugin_set).choose(wish, current)
        except MoryflowError as error:
            raise ModelError(error.message, code="not_found", next_step=error.next_step) from error

    def _request(
        self,
        messages: str | Sequence[Message],
        info: ModelInfo,
        system: str,
        params: ChatParams | None,
        agent: Agent | None,
    ) -> ModelRequest:
        turns = [Message(role="user", text=messages)] if isinstance(messages, str) else list(messages)
        prompt = system or (agent.prompt if agent else "")
        head = [Message(role="system", text=prompt)] if prompt else []
        own = ChatParams(**agent.settings.model_dump()) if agent else ChatParams()
        purpose = "title" if agent is not None and agent.id == "title" else "complete"  # nobody else can have that name
        return ModelRequest(
            model=info, messages=(*head, *turns), params=params or own, purpose=purpose, session=self._scope.session
        )

    def _record(self, agent: Agent | None, model: str, reason: str, usage: Usage, begun: str) -> None:
        """Leave a run of purpose ``complete`` for the trace; it is written at the turn's next pause."""
        scope = self._scope
        row = RunRow(
            id=f"c_{secrets.token_hex(6)}",
            session=scope.session,
            purpose="complete",
            agent=agent.id if agent else self._plugin,
            model=model,
            plugin_set=scope.plugin_set.id,
            state="ended",
            end_reason=reason,
            usage=usage.model_dump(),
            steps=1,
            started=begun,
            ended=now(),
        )
        scope.live.inbox.append(lambda journal: journal.run(row))


async def _answer(provider: ModelProvider, request: ModelRequest) -> tuple[str, Usage]:
    parts: list[str] = []
    usage = Usage()
    async for event in provider.stream(request):
        if isinstance(event, TextDelta):
            parts.append(event.text)
        elif isinstance(event, Finished):
            usage = event.usage
    return "".join(parts), usage
