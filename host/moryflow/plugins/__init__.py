"""Find plugins, load them all or nothing, order them, let them begin and end. What runs them is ``kernel/``."""

from .lifecycle import dispose, start
from .load import load_plugin_set

__all__ = ["dispose", "load_plugin_set", "start"]
