"""Tell every model the date, where no other plugin can take it out."""

from __future__ import annotations

from datetime import date

from moryflow_sdk import SystemBlock, Turn, hookimpl


@hookimpl
def system_blocks(turn: Turn) -> list[SystemBlock]:
    """Not stable: it changes every day, so it stands after what providers keep in their caches."""
    return [SystemBlock(id="today", text=f"Today is {date.today():%A, %d %B %Y}.", stable=False)]
