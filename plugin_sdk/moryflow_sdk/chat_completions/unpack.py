"""Decompress bodies that a server compresses although it was asked not to."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterator

from .connection_errors import Undecodable

AT_ONCE = 256 * 1024
"""Bytes that are unpacked at a time: a thousand times as many may be in what came."""
_READ = ("gzip", "x-gzip", "deflate")
_PACKED = (*_READ, "br", "zstd", "compress", "x-compress")


def unpacked(pieces: AsyncIterator[bytes], named: str) -> AsyncIterator[bytes]:
    """Return a body as it was before it was packed; `named` is its ``content-encoding``.

    Whatever stands there beside the compressions, a character set or "none", is no compression.

    :raises Undecodable: it is compressed in a way that cannot be read.
    """
    codings = [coding.strip() for coding in named.lower().split(",") if coding.strip() in _PACKED]
    if not codings:
        return pieces
    if codings[0] not in _READ or codings[1:]:
        raise Undecodable(", ".join(codings))
    return _unpack(pieces, codings[0])


async def _unpack(pieces: AsyncIterator[bytes], coding: str) -> AsyncGenerator[bytes]:
    """Yield what was compressed, at most so much at a time; servers may compress each event by itself."""
    head, unpacker = b"", None
    async for piece in pieces:
        if unpacker is None:
            head += piece
            if len(head) < 2:
                continue
            piece, unpacker = head, zlib.decompressobj(_window(head, coding))
        out = b""
        while piece or len(out) == AT_ONCE:
            try:
                out = unpacker.decompress(piece, AT_ONCE)
            except zlib.error as error:
                raise Undecodable(str(error)) from error
            yield out
            piece = unpacker.unconsumed_tail
            if unpacker.eof:
                piece, unpacker = unpacker.unused_data, zlib.decompressobj(_window(b"", coding))


def _window(head: bytes, coding: str) -> int:
    """Return what zlib wants to know: its own header, gzip's, or, as some servers understand "deflate", none."""
    is_bare = bool(head) and coding == "deflate" and head[0] & 15 != 8 and head[:2] != b"\x1f\x8b"
    return -zlib.MAX_WBITS if is_bare else zlib.MAX_WBITS | 32
