"""Reload what a person saves, from the next turn on."""

from .reloader import Reloader
from .report import Change, Report, compare

__all__ = ["Change", "Reloader", "Report", "compare"]
