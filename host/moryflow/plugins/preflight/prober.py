"""The host's side of the probe: verdicts, cached by content hash, and the helper process that finds them."""

from __future__ import annotations

import atexit
import itertools
import json
import os
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

_VERSION = 4
AGAIN = 3600.0
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
        return None if found is None or (found.timeout and time.time() - found.at > AGAIN) else found

    def note_slow(self, digest: str) -> None:
        """Note that code did not finish within a glance, as a verdict after which it is probed again at once."""
        self._verdicts[digest] = ProbeVerdict(ok=False, timeout=True, hash=digest)
        self._dirty = True

    def is_slow(self, digest: str) -> bool:
        """Whether code did not finish within a glance, or in time, when it was last probed."""
        return digest in self._verdicts and self._verdicts[digest].timeout

    def put(self, verdict: ProbeVerdict) -> None:
        """Cache a verdict. A lost verdict does not replace the note that the code is slow."""
        if verdict.lost and self.is_slow(verdict.hash):
            return
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


_TRIES = 2
"""How often a request is sent to a helper: if the helper dies, another probe beside it may have been the cause."""


@dataclass(eq=False)
class _Request:
    request: dict[str, Any]
    slow: Callable[[], None]
    future: Future[ProbeVerdict] = field(default_factory=Future)
    tries: int = 0


class Prober:
    """Passes requests to the helper process, and its answers to the waiting callers; for any thread."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._asked: dict[int, _Request] = {}
        self._suspects: deque[_Request] = deque()
        self.begun: Future[None] = Future()
        """Done when the helper has imported what it needs, which takes long on a busy machine."""

    def ask(self, request: Mapping[str, Any], slow: Callable[[], None]) -> Future[ProbeVerdict]:
        """Begin a probe. The returned future always gets a verdict.

        :param slow: called, from another thread, if the probe was put behind others because it did not finish in a glance.
        """
        number = next(self._numbers)
        asked = _Request({**request, "id": number, "path": list(sys.path)}, slow)
        with self._lock:
            self._asked[number] = asked
            self._send(asked)
        return asked.future

    def hurry(self, future: Future[ProbeVerdict]) -> None:
        """Move a waiting request to the front."""
        with self._lock, suppress(OSError):
            for number, asked in self._asked.items():
                if asked.future is future:
                    self._tell({"hurry": number})

    def close(self) -> None:
        """End the helper, and answer callers that still wait with a lost verdict."""
        with self._lock:
            process, self._process = self._process, None
            asked, self._asked = [*self._asked.values(), *self._suspects], {}
            self._suspects.clear()
        if process is not None:
            _end(process)
        for each in asked:
            _answer(each, _lost_verdict("the host is closing"))

    def _send(self, asked: _Request) -> None:
        asked.tries += 1
        try:
            self._tell(asked.request)
        except OSError as error:
            self._asked.pop(asked.request["id"], None)
            _answer(asked, _lost_verdict(f"it cannot be probed: {error.strerror or error}"))

    def _tell(self, message: Mapping[str, Any]) -> None:
        stdin = self._started().stdin
        assert stdin is not None
        stdin.write(json.dumps(message).encode() + b"\n")
        stdin.flush()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        command = [sys.executable, "-P", "-c", _BEGIN]
        environ = {**os.environ, "MORYFLOW_PROBE_PATH": json.dumps(sys.path), "PYTHONBREAKPOINT": "0"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
            start_new_session=True,
        )
        self.begun = Future()
        reader = threading.Thread(target=self._read, args=(self._process, self.begun), name="moryflow-probing", daemon=True)
        reader.start()
        return self._process

    def _read(self, process: subprocess.Popen[bytes], begun: Future[None]) -> None:
        assert process.stdout is not None
        process.stdout.readline()
        begun.set_result(None)
        for line in process.stdout:
            answer = json.loads(line)
            if "slow" in answer:
                with suppress(KeyError):  # the host is closing
                    self._asked[answer["id"]].slow()
                continue
            with self._lock:
                asked = self._asked.pop(answer["id"], None)
                self._next_suspect()
            if asked is not None:
                _answer(asked, verdict_of({**answer["verdict"], "fresh": True}))
        process.stdout.close()
        self._on_helper_end(process)

    def _on_helper_end(self, process: subprocess.Popen[bytes]) -> None:
        """Handle the end of the helper: probe its requests again, one at a time. If it ends again, that one was the cause."""
        with self._lock:
            if self._process is not process:
                return
            self._process = None
            _end(process)
            lost, self._asked = list(self._asked.values()), {}
            for asked in lost:
                if asked.tries < _TRIES or len(lost) > 1:
                    self._suspects.append(asked)
                else:
                    _answer(asked, _lost_verdict("it ended the process that probed it", fatal=True))
            self._next_suspect()

    def _next_suspect(self) -> None:
        """Send the next request whose helper ended, once no other request runs that it could take down with it."""
        if self._suspects and not self._asked:
            asked = self._suspects.popleft()
            self._asked[asked.request["id"]] = asked
            self._send(asked)


_BEGIN = (
    "import json, os, sys; sys.path[:] = json.loads(os.environ.pop('MORYFLOW_PROBE_PATH')); "
    "from moryflow.base import leave_out_pydantic_plugins; leave_out_pydantic_plugins(); "
    "from moryflow.plugins.preflight.helper import main; main()"
)


def _answer(asked: _Request, verdict: ProbeVerdict) -> None:
    if asked.future.set_running_or_notify_cancel():
        asked.future.set_result(verdict)


def _lost_verdict(error: str, *, fatal: bool = False) -> ProbeVerdict:
    return ProbeVerdict(ok=False, stage="import", error=error, fatal=fatal, lost=not fatal, fresh=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the helper's input, which ends it, and wait for it at most 0.2 seconds."""
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.2)


_shared = Prober()
atexit.register(_shared.close)


def shared_prober() -> Prober:
    return _shared
