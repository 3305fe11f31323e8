"""End a quarantine by command, also for sessions of other processes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moryflow.hooks.quarantine import Quarantine

FILE = "released.json"


def release(home: Path, plugin: str) -> None:
    """Let every session take the hooks of `plugin` up again from its next turn on."""
    file = home / "cache" / FILE
    known = {**_read(file), plugin: time.time()}
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    fresh.write_text(json.dumps(known), "utf-8")
    fresh.replace(file)


def released_at(home: Path, plugin: str) -> float:
    """Return when `plugin` was last released, as seconds since the epoch; 0 when it never was."""
    return _read(home / "cache" / FILE).get(plugin, 0.0)


class Releases:
    """Looks, before each turn, whether something was released since the last one; one `stat` when nothing was."""

    def __init__(self, home: Path) -> None:
        self._file = home / "cache" / FILE
        self._seen = self._stamp()
        self._known = _read(self._file) if self._seen else {}

    def apply(self, quarantines: Iterable[Quarantine | None]) -> None:
        """Release what a person has named since the last call."""
        stamp = self._stamp()
        if stamp == self._seen:
            return
        before, self._known, self._seen = self._known, _read(self._file), stamp
        named = [plugin for plugin, at in self._known.items() if at != before.get(plugin)]
        for quarantine in filter(None, quarantines):
            for plugin in named:
                quarantine.release(plugin)

    def _stamp(self) -> int:
        try:
            return self._file.stat().st_mtime_ns
        except OSError:
            return 0


def _read(file: Path) -> dict[str, float]:
    try:
        return {str(plugin): float(at) for plugin, at in json.loads(file.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


__all__ = ["Releases", "release", "released_at"]
