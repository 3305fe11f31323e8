"""Environments for files with dependencies: one for each list of dependencies, made with uv or with venv and pip.

A file names its dependencies in a ``# /// script`` block (PEP 723). The file is only read for this, not run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from moryflow_sdk import ToolError, redact

_BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
_REQUIREMENT = re.compile(r"[A-Za-z0-9]")


@dataclass(frozen=True)
class Requirements:
    """The requirements that a file declares.

    :param dependencies: packages, in the form that pip accepts.
    :param python: a version specifier for Python; empty for any.
    """

    dependencies: tuple[str, ...] = ()
    python: str = ""

    def check_python(self) -> None:
        """Refuse the file if it does not run with this version of Python.

        :raises ToolError: the message has both versions.
        """
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        here = ".".join(map(str, sys.version_info[:3]))
        with suppress(InvalidSpecifier):  # the installer decides about forms that are unknown here
            if here not in SpecifierSet(self.python):
                raise ToolError(f"it needs Python {self.python}, and this is {here}", code="tool_python")


def requirements(source: bytes) -> Requirements:
    """Return the requirements in the block of `source`; a file without a block needs nothing.

    :raises ToolError: there are two blocks, or the block is not valid; the message has its line.
    """
    text = source.decode("utf-8-sig", "replace").replace("\r\n", "\n")
    blocks = [match for match in _BLOCK.finditer(text) if match["type"] == "script"]
    if not blocks:
        return Requirements()
    if len(blocks) > 1:
        raise _wrong(text, blocks[1].start(), "there is a second block")
    lines = blocks[0]["content"].splitlines(keepends=True)
    try:
        values = tomllib.loads("".join(line[2:] if line.startswith("# ") else line[1:] for line in lines))
    except tomllib.TOMLDecodeError as error:
        raise _wrong(text, blocks[0].start(), f"not valid TOML: {error}") from error
    needed, python = values.get("dependencies", []), values.get("requires-python", "")
    if not isinstance(needed, list) or not all(isinstance(item, str) and _REQUIREMENT.match(item) for item in needed):
        raise _wrong(text, blocks[0].start(), "dependencies must be a list of packages")
    if not isinstance(python, str):
        raise _wrong(text, blocks[0].start(), "requires-python must be text")
    return Requirements(tuple(needed), python)


def _wrong(text: str, place: int, what: str) -> ToolError:
    line = text.count("\n", 0, place) + 1
    return ToolError(f'the "# /// script" block in line {line}: {what}', code="tool_metadata")


# Seconds that each command for making an environment may take.
LIMIT = 900.0


@dataclass(frozen=True)
class Environment:
    """The environment with the packages of a file; it need not exist yet.

    :param packages: the dependencies of the file.
    :param folder: its name is a hash of the packages and this Python, so that another list has another environment.
    """

    packages: tuple[str, ...]
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def installed(self) -> bool:
        """Whether the environment exists; only a complete one is moved into place."""
        return self.python.exists()

    def install(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Make the environment. This blocks, so call it off the loop. Another process may do the same at the same time.

        :param progress: called with a description of each step.
        :raises ToolError: neither uv nor pip is installed, or one of them failed.
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
    """Return the environment that `file` needs, or ``None`` if it names no dependencies.

    :raises ToolError: the file cannot be read, or its block is not valid.
    """
    try:
        needs = requirements(file.read_bytes())
    except OSError as error:
        raise ToolError(f"it cannot be read: {error.strerror}", code="tool_read", where=str(file)) from error
    return environment_for(needs, data_dir) if needs.dependencies else None


def environment_for(needs: Requirements, data_dir: Path) -> Environment:
    named = "\0".join((sys.version, sys.executable, *sorted(needs.dependencies)))
    return Environment(needs.dependencies, data_dir / "environments" / sha256(named.encode()).hexdigest()[:16])


def _commands(made: Environment) -> Sequence[tuple[str, list[str]]]:
    """Return the commands to run, each with a description. After ``--``, a package's name cannot be read as an option."""
    beside = Path(sys.executable).with_name("uv")
    uv = shutil.which("uv") or (str(beside) if beside.exists() else None)
    if uv is not None:
        make = [uv, "venv", "--quiet", "--python", sys.executable, str(made.folder)]
        install = [uv, "pip", "install", "--quiet", "--python", str(made.python)]
    else:
        make = [sys.executable, "-I", "-m", "venv", str(made.folder)]
        install = [str(made.python), "-I", "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    return (("making an environment", make), (f"installing {', '.join(made.packages)}", [*install, "--", *made.packages]))


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
