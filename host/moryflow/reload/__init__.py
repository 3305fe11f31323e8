"""Notice what a person saves below Moryflow's home, so that the next turn begins with it."""

from .watch import HomeWatch

__all__ = ["HomeWatch"]
