"""Keep long outputs out of the context: a preview, the whole in a file, and how to go on.

The last of ``tool_after``, for every tool without exception. The file is an artifact; it is removed after its time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from moryflow_sdk import Command, Event, ToolCall, ToolResult, Turn, hookimpl

from .settings import TruncationSettings

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
    from .shorten import shortened

    return await shortened(call, result, turn)


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
