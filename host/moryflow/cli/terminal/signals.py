"""Signals that stop a turn or a wait, whatever keeps the loop from running."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from types import FrameType


def stop_on_signals(stop: Callable[[], object]) -> None:
    """Stop the turn on the first SIGINT, SIGTERM or SIGHUP, and leave at once on the second."""
    catch_signals(("SIGINT", "SIGTERM", "SIGHUP"), lambda _: stop(), leave_at=2)


def catch_signals(names: Sequence[str], act: Callable[[int], object], *, leave_at: int) -> Callable[[], None]:
    """Call `act` on the loop for each of these signals; the returned function ends that.

    The handlers are Python's own, not the loop's: a plugin that keeps the loop from running must not keep a person
    from leaving.

    :param leave_at: the signal, counted from one, at which the process ends at once, whatever the loop does.
    """
    loop = asyncio.get_running_loop()
    seen: list[int] = []

    def received(number: int, _: FrameType | None) -> None:
        seen.append(number)
        if len(seen) >= leave_at:
            os._exit(130)
        loop.call_soon_threadsafe(act, number)

    known = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = [(number, signal.signal(number, received)) for number in known]

    def restore() -> None:
        for number, handler in before:
            signal.signal(number, handler)

    return restore
