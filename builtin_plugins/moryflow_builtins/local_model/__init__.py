"""The model ``local``: a small instruct model on this machine, for those who have no key yet."""

from __future__ import annotations

from moryflow_sdk import ModelProvider, PluginContext, hookimpl

name = "local_model"


@hookimpl(after=("openai_compatible", "litellm_models"))
def models(ctx: PluginContext) -> list[ModelProvider]:
    """Offer ``local``."""
    from .provider import LocalModel
    from .runtime import Runtime

    return [LocalModel(Runtime(ctx.home))]
