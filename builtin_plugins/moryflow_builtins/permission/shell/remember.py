"""What *always* stores for a command."""

from __future__ import annotations

import re
from collections.abc import Mapping

from moryflow_sdk import Remember
from moryflow_sdk.patterns import escape

from moryflow_builtins.permission.judgement import Judgement, stored_rule_answers

from .line import Line
from .programs import PROGRAMS


def remembered(line: Line, answer: Judgement, folder: str, contents: Mapping[str, str] | None) -> Remember | None:
    """Return the literal pattern of a command, or ``None`` where no stored rule could answer the question.

    :param contents: the state of the files that it runs; ``None`` where that cannot be told.
    """
    if not stored_rule_answers(answer) or not line.storable or contents is None or not folder.isprintable():
        return None
    bound_to = {"folder": folder, "contents": contents}
    return Remember(scope="user", domain="bash", pattern=escape(line.quoted), wider=_wider(line), **bound_to)


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
