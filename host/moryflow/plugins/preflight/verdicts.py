"""What a probe found, and the verdicts of a home, kept by content hash and surroundings."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from moryflow.base.paths import keep

_VERSION = 3
AGAIN = 3600.0
"""Seconds after which code that did not finish in time is given another try: the machine may have been busy."""
_KEPT = 500
"""Verdicts that are kept; those that were not used for the longest time go first."""


@dataclass(frozen=True)
class ProbeVerdict:
    """What became of code in the probe.

    :param stage: how far it came: ``import``, ``register``, ``contribute``.
    :param fatal: the host itself would not have survived it, or not unharmed; such code is not imported. Other failures
        happen again, harmlessly, when the host imports it.
    :param notes: what it contributes and the host leaves out, each with its place.
    :param failed_hooks: contribute hooks that raised, took too long or returned nonsense; the host goes on without them.
    :param changed: what it changed that belongs to everyone but does no harm (``os.environ`` and the like).
    :param lost: nothing was found out, because the probe itself could not be made; not kept.
    :param fresh: found by this process, not read from the cache.
    """

    ok: bool
    stage: str = ""
    error: str = ""
    file: str = ""
    line: int = 0
    hint: str = ""
    hooks: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    ms: float = 0.0
    hash: str = ""
    fatal: bool = False
    timeout: bool = False
    lost: bool = False
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    failed_hooks: tuple[str, ...] = ()
    at: float = 0.0
    fresh: bool = False

    @property
    def stands(self) -> bool:
        """Whether the code may be imported; if not, the record is made of this verdict."""
        return self.ok or not (self.fatal or self.fresh)


def verdict_of(values: Mapping[str, Any]) -> ProbeVerdict:
    """Return the verdict in a JSON object."""
    lists = {name: tuple(values.get(name, ())) for name in ("hooks", "tools", "changed", "notes", "failed_hooks")}
    return ProbeVerdict(**{**values, **lists})


class VerdictCache:
    """``cache/probes.json`` of a home: verdicts by hash, and hashes of installed code by the state of its files.

    :param surroundings: hash of the Python version and of what is installed; verdicts of others do not count.
    """

    def __init__(self, home: Path, surroundings: str) -> None:
        self._file = home / "cache" / "probes.json"
        self.surroundings = surroundings
        self._verdicts, self.stamps = self._read()
        self._stamped = dict(self.stamps)
        self._dirty = False
        self._lock = threading.Lock()

    def get(self, digest: str) -> ProbeVerdict | None:
        """Return the verdict on code with this hash, ``None`` when there is none or it is due again."""
        found = self._verdicts.pop(digest, None)
        if found is not None:
            self._verdicts[digest] = found  # the last one used is the last one dropped
        return None if found is None or (found.timeout and time.time() - found.at > AGAIN) else found

    def put(self, verdict: ProbeVerdict) -> None:
        """Keep a verdict."""
        self._verdicts.pop(verdict.hash, None)
        self._verdicts[verdict.hash] = replace(verdict, at=time.time(), fresh=True)
        self._dirty = True

    def save(self) -> None:
        """Write what is new, beside what other processes have written; a home that cannot be written loses nothing."""
        if not self._dirty and self.stamps == self._stamped:
            return
        with self._lock:
            self._save()

    def _save(self) -> None:
        others, stamps = self._read()
        ours = {digest: verdict for digest, verdict in list(self._verdicts.items()) if not verdict.lost}
        unused = {digest: verdict for digest, verdict in others.items() if digest not in ours}
        kept = list({**unused, **ours}.items())[-_KEPT:]
        self._verdicts = dict(list(self._verdicts.items())[-_KEPT:])
        verdicts = {digest: {**asdict(verdict), "fresh": False} for digest, verdict in kept}
        content = {"surroundings": self._key, "verdicts": verdicts, "stamps": {**stamps, **self.stamps}}
        if keep(self._file, json.dumps(content)):
            self._dirty, self._stamped = False, dict(self.stamps)

    @property
    def _key(self) -> list[Any]:
        return [_VERSION, self.surroundings]

    def _read(self) -> tuple[dict[str, ProbeVerdict], dict[str, list[str]]]:
        try:
            content = json.loads(self._file.read_bytes())
            if content["surroundings"] != self._key:
                return {}, {}
            verdicts = {str(digest): verdict_of(values) for digest, values in content["verdicts"].items()}
            return verdicts, dict(content["stamps"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}, {}
