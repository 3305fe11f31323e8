"""End a group of processes: SIGTERM first, then SIGKILL."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

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


def _send(group: int, number: int) -> bool:
    """Signal a group; return whether there was one."""
    try:
        os.killpg(group, number)
    except OSError:
        return False
    return True


def _alive(group: int) -> bool:
    return _send(group, 0)
