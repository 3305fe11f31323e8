"""Commands that run in a working sandbox may go unasked, where a rule says so.

What a command names is asked about all the same: files that hold secrets, and files that run later. The sandbox hides and
closes them, unless a person agreed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from moryflow_sdk import Allow, Ask, Turn, Verdict

from .judgement import Decision, Judgement
from .policy import hides_nothing

_VAULT = "vault:"


def hidden_files(turn: Turn) -> Callable[[str], bool]:
    """Return what says of an absolute path that a command of `turn` finds nothing there: its sandbox hides the file.

    Files that are named are asked about all the same; this is for what a command would read without naming it.
    """
    from moryflow_sdk.sandbox import confinement, known_sandbox, secret_places

    if known_sandbox() is None or not confinement(turn.rules.all()).used:
        return hides_nothing
    vault, elsewhere = f"{turn.vault}/", [*secret_places(Path.home()), turn.home]

    def hides(path: str) -> bool:
        if path.startswith(vault):
            names = path.removeprefix(vault).split("/")
            return names[-2:] == [".git", "config"] or not _SHOWN.intersection(names[:-1])
        return any(Path(path).is_relative_to(place) for place in elsewhere)

    return hides


_SHOWN = frozenset({".git", "site-packages", "dist-packages", "node_modules"})
"""The keys of other people's packages are not hidden, and in a repository the secrets of its configuration alone."""


def in_sandbox(decision: Decision, tool: str, turn: Turn) -> Verdict:
    """Return the verdict of `decision`; a question that only the defaults ask about a command is left out.

    What a rule of a person or of an agent asks, what no mode lifts, and files of the vault that are named are asked about
    all the same.
    """
    verdict = decision.verdict
    if tool != "bash" or not isinstance(verdict, Ask):
        return verdict
    asked = [part for part in decision.parts if part.decision == "ask"]
    named = [part for part in asked if part.domain in ("read", "edit") and part.target.startswith(f"{_VAULT}/")]
    if named:
        verdict = verdict.replace(opens=tuple(_paths(named, turn)))
    if named or verdict.bypass == "never" or any(part.rule and part.rule.source != "default" for part in asked):
        return verdict
    from moryflow_sdk.sandbox import confinement, known_sandbox

    if not confinement(turn.rules.all()).unasked or known_sandbox() is None:
        return verdict
    return Allow(reason="in the sandbox, which a rule lets run unasked", rule=verdict.rule)


def _paths(parts: Iterable[Judgement], turn: Turn) -> Iterable[str]:
    return dict.fromkeys(f"{turn.vault}{part.target.removeprefix(_VAULT)}" for part in parts)
