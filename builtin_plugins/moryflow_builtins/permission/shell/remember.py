"""What *always* stores for a command (D5)."""

from __future__ import annotations

import re

from moryflow_sdk import Remember
from moryflow_sdk.patterns import escape

from moryflow_builtins.permission.judged import Judged

from .line import Line
from .programs import PROGRAMS

_STORED = ("default", "user", "inline", "session")


def remembered(line: Line, answer: Judged) -> Remember | None:
    """Return the literal pattern of a command, or ``None`` where no stored rule could answer the question."""
    by_agent = answer.rule is not None and answer.rule.source not in _STORED
    if by_agent or answer.bypass == "never" or not line.storable:
        return None
    return Remember(scope="user", domain="bash", pattern=escape(line.quoted), wider=_wider(line))


def _wider(line: Line) -> str:
    """Return a pattern for more commands of the same kind, where it covers nothing but plain words of one program."""
    name = line.args[0].text if line.args else ""
    if line.assigned or line.facts.guards or line.facts.inner or line.facts.texts or name not in _WIDENED:
        return ""
    if name not in _WITH_VERBS:
        return f"{name} *"
    verb = line.args[1].text if len(line.args) > 1 else ""
    return f"{name} {verb} *" if _VERB.fullmatch(verb) else ""


_WITH_VERBS = frozenset({"git", "npm", "pnpm", "yarn", "cargo", "go", "docker", "kubectl", "gh", "uv", "poetry", "pip", "make"})
_WIDENED = _WITH_VERBS | {name for name, (operands, _) in PROGRAMS.items() if operands[0] in "rp-"}
"""Programs that read; a pattern for those that change files is not offered."""

_VERB = re.compile(r"[a-z][a-z0-9-]*")
