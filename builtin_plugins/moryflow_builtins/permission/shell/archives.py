"""The files in an archive, by their names. What is read of one is bounded."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Any

MAX_MEMBERS = 20_000
"""How many files of an archive are looked at."""

MAX_BYTES = 128 * 1024 * 1024
"""How much of an archive is read, unpacked."""


class UnreadableArchive(Exception):
    """The archive cannot be read, or holds more than is read."""


def archive_members(path: str) -> Iterator[tuple[str, bool]]:
    """Yield the files of an archive, and where its links lead; the second value tells that it is where a link leads.

    :raises FileNotFoundError: there is no such file.
    :raises UnreadableArchive: not all of it can be listed.
    """
    try:
        yield from _members(path)
    except FileNotFoundError:
        raise
    except (OSError, EOFError, ValueError, tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error) as error:
        raise UnreadableArchive from error


class _Bounded(io.RawIOBase):
    """A stream that ends with an exception after :data:`MAX_BYTES`."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._left = stream, MAX_BYTES

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(min(size, 1 << 20) if size >= 0 else 1 << 20)
        self._left -= len(data)
        if self._left < 0:
            raise UnreadableArchive
        return data


def _members(path: str) -> Iterator[tuple[str, bool]]:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise UnreadableArchive
        head = stream.read(8)
        stream.seek(0)
        members = _of_zip(stream) if head.startswith(b"PK") else _of_tar(stream, head)
        for count, member in enumerate(members):
            if count >= MAX_MEMBERS:
                raise UnreadableArchive
            yield member


def _of_zip(stream: IO[bytes]) -> Iterator[tuple[str, bool]]:
    if os.fstat(stream.fileno()).st_size > MAX_BYTES:
        raise UnreadableArchive
    with zipfile.ZipFile(stream) as archive:
        for member in archive.infolist():
            if stat.S_ISLNK(member.external_attr >> 16):
                raise UnreadableArchive  # where it leads is in its content
            yield member.filename.replace("\\", "/"), False


def _of_tar(stream: IO[bytes], head: bytes) -> Iterator[tuple[str, bool]]:
    with _open_plain(stream, head) as plain, tarfile.open(fileobj=_Bounded(plain), mode="r|") as archive:  # type: ignore[arg-type]
        for member in archive:
            yield member.name, False
            if member.issym():
                yield os.path.normpath(f"{member.name.rpartition('/')[0] or '.'}/{member.linkname}"), True


def _open_plain(stream: IO[bytes], head: bytes) -> AbstractContextManager[Any]:
    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=stream)
    if head.startswith(b"BZh"):
        return bz2.BZ2File(stream)
    if head.startswith((b"\xfd7zXZ", b"\x5d\x00\x00")):
        return lzma.LZMAFile(stream)
    return nullcontext(stream)
