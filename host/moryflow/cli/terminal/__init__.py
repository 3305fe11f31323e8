"""Output and input at a terminal. This module has the text: it makes control characters visible and fits text to columns."""

from __future__ import annotations

import codecs
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

import click

from moryflow.cli.options import Flags

from .streams import stderr, stdout

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def plain(text: str) -> str:
    """Return `text` with control sequences made visible, so that nothing a model says drives the terminal."""
    text = _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))
    return _SURROGATES.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def first_line(text: str, width: int = 160) -> str:
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= width else line[: width - 1] + "…"


_WRITTEN = frozenset({"content", "old_string", "new_string"})


def brief(args: object) -> str:
    """Return the arguments of a call in one short line, a path before all others."""
    ordered = sorted(args.items(), key=lambda item: item[0] != "path") if isinstance(args, Mapping) else [("", args)]
    values = [str(value).strip() for _, value in ordered if isinstance(value, str | int)]
    if ordered and ordered[0][0] == "path" and (_WRITTEN & dict(ordered).keys() or any("\n" in value for value in values)):
        values = values[:1]  # the written text is shown as a diff
    text = " ".join(values).strip()
    line = first_line(text, 100)
    return line if line == text or line.endswith("…") else f"{line} …"


def fitting(text: str, columns: int) -> str:
    """Return the beginning of `text` that takes at most `columns` columns; East Asian characters take two."""
    from moryflow_sdk.support.texts import columns_of

    taken = 0
    for index, character in enumerate(text):
        taken += columns_of(character)
        if taken > columns:
            return text[:index]
    return text


def cut(text: str, columns: int) -> str:
    """Return `text` in at most `columns` columns, with an ellipsis where something is left out."""
    return text if fitting(text, columns) == text else f"{fitting(text, columns - 1)}…"


def folded(text: str) -> str:
    """Wrap sentences of ours between words to the terminal at standard error; further lines keep a line's indent.

    A word that is longer than a line is left to the terminal, so that it can be copied. So is a next command: if only half
    of it were copied, that would run.
    """
    import shutil

    from moryflow_sdk.support.texts import columns_of, wrapped

    found = terminal_width()
    width = shutil.get_terminal_size((found, 0)).columns if found else 0
    lines: list[str] = []
    for line in text.split("\n"):
        fits = columns_of(line) <= width or width <= 0 or line.startswith("  next: ")
        lines += [line] if fits else wrapped(line, width, line[: len(line) - len(line.lstrip())])
    return "\n".join(lines)


def say(text: str) -> None:
    """Print sentences of ours on standard error, folded between words."""
    click.echo(folded(plain(text)), err=True)


def ending(text: str, columns: int) -> str:
    """Return the end of `text` that takes at most `columns` columns."""
    return fitting(text[: -columns - 1 : -1] if columns else "", columns)[::-1]


def failure_line(status: str, output: str) -> str:
    """Return the first line of a result that is not ``ok``, with the status in front unless the line has it already."""
    line = first_line(output)
    return line if line.startswith(f"{status}: ") else f"{status}: {line}"


def columns(rows: Iterable[Sequence[Any]], *, within: int | None = None) -> str:
    """Return `rows` in aligned columns. A row that is too wide is wrapped, and no single cell makes the columns too wide.

    :param within: how many columns a row may take; by default the width of the terminal, and 0 for one line a row.
    """
    from moryflow_sdk.support.texts import aligned, stdout_width

    cells = ([plain(str(cell)).replace("\n", " ") for cell in row] for row in rows)
    return "\n".join(aligned(cells, stdout_width() if within is None else within))


def at_terminal() -> bool:
    """Return whether the user can be asked: standard input and standard error are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def is_dumb() -> bool:
    """Return whether the terminal shows plain text only and cannot move its cursor."""
    return os.environ.get("TERM") in ("dumb", "unknown")


def use_colour(stream: TextIO) -> bool:
    """Return whether `stream` is a terminal that shows colour, and the user has not refused colour."""
    return stream.isatty() and "NO_COLOR" not in os.environ and not is_dumb()


def terminal_width() -> int:
    """Return the columns of the terminal at standard error; 0 if that is not a terminal."""
    try:
        return os.get_terminal_size(stderr().fileno()).columns
    except OSError:
        return 0


def as_json(document: object, *, indent: int | None = 2) -> str:
    """Return `document` as JSON that standard output can encode, whatever its encoding, and that drives no terminal."""
    readable = codecs.lookup(stdout().encoding or "ascii").name == "utf-8"
    return escaped_json(json.dumps(document, ensure_ascii=not readable, indent=indent, default=str))


def escaped_json(text: str) -> str:
    """Return JSON with escapes for the control characters and marks that JSON allows, and for lone surrogates."""
    return re.sub(f"{_CONTROL.pattern}|{_SURROGATES.pattern}", lambda match: f"\\u{ord(match[0]):04x}", text)


def show(flags: Flags, document: object, text: str) -> None:
    """Print `document` as JSON under ``--json``, else `text` with control sequences made visible."""
    if flags.as_json:
        click.echo(as_json(document), file=stdout())
    elif text:
        click.echo(plain(text), file=stdout())
