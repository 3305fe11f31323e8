"""A model that falls back to a second service.

If the first service is overloaded or cannot be reached, the plugin asks the next one. After the first words of an answer, it
passes a failure on: half an answer of one model and half of another would be worse.

Try it: put two services into ``plugins.fallback_model.services``, then ``moryflow run -m steady "Hello"``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from moryflow_sdk import BaseProvider, ModelError, ModelEvent, ModelInfo, ModelRequest, PluginContext, Status, hookimpl
from moryflow_sdk.chat_completions import ChatClient, Endpoint
from pydantic import BaseModel


class Service(BaseModel, frozen=True):
    """One service that speaks the chat-completions protocol."""

    url: str
    model: str
    key_variable: str = ""


class Settings(BaseModel, frozen=True):
    """What ``plugins.fallback_model`` may say."""

    services: list[Service] = []


config_model = Settings


class Steady(BaseProvider):
    """Asks one service after the other."""

    name = "steady"

    def __init__(self, services: list[Service], environ: Mapping[str, str]) -> None:
        self._services = services
        self._environ = environ

    def find(self, model: str) -> ModelInfo | None:
        """Know the one name, where there is a service."""
        return ModelInfo(id="steady", name="steady", provider=self.name) if model == "steady" and self._services else None

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Yield what the first service says that answers."""
        for service, following in zip(self._services, [*self._services[1:], None], strict=True):
            key = self._environ.get(service.key_variable, "")
            client, begun = ChatClient(Endpoint(base_url=service.url, label=service.model, key=key)), False
            try:
                async for event in client.stream(request, service.model):
                    begun = True
                    yield event
                return
            except ModelError as error:
                if begun or following is None or not error.retryable:
                    raise
                yield Status(text=f"{service.model}: {error.message}; asking {following.model}")
            finally:
                await client.aclose()


@hookimpl
def models(ctx: PluginContext) -> list[Steady]:
    """Offer the model."""
    return [Steady(ctx.config.services, ctx.environ)]
