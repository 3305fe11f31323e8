"""Reload what a person saves, from the next turn on."""

from .reloader import Reloader
from .report import PluginChange, ReloadReport, compare

__all__ = ["PluginChange", "ReloadReport", "Reloader", "compare"]
