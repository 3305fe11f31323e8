"""Cut text to lines and bytes: at line ends where that keeps enough, at a character otherwise, never to nothing.

Nothing here looks at more of a text than its limits allow, so that a huge output costs no more than a small one.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Direction = Literal["head", "tail", "both"]

_CODEC = ("utf-8", "surrogatepass")
"""Lone surrogates are measured like any other character of three bytes instead of raising."""


class Limits(NamedTuple):
    """How many lines and bytes of UTF-8 are shown, and of which end."""

    lines: int
    bytes: int
    direction: Direction = "head"


class Preview(NamedTuple):
    """What is shown: the beginning, the end, or both; each is exactly that part of the original."""

    head: str
    tail: str

    @property
    def lines(self) -> int:
        return count_lines(self.head) + count_lines(self.tail)

    @property
    def bytes(self) -> int:
        return len(_encode(self.head)) + len(_encode(self.tail))


def exceeds(text: str, limits: Limits) -> bool:
    """Whether `text` is strictly over a limit."""
    if len(text) > limits.bytes or (not text.isascii() and len(_encode(text)) > limits.bytes):
        return True
    return len(text) > limits.lines and count_lines(text) > limits.lines


def count_lines(text: str) -> int:
    """Return the number of lines; a last one without a line end counts."""
    return text.count("\n") + (text != "" and not text.endswith("\n"))


def preview(first: str, last: str, limits: Limits) -> Preview:
    """Return what is shown of a text that begins with `first` and ends with `last` (both may be the whole)."""
    match limits.direction:
        case "head":
            return Preview(head(first, limits.lines, limits.bytes), "")
        case "tail":
            return Preview("", tail(last, limits.lines, limits.bytes))
        case "both":
            beginning = head(first, -(-limits.lines // 2), -(-limits.bytes // 2))
            lines, size = limits.lines // 2, limits.bytes // 2
            end = tail(last, lines, size) if lines and size else ""
            return Preview(beginning, end if len(_encode(end)) <= size else "")


def head(text: str, lines: int, size: int) -> str:
    """Return the longest beginning within both limits; of a long line, its first bytes."""
    window = _first_lines(text[:size], lines)
    kept = _fitting(window, size) or text[:1]
    if kept.endswith("\n") or len(kept) == len(text) or text[len(kept)] == "\n":
        return kept
    end = kept.rfind("\n") + 1
    return kept[:end] if end * 2 >= len(kept) else kept


def tail(text: str, lines: int, size: int) -> str:
    """Return the longest end within both limits; of a long line, its last bytes."""
    window = _last_lines(text[-size:], lines) if size else ""
    kept = _fitting_end(window, size) or text[-1:]
    start = len(text) - len(kept)
    if start == 0 or text[start - 1] == "\n":
        return kept
    cut = kept.find("\n") + 1
    return kept[cut:] if 0 < cut < len(kept) and (len(kept) - cut) * 2 >= len(kept) else kept


def _first_lines(text: str, lines: int) -> str:
    end = 0
    for _ in range(lines):
        found = text.find("\n", end)
        if found < 0:
            return text
        end = found + 1
    return text[:end]


def _last_lines(text: str, lines: int) -> str:
    start = len(text) - text.endswith("\n")
    for _ in range(lines):
        found = text.rfind("\n", 0, start)
        if found < 0:
            return text
        start = found
    return text[start + 1 :]


def _fitting(text: str, size: int) -> str:
    """Return the longest beginning of at most `size` bytes that ends with a whole character."""
    data = _encode(text)
    if len(data) <= size:
        return text
    while size and data[size] & 0xC0 == 0x80:
        size -= 1
    return data[:size].decode(*_CODEC)


def _fitting_end(text: str, size: int) -> str:
    data = _encode(text)
    start = len(data) - size
    if start <= 0:
        return text
    while start < len(data) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:].decode(*_CODEC)


def _encode(text: str) -> bytes:
    return text.encode(*_CODEC)
