"""What is wrong with something a person wrote: where, what, and what to do."""

from __future__ import annotations

from ._frozen import Frozen


class Diagnostic(Frozen):
    """A contribute hook may return one in place of an item it could not make; every surface shows it.

    :param code: a short stable reason, for example ``agent_frontmatter``.
    :param next_step: the command that helps.
    """

    file: str
    message: str
    code: str = ""
    line: int | None = None
    column: int | None = None
    next_step: str = ""

    def __str__(self) -> str:
        return f"{self.sentence}; next: {self.next_step}" if self.next_step else self.sentence

    @property
    def sentence(self) -> str:
        """Where and what, without what to do."""
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        return f"{place}: {self.message}"
