"""Read one instruction file: text of a folder that we trust to instruct, and nothing that a link leads to elsewhere."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

DEPTH = 5
"""Includes within includes that are followed."""

TWICE = "left out: it says the same as a file before it"

_INCLUDE = re.compile(r"@(\S+\.(?:md|txt))\s*")


class Instructions(NamedTuple):
    """A file and what it says.

    :ivar text: with what it includes; empty when it is left out.
    :ivar problems: why it is left out, or what of it is.
    """

    path: Path
    text: str = ""
    problems: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """The estimate of what it costs."""
        return len(self.text) // 4


@dataclass(eq=False, repr=False)
class _Reading:
    """What is known while one file and its includes are read."""

    root: Path
    left: int
    seen: list[Path] = field(default_factory=list[Path])
    problems: list[str] = field(default_factory=list[str])


def read_instructions(path: Path, root: Path, limit: int) -> Instructions:
    """Return what the file at `path` says, at most `limit` bytes of it. Never raises.

    :param root: the folder that it, and all it includes, must really lie in.
    """
    reading = _Reading(root.resolve(), limit)
    text = "\n".join(_lines(path, reading, depth=0)).strip()
    return Instructions(path, text, tuple(dict.fromkeys(reading.problems)))


def _lines(path: Path, reading: _Reading, depth: int) -> Iterator[str]:
    text = _text(path, reading)
    for line in text.splitlines():
        found = _INCLUDE.fullmatch(line)
        included = path.parent / found[1] if found else None
        if included is None or not included.is_file():
            yield line
        elif included.resolve() in reading.seen:
            reading.problems.append(f"{included.name} is included in a circle or twice; once is enough")
        elif depth >= DEPTH:
            reading.problems.append(f"includes deeper than {DEPTH} are not followed")
        else:
            yield from _lines(included, reading, depth + 1)


def _text(path: Path, reading: _Reading) -> str:
    """Return the text of one file, or nothing and a problem."""
    if reading.left <= 0:
        return ""
    try:
        data = _bytes(path, reading)
    except OSError as error:
        reading.problems.append(f"{_subject(path, reading)} cannot be read: {error.strerror or error}")
        return ""
    if b"\0" in data:
        reading.problems.append(f"{_subject(path, reading)} is not text")
        return ""
    cut = len(data) > reading.left
    if cut:
        reading.problems.append(f"only the first {reading.left:,} of its {path.stat().st_size:,} bytes are used")
        data = data[: reading.left]
    reading.left -= len(data)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if cut and error.end == len(data):
            return data[: error.start].decode("utf-8-sig")
        reading.problems.append(f"{_subject(path, reading)} is not UTF-8; it was read as Latin-1")
        return data.decode("latin-1")


def _subject(path: Path, reading: _Reading) -> str:
    """Return what a remark is about; it is shown behind the name of the file that was asked for."""
    return "it" if len(reading.seen) < 2 else path.name


def _bytes(path: Path, reading: _Reading) -> bytes:
    real = path.resolve(strict=True)
    reading.seen.append(real)
    if not real.is_relative_to(reading.root):
        raise PermissionError(1, f"it leads out of {reading.root}")
    from moryflow_sdk.sensitive import sensitive  # most files include none

    if sensitive(str(real.relative_to(reading.root))):
        raise PermissionError(1, "it leads to a file of secrets")
    descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise PermissionError(1, "it is not a regular file")
        if found.st_uid not in (os.geteuid(), 0):
            raise PermissionError(1, "it belongs to somebody else")
        return file.read(reading.left + 1)
