"""The model ``script:FILE``: answers from a file, for examples, for developing a plugin, and for tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING

from moryflow_sdk import BaseProvider, ModelEvent, ModelInfo, ModelProvider, ModelRequest, hookimpl

if TYPE_CHECKING:
    from moryflow_sdk.support.scripted import ScriptedModel


PREFIX = "script:"


class ScriptModel(BaseProvider):
    """Serves ``script:FILE``; it is never a default model."""

    name = "script_model"
    prefixes = (PREFIX,)

    def __init__(self) -> None:
        self._scripts: dict[str, ScriptedModel] = {}

    def find(self, model: str) -> ModelInfo | None:
        """Return a model for every name that begins with ``script:``; the file is read only when the model is used."""
        file = model.removeprefix(PREFIX)
        if not file or file == model:
            return None
        return ModelInfo(
            id=model, name=file, provider=self.name, context_window=128_000, images=True, input_price=0, output_price=0
        )

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """Yield the next turn of the file.

        :raises ModelError: the file is missing or not a script, the turn has an error, or no turn is left.
        """
        script = self._scripts.get(request.model.name)
        if script is None:
            from moryflow_sdk.support.scripted import ScriptedModel, read_script

            path = Path(request.model.name).expanduser()
            script = self._scripts[request.model.name] = ScriptedModel(read_script(path), info=request.model)
        async for event in script.stream(request):
            yield event


name = "script_model"


@hookimpl(after=("local_model", "litellm_models", "openai_compatible"))
def models() -> list[ModelProvider]:
    """Offer ``script:FILE``."""
    return [ScriptModel()]
