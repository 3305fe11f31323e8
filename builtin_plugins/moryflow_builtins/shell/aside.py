"""Revert new and moved files that would run later: move them back, or set them aside.

Nothing is lost. It happens when the command has ended, so nobody races it but people and their other programs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from moryflow_sdk.protected_files import RUNS_LATER

from .survey import Entry, Survey

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Change:
    """One file or folder that a command made, replaced or moved.

    :ivar path: where it appeared, from the vault.
    :ivar now: where it is now: at home again, or in a folder of the plugin's own.
    :ivar home: where it had come from, when it was moved.
    """

    path: str
    now: Path
    home: str = ""

    @property
    def told(self) -> str:
        """What it is, for people."""
        line = RUNS_LATER.find(self.path)
        moved = f", moved from {self.home}" if self.home else ""
        return f"{self.path}{moved}" + (f" ({line.reason})" if line else "")


@dataclass(slots=True)
class Settled:
    """What was done.

    :ivar left: paths that could not be put back, each with the reason.
    """

    changes: list[Change] = field(default_factory=list[Change])
    left: list[str] = field(default_factory=list[str])

    def __bool__(self) -> bool:
        return bool(self.changes or self.left)

    @property
    def named(self) -> str:
        """The changes as the end of a sentence."""
        more = f" and {len(self.changes) - SHOWN} more" if len(self.changes) > SHOWN else ""
        return ", ".join(change.told for change in self.changes[:SHOWN]) + more


def put_back(vault: Path, before: Mapping[str, Entry], now: Survey, aside: Path) -> Settled:
    """Make what runs later in `vault` what it was `before`; what is new is moved into the folder `aside`."""
    settled = Settled()
    replaced = {path for path in before.keys() & now.guarded.keys() if _was_replaced(before[path], now.guarded[path])}
    missing = {path: before[path] for path in before if path not in now.guarded or path in replaced}
    new = {path: entry for path, entry in now.guarded.items() if path not in before or path in replaced}
    homes = {(entry.device, entry.inode): path for path, entry in missing.items() if entry.kind != "link"}
    moved = {path: homes[where] for path, entry in new.items() if (where := (entry.device, entry.inode)) in homes}
    for path in _topmost(path for path in new if path not in moved):
        _attempt(settled, path, lambda path=path: _put_aside(vault, path, aside, settled))
    for path in _topmost(moved):
        _attempt(settled, path, lambda path=path: _bring_home(vault, path, moved[path], settled))
    for path, entry in missing.items():
        if entry.kind == "link" and not os.path.lexists(vault / path):
            _attempt(settled, path, lambda path=path, entry=entry: _link_again(vault / path, entry.leads))
    return settled


def _was_replaced(before: Entry, now: Entry) -> bool:
    """Whether the command can have put `now` in the place of `before`.

    A file that was closed to it, in a folder that is where it was, has been saved by somebody else.
    """
    if before.is_same(now):
        return before.leads != now.leads
    return before.kind != "file" or now.kind != "file" or before.holder != now.holder


def _topmost(paths: Iterator[str] | Mapping[str, str]) -> list[str]:
    """Return `paths` without what lies below another of them."""
    kept: list[str] = []
    for path in sorted(paths):
        if not kept or not path.startswith(f"{kept[-1]}/"):
            kept.append(path)
    return kept


def _attempt(settled: Settled, path: str, work: object) -> None:
    try:
        work()  # type: ignore[operator]
    except (OSError, shutil.Error) as error:
        settled.left.append(f"{path} ({getattr(error, 'strerror', None) or 'it cannot be moved'})")


def _put_aside(vault: Path, path: str, aside: Path, settled: Settled) -> None:
    place = aside / path
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _move(vault / path, place)
    settled.changes.append(Change(path, place))


def _bring_home(vault: Path, path: str, home: str, settled: Settled) -> None:
    (vault / home).parent.mkdir(parents=True, exist_ok=True)
    _move(vault / path, vault / home)
    settled.changes.append(Change(path, vault / home, home))


def _link_again(path: Path, leads: str) -> None:
    """Make a link anew: it can be removed in the sandbox, and its number may be another file's by now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(leads)


def _move(source: Path, goal: Path) -> None:
    """Move without replacing anything and without following a link."""
    if os.path.lexists(goal):
        raise FileExistsError(0, "its place is taken")
    shutil.move(os.fspath(source), os.fspath(goal))


def put_in_place(vault: Path, changes: list[Change]) -> list[str]:
    """Bring `changes` to where the command had them, as a person agreed; return what could not be brought there."""
    settled = Settled()
    for change in changes:
        _attempt(settled, change.path, lambda change=change: _forth(vault, change))
    return settled.left


def _forth(vault: Path, change: Change) -> None:
    goal = vault / change.path
    goal.parent.mkdir(parents=True, exist_ok=True)
    _move(change.now, goal)
    folder = change.now.parent
    with suppress(OSError):
        while folder != vault and change.home:
            folder.rmdir()  # only those that are empty, which were made to bring it home
            folder = folder.parent
