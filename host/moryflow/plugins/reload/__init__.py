"""Notice what a person saves, so that the next turn begins with it."""

from .reloader import Reloader
from .report import Change, Report, compare

__all__ = ["Change", "Reloader", "Report", "compare"]
