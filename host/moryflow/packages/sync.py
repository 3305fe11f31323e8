"""``plugin sync``: make the environment what the lock says."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import InstallError
from .distributions import normal
from .install import Ready, finish, read
from .lock import FILE, Locked
from .lock_check import drifts
from .manager import Manager
from .origins import PackageOrigin
from .single_files import content_of, file_digest, plugin_name, put_file


@dataclass(frozen=True)
class Synced:
    """What ``sync`` did about one difference, or would do."""

    name: str
    action: str
    text: str
    done: bool


def sync(manager: Manager, *, dry_run: bool = False) -> list[Synced]:
    """Install what the lock has and the environment has not, exactly as it was agreed to. What is too much stays."""
    known = manager.lock.read()
    done: list[Synced] = []
    for drift in drifts(manager.home):
        if drift.kind == "unlocked":
            done.append(Synced(drift.name, "left", f"{drift.text}: {drift.next_step}", False))
            continue
        entry = known[drift.name if "/" in drift.name else normal(drift.name)]
        verb = "install" if drift.kind == "missing" else "reinstall"
        if dry_run:
            done.append(Synced(entry.name, verb, f"would {verb} {entry.name} {entry.version}: {drift.text}", False))
            continue
        try:
            _restore(entry, manager)
            done.append(Synced(entry.name, verb, f"{verb}ed {entry.name} {entry.version}".rstrip(), True))
        except InstallError as error:
            done.append(Synced(entry.name, "failed", str(error), False))
    return done


def _restore(entry: Locked, manager: Manager) -> None:
    """Install what one line of the lock says.

    :raises InstallError: it cannot be had any more as it was agreed to.
    """
    if entry.is_file:
        data = content_of(Path(entry.origin))
        _agreed(entry, file_digest(data), plugin_name(Path(entry.name)))
        put_file(manager.home, plugin_name(Path(entry.name)), data)
        return
    with tempfile.TemporaryDirectory(prefix="moryflow-") as folder:
        ready = read(_pinned(entry), Path(folder), manager)
        _agreed(entry, ready.package.digest, entry.name)
        also = manager.plan(ready.origin, ready.package)
        finish(entry.source, Ready(ready.package, ready.origin, entry.commit), manager, also=tuple(also), action="installed")


def _agreed(entry: Locked, digest: str, name: str) -> None:
    if digest != entry.hash:
        problem = f"what {entry.origin} gives now is not what was agreed to"
        raise InstallError(problem, where=FILE, next_step=f"moryflow plugin update {name}")


def _pinned(entry: Locked) -> PackageOrigin:
    """Return the origin with the version or commit that was agreed to."""
    if entry.kind == "index":
        return PackageOrigin("index", f"{entry.name}=={entry.version}")
    if entry.kind == "git" and entry.commit:
        address, hash_sign, rest = entry.origin.partition("#")
        scheme, _, path = address.partition("://")
        head, at, _ = path.rpartition("@")
        bare = head if at and "/" in head else path
        return PackageOrigin("git", f"{scheme}://{bare}@{entry.commit}{hash_sign}{rest}")
    return entry.source


__all__ = ["Synced", "sync"]
