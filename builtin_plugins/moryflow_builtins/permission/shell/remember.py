"""What *always* stores for a command (D5)."""

from __future__ import annotations

from moryflow_sdk import Remember
from moryflow_sdk.patterns import escape

from moryflow_builtins.permission.judged import Judged

from .line import Line

_STORED = ("default", "user", "inline", "session")


def remembered(line: Line, answer: Judged) -> Remember | None:
    """Return the literal pattern of a command, or ``None`` where no stored rule could answer the question."""
    by_agent = answer.rule is not None and answer.rule.source not in _STORED
    if by_agent or answer.bypass == "never" or not line.storable:
        return None
    return Remember(scope="user", domain="bash", pattern=escape(line.quoted))
