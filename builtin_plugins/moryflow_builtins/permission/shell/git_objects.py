"""The objects of a git repository, loose and in packs, read without git.

Whatever is missing or not understood raises :class:`GitUnknown`; git itself may well understand it.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from bisect import bisect_left
from functools import cached_property
from pathlib import Path

MAX_BYTES = 32 * 1024 * 1024
"""The largest object that is read."""

MAX_DELTAS = 100
"""Over how many others one object of a pack may be stored as a difference."""

_KINDS = {1: "commit", 2: "tree", 3: "blob", 4: "tag"}


class GitUnknown(Exception):
    """It cannot be told from the repository."""


FAILURES = (GitUnknown, OSError, ValueError, zlib.error, struct.error, IndexError, RuntimeError)
"""What reading a repository may raise, whatever stands in its files."""


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
            head, _, content = _unpacked(loose.read_bytes(), MAX_BYTES).partition(b"\0")
            return head.partition(b" ")[0].decode(), content
        for index in self._indexes:
            offset = index.offset(name)
            if offset is not None:
                with _mapped(index.path.with_suffix(".pack")) as pack:
                    return self._packed(pack, offset, 0)
        raise GitUnknown(f"the object {name[:12]} is not here")

    @cached_property
    def _indexes(self) -> list[_Index]:
        return [_Index(path) for path in sorted((self._objects / "pack").glob("*.idx"))]

    def _packed(self, pack: mmap.mmap, offset: int, depth: int) -> tuple[str, bytes]:
        place, byte = offset + 1, pack[offset]
        kind, size, shift = byte >> 4 & 7, byte & 15, 4
        while byte & 128:
            byte = pack[place]
            size |= (byte & 127) << shift
            place, shift = place + 1, shift + 7
        if size > MAX_BYTES or depth > MAX_DELTAS:
            raise GitUnknown("it is too large")
        if kind in _KINDS:
            return _KINDS[kind], _unpacked(pack[place : place + size * 2 + 1024], size)
        if kind == 6:
            back, byte = pack[place] & 127, pack[place]
            while byte & 128:
                place, byte = place + 1, pack[place + 1]
                back = (back + 1 << 7) | byte & 127
            place += 1
            base = self._packed(pack, offset - back, depth + 1)
        elif kind == 7:
            base, place = self.read(pack[place : place + 20].hex()), place + 20
        else:
            raise GitUnknown("it is stored in an unknown way")
        return base[0], _patched(base[1], _unpacked(pack[place : place + size * 2 + 1024], size))


class _Index:
    """The index of a pack, version 2: hashes in order, and where each object begins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = _mapped(path)
        if self._data[:8] != b"\xfftOc\0\0\0\2":
            raise GitUnknown("the index of a pack is of another version")
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


def _mapped(path: Path) -> mmap.mmap:
    if not path.is_file():  # who opens a pipe waits
        raise GitUnknown(f"{path.name} is no file")
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _unpacked(data: bytes, size: int) -> bytes:
    reader = zlib.decompressobj()
    content = reader.decompress(data, size + 1)
    if reader.unconsumed_tail and not reader.eof and len(content) > size:
        raise GitUnknown("it is too large")
    return content


def _patched(base: bytes, delta: bytes) -> bytes:
    """Return `base` changed as the delta of a pack says."""
    place = 0
    for _ in range(2):  # the sizes before and after
        while delta[place] & 128:
            place += 1
        place += 1
    parts: list[bytes] = []
    total = 0
    while place < len(delta):
        if (total := total + len(parts[-1]) if parts else 0) > MAX_BYTES:
            raise GitUnknown("it is too large")
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
