"""Tables of programs, written as text so that they can be read like one: ``names | operands | options``.

A line that begins with blanks goes on with the options of the line before it.
"""

from __future__ import annotations

from collections.abc import Iterator


def rows(table: str) -> Iterator[tuple[str, str, str]]:
    """Yield (name, operands, options) for every name of `table`."""
    logical: list[str] = []
    for line in filter(str.strip, table.splitlines()):
        if line[0].isspace():
            logical[-1] += f" {line.strip()}"
        else:
            logical.append(line)
    for line in logical:
        names, operands, options = (part.strip() for part in line.split("|"))
        yield from ((name, operands, options) for name in names.split())
