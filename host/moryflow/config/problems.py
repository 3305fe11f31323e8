"""What is wrong with a configuration, and where a value came from."""

from __future__ import annotations

from typing import Literal, NamedTuple

SourceName = Literal["default", "user", "secrets", "environment", "inline", "flag"]

MOST = 50
"""Problems reported per file; more are counted."""


class Problem(NamedTuple):
    """One thing that is wrong: where, what, and what helps.

    :param code: the class of the report, for example ``config_syntax`` or ``rule_invalid``.
    :param fatal: a deny, a limit or a plugin that is switched off may be lost, so ``config check`` fails and runs say
        so.
    """

    file: str
    line: int | None
    column: int | None
    message: str
    hint: str = ""
    fatal: bool = False
    code: str = "config_value"

    @property
    def where(self) -> str:
        """``file:line:column`` as far as it is known."""
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part)

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" + (f" ({self.hint})" if self.hint else "")


class Origin(NamedTuple):
    """Which layer a value comes from; `file` is the variable's name for the environment."""

    source: SourceName
    file: str | None = None
    line: int | None = None
