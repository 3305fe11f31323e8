"""Models of services with a protocol of their own (Anthropic, Gemini, Bedrock …), through litellm.

litellm takes seconds to import, so that happens in a thread, and only once one of its models is chosen.
"""

from __future__ import annotations

import os

from moryflow_sdk import ModelProvider, PluginContext, hookimpl
from moryflow_sdk.support.provider_settings import ModelsSettings

name = "litellm_models"
config_path = "models"
config_model = ModelsSettings


@hookimpl(before="local_model")
def models(ctx: PluginContext) -> list[ModelProvider]:
    """Offer the models that litellm serves."""
    from .provider import LitellmModels

    return [LitellmModels(ctx.config, getattr(ctx, "environ", os.environ))]
