"""The life of a plugin: find it, load all of it or nothing, order its hooks, start and dispose. ``hooks/`` calls plugins."""

from .lifecycle import dispose, start
from .load import load_plugin_set

__all__ = ["dispose", "load_plugin_set", "start"]
