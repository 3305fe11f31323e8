"""Differences between what is installed and the lock, cached so that every start can report them."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from moryflow.base.paths import keep
from moryflow.plugins.entry_points import environment_key

_SETTLED = 2.0
"""Seconds after the last installation from which on an answer is kept."""


INSTALLING = "installing"
"""Folder of the home that is there while something is installed, and after an installation that was killed."""
log = logging.getLogger(__name__)


def put_back(home: Path) -> None:
    """Put back what an installation was changing when it was killed; nothing of it stops a start. Costs a look."""
    if not (home / INSTALLING).is_dir():
        return
    from moryflow_sdk import MoryflowError

    from .rollback import recover

    try:
        names = recover(home)
    except MoryflowError as error:
        log.warning("%s", error)
        return
    if names:
        log.warning("an installation was cut off; what was there before is there again (%s)", ", ".join(names))


@dataclass(frozen=True)
class Drift:
    """One difference between the lock and what is installed.

    :param kind: ``missing``, ``version``, ``content`` or ``unlocked``.
    """

    name: str
    kind: str
    text: str
    next_step: str


def quick_drifts(home: Path) -> list[Drift]:
    """Return the differences as they were when the lock, an installation or a file of one last changed; cheap when none did."""
    try:
        status = (home / "plugins.lock").stat()
    except OSError:
        return []
    key = json.loads(json.dumps([status.st_mtime_ns, status.st_size, environment_key(), _change(home / "plugins")]))
    cache = home / "cache" / "lock_check.json"
    try:
        content = json.loads(cache.read_bytes())
        if content["key"] == key and all(_stamp(path) == stamp for path, stamp in content["files"].items()):
            return [Drift(**item) for item in content["found"]]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    from .sync import drifts, locked_files

    stamps = {path: _stamp(path) for path in locked_files(home)}
    found = drifts(home)
    if time.time() - max((place[1] for place in key[2] if isinstance(place, list)), default=0) / 1e9 < _SETTLED:
        return found  # an installation may be half done, and the rest of it change no folder's time
    keep(cache, json.dumps({"key": key, "files": stamps, "found": [asdict(item) for item in found]}))
    return found


def _change(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def _stamp(path: str) -> list[int]:
    """Return what changes with every save; the change time cannot be set back as the modification time can."""
    try:
        status = Path(path).stat()
    except OSError:
        return []
    return [status.st_ctime_ns, status.st_size]


__all__ = ["INSTALLING", "Drift", "put_back", "quick_drifts"]
