"""A program started by a tool carries a mark and may not make a person's decisions."""

from __future__ import annotations

import os

from moryflow_sdk.errors import ConfigError

CALL_MARK = "MORYFLOW_CALL"
"""The variable by which the processes of a tool call are known."""


def inside_tool() -> bool:
    """Whether a tool started this program, directly or through others."""
    return bool(os.environ.get(CALL_MARK))


def refuse_inside_tool(what: str) -> None:
    """Refuse `what` (``moryflow config set``) where a tool started this program.

    :raises ConfigError: it did.
    """
    if inside_tool():
        message = f"{what} was started by a tool; permissions, plugins and configuration are changed by a person only"
        raise ConfigError(message, where=CALL_MARK, next_step=f"run it in a terminal of your own, where {CALL_MARK} is not set")
