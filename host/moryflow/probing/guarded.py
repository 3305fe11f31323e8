"""What belongs to everyone in a process: taken before a plugin is imported and compared after it."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

_MODULES = (
    "asyncio", "builtins", "hashlib", "io", "json", "json.decoder", "json.encoder", "logging", "os", "pathlib", "pluggy",
    "posixpath", "re", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "sys", "tempfile", "threading", "time",
)  # fmt: skip
_OURS = ("moryflow", "moryflow_builtins", "moryflow_sdk")
_SYS = ("stdin", "stdout", "stderr", "excepthook", "displayhook", "unraisablehook", "breakpointhook")

_ALARM = 0.5
"""Seconds by which two looks at the same alarm may differ."""


@dataclass(frozen=True)
class Guarded:
    """One moment of what is guarded."""

    functions: dict[str, dict[str, Any]]
    streams: dict[str, Any]
    handlers: dict[int, Any]
    path: list[str]
    environ: dict[str, str]
    policy: Any
    folder: str
    mask: int
    tracing: Any
    recursion: int
    finders: list[Any]
    threads: set[int | None]
    limits: dict[int, tuple[int, int]]
    alarm: float


def take() -> Guarded:
    """Return the state of this moment."""
    import asyncio

    return Guarded(
        functions={name: _functions(module) for name, module in _modules()},
        streams={name: getattr(sys, name) for name in _SYS},
        handlers={number: signal.getsignal(number) for number in signal.valid_signals()},
        path=list(sys.path),
        environ=dict(os.environ),
        policy=asyncio.get_event_loop_policy(),
        folder=_folder(),
        mask=_mask(),
        tracing=(sys.gettrace(), sys.getprofile()),
        recursion=sys.getrecursionlimit(),
        finders=list(sys.meta_path),
        threads={thread.ident for thread in threading.enumerate()},
        limits=_limits(),
        alarm=time.monotonic() + signal.getitimer(signal.ITIMER_REAL)[0],
    )


def harm(before: Guarded, after: Guarded) -> Iterator[str]:
    """Say what was changed that others rely on."""
    for name, functions in before.functions.items():
        now = after.functions.get(name, {})
        changed = [key for key, value in functions.items() if now.get(key) is not value]
        if changed:
            yield f"{name}.{changed[0]}" if len(changed) == 1 else f"{name} ({', '.join(changed[:3])})"
    yield from (f"sys.{name}" for name, value in before.streams.items() if after.streams[name] is not value)
    for number, handler in before.handlers.items():
        if after.handlers[number] is not handler and after.handlers[number] != handler:
            yield f"the handler of {signal.Signals(number).name}"
    if abs(after.alarm - before.alarm) > _ALARM:
        yield "the alarm of this process"
    if after.limits != before.limits:
        yield "the limits of this process"
    if after.policy is not before.policy:
        yield "the event loop policy"
    if after.folder != before.folder:
        yield "the current folder"
    if after.mask != before.mask:
        yield "the umask"
    if after.tracing != before.tracing:
        yield "the tracing of this process"
    if after.recursion < before.recursion:
        yield "the recursion limit"
    if not gc.isenabled():
        yield "the garbage collector"
    if [finder for finder in before.finders if finder not in after.finders]:
        yield "sys.meta_path"
    if [entry for entry in before.path if entry not in after.path]:
        yield "sys.path"
    if any(action == "error" and not module for action, _, category, module, _ in warnings.filters if category is Warning):
        yield "the warnings filter (warnings become errors)"
    yield from _lingering(before)
    yield from _unusable()


def remarks(before: Guarded, after: Guarded) -> Iterator[str]:
    """Say what was changed that is bad manners and no more."""
    names = sorted(name for name in {*before.environ, *after.environ} if before.environ.get(name) != after.environ.get(name))
    if names:
        yield f"os.environ ({', '.join(names[:5])})"
    if after.path[: len(before.path)] != before.path and set(before.path) <= set(after.path):
        yield "the beginning of sys.path"


def _modules() -> Iterator[tuple[str, ModuleType]]:
    for name, module in list(sys.modules.items()):
        if name in _MODULES or name.partition(".")[0] in _OURS:
            yield name, module


def _functions(module: ModuleType) -> dict[str, Any]:
    kinds = (FunctionType, BuiltinFunctionType, type)
    return {name: value for name, value in list(vars(module).items()) if isinstance(value, kinds) and name != "_"}


def _limits() -> dict[int, tuple[int, int]]:
    import resource

    kinds = (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC)
    return {kind: resource.getrlimit(kind) for kind in kinds}


def _folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _mask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _lingering(before: Guarded) -> Iterator[str]:
    """Name a thread that would keep the host from ending."""
    for thread in threading.enumerate():
        if thread.ident not in before.threads and not thread.daemon and thread.is_alive() and not _ours(thread):
            yield f"the end of the program: its thread {thread.name!r} is no daemon"


def _ours(thread: threading.Thread) -> bool:
    return thread is threading.current_thread() or thread.name.startswith("moryflow-")


def _unusable() -> Iterator[str]:
    """Try what everyone needs."""
    try:
        with Path(os.devnull).open("rb"):
            pass
    except BaseException:  # an audit hook may raise anything
        yield "open(): files cannot be opened any more"
    try:
        for number in range(3):
            os.fstat(number)
        closed = any(getattr(stream, "closed", False) for stream in (sys.stdin, sys.stdout, sys.stderr))
    except OSError:
        closed = True
    if closed:
        yield "the standard streams: they are closed"
