"""Run uv, pip and, through them, git: only here, with argument lists and with operands behind ``--``."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from moryflow_sdk.support.processes import CALL_MARK, end_marked

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
"""The variables that tell uv where packages are, each with pip's variable for the same."""
_NOWHERE = Path(sys.executable).anchor
"""The folder in which installers run: the user's working folder may have someone else's ``pip.py`` or ``uv.toml``."""
LONGEST = 1800.0
"""Seconds after which an installation is stopped."""
MAX_KEPT = 512 * 1024
"""Bytes that are kept of the beginning of what an installer says, and of its end."""
_COMMIT = re.compile(r"Resolved \S+ to commit ([0-9a-f]{40})")
_PLANNED = re.compile(r"^ ?\+ ([A-Za-z0-9._-]+)==([^\s(]+)", re.MULTILINE)


@dataclass(frozen=True)
class FetchedWheel:
    """A wheel in a temporary folder, and the commit it was built from if it came from git."""

    wheel: Path
    commit: str = ""


@dataclass
class Installer:
    """Installs into the environment of this interpreter, with uv if it is there, else with pip.

    :param pins: name → version of the packages that must not change.
    :param building: whether a package may be built from its sources, which runs its build script.
    """

    environ: Mapping[str, str]
    pins: Mapping[str, str]
    building: bool = False
    lock_descriptor: int = -1
    """The descriptor of the installation's lock; installers inherit it, so that the lock is held as long as they run."""
    uv: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        beside = Path(sys.executable).with_name("uv")
        self.uv = str(beside) if beside.is_file() else shutil.which("uv", path=self.environ.get("PATH"))

    # ---------------------------------------------------------------- verbs

    def fetch(self, origin: PackageOrigin, folder: Path) -> FetchedWheel:
        """Put the wheel of `origin`, without its dependencies, into `folder`; nothing is installed.

        :raises InstallError: there is no wheel, or it cannot be built; the message has pip's output.
        """
        command = [*self._pip(), "wheel", "--no-deps", "--wheel-dir", str(folder), *self._wheels_only(origin)]
        output = self._run([*command, "--", origin.text], f"{origin.text} cannot be fetched")
        wheels = sorted(folder.glob("*.whl"))
        if len(wheels) != 1:
            raise InstallError(f"{origin.text} gave {len(wheels)} wheels instead of one")
        commit = _COMMIT.search(output)
        return FetchedWheel(wheels[0], commit[1] if commit else "")

    def fetch_also(self, items: Sequence[tuple[str, str]], folder: Path) -> list[Path]:
        """Put the wheels of `items`, by name and version, into `folder`, and return them; nothing is installed or built.

        A package without a wheel is left out: it has only its sources, or an address of its own.
        """
        command = [*self._pip(), "wheel", "--no-deps", "--wheel-dir", str(folder), "--only-binary", ":all:", "--"]
        for name, version in items:
            with suppress(InstallError):
                self._run([*command, f"{name}=={version}"], f"{name} cannot be fetched")
        return sorted(folder.glob("*.whl"))

    def plan(self, origin: PackageOrigin) -> list[tuple[str, str]]:
        """Return name and version of the packages that would be installed besides `origin`.

        :raises InstallError: it does not fit the packages the host runs on; the message has the resolver's output.
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

        :param also: the packages that were shown besides; they are installed in exactly these versions.
        :param again: install it even if the same version is installed.
        :raises InstallError: it failed; the message has the installer's output.
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

        :raises InstallError: it failed; the message has the installer's output.
        """
        command = self._uv("uninstall") if self.uv else [*self._pip(), "uninstall", "--quiet", "--yes"]
        self._run([*command, "--", *names], f"{', '.join(names)} cannot be removed")

    # ---------------------------------------------------------------- commands

    def _uv(self, verb: str) -> list[str]:
        return [str(self.uv), "pip", verb, "--python", sys.executable]

    def _pip(self) -> list[str]:
        """Return the command for pip: the installed pip, else the one bundled with Python.

        :raises InstallError: there is no pip.
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
        """Return the option that keeps an index's packages from running build scripts; a folder that was named is built."""
        return [] if self.building or origin.kind in ("folder", "editable", "git") else ["--only-binary", ":all:"]

    def _operand(self, origin: PackageOrigin) -> list[str]:
        return ["--editable", origin.text] if origin.kind == "editable" else ["--", origin.text]

    def _run(self, command: Sequence[str], problem: str) -> str:
        """Run `command` and return its output.

        :raises InstallError: it failed; the message is `problem` with the output.
        """
        mark = f"moryflow-install-{os.getpid()}"
        with _exit_on_signals(), tempfile.TemporaryFile() as printed:
            try:
                process = subprocess.Popen(
                    command,
                    env={**self._environ(), CALL_MARK: mark},
                    cwd=_NOWHERE,
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                    pass_fds=(self.lock_descriptor,) if self.lock_descriptor >= 0 else (),
                )
            except OSError as error:
                raise InstallError(f"{problem}: {error.strerror}", where=str(command[0])) from error
            try:
                process.wait(LONGEST)
            except subprocess.TimeoutExpired as error:
                raise InstallError(f"{problem}: not done after {LONGEST:.0f} s") from error
            finally:
                process.kill()
                process.wait()
                end_marked((mark,))  # a build script that still runs
            printed.seek(0)  # a file and no pipe: whoever still holds it open is not waited for
            output = ends_of(printed).decode("utf-8", "replace")
        if process.returncode:
            why = _relevant_output(output) or f"  it ended with exit code {process.returncode} and said nothing"
            raise InstallError(f"{problem}:\n{why}", next_step=_hint(output))
        return output

    def _environ(self) -> dict[str, str]:
        """Return the environment without models' API keys and with safe settings for git."""
        kept = {name: value for name, value in self.environ.items() if not name.endswith("_API_KEY")}
        for uv_name, pip_name in _SHARED:
            if uv_name in kept:
                kept.setdefault(pip_name, kept[uv_name])
        settings = {f"GIT_CONFIG_KEY_{number}": key for number, key in enumerate(_GIT)}
        values = {f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(_GIT.values())}
        return {**kept, **_SETTINGS, "GIT_CONFIG_COUNT": str(len(_GIT)), **settings, **values}


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise :exc:`SystemExit`, so that what runs is ended and what was begun is taken back."""

    def leave(*_: object) -> None:
        raise SystemExit(130)

    mine = threading.current_thread() is threading.main_thread()
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if mine and signal.getsignal(number) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def ends_of(stream: IO[bytes]) -> bytes:
    """Read `stream` to its end, and return its first and its last part: a build script may print without end."""
    first, last = stream.read(MAX_KEPT), b""
    while piece := stream.read(MAX_KEPT):
        last = (last + piece)[-MAX_KEPT:]
    return first + last


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


def _relevant_output(output: str) -> str:
    """Return an installer's output without progress and advice; for a conflict, only who requires what."""
    if cause := _CAUSE.search(output):
        output = cause[1]
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith(_NOISE)]
    return "\n".join(f"  {line}" for line in lines[-30:])


def _hint(output: str) -> str:
    low = output.lower()
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
"""Releases that are never installed, because they are malicious."""


def host_pins() -> dict[str, str]:
    """Return the installed version of the host and of everything it requires, by name.

    Packages of its extras are pinned too if they are installed, because the host then uses them.
    """
    known = installed_packages()
    pins: dict[str, str] = {}
    waiting: list[tuple[str, frozenset[str]]] = [(HOST, frozenset({"search", "sandbox", "web"}))]
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
    """Return the text of a constraints file that pins `pins` and excludes bad releases."""
    lines = [f"{name}=={version}" for name, version in sorted(pins.items())]
    lines += [f"{name}!={version}" for name, versions in BAD_RELEASES.items() for version in versions]
    return "\n".join(lines) + "\n"


def refuse_conflicts(package: PluginPackage, pins: Mapping[str, str]) -> None:
    """Refuse a package that requires another version of a package the host runs on.

    :raises InstallError: the message names both packages and the installed version.
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
    """Refuse a plan that would break a requirement of an installed plugin, or of a package that it uses.

    An installer checks only the packages it installs, and would leave the installed ones broken.

    :param items: name and version of each package that would be installed.
    :raises InstallError: the message names who requires what.
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
            fits = there and wanted.specifier.contains(there, prereleases=True)  # one that is broken already does not count
            if fits and needed in coming and not wanted.specifier.contains(coming[needed], prereleases=True):
                who = f"{own} {version}" if name == plugin else f"{own} {version} (of the plugin {plugin})"
                raise InstallError(
                    f"{who} needs {wanted.name}{wanted.specifier}, but {wanted.name} {coming[needed]} would be installed "
                    f"in place of {there}",
                    next_step=f"ask for a version that works with {wanted.name} {there}, or moryflow plugin uninstall {plugin}",
                )
            waiting.append((plugin, needed))


def refuse_replacing(package: PluginPackage, pins: Iterable[str]) -> None:
    """Refuse a package that would replace files of others: installers silently overwrite them, and later remove them.

    These are modules of Moryflow, of the packages it runs on, or of another plugin, and commands of this environment, such as
    Python.

    :raises InstallError: the message names a file and its owner.
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
    """Return the module of a file, as a path without suffixes, and the packages that contain it.

    Python prefers a package to an extension module of the same name, and that to a ``.py``; byte code may be run in place of
    any of them. A file that is not a module counts by its path, except at the top level.
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
    """Refuse a plan with a release that is known to be malicious.

    :raises InstallError: the message names the release.
    """
    for name, version in items:
        if version in BAD_RELEASES.get(normal(name), ()):
            raise InstallError(f"{name} {version} is known to be malicious and is not installed")


def _needs(requires: Iterable[str], extras: frozenset[str] = frozenset()) -> Iterator[Requirement]:
    """Yield the requirements that apply in this environment; one that cannot be parsed is left to the installer."""
    from packaging.requirements import InvalidRequirement, Requirement

    for text in requires:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue
        if wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield wanted


class Older(NamedTuple):
    """A package that would be replaced by an older version."""

    name: str
    now: str
    then: str

    def __str__(self) -> str:
        return f"DOWNGRADE: {self.name} {self.now} -> {self.then}, which is older"


def older(items: Iterable[tuple[str, str]], known: Mapping[str, Locked]) -> list[Older]:
    """Return those of `items`, (name, version), that are older than the installed version, or else the locked one.

    Versions that cannot be parsed are not compared.
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
