"""Try new code in the probe before it is kept."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow.base.builtins import BUILTINS
from moryflow.hooks.plugin_set import LoadFailure
from moryflow.plugins.discovery import Candidate, discover
from moryflow.plugins.entry_points import normal
from moryflow.plugins.last_seen import recall

from . import InstallError

if TYPE_CHECKING:
    from moryflow.plugins.preflight.prober import ProbeVerdict

SECONDS = 10.0
"""Seconds that one plugin may take; somebody waits for it."""


class DoesNotLoad(InstallError):
    """What was to be installed does not load, so what was there before is there still (exit code 3).

    :param found: by plugin, what the probe said.
    """

    code = "does_not_load"

    def __init__(self, message: str, *, found: Mapping[str, ProbeVerdict], next_step: str) -> None:
        super().__init__(message, next_step=next_step)
        self.found = found


class Trial:
    """Tries plugins as this person's host would load them.

    :param config: the person's settings as one object.
    :param disabled: plugins that are switched off; no host would load them, so they are not tried.
    """

    def __init__(self, home: Path, config: Mapping[str, Any], disabled: Collection[str] = ()) -> None:
        self._home = home
        self._config = config
        self._disabled = disabled

    def package(self, name: str, version: str, *, before: Collection[str]) -> list[str]:
        """Try the plugins of a package as it is installed now; return what a person should know of those that load.

        :param before: the plugins that were there before; what they were like is remembered from their last load.
        :raises DoesNotLoad: one of them does not, and did; or none does.
        """
        importlib.invalidate_caches()
        mine = [
            candidate
            for candidate in discover(self._home, BUILTINS)
            if candidate.tier == "installed" and normal(candidate.source.split(" ")[0]) == normal(name)
        ]
        wanted = [candidate for candidate in mine if candidate.name not in self._disabled]
        found = {
            each.name: verdict for each, verdict in zip(wanted, probe_candidates(wanted, self._home, self._config), strict=True)
        }
        bad = {name: verdict for name, verdict in found.items() if not _would_load(verdict, updated=name in before)}
        lost = [each for each in bad if each not in before or not self._failed_before(each)]
        if bad and (lost or len(bad) == len(found)):
            hint = (
                _one_of_several(bad, found)
                or next((verdict.hint for verdict in bad.values() if verdict.hint), "")
                or "ask its author for a version that loads"
            )
            raise DoesNotLoad(f"{f'{name} {version}'.rstrip()} does not load:\n{_failures(bad)}", found=bad, next_step=hint)
        notes = [f"{each} does not load, as before: {verdict.error}" for each, verdict in bad.items()]
        notes += [f"{each}: {note}" for each, verdict in found.items() if verdict.ok for note in verdict.notes]
        return notes + [f"{each.name} is disabled, so it was not tried" for each in mine if each not in wanted]

    def file(self, name: str, path: Path) -> None:
        """Try a plugin in one file, at a place where nothing else lies.

        :raises DoesNotLoad: it does not.
        """
        if name in self._disabled:
            return
        [verdict] = probe_candidates([Candidate(name, "user", str(path), str(path), file=str(path))], self._home, self._config)
        if not _would_load(verdict, updated=False):
            hint = verdict.hint or "mend it, then install it again"
            raise DoesNotLoad(f"{name} does not load:\n{_failures({name: verdict})}", found={name: verdict}, next_step=hint)

    def _failed_before(self, name: str) -> bool:
        last = [known.record for known in recall(self._home).values() if known.record.name == name]
        return bool(last) and last[-1].status == "failed"


def probe_candidates(candidates: Sequence[Candidate], home: Path, config: Mapping[str, Any]) -> list[ProbeVerdict]:
    """Return what the probe says of candidates as they are now; what is wrong before anything is run stays so."""
    from moryflow.plugins.preflight.policy import probe_all
    from moryflow.plugins.preflight.prober import ProbeVerdict

    wrong: dict[Candidate, ProbeVerdict] = {}
    for candidate in candidates:
        problem: LoadFailure | None = candidate.problem
        if problem is not None:
            place = (problem.file, problem.line, problem.hint)
            wrong[candidate] = ProbeVerdict(False, problem.stage, problem.message, *place)
    rest = [candidate for candidate in candidates if candidate not in wrong]
    found = wrong | dict(zip(rest, probe_all(rest, home=home, config=config, seconds=SECONDS), strict=True))
    return [found[candidate] for candidate in candidates]


def _would_load(verdict: ProbeVerdict, *, updated: bool) -> bool:
    """Whether a host would load all of it. Of a new plugin settings may be missing: they are given once it is there."""
    unset = verdict.ok and verdict.stage == "register" and bool(verdict.notes)
    return verdict.ok and not verdict.failed_hooks and not (updated and unset)


def _failures(bad: Mapping[str, ProbeVerdict]) -> str:
    return "\n".join(f"  {name} failed ({verdict.stage}): {_place(verdict)}{_error(verdict)}" for name, verdict in bad.items())


def _place(verdict: ProbeVerdict) -> str:
    if verdict.ok:
        return ""
    return f"{verdict.file}:{verdict.line}: " if verdict.line else f"{verdict.file}: " if verdict.file else ""


def _error(verdict: ProbeVerdict) -> str:
    """Return what is wrong; that a plugin can be checked where it is helps nobody who does not get it."""
    return verdict.error or "; ".join(note.partition("; next: ")[0] for note in verdict.notes)


def _one_of_several(bad: Mapping[str, ProbeVerdict], found: Mapping[str, ProbeVerdict]) -> str:
    """Return how to install the others of a package without the one that does not load."""
    if len(bad) == len(found):
        return ""
    import json

    names = json.dumps(list(bad))
    return f"moryflow config set disabledPlugins '{names}' (with those that are in it already) installs the others alone"
