"""Find and end the processes that a tool call started, by a mark in their environment.

A program that carries the mark may not make the user's decisions.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from moryflow_sdk.errors import ConfigError

if TYPE_CHECKING:
    from asyncio.subprocess import Process

Started = TypeVar("Started")
CALL_MARK = "MORYFLOW_CALL"
"""The environment variable that marks the processes of a tool call."""
_sent: ContextVar[Mapping[str, str] | None] = ContextVar("moryflow_environment", default=None)


def inside_tool() -> bool:
    """Whether a tool started this program, directly or through others."""
    return bool(os.environ.get(CALL_MARK))


def refuse_inside_tool(what: str) -> None:
    """Refuse `what` (``moryflow config set``) if a tool started this program.

    :raises ConfigError: a tool started it.
    """
    if inside_tool():
        message = f"{what} was started by a tool; permissions, plugins and configuration are changed by the user only"
        raise ConfigError(message, where=CALL_MARK, next_step=f"run it in a terminal of your own, where {CALL_MARK} is not set")


END_TIMEOUT = 2.0
_POLL_INTERVAL = 0.02
_PROC = Path("/proc")


def turn_environment() -> Mapping[str, str]:
    """Return the environment variables for the tools of the running turn: those that a client sent, else this process's own."""
    sent = _sent.get()
    return os.environ if sent is None else sent


@contextmanager
def using_environment(variables: Mapping[str, str] | None) -> Generator[None]:
    """Give `variables` to the tools of a turn that runs in this block; ``None`` means the variables of this process.

    Moryflow's own variables are left out, because they belong to the process that runs the turn.
    """
    kept = None if variables is None else {k: v for k, v in variables.items() if not k.startswith("MORYFLOW_")}
    token = _sent.set(kept)
    try:
        yield
    finally:
        _sent.reset(token)


def marked_environment(mark: str) -> dict[str, str]:
    """Return the environment of the running turn with the `mark` of a tool call, for a program that the call starts."""
    return {**turn_environment(), CALL_MARK: mark}


async def started(start: Awaitable[Started]) -> Started:
    """Await `start`, which starts a process, and return its result. A cancellation in the meantime takes effect at the next
    await, when the caller can end the process with its children.

    If asyncio is cancelled while it starts a process, it kills that process alone and may then wait for its children.
    """
    import asyncio

    task, starting, cancelled = asyncio.current_task(), asyncio.ensure_future(start), 0
    assert task is not None
    while not starting.done():
        try:
            await asyncio.wait((starting,))
        except asyncio.CancelledError:
            task.uncancel()
            cancelled += 1
    for _ in range(cancelled):
        task.cancel()
    return starting.result()


async def end_process(process: Process) -> None:
    """Kill a process that asyncio has started, and wait for it.

    The method ``kill`` of the process first polls whether it still runs. If it has just ended, this takes the exit code away
    from asyncio, which then complains on standard error.
    """
    if process.returncode is None:
        with suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)
    await process.wait()


def end_marked(marks: Collection[str], *, settle: float = 0.0) -> Mapping[str, int] | None:
    """Kill every process whose variable ``MORYFLOW_CALL`` is one of `marks`. Blocks until they have ended.

    The search repeats until no process is left, because one may have started another in the meantime, and a killed process
    takes a moment to end. Processes of other users are left alone, and so is a mark that this process carries itself.

    :param settle: end the search only after it has found nothing for so many seconds. A program carries its mark only from
        its exec on, so that one may still appear although the process that started it has been killed.
    :returns: how many processes carried each mark; ``None`` if that is unknown because there is no ``/proc``.
    """
    if not (_PROC / "self/environ").exists():
        return None
    wanted = {f"{CALL_MARK}={mark}".encode(): mark for mark in marks if mark != os.environ.get(CALL_MARK)}
    found: dict[int, str] = {}
    begun = seen = time.monotonic()
    while wanted and time.monotonic() - begun < END_TIMEOUT:
        if alive := _kill_marked(wanted):
            found.update(alive)
            seen = time.monotonic()
        elif time.monotonic() - seen >= settle:
            break
        time.sleep(_POLL_INTERVAL)
    return Counter(found.values())


def _kill_marked(wanted: Mapping[bytes, str]) -> dict[int, str]:
    found: dict[int, str] = {}
    for name in os.listdir(_PROC):  # noqa: PTH208
        with suppress(OSError):  # the process has just ended, or belongs to another user
            if not name.isdecimal() or not _mark_of(int(name), wanted) or (_PROC / name).stat().st_uid != os.geteuid():
                continue
            descriptor = os.pidfd_open(int(name))  # with it, the number cannot be reused meanwhile
            try:
                if mark := _mark_of(int(name), wanted):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    found[int(name)] = mark
            finally:
                os.close(descriptor)
    return found


def _mark_of(process: int, wanted: Mapping[bytes, str]) -> str | None:
    descriptor = os.open(f"{_PROC}/{process}/environ", os.O_RDONLY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        environ = file.read()
    if not any(entry in environ for entry in wanted):
        return None
    return next((wanted[entry] for entry in environ.split(b"\0") if entry in wanted), None)
