"""``plugin sync``: make the environment what the lock says, and the notices when it is not."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moryflow.plugins.entry_points import installed

from .distributions import Installed, installed_packages, normal
from .errors import InstallError
from .install import Ready, finish, read
from .lock import FILE, Locked, Lockfile
from .lock_check import Drift
from .manager import Manager
from .origins import Origin
from .single_files import FOLDER, content_of, file_digest, plugin_name, put_file


@dataclass(frozen=True)
class Synced:
    """What ``sync`` did about one difference, or would do."""

    name: str
    action: str
    text: str
    done: bool


# ---------------------------------------------------------------- differences


def drifts(home: Path) -> list[Drift]:
    """Return every difference, by reading what is installed.

    :raises ConfigError: the lock cannot be read.
    """
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


def locked_files(home: Path) -> list[str]:
    """Return the files that the hashes of the lock are made of.

    :raises ConfigError: the lock cannot be read.
    """
    there = installed_packages()
    packages = (there.get(normal(entry.name)) for entry in Lockfile(home).read().values() if not entry.is_file)
    return [str(file) for item in packages if item is not None and not item.editable for file in item.files()]


def _drift(entry: Locked, there: Mapping[str, Installed], home: Path) -> Drift | None:
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


# ---------------------------------------------------------------- sync


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


def _pinned(entry: Locked) -> Origin:
    """Return the origin with the version or commit that was agreed to."""
    if entry.kind == "index":
        return Origin("index", f"{entry.name}=={entry.version}")
    if entry.kind == "git" and entry.commit:
        address, hash_sign, rest = entry.origin.partition("#")
        scheme, _, path = address.partition("://")
        head, at, _ = path.rpartition("@")
        bare = head if at and "/" in head else path
        return Origin("git", f"{scheme}://{bare}@{entry.commit}{hash_sign}{rest}")
    return entry.source


__all__ = ["FOLDER", "Drift", "Synced", "drifts", "locked_files", "sync"]
