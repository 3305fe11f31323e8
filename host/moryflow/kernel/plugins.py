"""The plugins of one generation: what they are made of, and the three verbs ``load_plugin_set``, ``start``, ``dispose``."""

from __future__ import annotations

from moryflow.loading import dispose, load_plugin_set, start

from .records import (
    ConfigReader,
    HookFailure,
    Implementation,
    LoadRecord,
    OwnedTool,
    Plugin,
    PluginSet,
    PluginSettings,
)

__all__ = [
    "ConfigReader",
    "HookFailure",
    "Implementation",
    "LoadRecord",
    "OwnedTool",
    "Plugin",
    "PluginSet",
    "PluginSettings",
    "dispose",
    "load_plugin_set",
    "start",
]
