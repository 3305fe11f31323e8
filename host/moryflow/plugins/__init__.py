"""The life of a plugin: find, load all of it or nothing, order, start, dispose. ``hooks/`` calls them."""

from .lifecycle import dispose, start
from .load import load_plugin_set

__all__ = ["dispose", "load_plugin_set", "start"]
