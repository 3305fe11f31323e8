"""Ignore files, read so that in doubt a file is read: lines that are not plain leave nothing out and take everything back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from .repositories import repository

_LONGEST = 256 * 1024
_MOST_STARS = 3


@dataclass(frozen=True, slots=True)
class _Line:
    pattern: str
    back: bool
    folders_only: bool
    anchored: bool
    plain: bool

    def names(self, parts: tuple[str, ...], *, folder: bool) -> bool:
        """Whether the line speaks of the entry at `parts` below the folder of its file."""
        if not self.plain:
            return self.back
        if self.folders_only and not folder:
            return False
        if not self.anchored:
            return fnmatchcase(parts[-1], self.pattern)
        wanted = self.pattern.split("/")
        return len(wanted) == len(parts) and all(map(fnmatchcase, parts, wanted))


class IgnoreFiles:
    """What ignore files above and below `root` leave out, as git or as ``rg`` reads them."""

    def __init__(self, root: str, *, of_rg: bool) -> None:
        self._root = Path(root)
        self._top = _top(root)
        own = (".ignore", ".rgignore", ".agignore") if of_rg else ()
        self._names = (*own, *((".gitignore",) if self._top is not None else ()))

    def verdict(self, path: str) -> bool | None:
        """Return whether the file at `path` below the root is left out (true), taken back (false) or not spoken of."""
        whole = self._root / path
        top = self._top or self._root
        parts = whole.relative_to(top).parts if whole.is_relative_to(top) else Path(path).parts
        out = [self._one(top, parts[:count], folder=count < len(parts)) for count in range(1, len(parts) + 1)]
        if False in out:
            return False
        return True if True in out else None

    def _one(self, top: Path, parts: tuple[str, ...], *, folder: bool) -> bool | None:
        """Return what all files in the folders above say of one entry; one that takes it back wins."""
        said = set[bool]()
        for count in range(len(parts)):
            for name in self._names:
                lines = _lines(top.joinpath(*parts[:count], name))
                hits = [not line.back for line in lines if line.names(parts[count:], folder=folder)]
                said |= set(hits[-1:])
        return None if not said else False not in said


def _top(root: str) -> Path | None:
    """Return the top of the repository that `root` is in, whose ignore files hold."""
    found = repository(Path(root))
    return found.parent if found is not None and found.name == ".git" else None


def _lines(file: Path) -> tuple[_Line, ...]:
    try:
        with file.open("rb") as stream:
            text = stream.read(_LONGEST + 1)
    except OSError:
        return ()
    return () if len(text) > _LONGEST else tuple(_read(text.decode("utf-8", "replace")))


def _read(text: str) -> Iterator[_Line]:
    for raw in text.splitlines():
        line = raw.rstrip(" \t")
        if not line or line.startswith("#"):
            continue
        back = line.startswith("!")
        body = line.removeprefix("!").removeprefix("**/")
        bare = body.rstrip("/").removeprefix("/")
        plain = not (back and "**" in line)
        plain = (
            plain
            and bool(bare)
            and "**" not in bare
            and not any(char in bare for char in "[\\")
            and bare.count("*") <= _MOST_STARS
        )
        yield _Line(bare, back, body.endswith("/"), "/" in body.rstrip("/"), plain)
