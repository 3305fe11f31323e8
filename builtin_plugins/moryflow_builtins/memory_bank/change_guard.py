"""Guard the bank against calls that could change it without naming its files: shell commands, MCP servers, other tools.

A snapshot of the bank is taken before such a call and compared afterwards. Changes are undone, but not lost: the changed files
are first copied to the plugin's own folder.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from moryflow_sdk import ToolCall, ToolError, ToolResult, Turn

from . import FOLDER, MADE_BY, is_there

MAX_BYTES = 16 * 1024 * 1024
"""How many bytes of a bank are kept in memory; changes of files beyond that are noticed but cannot be undone."""

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Item(NamedTuple):
    """One entry of the bank.

    :param content: the bytes of a file, the target of a link; ``None`` for a folder, and for a file that was not kept.
    :param signature: the mode of a folder; for a file that was not kept, its hash or its status.
    """

    kind: str
    content: bytes | None = None
    signature: tuple[int, ...] = ()


class BankSnapshot:
    """The entries of a bank at one moment, by path relative to the vault; empty if there is no bank."""

    def __init__(self, vault: str) -> None:
        self.vault = vault
        self.items: dict[str, Item] = {}

    def changed(self, now: BankSnapshot) -> list[str]:
        """Return the paths that differ, folders before what is in them."""
        names = sorted({*self.items, *now.items})
        return [name for name in names if self.items.get(name) != now.items.get(name)]


def snapshot_of(vault: str) -> BankSnapshot:
    """Read the whole bank without following a link."""
    found = BankSnapshot(vault)
    root = f"{vault}/{FOLDER}"
    try:
        mode = os.lstat(root).st_mode
    except OSError:
        return found
    if not stat.S_ISDIR(mode):
        found.items[FOLDER] = Item("link" if stat.S_ISLNK(mode) else "other")
        return found
    found.items[FOLDER] = Item("dir", None, (stat.S_IMODE(mode),))
    room = MAX_BYTES
    for name, item in _walk(vault):
        room -= len(item.content or b"")
        found.items[name] = item if room >= 0 or item.content is None else _read_item(item)
    return found


def _read_item(item: Item) -> Item:
    """Return the entry of a file with its hash instead of its content."""
    digest = hashlib.sha256(item.content or b"").digest()
    return Item(item.kind, None, (int.from_bytes(digest, "big"),))


def _walk(vault: str) -> Iterator[tuple[str, Item]]:
    """Yield every entry, using descriptors only; entries of a folder that cannot be opened are left out."""
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
        if status.st_size > MAX_BYTES:
            return Item("file", None, signature)
        descriptor = os.open(name, READ, dir_fd=folder)
    except OSError as error:
        return Item("unreadable", str(error.errno).encode())
    with os.fdopen(descriptor, "rb") as file:
        return Item("file", file.read(MAX_BYTES + 1))


def restore_modes(before: BankSnapshot) -> None:
    """Restore the modes of folders, so that their entries can be read and restored."""
    for name in sorted(name for name, item in before.items.items() if item.kind == "dir"):
        path = Path(before.vault, name)
        with suppress(OSError):
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode) and (stat.S_IMODE(mode),) != before.items[name].signature:
                path.chmod(before.items[name].signature[0])


def restore(before: BankSnapshot, now: BankSnapshot, turn: Any) -> list[str]:
    """Restore the bank to `before`, and return the paths that could not be restored.

    :param turn: the turn whose service ``files`` writes; it opens nothing through a link.
    """
    names = before.changed(now)
    failed: list[str] = []
    for name in reversed(names):  # the entries of a folder before the folder itself
        if name in now.items and _kind(before, name) != _kind(now, name):
            # The service removes a link itself, not its target.
            _attempt(failed, name, lambda name=name: turn.files.remove(_target(turn, name), recursive=True))
    for name in names:
        item = before.items.get(name)
        if item is not None and item.kind == "file":
            _attempt(failed, name, lambda name=name, item=item: _write(turn, name, item))
        elif item is not None and item.kind != "dir":
            failed.append(name)
    failed += [name for name in names if _kind(before, name) == "dir" and _missing_folder(before, name)]
    restore_modes(before)
    return sorted(set(failed))


def _kind(snapshot: BankSnapshot, name: str) -> str:
    item = snapshot.items.get(name)
    return item.kind if item else ""


def _missing_folder(before: BankSnapshot, name: str) -> bool:
    """Create a folder that was there before, and return whether that failed; writing files does not create empty ones."""
    path = Path(before.vault, name)
    try:
        path.mkdir(exist_ok=True)
    except OSError:
        return True
    return path.is_symlink()


def _attempt(failed: list[str], name: str, work: Any) -> None:
    try:
        work()
    except (ToolError, OSError):
        failed.append(name)


def _target(turn: Any, name: str) -> Any:
    return turn.files.resolve(name, domain="edit")


def _write(turn: Any, name: str, item: Item) -> None:
    """Restore a file; if it cannot be written, remove it first."""
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


def keep_copies(now: BankSnapshot, names: list[str], folder: Path) -> int:
    """Copy the files whose changes will be undone into `folder`; return how many there were."""
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


CHANGED = ("changed", "the memory-bank writer", "everything was put back", "propose the change with memory_propose")
MADE = ("made", "the user", "it was taken away again", MADE_BY)
"""For the message: what a command did to the bank, who may do that, what was done about it, and the next step."""

_snapshots: dict[tuple[str, str], BankSnapshot] = {}
"""Snapshots for the calls that are running, by turn and call; taken just before the body, and dropped with its result."""

MAX_SNAPSHOTS = 64
"""The most snapshots that are kept; the oldest are dropped, because a call whose turn ended at a question leaves one behind."""


async def hold(call: ToolCall, turn: Turn) -> None:
    """Take a snapshot of the bank for a call, if it has none yet: a question during the body must not replace the first one."""
    if is_held(call, turn):
        return
    vault = str(turn.vault)
    _snapshots[turn.id, call.id] = await asyncio.to_thread(snapshot_of, vault) if is_there(vault) else BankSnapshot(vault)
    while len(_snapshots) > MAX_SNAPSHOTS:
        del _snapshots[next(iter(_snapshots))]


def is_held(call: ToolCall, turn: Turn) -> bool:
    """Whether a snapshot waits for this call's result."""
    return (turn.id, call.id) in _snapshots


async def compare(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | None:
    """Restore the bank if the call changed it, and return an error result that says so; ``None`` if it did not."""
    before = _snapshots.pop((turn.id, call.id))
    if not before.items and not is_there(before.vault):
        return None
    return await asyncio.to_thread(_undo_changes, before, call, result, turn)


def _undo_changes(before: BankSnapshot, call: ToolCall, result: ToolResult, turn: Any) -> ToolResult | None:
    now = snapshot_of(before.vault)
    names = before.changed(now)
    if not names:
        return None
    done, who, undone, step = CHANGED if before.items else MADE
    restore_modes(before)
    now = snapshot_of(before.vault)
    place = turn.data_dir / "undone" / f"{time.strftime('%Y%m%d-%H%M%S')}-{call.id}"
    try:
        kept = keep_copies(now, before.changed(now), place)
    except OSError as error:
        message = f"{call.tool} {done} {_first_names(names)}, and it could not be undone: {error.strerror}"
        return _changed_result(result, message, names, step)
    not_restored = restore(before, now, turn)
    message = f"{call.tool} {done} {_first_names(names)}, which only {who} may do; "
    message += f"{_first_names(not_restored)} could not be put back" if not_restored else undone
    if kept:
        message += f" (what it wrote is kept in {place})"
    return _changed_result(result, message, names, step)


def _changed_result(result: ToolResult, message: str, names: list[str], step: str) -> ToolResult:
    output = f"error: memory bank: {message}. Next: {step}\n\n{result.output}"
    metadata = {**result.metadata, "memory_bank": {"restored": names}}
    return result.replace(status="error", code="memory_bank", output=output.rstrip(), metadata=metadata)


def _first_names(names: list[str]) -> str:
    files = [name for name in names if name != FOLDER] or names
    return ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")


def note_change(vault: str, name: str, fresh: BankSnapshot) -> None:
    """Add a change by the writer to the snapshots of running calls, so that it is not undone after them."""
    for snapshot in _snapshots.values():
        if snapshot.vault != vault:
            continue
        for changed in map(str, (PurePosixPath(name), *PurePosixPath(name).parents)):
            item = fresh.items.get(changed)
            if item is not None:
                snapshot.items[changed] = item
