"""Models of every service that speaks chat completions: OpenAI, OpenRouter, Ollama, a server of one's own."""

from __future__ import annotations

import os

from moryflow_sdk import ModelProvider, PluginContext, hookimpl
from moryflow_sdk.support.provider_settings import ModelsSettings

name = "openai_compatible"
config_path = "models"
config_model = ModelsSettings


@hookimpl(before=("litellm_models", "local_model"))
def models(ctx: PluginContext) -> list[ModelProvider]:
    """Offer the models of chat-completions services."""
    from .provider import OpenAICompatible

    return [OpenAICompatible(ctx.config, getattr(ctx, "environ", os.environ))]
