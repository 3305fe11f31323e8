"""Rules as a person types them: the commands that let a call run which nobody could be asked about."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

MOST = 3
"""More commands than that are no help to anybody."""


def allowing(rules: Iterable[tuple[str, str]]) -> str:
    """Return one line of shell that stores an allow rule for each (domain, pattern); empty where no rule would help."""
    each = [f"moryflow permission allow {domain} {shlex.quote(pattern)}" for domain, pattern in dict.fromkeys(rules)]
    return " && ".join(each) if len(each) <= MOST else ""
