"""Keep long outputs out of the context: a preview, the whole in a file, and how to go on.

The last of ``tool_after``, for every tool without exception. The file is an artifact; it is removed after its time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from moryflow_sdk import Command, Event, ToolCall, ToolResult, Turn, hookimpl
from moryflow_sdk.support.settings import Meta, Settings

from .truncate import Direction, Limits

CAP_FACTOR = 4
"""The host cuts whatever is over four times `maxBytes`; storing before it does keeps the rest."""

_TAILS = ("bash",)

Lines = Annotated[int, Meta(gt=0, le=10_000_000, strict=True)]
"""A whole number above zero; neither text nor a boolean."""

Bytes = Annotated[int, Meta(gt=0, le=32 * 1024 * 1024 // CAP_FACTOR, strict=True)]
"""Likewise; the host holds no more than 32 MiB of an output in memory."""


class ToolLimits(Settings):
    """Other limits for one tool, or for those a glob names.

    :ivar max_lines: lines shown, in place of the general limit; likewise the others.
    :ivar max_bytes: bytes shown.
    :ivar direction: which end is shown.
    :ivar enabled: false shows the whole output.
    """

    max_lines: Lines | None = None
    max_bytes: Bytes | None = None
    direction: Literal["head", "tail", "both"] | None = None
    enabled: bool | None = None


class TruncationSettings(Settings):
    """How much of an output a model reads, and how long the whole is kept.

    :ivar direction: which end is shown; without it the head, and of ``bash`` the tail.
    :ivar tools: name or glob → other limits; of several that match, a later one wins and an exact name beats globs.
    :ivar max_lines: lines of an output that the model reads.
    :ivar max_bytes: bytes of an output that the model reads.
    :ivar ttl_days: days that a whole output is kept in a file.
    :ivar enabled: false cuts nothing that fits the host.
    """

    max_lines: Lines = 2000
    max_bytes: Bytes = 51200
    ttl_days: Annotated[float, Meta(gt=0, le=36500, strict=True, allow_inf_nan=False)] = 7
    direction: Literal["head", "tail", "both"] | None = None
    enabled: Annotated[bool, Meta(strict=True)] = True
    tools: dict[str, ToolLimits] = {}

    def limits(self, tool: str) -> Limits:
        """Return what holds for `tool`. Switched off still stores what the host's cap would cut."""
        direction: Direction = self.direction or ("tail" if tool in _TAILS else "head")
        lines, size, enabled = self.max_lines, self.max_bytes, self.enabled
        for entry in self._entries(tool):
            lines = entry.max_lines or lines
            size = entry.max_bytes or size
            direction = entry.direction or direction
            enabled = enabled if entry.enabled is None else entry.enabled
        ceiling = CAP_FACTOR * self.max_bytes - 1024
        if not enabled:
            return Limits(sys.maxsize, max(ceiling, self.max_bytes), direction)
        return Limits(lines, min(size, max(ceiling, self.max_bytes)), direction)

    def _entries(self, tool: str) -> list[ToolLimits]:
        globs = [entry for name, entry in self.tools.items() if fnmatchcase(tool, name)]
        return [*globs, self.tools[tool]] if tool in self.tools else globs


name = "truncation"
services = ("artifacts", "emit")
config_model = TruncationSettings
config_path = "agents.runtime.truncation"

EXPIRY_INTERVAL = 3600.0
_looked: dict[Path, float] = {}
"""When this process last looked for expired files, by home; forgotten with the process, which then looks again."""


@hookimpl
def commands() -> Sequence[Command]:
    """Add ``moryflow output``."""
    return [Command(name="output", help="List, show and open stored tool outputs.", cli=_group)]


@hookimpl(timeout=60.0)
async def tool_after(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | None:
    """Replace an output that is over the limits by a preview that says where the whole is."""
    from .truncate import truncate

    return await truncate(call, result, turn)


@hookimpl(timeout=30.0, events="turn.start")
async def event(event: Event, turn: Turn | None) -> None:
    """Remove expired files when a turn starts, at most hourly."""
    if event.type != "turn.start" or turn is None:
        return
    now = time.monotonic()
    last = _looked.get(turn.home)
    if last is None or now - last >= EXPIRY_INTERVAL:
        _looked[turn.home] = now
        await turn.artifacts.expire()


def _group() -> object:
    from .cli import output

    return output
