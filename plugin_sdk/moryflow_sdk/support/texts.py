"""Common rules for texts: what is binary, what is shown, how lines are wrapped, which name or time somebody meant."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

HEAD_BYTES = 256 * 1024
"""How much of a file is examined; a NUL further behind, such as a crash leaves in a log, does not make it binary."""

MARKS: tuple[tuple[bytes, str], ...] = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte-order marks. UTF-32 stands before UTF-16, because its mark begins with that of UTF-16."""

_MARKS = r"\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
_UNSEEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    r"\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    r"\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    rf"|(?<![^\x00-\x7f])[\ufe0e\ufe0f](?!\u20e3)|(?<=[{_MARKS}]{{4}})[{_MARKS}]"
)
"""Control characters, marks that reverse the direction of a line, characters without width, and blank letters; what says how an
emoji is drawn, where there is none; and combining marks after four others, which would reach into other lines."""
_STRANGE = bytes(byte for byte in range(32) if byte not in b"\t\n\r\f\x1b\x08")


def mark_of(data: bytes) -> tuple[bytes, str]:
    """Return the byte-order mark at the beginning of `data` and its encoding, both empty without one."""
    return next(((mark, encoding) for mark, encoding in MARKS if data.startswith(mark)), (b"", ""))


_IMAGES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF87a": "image/gif", b"GIF89a": "image/gif"}


def image_type(data: bytes) -> str:
    """Return the media type of an image that models are shown (PNG, JPEG, GIF, WebP), by its first bytes; else nothing."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _IMAGES.items() if data.startswith(magic)), "")


def looks_binary(data: bytes) -> bool:
    """Whether `data`, a file or its first :data:`HEAD_BYTES`, is not text.

    It is binary if it has a NUL or many control characters; data with a byte-order mark is text.
    """
    if mark_of(data)[0]:
        return False
    if data.find(b"\0", 0, HEAD_BYTES) >= 0:
        return True
    head = data[:4096]
    return len(head) - len(head.translate(None, _STRANGE)) > 0.1 * len(head)


def visible(text: str, *, keep: str = "") -> str:
    """Return `text` with control characters and other invisible ones escaped as in Python.

    Use it for everything that a command prints and that a model, a file or a file's name determined, so that nothing in it
    controls the terminal, reverses a line or hides.

    :param keep: characters that stay as they are; ``"\\n\\t"`` for text of several lines.
    """
    return _UNSEEN.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)


_KIND = re.compile(r"\A(?:vault:/|(?:fs|shell|url|query|mcp|task|tool):)")


def in_words(target: str) -> str:
    """Return a target, or a pattern for targets, as the user reads it: without its kind, and a path relative to the folder."""
    return _KIND.sub("", target) or ("this folder" if target.startswith("vault:") else "")


def without_unseen(text: str) -> str:
    """Return `text` without the invisible characters that :func:`visible` escapes."""
    if text.isascii() and text.isprintable():  # three times as fast for most texts
        return text
    return _UNSEEN.sub(lambda found: found[0] if found[0] in "\n\t\r" else "", text)


def first_unseen(text: str) -> str:
    """Return the first character that :func:`without_unseen` leaves out, as an escape; empty if there is none."""
    found = next((found[0] for found in _UNSEEN.finditer(text) if found[0] not in "\n\t\r"), "")
    return ascii(found)[1:-1]


def columns_of(text: str) -> int:
    """Return how many columns of a terminal `text` needs; East Asian characters need two."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)


def wrapped(text: str, width: int, below: str = "") -> list[str]:
    """Return `text` as lines that fit a terminal of `width` columns, broken at blanks and between East Asian characters.

    Words and paths that are longer than a line are not broken, so that they can be copied.

    :param below: the beginning of all lines but the first.
    """
    lines: list[str] = []
    line = ""
    for piece in re.findall(rf"[ \t]*(?:[^ \t]*[./\\][^ \t]*|[{_EAST_ASIAN}]|[^ \t{_EAST_ASIAN}]+){_CLOSING}*", text):
        if line.strip() and columns_of(line + piece) > max(width, _READABLE):
            lines.append(line)
            line, piece = below, piece.lstrip()
        line += piece
    return [*lines, line]


_EAST_ASIAN = r"\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff00-\uffef\U00020000-\U0003fffd"
_CLOSING = r"[\u3001\u3002\u3009\u300b\u300d\u300f\u3011\uff01\uff09\uff0c\uff1a\uff1b\uff1f]"
"""East Asian punctuation with which no line may begin."""
_READABLE = 20
"""A text is never wrapped to fewer columns than this."""


def hung(row: str, width: int) -> str:
    """Return a row of a table as lines that fit a terminal of `width` columns; the following lines begin below its last column,
    or a little to the right if that leaves too little room."""
    if not 0 < width < columns_of(row):
        return row
    places = [columns_of(row[: found.end()]) for found in re.finditer(r"(?<=\S) {2,}(?=\S)", row)]
    last = places[-1] if places and places[-1] + _READABLE <= width else 4
    return "\n".join(wrapped(row, width, " " * last))


def aligned(rows: Iterable[Sequence[str]], width: int, indent: str = "") -> list[str]:
    """Return `rows`, whose cells have one line each, as lines in aligned columns; a row that is too wide is wrapped.

    A cell that takes more than half of the `width` does not widen its column. A `width` of 0 means without a limit.
    """
    cells = list(rows)
    most = max(width // 2, _READABLE) if width else sys.maxsize
    sizes = [[size for size in map(columns_of, column) if size <= most] for column in zip(*cells, strict=True)]
    widths = [max(column, default=0) for column in sizes]
    lines = ("  ".join(cell + " " * (size - columns_of(cell)) for cell, size in zip(row, widths, strict=True)) for row in cells)
    return [hung(f"{indent}{line.rstrip()}", width) for line in lines]


def stdout_width() -> int:
    """Return the width of the terminal on standard output; 0 if it is not a terminal."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object; use it as ``object_pairs_hook``, to refuse what parsers read differently.

    :raises ValueError: a key is given twice.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def composed(text: str) -> str:
    """Return `text` with its accents in composed form (NFC), to compare names regardless of how they are stored."""
    if text.isascii():
        return text
    from unicodedata import normalize

    return normalize("NFC", text)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the known name that was probably meant, or an empty text."""
    return _nearest(name[:80], tuple(known), cutoff)


@lru_cache(maxsize=4096)  # of 20,000 rules, the words are looked at again and again
def _nearest(name: str, known: tuple[str, ...], cutoff: float) -> str:
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, known, n=1, cutoff=cutoff)), "")


def did_you_mean(name: str, known: Iterable[str], prefix: str | None = None) -> str:
    """Return the end of a message about an unknown name: ``; did you mean 'x'?``, or an empty text if no name is near.

    :param prefix: a text before the suggested name, which is then not quoted.
    """
    near = nearest(name, known)
    if not near:
        return ""
    return f"; did you mean {near!r}?" if prefix is None else f"; did you mean {prefix}{near}?"


def best_matches(query: str, known: Mapping[str, Iterable[tuple[int, str]]]) -> list[str]:
    """Return the names whose texts share words with `query`, the best first.

    :param known: name → its texts, each with the weight of a word in it.
    """
    words = set(_words(query))
    scores = {name: sum(weight * len(words & set(_words(text))) for weight, text in texts) for name, texts in known.items()}
    return sorted((name for name, score in scores.items() if score > 0), key=lambda name: (-scores[name], name))


def _words(text: str) -> list[str]:
    return [word.removesuffix("s") for word in re.findall(r"\w+", re.sub(r"([a-z])([A-Z])|_", r"\1 \2", text).lower())]


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(text: str, now: datetime | None = None) -> datetime:
    """Return the time that `text` names: ``30m``, ``2h``, ``7d`` ago, or a date or time in ISO 8601 (local without a zone).

    :raises ValueError: `text` is not a time; the message gives examples.
    """
    ago = re.fullmatch(r"(\d{1,6})\s*([smhdw])", text.strip())
    try:
        if ago:
            return (now or datetime.now(UTC)) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a time; try 30m, 2h, 7d or 2026-01-31") from error
