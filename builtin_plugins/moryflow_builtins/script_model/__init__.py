"""The model ``script:FILE``: answers from a file, for examples, for developing a plugin, and for tests."""

from __future__ import annotations

from moryflow_sdk import ModelProvider, hookimpl

name = "script_model"


@hookimpl(after=("local_model", "litellm_models", "openai_compatible"))
def models() -> list[ModelProvider]:
    """Offer ``script:FILE``."""
    from .provider import ScriptModel

    return [ScriptModel()]
