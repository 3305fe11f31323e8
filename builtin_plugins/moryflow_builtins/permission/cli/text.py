"""Plain, aligned text for a terminal; nothing that a rule or a command holds can move its cursor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moryflow_sdk import texts


def visible(text: str, limit: int = 0) -> str:
    """Return `text` on one line, control and invisible characters spelled out, cut to `limit` characters."""
    if 0 < limit < len(text):
        text = text[: limit - 1] + "…"
    return texts.visible(text)


def table(rows: Iterable[Sequence[object]], *, indent: str = "", limit: int = 120) -> list[str]:
    """Return `rows` as lines with aligned columns; the last column is not padded."""
    cells = [[visible(str(cell), limit) for cell in row] for row in rows]
    if not cells:
        return []
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return [indent + line.rstrip() for line in lines]
