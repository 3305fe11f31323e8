"""``plugin update``: say what changed, and ask again when a plugin wants more than was agreed to."""

from __future__ import annotations

import tempfile
from pathlib import Path

from .consent_diff import changed, screen
from .errors import InstallError
from .install import Done, finish, install_file, is_there, read, refuse_older, shown_origin
from .lock import Locked
from .manager import Manager
from .single_files import content_of, file_digest, plugin_name


def update(entry: Locked, manager: Manager) -> Done:
    """Bring one installation up to date with where it came from.

    :raises InstallError: it cannot be had any more, or must not be installed.
    :raises ConfigError: it wants more than before, and nobody can be asked.
    """
    if entry.is_file:
        return _update_file(entry, manager)
    with tempfile.TemporaryDirectory(prefix="moryflow-") as folder:
        ready = read(entry.source, Path(folder), manager)
        if is_there(entry, ready.package):
            return Done("unchanged", entry)
        also = manager.plan(ready.origin, ready.package)
        change = changed(entry.plugins, ready.package.cards)
        lines = change.lines
        if ready.package.version != entry.version:
            lines = (f"version {entry.version} -> {ready.package.version}", *lines)
        lines = lines or ("the code, and nothing of what it says of itself",)
        manager.tell(f"{entry.name}:")
        for line in (*lines, *(f"would also be installed: {name} {version}" for name, version in also)):
            manager.tell(f"  {line}")
        lines += refuse_older(manager, ready.package, also)
        if change.grew or not all(card.manifest for card in ready.package.cards):
            manager.tell(screen(ready.package, origin=shown_origin(entry.source), also=also))
            manager.ask(
                f"It asks for more than you agreed to. Update {entry.name}?" if change.grew else f"Update {entry.name}?"
            )
        return finish(entry.source, ready, manager, also=tuple(also), changes=lines, action="updated")


def _update_file(entry: Locked, manager: Manager) -> Done:
    source = Path(entry.origin)
    if not source.exists():
        hint = f"moryflow plugin install FILE, or moryflow plugin uninstall {plugin_name(source)}"
        raise InstallError("the file it was copied from is gone", where=entry.origin, next_step=hint)
    if file_digest(content_of(source)) == entry.hash:
        return Done("unchanged", entry)
    done = install_file(source, manager)
    return Done("updated", done.entry, changes=("the code",))


__all__ = ["update"]
