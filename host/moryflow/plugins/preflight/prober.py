"""The host's side of the probe: verdicts, cached by content hash, and the child processes that find them."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from moryflow.base.paths import keep

from . import VERDICT

_VERSION = 5
# Seconds after which code that did not finish in time is probed again: the machine may have been busy.
TIMEOUT_LIFETIME = 3600.0
# How many verdicts are cached, the newest.
_KEPT = 500


@dataclass(frozen=True)
class ProbeVerdict:
    """The result of probing code.

    :param stage: the stage it reached: ``import``, ``register``, ``contribute``.
    :param fatal: it would have ended the host, so it is not imported. Other failures happen again, harmlessly, when
        the host imports the code.
    :param notes: contributions that the host leaves out, each with its place.
    :param failed_hooks: contribute hooks that raised, took too long or returned an invalid value; the host leaves them out.
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
        self._verdicts: dict[str, ProbeVerdict] = {}
        self.stamps: dict[str, list[str]] = {}
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            content = json.loads(self._file.read_bytes())
            if content["surroundings"] == [_VERSION, surroundings]:
                self.stamps = dict(content["stamps"])
                self._verdicts = {str(digest): verdict_of(values) for digest, values in content["verdicts"].items()}
        self._written = self._content()

    def get(self, digest: str) -> ProbeVerdict | None:
        """Return the verdict on code with this hash; ``None`` if there is none or the code is to be probed again."""
        found = self._verdicts.get(digest)
        return None if found is None or (found.timeout and time.time() - found.at > TIMEOUT_LIFETIME) else found

    def put(self, verdict: ProbeVerdict) -> None:
        self._verdicts[verdict.hash] = replace(verdict, at=time.time(), fresh=True)

    def save(self) -> None:
        """Write what is new. If that fails, it stays in memory; what another process wrote meanwhile is probed again."""
        content = self._content()
        if content != self._written and keep(self._file, content):
            self._written = content

    def _content(self) -> str:
        kept = sorted((verdict for verdict in list(self._verdicts.values()) if not verdict.lost), key=lambda item: item.at)
        verdicts = {verdict.hash: asdict(replace(verdict, fresh=False)) for verdict in kept[-_KEPT:]}
        return json.dumps({"surroundings": [_VERSION, self.surroundings], "verdicts": verdicts, "stamps": dict(self.stamps)})


# Child processes at a time: plugins that hang do not keep the others waiting for long.
AT_ONCE = 4
# Seconds that a child may need until it begins; the seconds of its probe count from then, and the child counts them.
MAX_START_SECONDS = 30.0
# Seconds of a probe that the host begins by itself; one that the user asks for has more.
USUAL_SECONDS = 2.0
# The host's path is taken over last: the working folder may be in it, with somebody's `moryflow.py`.
_BEGIN = (
    "from moryflow.base import leave_out_pydantic_plugins; leave_out_pydantic_plugins(); "
    "from moryflow.plugins.preflight.child import main; "
    "import json, sys; request = json.load(sys.stdin); sys.path[:] = request['path']; main(request)"
)
_Keep = Callable[["ProbeVerdict"], "ProbeVerdict"]


class Prober:
    """Probes code in child processes, a few at a time; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[dict[str, Any], _Keep, Future[ProbeVerdict]]] = deque()
        self._workers, self._closed = 0, False
        self._running: set[subprocess.Popen[bytes]] = set()

    def ask(self, request: Mapping[str, Any], keep: _Keep) -> Future[ProbeVerdict]:
        """Begin a probe. The returned future always gets a verdict.

        :param keep: called with the verdict, from another thread; the future gets what this returns.
        """
        future: Future[ProbeVerdict] = Future()
        with self._lock:
            self._waiting.append(({**request, "path": list(sys.path)}, keep, future))
            if self._workers < AT_ONCE:
                self._workers += 1
                # No ThreadPoolExecutor: at its end Python would wait until everything in the queue is probed.
                threading.Thread(target=self._work, name="moryflow-probing", daemon=True).start()
        return future

    def close(self) -> None:
        """End the children, and answer callers that still wait with a lost verdict."""
        with self._lock:
            self._closed, running = True, list(self._running)
            waiting, self._waiting = self._waiting, deque()
        for process in running:
            _kill_group(process)
        for _, told, future in waiting:
            future.set_result(told(_lost_verdict("the host is closing")))

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._workers -= 1
                    return
                request, keep, future = self._waiting.popleft()
            try:
                verdict = self._probe(request)
            except (OSError, ValueError, TypeError) as error:  # no process, or the report is none
                verdict = _lost_verdict(f"it cannot be probed: {getattr(error, 'strerror', None) or error}")
            future.set_result(keep(verdict))

    def _probe(self, request: Mapping[str, Any]) -> ProbeVerdict:
        command, pipe = [sys.executable, "-P", "-c", _BEGIN], subprocess.PIPE
        environ, report = {**os.environ, "PYTHONBREAKPOINT": "0"}, b""
        with self._lock:  # a child that begins after `close` would be ended by nobody
            if self._closed:
                return _lost_verdict("the host is closing")
            process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environ, start_new_session=True
            )
            self._running.add(process)
        started = time.monotonic()
        try:
            report, _ = process.communicate(json.dumps(request).encode(), MAX_START_SECONDS + float(request["seconds"]))
        except subprocess.TimeoutExpired as error:
            report = error.stdout or b""
        finally:
            code = process.poll()
            _kill_group(process)
            process.communicate()
        self._running.discard(process)
        if self._closed:
            return _lost_verdict("the host is closing")
        ms = round((time.monotonic() - started) * 1000, 1)
        return verdict_of({"ms": ms, **_found(report, code, request), "fresh": True})


def _found(report: bytes, code: int | None, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict that a child reports, or a fatal one that says how it ended; without a `code`, it still ran."""
    lines = report.decode("utf-8", "replace").split("\n")[:-1]
    if not lines:
        raise OSError(f"its process ended before it was ready (exit code {code})")
    if lines[-1].startswith(VERDICT):
        return json.loads(lines[-1].removeprefix(VERDICT))
    found: dict[str, Any] = {"ok": False, "fatal": True, "stage": lines[-1]}
    found["file"] = str(request.get("root") or request.get("file") or "")
    if code is None or code == -signal.SIGALRM:
        seconds, hint = float(request["seconds"]), "import heavy libraries inside the functions that need them"
        if seconds <= USUAL_SECONDS and "file" not in request:  # a file with tools is not a plugin
            hint += "; moryflow plugin check gives it more time"
        return {**found, "error": f"it did not finish in {seconds:g} s", "hint": hint, "timeout": True}
    how = f"crashed the process ({signal.Signals(-code).name})" if code < 0 else ""
    return {**found, "error": f"it {how or f'ended the process without a message (exit code {code})'}"}


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)  # also if the child has ended: others may be in its group


def _lost_verdict(error: str) -> ProbeVerdict:
    return ProbeVerdict(ok=False, stage="import", error=error, lost=True, fresh=True)


_shared = Prober()
atexit.register(_shared.close)


def shared_prober() -> Prober:
    return _shared
