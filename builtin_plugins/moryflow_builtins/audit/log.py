"""The files of the audit log: one per session, appended to line by line."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

FOLDER = Path("logs") / "agent-audit"
START = b'{"eventId":'
"""How every line begins."""
BLOCK = 1 << 18
LONGEST = 1 << 23
"""A line that is longer is damage, not a record."""
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@lru_cache(maxsize=64)
def file_of(home: Path, session: str) -> Path:
    """Return the file of a session: its id in harmless characters, and a hash that keeps different ids apart."""
    return home / FOLDER / f"{harmless(session)}-{sha256(session.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}.jsonl"


def harmless(session: str) -> str:
    """Return `session` as it appears in a file name."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", session)[:64]


def append(file: Path, line: bytes) -> None:
    """Append a whole line, creating the file for its owner only.

    :raises OSError: it cannot be written, or not whole; it names the file.
    """
    try:
        _append(file, line)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(file)) from error


def _append(file: Path, line: bytes) -> None:
    try:
        descriptor = os.open(file, _APPEND, 0o600)
    except FileNotFoundError:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, _APPEND, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, "only a part of the line could be written")
    finally:
        os.close(descriptor)


def lines_backwards(file: Path, needles: tuple[bytes, ...] = (), step: int = BLOCK) -> Iterator[bytes]:
    """Yield the lines of `file`, the last one first; with `needles`, only lines that contain one of them."""
    with file.open("rb") as source:
        position = source.seek(0, os.SEEK_END)
        rest = b""
        while position:
            size = min(step, position)
            position -= size
            source.seek(position)
            block = source.read(size) + rest
            rest, newline, whole = block.partition(b"\n") if position else (b"", b"\n", block)
            if not newline:
                rest = block if len(block) < LONGEST else b""
                continue
            if not needles or any(needle in whole for needle in needles):
                for line in reversed(whole.split(b"\n")):
                    if line and (not needles or any(needle in line for needle in needles)):
                        yield line


def parse(line: bytes) -> dict[str, Any] | None:
    """Return a line as a record; of a line that a full disk tore, the record that was appended to its stump."""
    for text in (line, line[max(line.rfind(START), 0) :]):
        try:
            found = json.loads(text)
        except ValueError:
            continue
        return found if isinstance(found, dict) else None
    return None


def last_of_call(file: Path, call: str, among: int = 200) -> dict[str, Any] | None:
    """Return the last record about a call, looking at no more than the newest lines."""
    needle = b'"callId":' + json.dumps(call).encode()
    try:
        for number, line in enumerate(lines_backwards(file)):
            if needle in line:
                return parse(line)
            if number >= among:
                break
    except OSError:
        return None
    return None
