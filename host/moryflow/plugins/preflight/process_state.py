"""The shared state of a process: recorded before a plugin is imported and compared afterwards."""

from __future__ import annotations

import gc
import locale
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_FACTS = (
    "argv", "byteorder", "dont_write_bytecode", "exec_prefix", "executable", "flags", "hexversion", "maxsize", "platform",
    "prefix", "version_info",
)  # fmt: skip
_NEEDED = ("HOME", "MORYFLOW_")
"""Beginnings of the variables that may not be changed; others may be set, but not taken away."""
_ALARM = 0.5
"""Seconds by which two looks at the same alarm may differ."""
_TIMERS = {signal.ITIMER_REAL: "ITIMER_REAL", signal.ITIMER_VIRTUAL: "ITIMER_VIRTUAL", signal.ITIMER_PROF: "ITIMER_PROF"}


@dataclass(frozen=True)
class Guarded:
    """One moment of what is guarded: what must stay as it is, what should, and what may only grow."""

    fixed: dict[str, Any]
    polite: dict[str, Any]
    timers: dict[str, float]
    environ: dict[str, str]
    lists: dict[str, list[Any]]
    errors: int
    recursion: int
    threads: set[int | None]
    children: bool


def take() -> Guarded:
    """Return the state of this moment."""
    return Guarded(
        fixed={name: _read(read) for name, read in _FIXED.items()} | _handlers(),
        polite={name: _read(read) for name, read in _POLITE.items()},
        timers=_timers(),
        environ=dict(os.environ),
        lists={"sys.path": list(sys.path), "sys.meta_path": list(sys.meta_path), "sys.path_hooks": list(sys.path_hooks)},
        errors=_errors(),
        recursion=sys.getrecursionlimit(),
        threads={thread.ident for thread in threading.enumerate()},
        children=_has_children(),
    )


def harm(before: Guarded, after: Guarded) -> Iterator[str]:
    """Say what was changed that others rely on."""
    yield from (name for name, value in before.fixed.items() if not _same(value, after.fixed[name]))
    if any(abs(after.timers[name] - at) > _ALARM for name, at in before.timers.items()):
        yield "the alarm of this process"
    if after.recursion < before.recursion:
        yield "the recursion limit"
    for name, entries in before.lists.items():
        if any(entry not in after.lists[name] for entry in entries):
            yield name
    if after.errors > before.errors:
        yield "the warnings filter (warnings become errors)"
    names = {*before.environ, *after.environ}
    lost = [name for name in names if before.environ.get(name) != after.environ.get(name) and _is_needed(name, after)]
    if lost:
        yield f"os.environ ({', '.join(sorted(lost)[:3])})"
    yield from _lingering(before)
    yield from _unusable()


def remarks(before: Guarded, after: Guarded) -> Iterator[str]:
    """Say what was changed that is bad manners and no more."""
    names = sorted(name for name in {*before.environ, *after.environ} if before.environ.get(name) != after.environ.get(name))
    if names:
        yield f"os.environ ({', '.join(names[:5])})"
    path, now = before.lists["sys.path"], after.lists["sys.path"]
    if now[: len(path)] != path and all(entry in now for entry in path):
        yield "the beginning of sys.path"
    if any(finder not in before.lists["sys.meta_path"] and not _ours(finder) for finder in after.lists["sys.meta_path"]):
        yield "sys.meta_path"
    if after.recursion > before.recursion:
        yield "the recursion limit"
    yield from (name for name, value in before.polite.items() if not _same(value, after.polite[name]))
    for thread in threading.enumerate():
        if thread.ident not in before.threads and thread.daemon and not _is_known(thread):
            yield f"its thread {thread.name!r} goes on"
    if after.children and not before.children:
        yield "a process that it started goes on"


# ---------------------------------------------------------------- what is looked at


def _read(read: Callable[[], Any]) -> Any:
    """Return one state; what it is read with may be broken by now, which is a state too."""
    try:
        return read()
    except BaseException as error:
        return type(error).__name__


def _streams() -> list[Any]:
    """Return the streams, and what was set on them: a ``write`` of somebody else, for example."""
    streams = [getattr(sys, f"{kept}{name}{kept}") for name in ("stdin", "stdout", "stderr") for kept in ("", "__")]
    return [(id(stream), *_own(stream)) for stream in streams]


def _own(stream: Any) -> list[tuple[str, int]]:
    return sorted((name, id(value)) for name, value in getattr(stream, "__dict__", {}).items() if callable(value))


def _descriptors() -> list[Any]:
    """Return which files the standard streams are, however they are called now."""
    return [(status.st_dev, status.st_ino) if (status := _status(number)) else None for number in range(3)]


def _status(number: int) -> os.stat_result | None:
    try:
        return os.fstat(number)
    except OSError:
        return None


def _handlers() -> dict[str, Any]:
    names = {number: signal.Signals(number).name for number in signal.Signals}
    return {f"the handler of {name}": signal.getsignal(number) for number, name in names.items()}


def _limits() -> Any:
    import resource

    kinds = (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC)
    return [resource.getrlimit(kind) for kind in kinds]


def _folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _mask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _policy() -> int:
    import asyncio

    # Python 3.14 warns about the public name and uses this one itself.
    ask = getattr(asyncio.events, "_get_event_loop_policy", None) or asyncio.get_event_loop_policy
    return id(ask())


def _tracing() -> Any:
    return sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()


def _wakeup() -> int:
    """Return the descriptor that signals are written to; asking is setting."""
    number = signal.set_wakeup_fd(-1)
    if number != -1:
        signal.set_wakeup_fd(number)
    return number


def _logging() -> Any:
    root = logging.getLogger()
    return root.level, list(root.handlers), list(root.filters)


def _start_method() -> Any:
    known = sys.modules.get("multiprocessing")
    return known.get_start_method(allow_none=True) if known is not None else None


_FIXED: dict[str, Callable[[], Any]] = {
    "sys.stdin, sys.stdout or sys.stderr": _streams,
    "the files behind the standard streams": _descriptors,
    "the limits of this process": _limits,
    "the priority of this process": lambda: os.getpriority(os.PRIO_PROCESS, 0),
    "the process group": lambda: (os.getpgrp(), os.getsid(0)),
    "the user of this process": lambda: (os.geteuid(), os.getegid()),
    "the event loop policy": _policy,
    "the current folder": _folder,
    "the umask": _mask,
    "the tracing of this process": _tracing,
    "the signals that are blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    "the descriptor that signals wake": _wakeup,
    "the garbage collector": lambda: (gc.isenabled(), gc.get_threshold()[0] > 0, list(gc.callbacks)),
    "the default timeout of sockets": socket.getdefaulttimeout,
    "what is logged (logging.disable)": lambda: logging.root.manager.disable,
    "what sys says of this process": lambda: [repr(getattr(sys, name, None)) for name in _FACTS],
    "the time that threads get": sys.getswitchinterval,
}
_POLITE: dict[str, Callable[[], Any]] = {
    "the warnings filter": lambda: list(warnings.filters),
    "the root logger": _logging,
    "the locale": lambda: locale.setlocale(locale.LC_ALL),
    "the longest number that is read": sys.get_int_max_str_digits,
    "how multiprocessing starts": _start_method,
}


def _timers() -> dict[str, float]:
    """Return when each alarm rings; the clock stands in for an alarm that is off, so that only the difference counts."""
    now = time.monotonic()
    return {name: now + left if (left := signal.getitimer(kind)[0]) else 0.0 for kind, name in _TIMERS.items()}


def _errors() -> int:
    """Return how many filters turn warnings into errors, no matter who set them."""
    return sum(action == "error" and not (module or message) for action, message, _, module, _ in warnings.filters)


def _has_children() -> bool:
    """Whether this process has children that run."""
    if not hasattr(os, "waitid"):
        return False
    with suppress(ChildProcessError):
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    return False


def _is_needed(name: str, after: Guarded) -> bool:
    return name not in after.environ or name.startswith(_NEEDED)


def _lingering(before: Guarded) -> Iterator[str]:
    """Name a thread that would keep the host from ending."""
    for thread in threading.enumerate():
        if thread.ident not in before.threads and not thread.daemon and thread.is_alive() and not _is_known(thread):
            yield f"the end of the program: its thread {thread.name!r} is no daemon"


def _ours(finder: Any) -> bool:
    return str(getattr(type(finder), "__module__", "")).startswith("moryflow")


def _is_known(thread: threading.Thread) -> bool:
    return thread is threading.current_thread() or thread.name.startswith("moryflow-")


def _unusable() -> Iterator[str]:
    """Try what everyone needs."""
    try:
        with Path(os.devnull).open("rb"):
            pass
    except BaseException:  # an audit hook may raise anything
        yield "open(): files cannot be opened any more"
    try:
        find_spec("moryflow_sdk_and_no_more")  # there is none, so every finder is asked
    except BaseException:  # a finder of somebody else
        yield "sys.meta_path: modules cannot be found any more"
    try:
        closed = any(getattr(stream, "closed", False) for stream in (sys.stdin, sys.stdout, sys.stderr))
    except BaseException:  # a stream of somebody else
        closed = True
    if closed:
        yield "the standard streams: they are closed"


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except BaseException:  # what is compared may be a plugin's
        return False


_CALLS = {
    "the alarm": r"alarm|setitimer",
    "the current folder": r"chdir",
    "the default timeout": r"setdefaulttimeout",
    "the end of the program: its thread": r"Thread",
    "the event loop policy": r"set_event_loop_policy",
    "the files behind": r"dup2|close",
    "the garbage collector": r"gc\.",
    "the handler of": r"signal\.signal",
    "the limits": r"setrlimit",
    "the priority": r"nice|setpriority",
    "the recursion limit": r"setrecursionlimit",
    "the signals": r"pthread_sigmask",
    "the standard streams": r"close",
    "the tracing": r"settrace|setprofile",
    "the umask": r"umask",
    "the warnings filter": r"warnings\.",
    "what is logged": r"logging\.disable",
    "what runs at the end": r"atexit",
    "what runs: it forks": r"fork",
}
"""By the beginning of what is said: the calls that do it."""
_NAME = re.compile(r"([A-Za-z_]\w*)\W*$")
_OTHER = re.compile(r"\s*(import|from|def|class|async def|#|@)\b")


def line_of(what: str, file: str) -> int:
    """Return the line, 0 when there is none to be sure of."""
    calls = next((calls for beginning, calls in _CALLS.items() if what.startswith(beginning)), "")
    named = _NAME.search(what.partition(" (")[0])
    pattern = re.compile(rf"\b({calls})" if calls else rf"\b{named[1]}\b" if named else "(?!)")
    with suppress(BaseException):  # what reads files may be what was changed
        for number, line in enumerate(Path(file).read_text("utf-8", "replace").splitlines(), 1):
            if pattern.search(line) and not _OTHER.match(line):
                return number
    return 0
