"""What counts as text, and which texts are the same: one rule for all that read, change, search or guard a file."""

from __future__ import annotations

import codecs
import re

HEAD_BYTES = 256 * 1024
"""How much of a file's beginning is looked at; one NUL far behind, as a crash leaves it in a log, makes nothing binary."""

MARKS: tuple[tuple[bytes, str], ...] = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte-order marks; the longer ones first, because one begins with another."""

_UNSEEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
_STRANGE = bytes(byte for byte in range(32) if byte not in b"\t\n\r\f\x1b\x08")


def mark_of(data: bytes) -> tuple[bytes, str]:
    """Return the byte-order mark at the beginning of `data` and its encoding, both empty without one."""
    return next(((mark, encoding) for mark, encoding in MARKS if data.startswith(mark)), (b"", ""))


def looks_binary(data: bytes) -> bool:
    """Whether the beginning of `data`, a file or its first :data:`HEAD_BYTES`, is no text.

    It is none when it has a NUL or is full of control characters; what begins with a byte-order mark is text.
    """
    if mark_of(data)[0]:
        return False
    if data.find(b"\0", 0, HEAD_BYTES) >= 0:
        return True
    head = data[:4096]
    return len(head) - len(head.translate(None, _STRANGE)) > 0.1 * len(head)


def visible(text: str, *, keep: str = "") -> str:
    """Return `text` with its control characters, and others that nobody sees, spelled out as in Python (R3).

    For all that a command prints and a model, a file or its name may have chosen: nothing of it drives the terminal, turns
    a line around or hides in it.

    :param keep: characters that stay as they are; ``"\\n\\t"`` for text of several lines.
    """
    return _UNSEEN.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)


def composed(text: str) -> str:
    """Return `text` with its accents in one form (NFC), to compare names however they are stored and written."""
    if text.isascii():
        return text
    from unicodedata import normalize

    return normalize("NFC", text)
