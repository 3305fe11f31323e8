"""The one place that runs uv, pip and (through them) git: argument lists, operands behind ``--``."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from . import InstallError
from .lock import PackageOrigin
from .pins import constraints

_GIT = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.attributesFile": "/dev/null",
    "protocol.ext.allow": "never",
}
_SETTINGS = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "NO_COLOR": "1",
    "UV_NO_PROGRESS": "1",
}
_SHARED = (("UV_DEFAULT_INDEX", "PIP_INDEX_URL"), ("UV_INDEX_URL", "PIP_INDEX_URL"), ("UV_FIND_LINKS", "PIP_FIND_LINKS"))
"""What uv is told of where packages are, and the name under which pip is told the same."""
_NOWHERE = Path(sys.executable).anchor
"""Where installers run: a folder that a person works in may hold a ``pip.py`` or a ``uv.toml`` of somebody else."""
LONGEST = 1800.0
"""Seconds after which an installation is given up."""
_COMMIT = re.compile(r"Resolved \S+ to commit ([0-9a-f]{40})")
_PLANNED = re.compile(r"^ ?\+ ([A-Za-z0-9._-]+)==([^\s(]+)", re.MULTILINE)


@dataclass(frozen=True)
class Fetched:
    """A wheel in a temporary folder, and the commit it was built from if it came from git."""

    wheel: Path
    commit: str = ""


@dataclass
class Installer:
    """Installs into the environment of this interpreter: with uv when there is one, else with pip.

    :param pins: what must stay at its version.
    :param building: whether a package may be built from its sources, which runs its build script.
    """

    environ: Mapping[str, str]
    pins: Mapping[str, str]
    building: bool = False
    held: int = -1
    """A descriptor that installers inherit: the lock of the installation lasts as long as they run."""
    uv: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        beside = Path(sys.executable).with_name("uv")
        self.uv = str(beside) if beside.is_file() else shutil.which("uv", path=self.environ.get("PATH"))

    # ---------------------------------------------------------------- verbs

    def fetch(self, origin: PackageOrigin, folder: Path) -> Fetched:
        """Put the wheel of `origin` alone into `folder`; nothing is installed.

        :raises InstallError: there is none, or it cannot be built; with what pip says.
        """
        command = [*self._pip(), "wheel", "--no-deps", "--wheel-dir", str(folder), *self._wheels_only(origin)]
        said = self._run([*command, "--", origin.text], f"{origin.text} cannot be fetched")
        wheels = sorted(folder.glob("*.whl"))
        if len(wheels) != 1:
            raise InstallError(f"{origin.text} gave {len(wheels)} wheels instead of one")
        commit = _COMMIT.search(said)
        return Fetched(wheels[0], commit[1] if commit else "")

    def plan(self, origin: PackageOrigin) -> list[tuple[str, str]]:
        """Return name and version of what installing `origin` would install besides itself.

        :raises InstallError: it cannot be installed beside what the host runs on; with what the resolver says.
        """
        what = self._operand(origin)
        with tempfile.TemporaryDirectory() as folder:
            if self.uv:
                command = [*self._uv("install"), "--dry-run", *self._limits(origin, Path(folder)), *what]
                return [(name, version) for name, version in _PLANNED.findall(self._run(command, _refusal(origin)))]
            report = Path(folder, "report.json")
            command = [*self._pip(), "install", "--dry-run", "--report", str(report)]
            self._run([*command, *self._limits(origin, Path(folder)), *what], _refusal(origin))
            found = json.loads(report.read_text("utf-8"))["install"]
        return [(item["metadata"]["name"], item["metadata"]["version"]) for item in found if not item.get("requested")]

    def install(self, origin: PackageOrigin, also: Sequence[tuple[str, str]] = (), *, again: bool = False) -> None:
        """Install `origin`: a wheel that was fetched, or the folder of an editable installation.

        :param also: what was shown besides, in these versions and no others.
        :param again: also when the same version is there already.
        :raises InstallError: it failed; with what the installer says.
        """
        start = self._uv("install") if self.uv else [*self._pip(), "install", "--quiet"]
        once_more: list[str] = []
        if again:
            once_more = ["--reinstall-package", _project_of(origin)] if self.uv else ["--force-reinstall", "--no-deps"]
        with tempfile.TemporaryDirectory() as folder:
            limits = self._limits(origin, Path(folder), also)
            self._run([*start, *once_more, *limits, *self._operand(origin)], _refusal(origin))

    def uninstall(self, *names: str) -> None:
        """Remove distributions.

        :raises InstallError: it failed; with what the installer says.
        """
        command = self._uv("uninstall") if self.uv else [*self._pip(), "uninstall", "--quiet", "--yes"]
        self._run([*command, "--", *names], f"{', '.join(names)} cannot be removed")

    # ---------------------------------------------------------------- commands

    def _uv(self, verb: str) -> list[str]:
        return [str(self.uv), "pip", verb, "--python", sys.executable]

    def _pip(self) -> list[str]:
        """Return the command for pip: the installed one, else the one that comes with Python.

        :raises InstallError: there is none.
        """
        if find_spec("pip"):
            return [sys.executable, "-P", "-m", "pip"]
        if find_spec("ensurepip"):
            import ensurepip

            bundled = sorted((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
            if bundled:
                return [sys.executable, str(bundled[0] / "pip")]
        install = "uv pip install pip" if self.uv else "python3 -m ensurepip"
        raise InstallError(
            "this Python has no pip, which is needed to read a package before it is installed", next_step=install
        )

    def _limits(self, origin: PackageOrigin, folder: Path, also: Sequence[tuple[str, str]] = ()) -> list[str]:
        file = folder / "constraints.txt"
        file.write_text(constraints({**dict(also), **self.pins}), "utf-8")
        return ["--constraint", str(file), *self._wheels_only(origin)]

    def _wheels_only(self, origin: PackageOrigin) -> list[str]:
        """Keep build scripts of packages from an index from running; a folder that was named is built."""
        return [] if self.building or origin.kind in ("folder", "editable", "git") else ["--only-binary", ":all:"]

    def _operand(self, origin: PackageOrigin) -> list[str]:
        return ["--editable", origin.text] if origin.kind == "editable" else ["--", origin.text]

    def _run(self, command: Sequence[str], problem: str) -> str:
        """Run `command` and return all it said.

        :raises InstallError: `problem`, with what it said.
        """
        try:
            done = subprocess.run(
                command,
                env=self._environ(),
                cwd=_NOWHERE,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=LONGEST,
                check=False,
                pass_fds=(self.held,) if self.held >= 0 else (),
            )
        except subprocess.TimeoutExpired as error:
            raise InstallError(f"{problem}: not done after {LONGEST:.0f} s") from error
        except OSError as error:
            raise InstallError(f"{problem}: {error.strerror}", where=str(command[0])) from error
        said = done.stdout.decode("utf-8", "replace")
        if done.returncode:
            raise InstallError(f"{problem}:\n{_sentences(said)}", next_step=_hint(said))
        return said

    def _environ(self) -> dict[str, str]:
        """Return the environment without keys of models, and with git held to what it is told."""
        kept = {name: value for name, value in self.environ.items() if not name.endswith("_API_KEY")}
        for ours, theirs in _SHARED:
            if ours in kept:
                kept.setdefault(theirs, kept[ours])
        settings = {f"GIT_CONFIG_KEY_{number}": key for number, key in enumerate(_GIT)}
        values = {f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(_GIT.values())}
        return {**kept, **_SETTINGS, "GIT_CONFIG_COUNT": str(len(_GIT)), **settings, **values}


def _project_of(origin: PackageOrigin) -> str:
    return origin.path.name.split("-")[0]


def _refusal(origin: PackageOrigin) -> str:
    name = _project_of(origin) if origin.kind == "archive" else origin.text
    return f"{name} cannot be installed beside what Moryflow runs on"


_NOISE = (
    "Using Python", "Collecting ", "Looking in ", "Processing ", "Requirement already", "INFO:", "WARNING: There was an error",
    "  Using cached", "  Downloading", "[notice]",
)  # fmt: skip
_CAUSE = re.compile(r"The conflict is caused by:\n((?: +\S.*\n)+)")


def _sentences(said: str) -> str:
    """Return what an installer said, without its progress and its advice; of a conflict only who wants what."""
    if cause := _CAUSE.search(said):
        said = cause[1]
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith(_NOISE)]
    return "\n".join(f"  {line}" for line in lines[-30:])


def _hint(said: str) -> str:
    low = said.lower()
    if "externally-managed" in low or "externally managed" in low:
        return "install Moryflow into an environment of its own: python3 -m venv, pipx or uv tool"
    if "conflict" in low or "unsatisfiable" in low:
        return "ask for a version that fits, or ask its author; what Moryflow runs on stays as it is"
    if "no matching distribution" in low or "no usable wheels" in low or "only-binary" in low:
        return "check the name; if the package has no wheel, --build runs its build script"
    return ""
