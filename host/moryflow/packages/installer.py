"""The one place that runs uv, pip and (through them) git: argument lists, operands behind ``--``."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from moryflow.plugins.entry_points import normal

from . import NO_SPACE, InstallError
from .distributions import PluginPackage, installed_packages
from .lock import Locked, PackageOrigin

if TYPE_CHECKING:
    from packaging.requirements import Requirement

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
class FetchedWheel:
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

    def fetch(self, origin: PackageOrigin, folder: Path) -> FetchedWheel:
        """Put the wheel of `origin` alone into `folder`; nothing is installed.

        :raises InstallError: there is none, or it cannot be built; with what pip says.
        """
        command = [*self._pip(), "wheel", "--no-deps", "--wheel-dir", str(folder), *self._wheels_only(origin)]
        said = self._run([*command, "--", origin.text], f"{origin.text} cannot be fetched")
        wheels = sorted(folder.glob("*.whl"))
        if len(wheels) != 1:
            raise InstallError(f"{origin.text} gave {len(wheels)} wheels instead of one")
        commit = _COMMIT.search(said)
        return FetchedWheel(wheels[0], commit[1] if commit else "")

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
        start = self._uv("install") if self.uv else [*self._pip(), "install", "--quiet", "--no-warn-conflicts"]
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
            why = _sentences(said) or f"  it ended with exit code {done.returncode} and said nothing"
            raise InstallError(f"{problem}:\n{why}", next_step=_hint(said))
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
    if "no space left" in low or "disk quota" in low:
        return NO_SPACE
    if "conflict" in low or "unsatisfiable" in low:
        return "ask for a version that fits, or ask its author; what Moryflow runs on stays as it is"
    if "no matching distribution" in low or "no usable wheels" in low or "only-binary" in low:
        return "check the name; if the package has no wheel, --build runs its build script"
    return ""


HOST = "moryflow"
_MODULES = ("moryflow", "moryflow_sdk", "moryflow_builtins")
BAD_RELEASES: Mapping[str, tuple[str, ...]] = {"litellm": ("1.82.7", "1.82.8")}
"""Releases that are never installed: these two were malicious."""


def host_pins() -> dict[str, str]:
    """Return name and version of the host and of all it needs, as they are installed now.

    What an extra would add is pinned too when it is there: the host uses what it finds.
    """
    known = installed_packages()
    pins: dict[str, str] = {}
    waiting: list[tuple[str, frozenset[str]]] = [(HOST, frozenset({"re2", "search", "sandbox", "web"}))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = item = waiting.pop()
        if item in seen or name not in known:
            continue
        seen.add(item)
        _, version, requires = known[name].metadata
        if version:
            pins[name] = version
        waiting += [(normal(wanted.name), frozenset(wanted.extras)) for wanted in _needs(requires, extras)]
    return pins


def constraints(pins: Mapping[str, str]) -> str:
    """Return a constraints file that holds the host's packages and keeps bad releases out."""
    lines = [f"{name}=={version}" for name, version in sorted(pins.items())]
    lines += [f"{name}!={version}" for name, versions in BAD_RELEASES.items() for version in versions]
    return "\n".join(lines) + "\n"


def refuse_conflicts(package: PluginPackage, pins: Mapping[str, str]) -> None:
    """Refuse a package that wants another version of something the host runs on.

    :raises InstallError: naming who wants what, and what is here.
    """
    for wanted in _needs(package.requires):
        here = pins.get(normal(wanted.name))
        if here is not None and not wanted.specifier.contains(here, prereleases=True):
            who = f"{package.name} {package.version}".rstrip()
            needs = f"{wanted.name}{wanted.specifier}"
            raise InstallError(
                f"{who} wants {needs}, but Moryflow runs on {wanted.name} {here}, which a plugin may not change",
                next_step=f"ask for a version of {package.name} that works with {wanted.name} {here}",
            )


def refuse_breaking(items: Iterable[tuple[str, str]]) -> None:
    """Refuse a plan that takes from an installed plugin something that it, or what it uses, needs.

    An installer looks at what it installs and not at what is there, which it would leave broken.

    :param items: name and version of all that would be installed.
    :raises InstallError: naming who needs what.
    """
    known = installed_packages()
    coming = {normal(name): version for name, version in items}
    waiting = [(name, name) for name, item in known.items() if item.plugins]
    seen: set[str] = set(coming)
    while waiting:
        plugin, name = waiting.pop()
        if name in seen or name not in known:
            continue
        seen.add(name)
        own, version, requires = known[name].metadata
        for wanted in _needs(requires):
            needed = normal(wanted.name)
            there = known[needed].metadata[1] if needed in known else ""
            fits = there and wanted.specifier.contains(there, prereleases=True)  # what is broken already is not kept whole
            if fits and needed in coming and not wanted.specifier.contains(coming[needed], prereleases=True):
                who = f"{own} {version}" if name == plugin else f"{own} {version} (of the plugin {plugin})"
                raise InstallError(
                    f"{who} needs {wanted.name}{wanted.specifier}, but {wanted.name} {coming[needed]} would be installed "
                    f"in place of {there}",
                    next_step=f"ask for a version that works with {wanted.name} {there}, or moryflow plugin uninstall {plugin}",
                )
            waiting.append((plugin, needed))


def refuse_replacing(package: PluginPackage, pins: Iterable[str]) -> None:
    """Refuse a package that would replace what is not its own: installers overwrite it, and later remove it, without a word.

    That is a module of Moryflow, of what it runs on, or of another plugin; or a command of this environment, such as Python.
    What a dependency brings is not known before it is installed.

    :raises InstallError: naming a file, and whose it is.
    """
    known = installed_packages()
    own = known.pop(normal(package.name), None)
    mine = {os.path.normpath(own.site / name) for name in own.names()} if own is not None else set[str]()
    others = (item for name, item in known.items() if name in pins or item.plugins)
    owners = {module: item for item in others for name in item.names() for module in _modules(name)}
    for place in package.places:
        owner, module = "", next(iter(_modules(os.path.normpath(place))), "")
        if Path(place).is_absolute():
            owner = "this environment" if os.path.lexists(place) and os.path.normpath(place) not in mine else ""
        elif module.partition("/")[0].partition(".")[0] in _MODULES:
            owner = HOST
        elif module in owners:
            owner = " ".join(owners[module].metadata[:2])
        if owner:
            problem = f"{package.name} {package.version} would replace {place} of {owner}"
            raise InstallError(problem, next_step="ask its author to bring only files of its own name")


def _modules(name: str) -> list[str]:
    """Return the module that a file makes, as a path without suffixes, and the packages that the module is in.

    Python takes a package before an extension of the same name, and an extension before a ``.py``; byte code may be run
    in place of any of them. A file that is no module counts by its path, except at the top level.
    """
    parts = [part for part in name.split("/") if part != "__pycache__"]
    if name.endswith((".py", ".pyc", ".so")):
        parts[-1] = parts[-1].partition(".")[0]
        if parts[-1] == "__init__":
            parts.pop()
    elif len(parts) == 1:
        return []
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]


def refuse_bad(items: Iterable[tuple[str, str]]) -> None:
    """Refuse a plan that holds a release known to be malicious.

    :raises InstallError: naming it.
    """
    for name, version in items:
        if version in BAD_RELEASES.get(normal(name), ()):
            raise InstallError(f"{name} {version} is known to be malicious and is not installed")


def _needs(requires: Iterable[str], extras: frozenset[str] = frozenset()) -> Iterator[Requirement]:
    """Yield what is required here; a requirement that cannot be read is left to the installer."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in requires:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield wanted


class Older(NamedTuple):
    """Something that would be older than it is."""

    name: str
    now: str
    then: str

    def __str__(self) -> str:
        return f"DOWNGRADE: {self.name} {self.now} -> {self.then}, which is older"


def older(items: Iterable[tuple[str, str]], known: Mapping[str, Locked]) -> list[Older]:
    """Return which of `items`, by name and version, are older than what is installed, or else than what was agreed to.

    Versions that follow no order are not compared.
    """
    there = installed_packages()
    found: list[Older] = []
    for name, version in items:
        item, entry = there.get(normal(name)), known.get(normal(name))
        now = item.metadata[1] if item is not None else entry.version if entry is not None else ""
        if now and version and _is_older(version, now):
            found.append(Older(name, now, version))
    return found


def _is_older(one: str, other: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(one) < Version(other)
    except InvalidVersion:
        return False
