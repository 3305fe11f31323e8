"""What is wrong with something a person wrote: where, what, and what to do."""

from __future__ import annotations

from ._frozen import Frozen


class Diagnostic(Frozen):
    """A contribute hook may return one in place of an item it could not make; every surface shows it.

    :param code: a short stable reason, for example ``agent_frontmatter``.
    """

    file: str
    message: str
    code: str = ""
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        return f"{place}: {self.message}"
