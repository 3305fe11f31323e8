"""Deadlines of hooks: elapsed time for third-party plugins, processor time for built-in ones.

A built-in that waits for the processor has done nothing wrong; one that waits for something else is given up later.
"""

from __future__ import annotations

import threading
import time

STUCK = 60.0
"""Seconds after which a built-in counts as stuck, whatever it waits for, unless its deadline is later still."""


def longest(seconds: float) -> float:
    """Return the seconds in which a built-in with a deadline of `seconds` has to be back, however little it worked."""
    return max(seconds, STUCK)


_FRESH = 1_000_000
"""Nanoseconds for which a reading of the processor time is good enough: each costs ten readings of the clock."""


class _Reading(threading.local):
    at = -_FRESH
    worked = 0


_reading = _Reading()


def worked_until(now: int) -> int:
    """Return the processor time of this thread in nanoseconds, at most a millisecond too much.

    :param now: what :func:`time.perf_counter_ns` has just said.
    """
    if now - _reading.at >= _FRESH:
        _reading.at, _reading.worked = now, time.thread_time_ns()
    return _reading.worked + now - _reading.at


class WorkMeter:
    """The processor time that this thread spends between :meth:`resume` and :meth:`pause`.

    :param since: the processor time from which on it counts.
    """

    __slots__ = ("_limit", "_since", "_spent")

    def __init__(self, seconds: float, since: int) -> None:
        self._limit = seconds * 1e9
        self._spent = 0
        self._since = since

    def resume(self) -> None:
        """Count from here on."""
        self._since = time.thread_time_ns()

    def pause(self) -> None:
        """Count no further: other code gets the thread."""
        self._spent += time.thread_time_ns() - self._since

    @property
    def passed(self) -> bool:
        """Whether more was spent than allowed."""
        return self._spent > self._limit


def thread_worked(identity: int | None) -> float | None:
    """Return the processor seconds that a running thread has used, ``None`` where the system does not tell."""
    clock = getattr(time, "pthread_getcpuclockid", None)
    return None if clock is None or identity is None else time.clock_gettime(clock(identity))
