"""An environment of its own for a file that names dependencies: made once per list of them, with uv or with venv and pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from moryflow_sdk import ToolError, redact

from .metadata import Requirements, requirements

LIMIT = 900.0
"""Seconds that making an environment may take."""


@dataclass(frozen=True)
class Environment:
    """Where the packages of a file are, or will be.

    :param packages: what is installed in it, as the file says.
    :param folder: named after the packages and this Python, so that another list is another environment.
    """

    packages: tuple[str, ...]
    folder: Path

    @property
    def python(self) -> Path:
        """The program that runs in it."""
        return self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def installed(self) -> bool:
        """Whether it is complete; it is moved into place only when it is."""
        return self.python.exists()

    def install(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Make it; blocks, so call it off the loop. A second process that does the same is no harm.

        :param progress: told what is being done.
        :raises ToolError: neither uv nor pip is there, or one of them failed.
        """
        if self.installed():
            return
        self.folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=self.folder.parent) as place:
            made = Environment(self.packages, Path(place) / "env")
            for what, command in _commands(made):
                progress(what)
                _run(command, Path(place))
            _move(made.folder, self.folder)


def environment_of(file: Path, data_dir: Path) -> Environment | None:
    """Return the environment that `file` needs, ``None`` when it names no dependencies.

    :raises ToolError: the file cannot be read, or its block is not valid.
    """
    try:
        needs = requirements(file.read_bytes())
    except OSError as error:
        raise ToolError(f"it cannot be read: {error.strerror}", code="tool_read", where=str(file)) from error
    return environment_for(needs, data_dir) if needs.dependencies else None


def environment_for(needs: Requirements, data_dir: Path) -> Environment:
    """Return the environment for a list of dependencies."""
    named = "\0".join((sys.version, sys.executable, *sorted(needs.dependencies)))
    return Environment(needs.dependencies, data_dir / "environments" / sha256(named.encode()).hexdigest()[:16])


def _commands(made: Environment) -> Sequence[tuple[str, list[str]]]:
    """Return what to run, each with what it does. ``--`` keeps a package's name from being an option."""
    uv = _uv()
    if uv is not None:
        make = [uv, "venv", "--quiet", "--python", sys.executable, str(made.folder)]
        install = [uv, "pip", "install", "--quiet", "--python", str(made.python)]
    else:
        make = [sys.executable, "-I", "-m", "venv", str(made.folder)]
        install = [str(made.python), "-I", "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    return (("making an environment", make), (f"installing {', '.join(made.packages)}", [*install, "--", *made.packages]))


def _uv() -> str | None:
    beside = Path(sys.executable).with_name("uv")
    return shutil.which("uv") or (str(beside) if beside.exists() else None)


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"{Path(command[0]).name} did not work: {error}", code="tool_environment") from error
    if done.returncode:
        said = redact(done.stderr or done.stdout).strip()[-1500:]
        raise ToolError(f"the packages could not be installed:\n{said}", code="tool_environment")


def _move(made: Path, place: Path) -> None:
    try:
        made.rename(place)
    except OSError as error:
        if not place.exists():
            raise ToolError(f"the environment cannot be put in place: {error.strerror}", code="tool_environment") from error
