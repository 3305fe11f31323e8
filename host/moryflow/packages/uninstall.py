"""``plugin uninstall``: a package through the installer, a file of the home moved aside. Nothing is imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moryflow.plugins.consent import Consents
from moryflow.plugins.entry_points import normal
from moryflow.plugins.last_seen import GateMemory, forget

from . import InstallError
from .distributions import installed_packages
from .inventory import Row
from .lock import plugin_named
from .manager import Manager
from .pins import HOST
from .single_files import move_aside


@dataclass(frozen=True)
class Removed:
    """What was removed.

    :param plugins: the names that are gone; a package may have brought several.
    :param aside: where a file is now.
    """

    name: str
    plugins: tuple[str, ...]
    aside: str = ""


@dataclass(frozen=True)
class UninstallTarget:
    """What a name stands for: a distribution, or a file or folder of the home."""

    name: str
    plugins: tuple[str, ...]
    path: Path | None = None


def target_of(name: str, rows: list[Row], manager: Manager) -> UninstallTarget | None:
    """Return what would be removed under `name`, ``None`` when there is nothing of that name.

    :raises InstallError: it is built in.
    """
    for row in sorted(rows, key=lambda row: row.record.tier == "builtin"):
        candidate = row.candidate
        if candidate is None or row.name != name:
            continue
        if candidate.tier == "user":
            return UninstallTarget(name, (name,), Path(candidate.target))
        if candidate.tier == "installed":
            return _distribution(candidate.source.split(" ")[0])
        raise InstallError(f"{name} is built in", next_step=f"moryflow plugin disable {name}")
    if normal(name) in installed_packages() and (found := _distribution(name)).plugins:
        return found
    entry = plugin_named(manager.lock.read(), name)
    return UninstallTarget(entry.name, tuple(entry.plugins)) if entry else None


def _distribution(name: str) -> UninstallTarget:
    """Return a distribution and the plugins it brings.

    :raises InstallError: it is Moryflow itself.
    """
    item = installed_packages().get(normal(name))
    if normal(name) == HOST:
        raise InstallError("Moryflow does not uninstall itself", next_step="python3 -m pip uninstall moryflow")
    return UninstallTarget(name, tuple(card.name for card in item.package().cards) if item else ())


def remove(target: UninstallTarget, manager: Manager) -> Removed:
    """Remove it and forget what was known of it; its settings and its data stay.

    :raises InstallError: it cannot be removed.
    """
    aside = ""
    if target.path is not None:
        Consents(manager.home).give(target.path)  # what is gone does not wait any more
        aside = str(move_aside(manager.home, target.path))
        manager.lock.remove(f"plugins/{target.path.name}")
    else:
        if normal(target.name) in installed_packages():
            manager.installer.uninstall(target.name)
        manager.lock.remove(target.name)
    memory = GateMemory(manager.home)
    for plugin in target.plugins:
        memory.forget(plugin)
        forget(manager.home, plugin)
    memory.save()
    return Removed(target.name, target.plugins, aside)
