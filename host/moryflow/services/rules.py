"""The user's permission rules, and how an *always* is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from moryflow_sdk import Rule, thaw

from moryflow.config.rules import UNUSABLE

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import TurnContext


def bound_to(rule: Rule) -> dict[str, Any]:
    """Return what `rule` is bound to, as a configuration says it."""
    return {key: thaw(value) for key in ("folder", "contents") if (value := getattr(rule, key))}


class RulesService:
    """Reads configured rules and session grants; appends to either."""

    def __init__(self, scope: TurnContext) -> None:
        self._scope = scope

    def all(self) -> Sequence[Rule]:
        """Return rules in the order they are matched: user, inline, then this session's grants."""
        return (*self._scope.around.config.rules(), *self._scope.live.grants)

    def problems(self) -> Sequence[str]:
        """Return what is wrong with rules that could not be read; also that a file may hold some that were lost."""
        problems = self._scope.around.config.problems
        return [str(one) for one in problems if one.code != UNUSABLE and (one.fatal or one.code == "rule_invalid")]

    async def append(self, rule: Rule, *, scope: Literal["user", "session"]) -> str:
        """Add `rule` and return where it stands. It holds for the session at once, also when the file cannot be written.

        :raises ConfigError: the configuration cannot be written.
        """
        granted = rule.replace(source="session")
        if granted not in self._scope.live.grants:
            self._scope.live.grants.append(granted)
        if scope == "session":
            return ""
        from moryflow.config import edit

        file = self._scope.around.config.path
        entry = {"domain": rule.domain, "pattern": rule.pattern, "decision": rule.decision, **bound_to(rule)}
        await asyncio.to_thread(edit.append_rule, file, entry)
        return f"{file}:{await asyncio.to_thread(edit.line_of_rule, file, entry)}"
