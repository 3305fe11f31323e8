"""One file of an undo: what it becomes, what the agent made of it, and what is there now."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from .joining import Span
from .shadow import Blob, blob_of

_FOLDER = "040000"
OUTSIDE = Blob("outside", "")
"""What stands for a file where something of somebody else's is in the way, or that somebody else wrote too."""


@dataclass(frozen=True)
class Change:
    """One file: what it becomes, what the agent made of it, and what it is now; ``None`` where there is no file.

    :ivar commands: the tools while which it changed, where it may as well have been a person who did it.
    """

    path: str
    then: Blob | None
    left: Blob | None
    now: Blob | None
    content: bytes = b""
    commands: Sequence[str] = ()

    @property
    def foreign(self) -> bool:
        """Whether someone else has changed the file since."""
        return self.now not in (self.left, self.then)

    @property
    def stuck(self) -> bool:
        """Whether a folder with files that stay, a link or the like is where the file or a folder above it belongs."""
        return self.now is not None and self.now.mode in (_FOLDER, OUTSIDE.mode)

    def touches(self, path: str) -> bool:
        """Whether this file and `path` cannot both stay: one is a folder of the other."""
        return path.startswith(f"{self.path}/") or self.path.startswith(f"{path}/")


def changes_of(vault: Path, spans: Sequence[Span], *, forward: bool, limit: int) -> list[Change]:
    """Compare files with what is on the disk; one that was changed between two steps counts as someone else's."""
    goes = {span.path for span in spans if (span.after if forward else span.before) is None}
    return [_change(vault, span, forward, limit, goes) for span in spans]


def _change(vault: Path, span: Span, forward: bool, limit: int, goes: Collection[str]) -> Change:
    then, left = (span.after, span.before) if forward else (span.before, span.after)
    blocked = _blocked_by(vault, span.path)
    if blocked:  # nothing recorded lies behind a link or a file
        in_the_way = then is not None and blocked not in goes
        return Change(span.path, then, left, OUTSIDE if in_the_way else None, commands=span.commands)
    found = blob_of(vault / span.path, limit)
    now, content = found if found else (None, b"")
    if now is not None and now.mode == _FOLDER and _will_be_empty(vault, span.path, goes):
        now = None
    if span.broken and now != then:
        left = OUTSIDE
    return Change(span.path, then, left, now, content, span.commands)


def _blocked_by(vault: Path, path: str) -> str:
    """Return what is a link or a file where a folder above `path` was, nearest to the vault; empty where none is."""
    for above in reversed([parent.as_posix() for parent in Path(path).parents if parent != Path()]):
        try:
            mode = (vault / above).lstat().st_mode
        except OSError:
            return ""
        if not stat.S_ISDIR(mode):
            return above
    return ""


def _will_be_empty(vault: Path, path: str, goes: Collection[str]) -> bool:
    """Whether a folder holds nothing but folders and files that go."""
    for folder, links, files in os.walk(vault / path):
        names = [*files, *(name for name in links if Path(folder, name).is_symlink())]
        if any(Path(folder, name).relative_to(vault).as_posix() not in goes for name in names):
            return False
    return True
