"""Move a damaged database aside and save from it what can be read."""

from __future__ import annotations

import time
from pathlib import Path

from .opening import ensure_ready, store_lock


def recover(path: Path) -> str:
    """Move the database at `path` aside, begin a new one, and return the sentence that says so."""
    with store_lock(path):
        aside = _move_aside(path)
    ensure_ready(path)
    return f"{path} was damaged; it is kept as {aside.name}"


def _move_aside(path: Path) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside = path.with_name(f"{path.name}.corrupt-{stamp}")
    for suffix in ("", "-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    return aside
