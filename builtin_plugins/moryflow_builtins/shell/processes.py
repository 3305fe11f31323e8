"""End processes: a group politely, then for good; and those that left the group, found by a mark in their environment."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

MARK = "MORYFLOW_CALL"
POLITE_SECONDS = 1.0
_STEP = 0.02


async def end_group(group: int, leader_ended: Callable[[], bool]) -> None:
    """Send SIGTERM to a process group, and SIGKILL to what is left of it a second later."""
    if not _send(group, signal.SIGTERM):
        return
    waited = 0.0
    while waited < POLITE_SECONDS and (not leader_ended() or _alive(group)):
        await asyncio.sleep(_STEP)
        waited += _STEP
    _send(group, signal.SIGKILL)


def end_marked(mark: str) -> None:
    """Kill every process that carries `mark`: a command's children that made a session of their own (Linux only)."""
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in entry.read_bytes().split(b"\0"):
                os.kill(int(entry.parent.name), signal.SIGKILL)
        except OSError:
            continue  # it ended meanwhile, or is somebody else's


def _send(group: int, number: int) -> bool:
    """Signal a group; return whether there was one."""
    try:
        os.killpg(group, number)
    except OSError:
        return False
    return True


def _alive(group: int) -> bool:
    return _send(group, 0)
