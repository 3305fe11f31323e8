"""Differences between what is installed and the lock, cached so that every start can report them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from moryflow.base.paths import keep_start, recall_start
from moryflow.plugins.entry_points import environment_key, installed

from . import INSTALLING

if TYPE_CHECKING:
    from .distributions import Distribution
    from .lock import Locked

_SETTLED = 2.0
"""Seconds after the last installation from which on an answer is kept."""
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


class Drift(NamedTuple):
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
    key: list[Any] = [status.st_mtime_ns, status.st_size, environment_key(), _change(home / "plugins")]
    content = recall_start(home / "cache", "lock", key)
    try:
        if content is not None and all(_stamp(path) == stamp for path, stamp in content["files"].items()):
            return [Drift(**item) for item in content["found"]]
    except (TypeError, KeyError, AttributeError):
        pass
    stamps = {path: _stamp(path) for path in _locked_files(home)}
    found = drifts(home)
    if time.time() - max((place[1] for place in key[2] if isinstance(place, list)), default=0) / 1e9 < _SETTLED:
        return found  # an installation may be half done, and the rest of it change no folder's time
    keep_start(home / "cache", "lock", key, {"files": stamps, "found": [item._asdict() for item in found]})
    return found


def drifts(home: Path) -> list[Drift]:
    """Return every difference, by reading what is installed.

    :raises ConfigError: the lock cannot be read.
    """
    from moryflow.plugins.entry_points import normal

    from .distributions import installed_packages
    from .lock import Lockfile

    known = Lockfile(home).read()
    if not known:
        return []
    there = installed_packages()
    found = [drift for entry in known.values() if (drift := _drift(entry, there, home))]
    for item in installed(home / "cache"):
        if normal(item.dist) not in known:
            hint = f"moryflow plugin enable {item.name}, or moryflow plugin uninstall {item.name}"
            text = f"{item.dist} {item.version} is installed, but nobody agreed to it (it is not in plugins.lock)"
            found.append(Drift(item.dist, "unlocked", text, hint))
    return found


def _locked_files(home: Path) -> list[str]:
    """Return the files that the hashes of the lock are made of.

    :raises ConfigError: the lock cannot be read.
    """
    from moryflow.plugins.entry_points import normal

    from .distributions import installed_packages
    from .lock import Lockfile

    there = installed_packages()
    packages = (there.get(normal(entry.name)) for entry in Lockfile(home).read().values() if not entry.is_file)
    return [str(file) for item in packages if item is not None and not item.editable for file in item.files()]


def _drift(entry: Locked, there: Mapping[str, Distribution], home: Path) -> Drift | None:
    from moryflow.plugins.entry_points import normal

    sync = "moryflow plugin sync"
    if entry.is_file:
        missing = not (home / entry.name).exists()
        return Drift(entry.name, "missing", f"{entry.name} is in plugins.lock, but not there", sync) if missing else None
    item = there.get(normal(entry.name))
    if item is None:
        return Drift(entry.name, "missing", f"{entry.name} {entry.version} is in plugins.lock, but not installed", sync)
    package = item.package()
    accept = f"{sync}, or moryflow plugin enable {next(iter(entry.plugins), entry.name)} to agree to it"
    if package.version != entry.version and entry.kind != "editable":
        text = f"{entry.name} {package.version} is installed, but plugins.lock says {entry.version}"
        return Drift(entry.name, "version", text, accept)
    if package.digest != entry.hash:
        text = f"{entry.name} {package.version} is not what was agreed to: its files differ from plugins.lock"
        return Drift(entry.name, "content", text, accept)
    return None


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
