"""Which of the files below a judged folder may be shown in results.

The person has agreed to the folder. A file in it is left out when its name looks like secrets and no rule allows it, or
when a rule, the person's or the agent's, asks or denies; and counted, so that nobody wonders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from moryflow_sdk import Rule, Target, ToolContext
from moryflow_sdk.patterns import Pattern, compile_rule
from moryflow_sdk.rule_entries import ANY_DOMAIN
from moryflow_sdk.sensitive import sensitive, sensitive_among

Compiled = Sequence[tuple[Rule, Pattern]]


@dataclass
class Reader:
    """Answers for one search and counts what it refused."""

    ctx: ToolContext
    target: Target
    secrets: int = 0
    by_rule: int = 0

    def refused(self, paths: Sequence[str]) -> set[str]:
        """Return those of `paths` (relative to the folder) that may not be shown, and count them."""
        suspects = paths if self._layers or self._home_below is not None else sensitive_among(paths)
        return {path for path in suspects if not self.shows(path)}

    def shows(self, path: str) -> bool:
        """Whether one file may be shown; each that may not is counted, so ask once."""
        secret = sensitive(path)
        if self._allowed(path, secret=secret):
            return True
        self.secrets += secret
        self.by_rule += not secret
        return False

    @property
    def notes(self) -> list[str]:
        """What to say about the files that were left out."""
        counts = (
            (self.secrets, "sensitive", "their names look like secrets"),
            (self.by_rule, "other", "a rule asks or denies"),
        )
        return [f"{count} {kind} file{'s' * (count != 1)} not searched: {why}" for count, kind, why in counts if count]

    def _allowed(self, path: str, *, secret: bool) -> bool:
        """Answer as ``read`` of the file would be answered, but for where it is: that has been agreed to."""
        if self._home_below is not None and f"{path}/".startswith(self._home_below):
            return False
        text = f"{self.target.text.rstrip('/')}/{path}"
        lifted = self.ctx.mode == "full_access"
        decisions = [decision for layer in self._layers if (decision := _last(layer, text))]
        if "deny" in decisions or ("ask" in decisions and not lifted):
            return False
        return not secret or lifted or bool(self._layers and _last(self._layers[0], text) == "allow")

    @cached_property
    def _layers(self) -> list[Compiled]:
        """The person's rules, and each agent's own, which can only make it stricter; none where there are none."""
        configured = _reading(self.ctx.rules.all())
        agents = _reading(self.ctx.agent.rules)
        sources = dict.fromkeys(rule.source for rule, _ in agents)
        own = [[(rule, pattern) for rule, pattern in agents if rule.source == source] for source in sources]
        return [configured, *own] if configured or own else []

    @cached_property
    def _home_below(self) -> str | None:
        """Moryflow's own folder as a path below the target: it holds tokens, and no search looks into it."""
        home, folder = str(self.ctx.home).rstrip("/") + "/", (self.target.path or "").rstrip("/") + "/"
        if home.startswith(folder):
            return home.removeprefix(folder)
        return "" if folder.startswith(home) and not folder.startswith(f"{home}agent-output/") else None


def _reading(rules: Iterable[Rule]) -> Compiled:
    return [(rule, compile_rule(rule)) for rule in rules if rule.domain in ("read", ANY_DOMAIN)]


def _last(layer: Compiled, text: str) -> str | None:
    """Return what the last matching rule decides; what one that cannot be used would have said is not known."""
    if doubts := {rule.decision for rule, pattern in layer if pattern.problem}:
        return "deny" if "deny" in doubts else "ask"
    return next((rule.decision for rule, pattern in reversed(layer) if pattern.matches(text)), None)
