"""Deadlines of plugins, which a person who debugs them lifts."""

from __future__ import annotations

NEVER = 86400.0
"""Seconds that stand for no deadline: a day."""

_lifted = False


def lift() -> None:
    """Let every deadline that begins from now on be :data:`NEVER`, until the process ends (``--debug``, ``breakpoint()``)."""
    global _lifted
    _lifted = True


def lifted() -> bool:
    """Whether somebody debugs a plugin in this process."""
    return _lifted


def limit(seconds: float) -> float:
    """Return how long a call may take that has `seconds`."""
    return NEVER if _lifted else seconds
