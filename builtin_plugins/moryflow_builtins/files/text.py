"""Bytes as text and back, so that nothing but the change differs: encoding, byte-order mark and line ends are kept."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from moryflow_sdk import ToolError

MAX_BYTES = 32 * 1024 * 1024
"""Files over this are neither edited nor read as one piece."""

MARKS: tuple[tuple[bytes, str], ...] = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte-order marks; the longer ones first, because one begins with another."""

FALLBACK = "latin-1"
"""Takes every byte, so what is not touched comes back as it was."""


@dataclass(frozen=True)
class Text:
    """The text of a file and what is needed to write it again."""

    text: str
    encoding: str = "utf-8"
    mark: bytes = b""

    def encode(self, text: str, name: str) -> bytes:
        """Return `text` as bytes of this file.

        :raises ToolError: ``encoding``: the file's encoding cannot write a character of it.
        """
        try:
            return self.mark + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            character = ascii(text[error.start])
            raise ToolError(
                f"{name} is {self.encoding} text and cannot hold {character}",
                code="encoding",
                next_step="leave that character out, or convert the file to UTF-8 first",
            ) from error


def mark_of(data: bytes) -> tuple[bytes, str]:
    """Return the byte-order mark at the beginning of `data` and its encoding, both empty without one."""
    return next(((mark, encoding) for mark, encoding in MARKS if data.startswith(mark)), (b"", ""))


def decode(data: bytes, name: str) -> Text:
    """Return `data` as text: by its mark, as UTF-8, or else as :data:`FALLBACK`.

    :raises ToolError: ``binary``.
    """
    mark, encoding = mark_of(data)
    try:
        return Text(data[len(mark) :].decode(encoding or "utf-8"), encoding or "utf-8", mark)
    except UnicodeDecodeError:
        pass
    if b"\0" in data or encoding:
        raise ToolError(f"{name} is a binary file", code="binary", next_step="change it with a program made for it")
    return Text(data.decode(FALLBACK), FALLBACK)


def encode_new(text: str, name: str) -> bytes:
    """Return the content of a new file."""
    return Text("").encode(text, name)


def looks_binary(data: bytes) -> bool:
    """Whether `data`, the beginning of a file without a mark, is no text: it has NUL or is full of control characters."""
    if b"\0" in data:
        return True
    strange = sum(byte < 32 and byte not in b"\t\n\r\f\x1b\x08" for byte in data[:4096])
    return strange > 0.1 * len(data[:4096])
