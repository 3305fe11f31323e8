"""End processes: a group politely, then for good; and those that left the group, found by a mark in their environment."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

MARK = "MORYFLOW_CALL"
POLITE_SECONDS = 1.0
PATIENCE_SECONDS = 2.0
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
    """Kill every process that carries `mark`: a command's children that made a session of their own (Linux only).

    Looks again until none is left, because one may have started another meanwhile, and a killed one takes a moment to go.
    """
    wanted = f"{MARK}={mark}".encode()
    end = time.monotonic() + PATIENCE_SECONDS
    while _kill_marked(wanted) and time.monotonic() < end:
        time.sleep(_STEP)


def _kill_marked(wanted: bytes) -> bool:
    """Kill what is there now; return whether there was anything."""
    found = False
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in entry.read_bytes().split(b"\0"):
                found = True
                os.kill(int(entry.parent.name), signal.SIGKILL)
        except OSError:
            continue  # it ended meanwhile, or is somebody else's
    return found


def _send(group: int, number: int) -> bool:
    """Signal a group; return whether there was one."""
    try:
        os.killpg(group, number)
    except OSError:
        return False
    return True


def _alive(group: int) -> bool:
    return _send(group, 0)
