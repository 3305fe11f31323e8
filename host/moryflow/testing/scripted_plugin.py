"""Loaded as a plugin by the ``moryflow`` fixture: brings its scripted model into the host of the same home."""

from __future__ import annotations

from pathlib import Path

from moryflow_sdk import ModelProvider, PluginContext, hookimpl
from moryflow_sdk.support.scripted import ScriptedModel

name = "scripted_model"
MODELS: dict[Path, ScriptedModel] = {}
"""The model of each host that the fixture has made, by home folder."""


@hookimpl
def models(ctx: PluginContext) -> list[ModelProvider]:
    """Offer the fixture's model."""
    found = MODELS.get(ctx.home)
    return [found] if found else []
