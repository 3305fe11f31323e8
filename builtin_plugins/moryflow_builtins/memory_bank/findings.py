"""What ``check`` and ``doctor`` find: where it stands, what it is, and the next step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    :param code: a short stable reason: ``missing``, ``blocks``, ``schema``, ``link``, ``pointer``, ``size``, ``drift`` …
    :param line: 1-based, 0 where there is none.
    """

    code: str
    file: str
    message: str
    next: str
    line: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        return {key: value for key, value in asdict(self).items() if value != 0}

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.message}. Next: {self.next}"


def document(kind: str, found: Sequence[Finding], **more: Any) -> dict[str, Any]:
    """Return findings as one JSON object."""
    return {"v": 1, "type": kind, "ok": not found, **more, "findings": [finding.as_json() for finding in found]}


def rendering(found: Sequence[Finding], fine: str) -> str:
    """Return findings as text, one a line."""
    return "\n".join(map(str, found)) if found else fine
