"""Record a person's consent to a package as it is installed now."""

from __future__ import annotations

from pathlib import Path

from .distributions import Installed, installed_packages, normal
from .lock import Locked, Lockfile, entry_for
from .manifest_summary import Package
from .origins import Origin


def lock_installed(home: Path, name: str) -> tuple[Package, Locked] | None:
    """Write an installed package into the lock; ``None`` when it is there already, exactly as it is."""
    item = installed_packages().get(normal(name))
    if item is None:
        return None
    package, lock = item.package(), Lockfile(home)
    before = lock.read().get(normal(name))
    origin, commit = _origin(item, package)
    entry = entry_for(package, before.source if before else origin, commit=commit)
    if before is not None and (before.version, before.hash, before.plugins) == (entry.version, entry.hash, entry.plugins):
        return None
    lock.put(entry)
    return package, entry


def _origin(item: Installed, package: Package) -> tuple[Origin, str]:
    """Return where a package was installed from, as far as its metadata says, and the commit."""
    direct = item.direct
    url = str(direct.get("url", ""))
    vcs = direct.get("vcs_info", {})
    if vcs.get("vcs") == "git":
        return Origin("git", f"git+{url}"), str(vcs.get("commit_id", ""))
    if (project := item.project) is not None:
        kind = "editable" if item.editable else "folder" if "dir_info" in direct else "archive"
        return Origin(kind, str(project)), ""
    return Origin("index", package.name), ""


__all__ = ["lock_installed"]
