"""Reads rows directly from the leaf pages of a database file, when the pages that lead to them are damaged.

The bytes may be anything, so the caller has to check every row. See https://www.sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LEAF = 0x0D
_HEADER = 100
_PAGE_SIZE = slice(16, 18)
_USUAL = 4096
_SIZES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 7: 8}
_FLOAT = 7


def leaf_rows(path: Path) -> Iterator[tuple[Any, ...]]:
    """Yield every row of every table's leaf pages as a tuple: its row id, then its columns.

    A column that is the row id itself (``INTEGER PRIMARY KEY``) is ``None``.
    """
    with path.open("rb") as file:
        pages = _Pages(file.fileno())
        for number in range(1, pages.count + 1):
            page = pages.read(number)
            start = _HEADER if number == 1 else 0
            if page[start : start + 1] == bytes([_LEAF]):
                yield from pages.rows(page, start)


class _Pages:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        told = int.from_bytes(os.pread(descriptor, _HEADER, 0)[_PAGE_SIZE], "big")
        told = 1 << 16 if told == 1 else told
        self.size = told if 512 <= told <= 1 << 16 and not told & (told - 1) else _USUAL
        self.count = os.fstat(descriptor).st_size // self.size

    def read(self, number: int) -> bytes:
        return os.pread(self._descriptor, self.size, (number - 1) * self.size)

    def rows(self, page: bytes, start: int) -> Iterator[tuple[Any, ...]]:
        cells = int.from_bytes(page[start + 3 : start + 5], "big")
        for at in range(start + 8, min(start + 8 + 2 * cells, self.size - 1), 2):
            try:
                yield self._row(page, int.from_bytes(page[at : at + 2], "big"))
            except (IndexError, ValueError):  # these bytes are not a row, or a damaged one
                continue

    def _row(self, page: bytes, at: int) -> tuple[Any, ...]:
        length, at = _varint(page, at)
        number, at = _varint(page, at)
        if not 0 < length <= self.count * self.size:
            raise ValueError("no row is so long")
        return number, *_values(self._content(page, at, length))

    def _content(self, page: bytes, at: int, length: int) -> bytes:
        """Return the bytes of a row's record; the part that does not fit into the leaf is in a chain of overflow pages."""
        most, least = self.size - 35, (self.size - 12) * 32 // 255 - 23
        if length <= most:
            return page[at : at + length]
        here = least + (length - least) % (self.size - 4)
        here = here if here <= most else least
        parts, left = [page[at : at + here]], length - here
        following = int.from_bytes(page[at + here : at + here + 4], "big")
        while left > 0:
            if not 1 < following <= self.count:
                raise ValueError("the chain is broken")
            page = self.read(following)
            following = int.from_bytes(page[:4], "big")
            parts.append(page[4 : 4 + left])
            left -= self.size - 4
        return b"".join(parts)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(at, at + 8):
        value = value << 7 | data[place] & 0x7F
        if data[place] < 0x80:
            return value, place + 1
    value = value << 8 | data[at + 8]
    return value - (1 << 64) if value >> 63 else value, at + 9


def _values(record: bytes) -> Iterator[Any]:
    end, at = _varint(record, 0)
    if not 0 < end <= len(record):
        raise ValueError("not a record")
    place = end
    while at < end:
        kind, at = _varint(record, at)
        size = _SIZES.get(kind, 0) if kind < 12 else (kind - 12) // 2
        if place + size > len(record) or kind in (10, 11):
            raise ValueError("not a record of ours")
        yield _value(kind, record[place : place + size])
        place += size


def _value(kind: int, data: bytes) -> Any:
    if kind >= 13 and kind % 2:
        return data.decode("utf-8")
    if kind >= 12:
        return data
    if kind == _FLOAT:
        return struct.unpack(">d", data)[0]
    return {0: None, 8: 0, 9: 1}[kind] if not data else int.from_bytes(data, "big", signed=True)
