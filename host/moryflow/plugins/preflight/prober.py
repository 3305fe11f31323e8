"""The host's side of the probe: verdicts, cached by content hash, and the child processes that find them."""

from __future__ import annotations

import atexit
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from moryflow.base.paths import keep

from . import VERDICT

_VERSION = 4
TIMEOUT_LIFETIME = 3600.0
"""Seconds after which code that did not finish in time is probed again: the machine may have been busy."""
_KEPT = 500
"""How many verdicts are cached; the least recently used ones are dropped."""


@dataclass(frozen=True)
class ProbeVerdict:
    """The result of probing code.

    :param stage: the stage it reached: ``import``, ``register``, ``contribute``.
    :param fatal: it would have ended the host, so it is not imported. Other failures happen again, harmlessly, when
        the host imports the code.
    :param notes: contributions that the host leaves out, each with its place.
    :param failed_hooks: contribute hooks that raised, took too long or returned an invalid value; the host leaves them out.
    :param loud: its import prints so much that none of it is shown.
    :param lost: there is no result, because the probe itself could not run; not cached.
    :param fresh: found by this process, not read from the cache.
    """

    ok: bool
    stage: str = ""
    error: str = ""
    file: str = ""
    line: int = 0
    hint: str = ""
    hooks: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    ms: float = 0.0
    hash: str = ""
    fatal: bool = False
    timeout: bool = False
    lost: bool = False
    notes: tuple[str, ...] = ()
    failed_hooks: tuple[str, ...] = ()
    loud: bool = False
    at: float = 0.0
    fresh: bool = False

    @property
    def place(self) -> str:
        """The file and line of what is wrong; empty if they are unknown."""
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def stands(self) -> bool:
        """Whether the code may be imported; if not, its load record is made from this verdict."""
        return self.ok or not (self.fatal or self.fresh)


def verdict_of(values: Mapping[str, Any]) -> ProbeVerdict:
    lists = {name: tuple(values.get(name, ())) for name in ("hooks", "tools", "notes", "failed_hooks")}
    return ProbeVerdict(**{**values, **lists})


class VerdictCache:
    """``cache/probes.json`` of a home: verdicts by hash, and hashes of installed code by the state of its files.

    :param surroundings: hash of the Python version and the installed packages; verdicts found under another one do not count.
    """

    def __init__(self, home: Path, surroundings: str) -> None:
        self._file = home / "cache" / "probes.json"
        self.surroundings = surroundings
        self._verdicts, self.stamps = self._read()
        self._stamped = dict(self.stamps)
        self._dirty = False
        self._lock = threading.Lock()

    def get(self, digest: str) -> ProbeVerdict | None:
        """Return the verdict on code with this hash; ``None`` if there is none or the code is to be probed again."""
        found = self._verdicts.pop(digest, None)
        if found is not None:
            self._verdicts[digest] = found  # moved to the end: the first ones are dropped
        return None if found is None or (found.timeout and time.time() - found.at > TIMEOUT_LIFETIME) else found

    def put(self, verdict: ProbeVerdict) -> None:
        self._verdicts.pop(verdict.hash, None)
        self._verdicts[verdict.hash] = replace(verdict, at=time.time(), fresh=True)
        self._dirty = True

    def save(self) -> None:
        """Write new verdicts and stamps, merged with what other processes wrote. If that fails, they stay in memory."""
        if not self._dirty and self.stamps == self._stamped:
            return
        with self._lock:
            self._save()

    def _save(self) -> None:
        others, stamps = self._read()
        ours = {digest: verdict for digest, verdict in list(self._verdicts.items()) if not verdict.lost}
        unused = {digest: verdict for digest, verdict in others.items() if digest not in ours}
        kept = list({**unused, **ours}.items())[-_KEPT:]
        self._verdicts = dict(list(self._verdicts.items())[-_KEPT:])
        verdicts = {digest: {**asdict(verdict), "fresh": False} for digest, verdict in kept}
        content = {"surroundings": self._key, "verdicts": verdicts, "stamps": {**stamps, **self.stamps}}
        if keep(self._file, json.dumps(content)):
            self._dirty, self._stamped = False, dict(self.stamps)

    @property
    def _key(self) -> list[Any]:
        return [_VERSION, self.surroundings]

    def _read(self) -> tuple[dict[str, ProbeVerdict], dict[str, list[str]]]:
        try:
            content = json.loads(self._file.read_bytes())
            if content["surroundings"] != self._key:
                return {}, {}
            verdicts = {str(digest): verdict_of(values) for digest, values in content["verdicts"].items()}
            return verdicts, dict(content["stamps"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return {}, {}


AT_ONCE = 2
MAX_AT_ONCE = 8
"""A probe that is slow lets one more begin, up to this many, so that plugins that hang do not keep the others waiting."""
SLOW_SECONDS = 0.3
MAX_START_SECONDS = 30.0
"""Seconds until a child must be ready; the seconds of its probe count from then."""
POLL_INTERVAL = 0.02
MAX_PRINTED = 1 << 16
"""Bytes that code may print during its import; if it prints more, the host shows none of it."""
USUAL_SECONDS = 2.0
"""Seconds of a probe that the host begins by itself; one that the user asks for has more."""
_BEGIN = (
    "from moryflow.base import leave_out_pydantic_plugins; leave_out_pydantic_plugins(); "
    "from moryflow.plugins.preflight.child import main; "
    "import json, sys; request = json.load(sys.stdin); sys.path[:] = request['path']; main(request)"
)
"""The host's path is taken over last: the working folder may be in it, with somebody's ``moryflow.py``."""
_FRAME = re.compile(rb'File "([^"]+)", line (\d+)')


@dataclass(eq=False)
class _Request:
    values: dict[str, Any]
    keep: Callable[[ProbeVerdict], ProbeVerdict]
    future: Future[ProbeVerdict] = field(default_factory=Future)

    def answer(self, verdict: ProbeVerdict) -> None:
        kept = self.keep(verdict)
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(kept)


class Prober:
    """Probes code in child processes, two at a time, and more if they are slow; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Request] = deque()
        self._workers = 0
        self._running: set[subprocess.Popen[bytes]] = set()
        self.begun: Future[None] = Future()
        """Done when the first child has imported what it needs, which takes long on a busy machine."""

    def ask(self, request: Mapping[str, Any], keep: Callable[[ProbeVerdict], ProbeVerdict]) -> Future[ProbeVerdict]:
        """Begin a probe. The returned future always gets a verdict.

        :param keep: called with the verdict, from another thread; the future gets what this returns.
        """
        asked = _Request({**request, "path": list(sys.path)}, keep)
        with self._lock:
            self._waiting.append(asked)
            if not self._workers:
                self.begun = Future()
            self._add_worker(AT_ONCE)
        return asked.future

    def _add_worker(self, most: int) -> None:
        if self._waiting and self._workers < most:
            self._workers += 1
            # No ThreadPoolExecutor: at its end Python would wait until everything in the queue is probed.
            threading.Thread(target=self._work, name="moryflow-probing", daemon=True).start()

    def hurry(self, future: Future[ProbeVerdict]) -> None:
        """Move a waiting request to the front."""
        with self._lock:
            for asked in [asked for asked in self._waiting if asked.future is future]:
                self._waiting.remove(asked)
                self._waiting.appendleft(asked)

    def close(self) -> None:
        """End the children, and answer callers that still wait with a lost verdict."""
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
            running, self._running = self._running, set()
        for process in running:
            _kill_group(process)
        for asked in waiting:
            asked.answer(_lost_verdict("the host is closing"))

    def _work(self) -> None:
        while (asked := self._next()) is not None:
            try:
                verdict = self._probe(asked.values)
            except (OSError, ValueError, TypeError) as error:  # no process, or the report is none
                verdict = _lost_verdict(f"it cannot be probed: {getattr(error, 'strerror', None) or error}")
            asked.answer(verdict)

    def _next(self) -> _Request | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._workers -= 1
            return None

    def _probe(self, request: Mapping[str, Any]) -> ProbeVerdict:
        command, pipe = [sys.executable, "-P", "-c", _BEGIN], subprocess.PIPE
        environ = {**os.environ, "PYTHONBREAKPOINT": "0"}
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environ, start_new_session=True)
        assert process.stdout and process.stderr
        self._running.add(process)
        started = time.monotonic()
        try:
            found = _listen(process, request, self._on_ready, self._on_slow)
        finally:
            _kill_group(process)
            process.wait()
            process.stdout.close()
            process.stderr.close()
            is_closing = process not in self._running
            self._running.discard(process)
        if is_closing:
            return _lost_verdict("the host is closing")
        return verdict_of({"ms": round((time.monotonic() - started) * 1000, 1), **found, "fresh": True})

    def _on_ready(self) -> None:
        with self._lock:
            if not self.begun.done():
                self.begun.set_result(None)

    def _on_slow(self) -> None:
        with self._lock:
            self._add_worker(MAX_AT_ONCE)


def _listen(
    process: subprocess.Popen[bytes], request: Mapping[str, Any], on_ready: Callable[[], None], on_slow: Callable[[], None]
) -> dict[str, Any]:
    """Give a child its request, and return its verdict or one that says how it ended."""
    assert process.stdin and process.stdout and process.stderr
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(json.dumps(request).encode())
    lines, report, trace, printed = list[str](), b"", b"", 0
    seconds = float(request["seconds"])
    deadline = slow_at = time.monotonic() + MAX_START_SECONDS
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdout, process.stderr):
            selector.register(stream, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            has_ended = process.poll() is not None  # asked before reading: what it wrote last is read first
            events = selector.select(POLL_INTERVAL)
            for key, _ in events:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stdout:
                    report += data
                else:
                    trace, printed = (trace + data)[-MAX_PRINTED:], printed + len(data)
            is_new, lines = not lines, report.decode("utf-8", "replace").split("\n")[:-1]
            if lines and is_new:
                deadline, slow_at = time.monotonic() + seconds, time.monotonic() + SLOW_SECONDS
                on_ready()
            if time.monotonic() > slow_at:
                slow_at = deadline
                on_slow()
            if lines and lines[-1].startswith(VERDICT):
                return {**json.loads(lines[-1].removeprefix(VERDICT)), "loud": printed > MAX_PRINTED}
            if has_ended and not events:
                break
    if not lines:
        raise OSError(f"its process ended before it was ready (exit code {process.poll()})")
    return _ending(process.poll(), request) | {"stage": lines[-1]} | _place(trace, request)


def _ending(code: int | None, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fatal verdict on a child that gave none; without a `code`, it still runs at its deadline."""
    fatal = {"ok": False, "fatal": True}
    if code is None:
        seconds, hint = float(request["seconds"]), "import heavy libraries inside the functions that need them"
        if seconds <= USUAL_SECONDS and "file" not in request:  # a file with tools is not a plugin
            hint += "; moryflow plugin check gives it more time"
        return {**fatal, "error": f"it did not finish in {seconds:g} s", "hint": hint, "timeout": True}
    if code >= 0:
        return {**fatal, "error": f"it ended the process without a message (exit code {code})"}
    if code == -signal.SIGXCPU:
        return {**fatal, "error": "it used up its processor time", "timeout": True}
    return {**fatal, "error": f"it crashed the process ({signal.Signals(-code).name})"}


def _place(trace: bytes, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file and the line of the code where its traceback ends, else its root."""
    root = str(request.get("root") or request.get("file") or "")
    folder = root.removesuffix("__init__.py").rstrip("/") + "/"
    for found, number in _FRAME.findall(trace):
        name = os.fsdecode(found)
        if root and (name == root or name.startswith(folder)):
            return {"file": name, "line": int(number)}
    return {"file": root}


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)  # also if the child has ended: others may be in its group


def _lost_verdict(error: str) -> ProbeVerdict:
    return ProbeVerdict(ok=False, stage="import", error=error, lost=True, fresh=True)


_shared = Prober()
atexit.register(_shared.close)


def shared_prober() -> Prober:
    return _shared
