"""Take over what other systems were told: rules, servers, agents, commands, skills, models and sessions.

A reader for each system makes an :class:`ImportPlan` and changes nothing; :mod:`.write` applies it and takes it back. What
has no meaning here becomes the stricter rule, and a line of the plan says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple

from moryflow_sdk import ConfigError

System = Literal["claude", "opencode", "codex", "anyhunt"]
SYSTEMS: tuple[System, ...] = ("claude", "opencode", "codex", "anyhunt")
LAST_COUNTS: tuple[System, ...] = ("opencode", "anyhunt")
"""The systems in which the last rule that matches counts, as here; in the others the strictest does."""
Becomes = Literal["same", "stricter", "in place", "skipped", "error"]


class Item(NamedTuple):
    """One thing that was found.

    :param kind: ``rule``, ``server``, ``agents``, ``commands``, ``skills``, ``model``, ``setting``, ``hook`` or ``sessions``.
    :param becomes: what happens with it; ``error`` if it could not be read.
    :param result: what it is here, in the words of the configuration.
    :param why: why it is stricter, skipped or wrong.
    """

    kind: str
    original: str
    becomes: Becomes
    result: str = ""
    why: str = ""
    where: str = ""


class NewRule(NamedTuple):
    """A rule to write, and the comment above it, which has the original."""

    domain: str
    pattern: str
    decision: str
    comment: str

    @property
    def entry(self) -> dict[str, str]:
        return {"domain": self.domain, "pattern": self.pattern, "decision": self.decision}


@dataclass
class ImportPlan:
    """What an import would do.

    :ivar folder: the folder that the rules are for; ``None`` for all.
    :ivar first: rules that allow or ask; they go before the user's own, so that no deny that is there is loosened.
    :ivar last: rules that deny; they go after the user's own, but for one that a later rule makes an exception to.
    :ivar settings: by path, the values to set where nothing is set.
    :ivar lists: by path, the entries to add to a list.
    :ivar transcripts: the files with sessions.
    """

    system: System
    root: Path
    folder: Path | None = None
    items: list[Item] = field(default_factory=list[Item])
    first: list[NewRule] = field(default_factory=list[NewRule])
    last: list[NewRule] = field(default_factory=list[NewRule])
    settings: dict[tuple[str, ...], Any] = field(default_factory=dict[tuple[str, ...], Any])
    lists: dict[tuple[str, ...], list[Any]] = field(default_factory=dict[tuple[str, ...], list[Any]])
    transcripts: list[Path] = field(default_factory=list[Path])

    def note(self, kind: str, original: str, becomes: Becomes, result: str = "", why: str = "", where: str = "") -> None:
        """Add a line to the report."""
        self.items.append(Item(kind, original, becomes, result, why, where))

    def rules(self, original: str, found: list[tuple[str, str, str]], where: str, why: str = "") -> None:
        """Add rules (domain, pattern, decision) that one original becomes; without any, it is skipped."""
        for domain, pattern, decision in found:
            side = self.last if decision == "deny" else self.first
            rule = NewRule(domain, pattern, decision, f"{self.system}: {original}")
            if decision != "deny" and self.system in LAST_COUNTS:  # an exception to an earlier deny
                above = [one for one in self.last if one.domain == domain and fnmatchcase(pattern, one.pattern)]
                self.last = [one for one in self.last if one not in above]
                self.first += above
            if rule not in side:
                side.append(rule)
        shown = ", ".join(f"{decision} {domain} {pattern}" for domain, pattern, decision in found)
        self.note("rule", original, "skipped" if not found else "stricter" if why else "same", shown, why, where)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many items become what."""
        found: dict[str, int] = {}
        for item in self.items:
            found[item.becomes] = found.get(item.becomes, 0) + 1
        return found


def plan_of(system: System, path: Path | None) -> ImportPlan:
    """Read what `system` keeps, in the user's home or at `path`, a project's folder or the system's own.

    :raises ConfigError: there is nothing of that system.
    """
    if system == "claude":
        from .claude import read
    elif system == "opencode":
        from .opencode import read
    elif system == "codex":
        from .codex import read
    else:
        from .anyhunt import read
    plan = read(path)
    if not plan.items:
        raise ConfigError(f"nothing of {system} is there", where=str(plan.root), next_step=f"moryflow import {system} PATH")
    return plan
