"""``$'…'``: the escapes of C, as bash decodes them."""

from __future__ import annotations

import re

from .syntax import NotParsed

_SIMPLE = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip
_NUMBERS = (
    (re.compile(r"[0-7]{1,3}"), 8, 0),
    (re.compile(r"x([0-9A-Fa-f]{1,2})"), 16, 1),
    (re.compile(r"u([0-9A-Fa-f]{1,4})"), 16, 1),
    (re.compile(r"U([0-9A-Fa-f]{1,8})"), 16, 1),
)


def decode_ansi_c(text: str, position: int) -> tuple[str, int]:
    """Return what stands between `position` and the closing quote, decoded, and the position after that quote.

    :raises NotParsed: it is not closed, or an escape gives a byte that is not a character of its own.
    """
    decoded: list[str] = []
    while position < len(text):
        char = text[position]
        if char == "'":
            return "".join(decoded), position + 1
        if char != "\\":
            decoded.append(char)
            position += 1
            continue
        piece, position = _escape(text, position + 1)
        decoded.append(piece)
    raise NotParsed("a $' quote is not closed")


def _escape(text: str, position: int) -> tuple[str, int]:
    following = text[position : position + 1]
    if following in _SIMPLE and following:
        return _SIMPLE[following], position + 1
    for pattern, base, group in _NUMBERS:
        number = pattern.match(text, position)
        if number:
            value = int(number.group(group), base)
            wide = following in ("u", "U")
            if value == 0 or value > (0x10FFFF if wide else 0x7F) or 0xD800 <= value <= 0xDFFF:
                raise NotParsed("an escape in $'…' gives a byte that cannot be shown")
            return chr(value), number.end()
    if following == "c" or following == "":
        raise NotParsed("an escape in $'…' gives a control character")
    return f"\\{following}", position + 1
