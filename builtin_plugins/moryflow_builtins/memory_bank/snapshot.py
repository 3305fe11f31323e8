"""What the bank holds, to compare it before and after something that could have changed it, and to put it back.

Nothing is lost: what is undone is kept in the plugin's own folder first.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moryflow_sdk import ToolError

from .bank import FOLDER

MOST_BYTES = 16 * 1024 * 1024
"""How much of a bank is held in memory; a file beyond that is compared but cannot be put back."""

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Item:
    """One entry: `content` of a file, where a link leads, or ``None`` for a folder and what was not held.

    :param signature: the mode of a folder; of a file that was not held, what tells it from another.
    """

    kind: str
    content: bytes | None = None
    signature: tuple[int, ...] = ()


@dataclass(slots=True)
class Snapshot:
    """A bank at one moment, by path relative to the vault; empty when there is no such folder."""

    vault: str
    items: dict[str, Item] = field(default_factory=dict[str, Item])

    def changed(self, now: Snapshot) -> list[str]:
        """Return the paths that differ, folders before what is in them."""
        names = sorted({*self.items, *now.items})
        return [name for name in names if self.items.get(name) != now.items.get(name)]


def take(vault: str) -> Snapshot:
    """Read the whole bank without following a link."""
    found = Snapshot(vault)
    root = f"{vault}/{FOLDER}"
    try:
        mode = os.lstat(root).st_mode
    except OSError:
        return found
    if not stat.S_ISDIR(mode):
        found.items[FOLDER] = Item("link" if stat.S_ISLNK(mode) else "other")
        return found
    found.items[FOLDER] = Item("dir", None, (stat.S_IMODE(mode),))
    room = MOST_BYTES
    for name, item in _walk(vault):
        room -= len(item.content or b"")
        found.items[name] = item if room >= 0 or item.content is None else _told(item)
    return found


def _told(item: Item) -> Item:
    """Return a file by its hash alone."""
    digest = hashlib.sha256(item.content or b"").digest()
    return Item(item.kind, None, (int.from_bytes(digest, "big"),))


def _walk(vault: str) -> Iterator[tuple[str, Item]]:
    """Yield every entry, by descriptors only; what is in a folder that cannot be opened is not seen."""
    with suppress(PermissionError):
        for folder, folders, files, descriptor in os.fwalk(f"{vault}/{FOLDER}", follow_symlinks=False):
            base = os.path.relpath(folder, vault)
            for name in (*folders, *files):
                yield f"{base}/{name}", _item(name, descriptor)


def _item(name: str, folder: int) -> Item:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            return Item("link", os.fsencode(os.readlink(name, dir_fd=folder)))
        if stat.S_ISDIR(status.st_mode):
            return Item("dir", None, (stat.S_IMODE(status.st_mode),))
        if not stat.S_ISREG(status.st_mode):
            return Item("other")
        signature = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if status.st_size > MOST_BYTES:
            return Item("file", None, signature)
        descriptor = os.open(name, READ, dir_fd=folder)
    except OSError as error:
        return Item("unreadable", str(error.errno).encode())
    with os.fdopen(descriptor, "rb") as file:
        return Item("file", file.read(MOST_BYTES + 1))


def reopen(before: Snapshot) -> None:
    """Give folders the mode back that they had, so that what is in them can be seen and put back."""
    for name in sorted(name for name, item in before.items.items() if item.kind == "dir"):
        path = Path(before.vault, name)
        with suppress(OSError):
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode) and (stat.S_IMODE(mode),) != before.items[name].signature:
                path.chmod(before.items[name].signature[0])


def restore(before: Snapshot, now: Snapshot, turn: Any) -> list[str]:
    """Make the bank what it was in `before`; return what could not be put back.

    :param turn: its files service does it, which opens nothing through a link.
    """
    names = before.changed(now)
    left: list[str] = []
    for name in reversed(names):  # what is in a folder goes before the folder
        if name in now.items and _kind(before, name) != _kind(now, name):
            _attempt(left, name, lambda name=name: _remove(turn, name))
    for name in names:
        item = before.items.get(name)
        if item is not None and item.kind == "file":
            _attempt(left, name, lambda name=name, item=item: _write(turn, name, item))
        elif item is not None and item.kind != "dir":
            left.append(name)
    left += [name for name in names if _kind(before, name) == "dir" and _missing_folder(before, name)]
    reopen(before)
    return sorted(set(left))


def _kind(snapshot: Snapshot, name: str) -> str:
    item = snapshot.items.get(name)
    return item.kind if item else ""


def _missing_folder(before: Snapshot, name: str) -> bool:
    """Whether a folder that was there is still gone; empty ones are not made again by writing files."""
    path = Path(before.vault, name)
    try:
        path.mkdir(exist_ok=True)
    except OSError:
        return True
    return path.is_symlink()


def _attempt(left: list[str], name: str, work: Any) -> None:
    try:
        work()
    except (ToolError, OSError):
        left.append(name)


def _target(turn: Any, name: str) -> Any:
    return turn.files.resolve(name, domain="edit")


def _remove(turn: Any, name: str) -> None:
    """Remove an entry; the files service removes a link itself and not what it leads to."""
    turn.files.remove(_target(turn, name), recursive=True)


def _write(turn: Any, name: str, item: Item) -> None:
    """Write a file back, replacing one that refuses to be written."""
    if item.content is None:
        raise ToolError(f"{name} is too large to be put back", code="too_large")
    target = _target(turn, name)
    if target.text != f"vault:/{name}":
        raise ToolError(f"{name} is reached through a link", code="changed")
    try:
        turn.files.write(target, item.content)
    except ToolError:
        turn.files.remove(target)
        turn.files.write(_target(turn, name), item.content)


def keep(now: Snapshot, names: Mapping[str, Any] | list[str], folder: Path) -> int:
    """Copy what is about to be undone into `folder`; return how many files that were."""
    count = 0
    for name in names:
        item = now.items.get(name)
        if item is None or item.kind != "file" or item.content is None:
            continue
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        place.write_bytes(item.content)
        place.chmod(0o600)
        count += 1
    return count
