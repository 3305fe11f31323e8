"""``moryflow plugin sync --from``: take over what a team shares in a repository, after it was shown as one list.

The repository has what a home has: ``plugins.lock``, ``config.jsonc`` with rules and settings, ``agents/``, ``commands/`` and
``skills/``. A copy is kept in the home and read in place; rules are added so that no deny of the user's is loosened.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from moryflow.imports.anyhunt import read
from moryflow.imports.write import apply

from . import InstallError
from .claude import repository, take_out, write_files
from .lock import Locked, Lockfile, folder_digest, folder_files

if TYPE_CHECKING:
    from .manager import Manager

FOLDER = "teams"


def join(source: str, manager: Manager, config: Path, *, dry_run: bool = False) -> bool:
    """Take over what is in `source`, a folder or a git repository; whether anything was.

    What the lock names is installed by the sync that follows.

    :raises InstallError: it has nothing to share, or cannot be fetched.
    """
    with tempfile.TemporaryDirectory(prefix="moryflow-") as place:
        root, _ = repository(source, Path(place, "team"), manager)
        name = re.sub(r"[^\w.-]+", "-", source.rstrip("/").rpartition("/")[2].removesuffix(".git")) or "team"
        target = manager.home / FOLDER / name
        plan, locked = read(root), _new(root, manager)
        if target.is_dir() and folder_digest(target) == folder_digest(root) and not locked:
            manager.tell(f"moryflow: {name} is as it was")
            return True
        if not plan.items and not locked:
            raise InstallError("it shares nothing: no plugins.lock, config.jsonc, agents, commands or skills", where=source)
        for item in plan.items:
            manager.tell(f"  {item.kind}: {item.original}{f' -> {item.result}' if item.result else ''}")
        for entry in locked:
            manager.tell(f"  plugin: {entry.name} {entry.version} from {entry.origin}")
            for plugin, asked in entry.plugins.items():
                manager.tell(f"    {plugin}: hooks {', '.join(asked.get('hooks', ())) or 'none'}")
        if dry_run:
            return False
        manager.ask(f"Take all of this over from {source}?")
        files = folder_files(root)
        take_out(manager.home, target)
        write_files(target, files)
    apply(read(target), manager.home, config)
    for entry in locked:
        manager.lock.put(entry)
    return True


def _new(root: Path, manager: Manager) -> list[Locked]:
    """Return the installations that the team's lock names and the user does not have; those from a path are the team's own."""
    known = manager.lock.read()
    found = Lockfile(root).read() if (root / "plugins.lock").is_file() else {}
    return [entry for key, entry in found.items() if key not in known and entry.kind in ("index", "git")]
