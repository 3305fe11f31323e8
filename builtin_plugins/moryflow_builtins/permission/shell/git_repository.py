"""A git repository, read without git: which one git would use in a folder, the paths it tracks, its objects.

Anything missing or not understood raises :class:`EffectUnknown`, although git itself may understand it.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePosixPath

from moryflow_sdk.support.protected_files import read_start

from .effects import EffectUnknown
from .syntax import Arg

MAX_BYTES = 32 * 1024 * 1024
"""The largest object that is read."""

MAX_DELTAS = 100
"""How long a chain of deltas may be in which a pack stores an object."""

_KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}


FAILURES = (EffectUnknown, OSError, ValueError, zlib.error, struct.error, IndexError, RuntimeError)
"""The exceptions that reading a repository may raise, whatever its files hold."""


class GitObjects:
    """The objects below the git directory `folder`."""

    def __init__(self, folder: Path) -> None:
        self._objects = folder / "objects"

    def hashes(self, part: str) -> set[str]:
        """Return the hashes that begin with `part`."""
        found = {part[:2] + path.name for path in (self._objects / part[:2]).glob(f"{part[2:]}*")}
        low, high = part.ljust(40, "0"), part.ljust(40, "f")
        for index in self._indexes:
            place = index.place(low)
            while place < len(index) and index.at(place) <= high:
                found.add(index.at(place))
                place += 1
        return {one for one in found if len(one) == 40}

    def read(self, name: str) -> tuple[str, bytes]:
        """Return the kind and the content of an object."""
        loose = self._objects / name[:2] / name[2:]
        if loose.is_file():
            head, _, content = _decompress(loose.read_bytes(), MAX_BYTES).partition(b"\0")
            return head.partition(b" ")[0].decode(), content
        for index in self._indexes:
            offset = index.offset(name)
            if offset is not None:
                with _map_file(index.path.with_suffix(".pack")) as pack:
                    return self._read_packed(pack, offset, 0)
        raise EffectUnknown(f"the object {name[:12]} is not here")

    @cached_property
    def _indexes(self) -> list[_Index]:
        return [_Index(path) for path in sorted((self._objects / "pack").glob("*.idx"))]

    def _read_packed(self, pack: mmap.mmap, offset: int, depth: int) -> tuple[str, bytes]:
        place, byte = offset + 1, pack[offset]
        kind, size, shift = byte >> 4 & 7, byte & 15, 4
        while byte & 128:
            byte = pack[place]
            size |= (byte & 127) << shift
            place, shift = place + 1, shift + 7
        if size > MAX_BYTES or depth > MAX_DELTAS:
            raise EffectUnknown("it is too large")
        if kind in _KINDS:
            return _KINDS[kind], _decompress(pack[place : place + size * 2 + 1024], size)
        if kind == 6:
            back, byte = pack[place] & 127, pack[place]
            while byte & 128:
                place, byte = place + 1, pack[place + 1]
                back = (back + 1 << 7) | byte & 127
            place += 1
            base = self._read_packed(pack, offset - back, depth + 1)
        elif kind == 7:
            base, place = self.read(pack[place : place + 20].hex()), place + 20
        else:
            raise EffectUnknown("it is stored in an unknown way")
        return base[0], _apply_delta(base[1], _decompress(pack[place : place + size * 2 + 1024], size))


class _Index:
    """The index of a pack, version 2: sorted hashes, and the offset of each object."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = _map_file(path)
        if self._data[:8] != b"\xfftOc\0\0\0\2":
            raise EffectUnknown("the index of a pack is of another version")
        self._count = struct.unpack_from(">I", self._data, 8 + 255 * 4)[0]

    def __len__(self) -> int:
        return self._count

    def at(self, place: int) -> str:
        start = 8 + 1024 + place * 20
        return self._data[start : start + 20].hex()

    def place(self, name: str) -> int:
        return bisect_left(range(self._count), name, key=self.at)

    def offset(self, name: str) -> int | None:
        place = self.place(name)
        if place >= self._count or self.at(place) != name:
            return None
        start = 8 + 1024 + self._count * 24
        found = struct.unpack_from(">I", self._data, start + place * 4)[0]
        large = start + self._count * 4 + (found & 0x7FFFFFFF) * 8
        return struct.unpack_from(">Q", self._data, large)[0] if found & 0x80000000 else found


def _map_file(path: Path) -> mmap.mmap:
    if not path.is_file():  # opening a pipe would block
        raise EffectUnknown(f"{path.name} is not a file")
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _decompress(data: bytes, size: int) -> bytes:
    reader = zlib.decompressobj()
    content = reader.decompress(data, size + 1)
    if reader.unconsumed_tail and not reader.eof and len(content) > size:
        raise EffectUnknown("it is too large")
    return content


def _apply_delta(base: bytes, delta: bytes) -> bytes:
    """Return the object that a delta of a pack makes from `base`."""
    place = 0
    for _ in range(2):  # the sizes before and after
        while delta[place] & 128:
            place += 1
        place += 1
    parts: list[bytes] = []
    total = 0
    while place < len(delta):
        if (total := total + len(parts[-1]) if parts else 0) > MAX_BYTES:
            raise EffectUnknown("it is too large")
        order = delta[place]
        place += 1
        if not order & 128:
            parts.append(delta[place : place + order])
            place += order
            continue
        numbers = [0, 0]
        for bit in range(7):
            if order >> bit & 1:
                numbers[bit // 4] |= delta[place] << 8 * (bit % 4)
                place += 1
        parts.append(base[numbers[0] : numbers[0] + (numbers[1] or 0x10000)])
    return b"".join(parts)


_LONGEST_LINK = 8192
_LONGEST_INDEX = 1 << 30
"""How many bytes of a ``.git`` file and of an index are read; git itself refuses a longer path in the first."""


def foreign_repository(folder: str, vault: str) -> str:
    """Return the git directory that git would use in `folder`; empty if it is the vault's own, or there is none."""
    own = repository(Path(vault))
    found = repository(Path(folder))
    if found is None:
        return ""
    root = Path(vault).resolve()
    if found != own and not (own is not None and found.parent == own / "worktrees"):  # worktrees share the configuration
        return str(found)
    planted = found.is_relative_to(root) and not found.is_relative_to(root / ".git")
    return str(found) if planted else ""


def repository(folder: Path) -> Path | None:
    """Return the git directory that git would use in `folder`, with links followed; ``None`` when there is none."""
    try:
        resolved = folder.resolve()
        return next(filter(None, map(_repository_at, (resolved, *resolved.parents))), None)
    except (OSError, RuntimeError):
        return folder  # it cannot be read, so it counts as foreign


def _repository_at(folder: Path) -> Path | None:
    dot = folder / ".git"
    if dot.is_file():
        return _follow_git_file(dot)
    if _looks_like_git_directory(dot):
        return dot.resolve()
    return folder if _looks_like_git_directory(folder) else None


def _follow_git_file(file: Path) -> Path:
    """Return the git directory that a ``.git`` file names; the file itself if git would not follow it."""
    text = read_start(file, _LONGEST_LINK).decode("utf-8", "surrogateescape")
    mark, _, goal = text.partition(":")
    goal = goal.strip("\r\n").lstrip(" ")
    return (file.parent / goal).resolve() if mark == "gitdir" and goal and "\0" not in goal else file


def _looks_like_git_directory(folder: Path) -> bool:
    """Whether `folder` holds a ``HEAD``, which may be a dangling link, and one of the entries that git expects beside it."""
    return _is_there(folder / "HEAD") and any(_is_there(folder / name) for name in ("commondir", "objects", "refs"))


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def index_entries(git: Path) -> dict[str, str]:
    """Return the paths in the index of a git directory → the hash of the content; empty for an unmerged path.

    :raises EffectUnknown: the index is not understood.
    """
    try:
        data = read_start(git / "index", _LONGEST_INDEX)
    except FileNotFoundError:
        return {}
    mark, version, count = struct.unpack_from(">4sII", data)
    if mark != b"DIRC" or version not in (2, 3, 4):
        raise EffectUnknown("the index is of another version")
    found: dict[str, str] = {}
    place, name = 12, b""
    for _ in range(count):
        flags = int.from_bytes(data[place + 60 : place + 62], "big")
        start, kept = place + (64 if flags & 0x4000 else 62), 0
        if version == 4:
            start, dropped = _number(data, start)
            kept = len(name) - dropped
        end = data.index(b"\0", start)
        name = name[:kept] + data[start:end]
        found[os.fsdecode(name)] = "" if flags & 0x3000 else data[place + 40 : place + 60].hex()
        place = end + 1 if version == 4 else place + (end - place + 8 & ~7)
    while place < len(data) - 20:  # extensions; a split or sparse index has more entries elsewhere
        if data[place : place + 4] in (b"link", b"sdir"):
            raise EffectUnknown("the index is in parts")
        place += 8 + int.from_bytes(data[place + 4 : place + 8], "big")
    if place != len(data) - 20:
        raise EffectUnknown("the index is not understood")
    return found


def _number(data: bytes, start: int) -> tuple[int, int]:
    """Return the end of a number of variable length, and the number."""
    value = data[start] & 127
    while data[start] & 128:
        start += 1
        value = (value + 1 << 7) | data[start] & 127
    return start + 1, value


def tracked_paths(folder: Path) -> Callable[[Path], bool] | None:
    """Return a function that says whether git tracks a path of the repository around `folder`; ``None`` if unknown."""
    found = repository(folder)
    if found is None or found.name != ".git":
        return None
    try:
        names = {name: None for path in index_entries(found) for name in (path, *map(str, PurePosixPath(path).parents))}
    except FAILURES:
        return None
    return lambda path: str(path.relative_to(found.parent)) in names


PATHSPEC = re.compile(r"[*?\[]|\A:")
"""Signs of a pathspec that is more than the name of a file or a folder."""

EXCLUDED = re.compile(r":(?:[!^]|\(exclude\))")
"""The beginning of a pathspec that excludes paths."""


def pathspec_filter(paths: Sequence[Arg], base: str, root: str) -> Callable[[str], bool]:
    """Return a function that says whether pathspecs select a path, relative to `root`; in doubt it says yes."""
    chosen, left_out = set[str](), set[str]()
    for path in paths:
        excluded = EXCLUDED.match(path.text)
        text = path.text[excluded.end() :] if excluded else path.text
        if not path.static or re.search(r"[\[\\]|\A:", text):
            chosen |= set() if excluded else {"."}
            continue
        whole = os.path.join(os.path.realpath(base), text)  # noqa: PTH118
        places = {
            os.path.relpath(place, os.path.realpath(root)) for place in (os.path.normpath(whole), os.path.realpath(whole))
        }
        (left_out if excluded else chosen).update(places if not excluded or len(places) == 1 else ())

    def choose(name: str) -> bool:
        out = any(_is_below(name, place) or fnmatchcase(name, place) for place in left_out)
        return not out and (
            not chosen or any(_is_below(name, p) or fnmatchcase(name, p) or fnmatchcase(name, f"{p}/*") for p in chosen)
        )

    return choose


def _is_below(name: str, place: str) -> bool:
    return place == "." or f"{name}/".startswith(f"{place}/")
