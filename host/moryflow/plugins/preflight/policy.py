"""Decide which code a host imports: code that the user consented to and that passed the probe."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from moryflow_sdk.support.secrets import hide

from moryflow.hooks.plugin_set import LoadFailure, Pending
from moryflow.plugins.consent import WAITS, Consents
from moryflow.plugins.discovery import Candidate
from moryflow.plugins.entry_points import read_installed
from moryflow.plugins.importer import sources_of
from moryflow.plugins.sources import Fingerprints, unit_of

from .prober import USUAL_SECONDS, Prober, ProbeVerdict, VerdictCache, shared_prober

# What can be probed: a plugin or a file with tools.
Item = Candidate | Path


class AdmissionPolicy:
    """Decides what one host may import; an :class:`~moryflow.plugins.consent.Admission`.

    :param news: called, from any thread, when a probe ended that nobody waited for any more.
    """

    def __init__(self, home: Path, *, prober: Prober | None = None, news: Callable[[], None] | None = None) -> None:
        self.home = home
        self.consents = Consents(home)
        self.cache = VerdictCache(home, read_installed(home / "cache").surroundings)
        self.prints = Fingerprints(self.cache.stamps)
        self.news = news
        self.doubted: set[Path] = set()
        """Code outside the home that changed while a shell command ran; it is not loaded again until the user consents."""
        self._prober = prober or shared_prober()
        self._running: dict[str, Future[ProbeVerdict]] = {}

    def look_again(self) -> None:
        """Forget all verdicts if a package was installed or removed since."""
        surroundings = read_installed(self.home / "cache").surroundings
        if surroundings != self.cache.surroundings:
            self.cache = VerdictCache(self.home, surroundings)
            self.prints = Fingerprints(self.cache.stamps)

    # ---------------------------------------------------------------- admission

    def place(self, candidate: Candidate) -> None:
        """Refuse code that appeared while a host ran and that the user has not consented to.

        :raises Pending: it waits for consent; the hint is the command that gives it.
        """
        if candidate.tier == "user" and self.consents.is_waiting(candidate.target):
            raise Pending("consent", WAITS, file=candidate.file, hint=f"moryflow plugin enable {candidate.name}")

    def code(self, candidate: Candidate, digest: str) -> None:
        """Refuse code that has not been probed, or that would break the host.

        :raises Pending: it has not been probed, or changed during a shell command and waits for consent.
        :raises LoadFailure: the probe failed; the error is that of its verdict.
        """
        if self.doubted and _root(candidate) in self.doubted:
            text = "it changed while a shell command ran, so the new version waits for your consent"
            raise Pending("consent", text, file=candidate.file, hint="agree in moryflow dev or chat, or start Moryflow again")
        verdict = self.cache.get(_key(candidate, digest))
        if verdict is None:
            text = "it has not been seen before and is being tried out in a process of its own"
            raise Pending("probe", text, file=candidate.file, hint="it joins at the next turn")
        if not verdict.stands:
            file = verdict.file or candidate.file
            stage: Any = verdict.stage or "import"
            raise LoadFailure(stage, verdict.error, file=file, line=verdict.line, hint=verdict.hint)

    # ---------------------------------------------------------------- probing

    def digest(self, item: Item) -> str:
        """Return the content hash of an item's code; empty if it has no code that may be run."""
        if isinstance(item, Candidate) and item.tier != "user":
            unit = unit_of(item.target)
            return self.prints.of(unit) if unit is not None else ""
        candidate = item if isinstance(item, Candidate) else Candidate.at(item)
        try:
            return sources_of(candidate).hash
        except LoadFailure:
            return ""

    def cached(self, item: Item) -> ProbeVerdict | None:
        """Return the cached verdict on an item in its current version; ``None`` if that has to be probed."""
        digest = self.digest(item)
        return self.cache.get(_key(item, digest)) if digest else None

    def unknown(self, items: Iterable[Item]) -> list[Item]:
        """Return the items that may be run and whose current version has not been probed."""
        return [item for item in items if self._is_unknown(item)]

    def _is_unknown(self, item: Item) -> bool:
        if isinstance(item, Candidate) and (item.tier == "builtin" or item.problem is not None):
            return False
        place = item if isinstance(item, Path) else item.target if item.tier == "user" else ""
        if place and self.consents.is_waiting(place):
            return False
        if self.doubted and isinstance(item, Candidate) and _root(item) in self.doubted:
            return False
        digest = self.digest(item)
        return bool(digest) and self.cache.get(_key(item, digest)) is None

    async def examine(self, items: Sequence[Item], config: Mapping[str, Any], *, wait: float) -> None:
        """Probe `items`. Probes that take longer than `wait` seconds go on in the background, and :attr:`news` is called."""
        futures = {self.ask(item, config) for item in items}
        if futures:
            await asyncio.wait([asyncio.wrap_future(future) for future in futures], timeout=wait)
        self.cache.save()
        for future in futures:
            if not future.done():
                future.add_done_callback(self._save_late)

    def ask(self, item: Item, config: Mapping[str, Any], *, seconds: float = USUAL_SECONDS) -> Future[ProbeVerdict]:
        """Begin a probe of `item`, or join one that runs; the verdict is cached."""
        key = _key(item, self.digest(item))
        running = self._running.get(key)
        if running is None or running.done():
            request = _request(item, self.home, config, seconds)
            running = self._running[key] = self._prober.ask(request, partial(self._keep, key))
        return running

    def _keep(self, key: str, verdict: ProbeVerdict) -> ProbeVerdict:
        notes = tuple(map(hide, verdict.notes))
        verdict = replace(verdict, hash=key, error=hide(verdict.error), hint=hide(verdict.hint), notes=notes)
        self.cache.put(verdict)
        return verdict

    def _save_late(self, _: Future[ProbeVerdict]) -> None:
        self.cache.save()
        if self.news is not None:
            self.news()


def _key(item: Item, digest: str) -> str:
    """Return the cache key of an item: hash and path, because a verdict names lines of one file."""
    return f"{digest}:{item.target if isinstance(item, Candidate) else item}"


def _root(candidate: Candidate) -> Path:
    unit = unit_of(candidate.target) if candidate.tier != "user" else None
    return unit.root if unit is not None else Path(candidate.target).resolve()


def _request(item: Item, home: Path, config: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    settings = json.loads(json.dumps(config, default=str))
    common = {"home": str(home), "config": settings, "seconds": seconds}
    if isinstance(item, Path):
        return {**common, "file": str(item)}
    root = item.file if item.tier == "user" else _root(item)
    return {**common, "candidate": item._replace(problem=None)._asdict(), "root": str(root)}


def probe_all(
    items: Sequence[Item], *, home: Path, config: Mapping[str, Any], seconds: float = USUAL_SECONDS
) -> list[ProbeVerdict]:
    """Probe all `items` again and block until all verdicts are there; for code that runs on a thread."""
    policy = AdmissionPolicy(home)
    asked = [policy.ask(item, config, seconds=seconds) for item in items]
    verdicts = [future.result() for future in asked]
    policy.cache.save()
    return verdicts
