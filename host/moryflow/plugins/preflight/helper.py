"""The helper process: it has one thread, has imported the SDK already, and forks once per probe.

It reads requests from standard input and writes verdicts to standard output, one JSON object per line. Two probes run at a
time. Each has limits, a deadline and its own process group, which is killed as a whole. While many probes wait, one that
does not finish within a glance is restarted behind them. When its standard input ends, the helper ends itself and its
children.
"""

from __future__ import annotations

import json
import marshal
import os
import re
import select
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from moryflow_sdk.support.processes import adopt_orphans, children

from .child import examine, limit, machine_memory, memory_of, silence

AT_ONCE = 2
_CROWD = 8
"""If more probes than this wait for their first try, each gets only a glance: those that hang would take all the time."""
_GLANCE = 0.1
"""Seconds of a glance. Most plugins take less; the others are restarted later."""
_MEMORY = min(512 << 20, machine_memory() // 4)
"""The most bytes of memory of a probe; torch or pandas take half of that. Files that are only mapped, such as large libraries,
do not count."""
_FRAME = re.compile(rb'File "([^"]+)", line (\d+)')
_MOST_READS = 64
"""The most blocks of 64 KB to read from a pipe at the end: a process that a child left behind may write to it forever."""
_MOST_PRINTED = 1 << 16
"""Bytes that code may print during its import; if it prints more, the host shows none of it."""
_VERDICT = b"="
_write, _leave, _packed = os.write, os._exit, marshal.dumps  # kept here before a plugin can replace them
_USUAL = 2.0
"""Seconds of a probe that the host begins by itself; one that a person asks for has more."""
_LOOK = 0.02
"""Seconds between two checks of running children."""
_FOR_A_TRACE = 0.2
"""Seconds that a child has to write its traceback."""

_ROUNDS, _BETWEEN = 100, 0.002
"""How often to look for stray processes, since one that ends may leave others; and the seconds between two looks."""


@dataclass
class RunningProbe:
    """A child process: its request, its pipes, and what it has written so far."""

    pid: int
    group: int
    request: dict[str, Any]
    report: int
    trace: int
    output: int
    deadline: float
    started: float = field(default_factory=time.monotonic)
    said: bytes = b""
    traced: bytes = b""
    length: int = 0

    @property
    def pipes(self) -> list[int]:
        return [pipe for pipe in (self.report, self.trace, self.output) if pipe >= 0]

    @property
    def lines(self) -> list[bytes]:
        return self.said.split(b"\n")[:-1]

    @property
    def verdict(self) -> dict[str, Any] | None:
        last = self.lines[-1] if self.lines else b""
        return marshal.loads(bytes.fromhex(last[1:].decode())) if last.startswith(_VERDICT) else None


def main() -> None:
    """Run the helper until standard input ends."""
    source, sink = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    adopt_orphans()
    _preload()
    ProbeHelper(source, sink).serve()


def _preload() -> None:
    """Import what every probe needs."""
    import asyncio.runners

    from pydantic import BaseModel, create_model

    create_model("Warm", __base__=BaseModel, a=(int, 0)).model_json_schema()
    assert asyncio.runners
    os._exit = _leave_traced


@dataclass
class ProbeHelper:
    """Forks a child per request and writes its verdict.

    :param source: the descriptor that requests come from; `sink` receives the verdicts.
    """

    source: int
    sink: int
    waiting: deque[dict[str, Any]] = field(default_factory=deque[dict[str, Any]])
    running: list[RunningProbe] = field(default_factory=list[RunningProbe])
    crowded: bool = False
    rest: bytes = b""

    def serve(self) -> None:
        """Answer requests until the source ends."""
        _write_line(self.sink, b"{}")  # callers measure their wait from here
        while self._step():
            for each in [each for each in self.running if _answer_if_done(each, self.sink)]:
                self.running.remove(each)
            self._let_others_pass()
            _end_strays(self.running)
        for each in self.running:
            _kill(each)
        _end_strays([])

    def _step(self) -> bool:
        """Start waiting probes, and read from children and the source; return whether the source is still open."""
        while self.waiting and len(self.running) < AT_ONCE:
            self.running.append(self._fork(self.waiting.popleft()))
        pipes = {pipe: each for each in self.running for pipe in each.pipes}
        readable, _, _ = select.select([self.source, *pipes], (), (), _patience(self.running))
        for pipe in readable:
            if pipe in pipes:
                _read_pipe(pipes[pipe], pipe)
        if self.source not in readable:
            return True
        data = os.read(self.source, 1 << 16)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self._accept(json.loads(line))
        return bool(data)

    def _accept(self, message: dict[str, Any]) -> None:
        """Queue a request, or move a queued one to the front."""
        if "hurry" not in message:
            self.waiting.append(message)
            return
        for each in self.running:
            each.request["whole"] |= each.request["id"] == message["hurry"]
        for request in [request for request in self.waiting if request["id"] == message["hurry"]]:
            self.waiting.remove(request)
            self.waiting.appendleft({**request, "whole": True})

    def _let_others_pass(self) -> None:
        """While many requests wait, restart behind them each probe that takes longer than a glance.

        The host is told that it is slow, so that it comes last the next time too.
        """
        new = sum(not request["whole"] for request in self.waiting)
        self.crowded = new > _CROWD or (self.crowded and new > 0)
        for each in list(self.running) if self.crowded else ():
            if not each.request["whole"] and time.monotonic() - each.started > _GLANCE:
                self.running.remove(each)
                _kill(each)
                self.waiting.append({**each.request, "whole": True})
                _write_line(self.sink, json.dumps({"id": each.request["id"], "slow": True}).encode())

    def _fork(self, request: dict[str, Any]) -> RunningProbe:
        hear, report = os.pipe()
        look, trace = os.pipe()
        read, output = os.pipe()
        pid = os.fork()
        if pid == 0:
            for pipe in (self.source, self.sink, hear, look, read, *(pipe for each in self.running for pipe in each.pipes)):
                os.close(pipe)
            _be_child(request, report, trace, output)
        for pipe in (report, trace, output):
            os.close(pipe)
        with suppress(OSError):
            os.setpgid(pid, pid)  # here too: parent and child race
        return RunningProbe(pid, pid, request, hear, look, read, time.monotonic() + float(request["seconds"]))


def _patience(running: list[RunningProbe]) -> float | None:
    if not running:
        return None
    left = min(each.deadline for each in running) - time.monotonic()
    return max(0.0, min(left, _LOOK))


def _be_child(request: dict[str, Any], report: int, trace: int, output: int) -> None:
    """Run the probe and end the process. Never returns."""
    import faulthandler

    with suppress(OSError):
        os.setpgid(0, 0)
    seconds = float(request["seconds"])
    _TRACES.append(trace)
    silence(output)
    limit(seconds)
    signal.alarm(int(seconds) + 2)  # in case the helper has ended
    faulthandler.enable(trace, all_threads=False)
    faulthandler.dump_traceback_later(seconds * 0.9, file=trace)
    try:
        found = examine(request, lambda stage: _write_line(report, stage.encode()))
        with suppress(BaseException):
            sys.stdout.flush()
        _write_line(report, _VERDICT + _packed(found).hex().encode())
        _leave(0)
    finally:
        _leave(70)


_TRACES: list[int] = []
"""In a child, the descriptor that its traceback is written to."""


def _leave_traced(status: int) -> NoReturn:
    """Exit as ``os._exit`` does, but write a traceback first, so that the verdict can name the line."""
    import faulthandler

    with suppress(BaseException):
        faulthandler.dump_traceback(_TRACES[0], all_threads=False)
    _leave(status)


def _write_line(report: int, line: bytes) -> None:
    data = line + b"\n"
    while data:
        data = data[_write(report, data) :]


def _read_pipe(child: RunningProbe, pipe: int) -> None:
    """Read what a child has written to `pipe`; at its end close the helper's side."""
    data = os.read(pipe, 1 << 16)
    if pipe == child.report:
        child.said += data
        child.report = child.report if data else _close(pipe)
    elif pipe == child.trace:
        child.traced = (child.traced + data)[-(1 << 16) :]
        child.trace = child.trace if data else _close(pipe)
    else:
        child.length += len(data)
        child.output = child.output if data else _close(pipe)


def _drain(child: RunningProbe, pipe: int) -> None:
    """Read what a child wrote just before it ended."""
    for _ in range(_MOST_READS):
        if pipe not in child.pipes or not select.select([pipe], (), (), 0)[0]:
            return
        _read_pipe(child, pipe)


def _close(pipe: int) -> int:
    os.close(pipe)
    return -1


def _answer_if_done(child: RunningProbe, sink: int) -> bool:
    """If a child has finished, ended or reached a limit, write its verdict; return whether that is so."""
    verdict = child.verdict
    if verdict is None:
        verdict = _memory_verdict(child) or _timeout_verdict(child) or _exit_verdict(child)
        if verdict is None:
            return False
    _drain(child, child.output)
    if _kill(child) > 2 * _MEMORY and not verdict.get("fatal"):  # used and freed between two checks
        verdict = {**verdict, "ok": False, "fatal": True, "error": _TOO_FULL, "hint": _LESS}
    verdict["loud"] = child.length > _MOST_PRINTED
    verdict = {"ms": round((time.monotonic() - child.started) * 1000, 1), **verdict}
    _write_line(sink, json.dumps({"id": child.request["id"], "verdict": verdict}).encode())
    return True


_TOO_FULL = f"it fills more than {_MEMORY >> 20} MB of memory"
_LESS = "load large data inside the functions that need it"


def _memory_verdict(child: RunningProbe) -> dict[str, Any] | None:
    if not child.pid or memory_of(child.pid) <= _MEMORY:
        return None
    with suppress(OSError):
        os.kill(child.pid, signal.SIGABRT)  # makes it write its traceback
    if child.trace in select.select([child.trace], (), (), _FOR_A_TRACE)[0]:
        _drain(child, child.trace)
    return _fatal_verdict(child, _TOO_FULL) | {"hint": _LESS}


def _timeout_verdict(child: RunningProbe) -> dict[str, Any] | None:
    if time.monotonic() < child.deadline:
        return None
    seconds = f"{float(child.request['seconds']):g}"
    hint = "import heavy libraries inside the functions that need them"
    if float(child.request["seconds"]) <= _USUAL and "file" not in child.request:  # a file with tools is not a plugin
        hint += "; moryflow plugin check gives it more time"
    return _fatal_verdict(child, f"it did not finish in {seconds} s") | {"timeout": True, "hint": hint}


def _exit_verdict(child: RunningProbe) -> dict[str, Any] | None:
    """Return the verdict on a child that ended without writing one, ``None`` while it runs."""
    pid, status = os.waitpid(child.pid, os.WNOHANG)
    if pid == 0:
        return None
    child.pid = 0
    for pipe in child.pipes:
        _drain(child, pipe)
    if child.verdict is not None:
        return child.verdict
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return _fatal_verdict(child, f"it ended the process without a message (exit code {code})")
    name = signal.Signals(-code).name
    if name == "SIGXCPU":
        return _fatal_verdict(child, "it used up its processor time") | {"timeout": True}
    return _fatal_verdict(child, f"it crashed the process ({name})")


def _fatal_verdict(child: RunningProbe, error: str) -> dict[str, Any]:
    """Return a fatal verdict on a child that wrote none, with the line of its traceback if that is known."""
    stages = [line.decode("utf-8", "replace") for line in child.lines]
    root = str(child.request.get("root") or child.request.get("file") or "")
    file, line = root, 0
    for found, number in _FRAME.findall(child.traced):
        name = os.fsdecode(found)
        if root and (name == root or name.startswith(root.removesuffix("__init__.py").rstrip("/") + "/")):
            file, line = name, int(number)
            break
    return {"ok": False, "fatal": True, "stage": stages[-1] if stages else "import", "error": error, "file": file, "line": line}


def _kill(child: RunningProbe) -> int:
    """Kill a child and its whole process group, and close its pipes; return its peak memory in bytes, 0 if unknown."""
    for pipe in child.pipes:
        os.close(pipe)
    with suppress(OSError):
        os.killpg(child.group, signal.SIGKILL)  # also if the child has ended: others may be in its group
    if child.pid:
        with suppress(OSError):
            os.kill(child.pid, signal.SIGKILL)
            _, _, used = os.wait4(child.pid, 0)
            return used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return 0


def _end_strays(running: list[RunningProbe]) -> None:
    """Kill the processes that probes left behind in groups of their own; the system makes them children of this process."""
    known = {each.pid for each in running}
    for _ in range(_ROUNDS):
        strays = [pid for pid in children(os.getpid()) if pid not in known]
        if not strays:
            return
        for pid in strays:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_BETWEEN)
