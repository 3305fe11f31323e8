"""A model that says back what it was told.

Copy it to ``~/.moryflow/plugins/my_models.py``; then ``moryflow run -m parrot``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from moryflow_sdk import (
    BaseProvider,
    Finished,
    ModelEvent,
    ModelInfo,
    ModelProvider,
    ModelRequest,
    PluginContext,
    TextDelta,
    hookimpl,
)


class Parrot(BaseProvider):
    """Needs no key and no network. Heavy imports of a real provider belong into `stream`."""

    name = "parrot"

    def find(self, model: str) -> ModelInfo | None:
        """Know the one model; every other name is asked of the next provider."""
        return ModelInfo(id="parrot", name="parrot", provider=self.name) if model == "parrot" else None

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Yield the text in pieces, then the end."""
        for word in request.messages[-1].text.split():
            yield TextDelta(text=f"{word} ")
        yield Finished()


@hookimpl
def models(ctx: PluginContext) -> list[ModelProvider]:
    """Providers are asked in order until one knows the model."""
    return [Parrot()]
