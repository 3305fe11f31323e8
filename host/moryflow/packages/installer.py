"""Run pip and, through it, git: only here, with argument lists and with operands behind ``--``."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from moryflow_sdk.support.processes import CALL_MARK, end_marked

from moryflow.plugins.entry_points import normal

from . import InstallError
from .distributions import installed_packages
from .lock import PackageOrigin

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
}
# The variables that tell uv where packages are, each with pip's variable for the same: pip reads only its own.
_SHARED = (("UV_DEFAULT_INDEX", "PIP_INDEX_URL"), ("UV_INDEX_URL", "PIP_INDEX_URL"), ("UV_FIND_LINKS", "PIP_FIND_LINKS"))
# The folder in which installers run: the user's working folder may have someone else's `pip.py`.
_NOWHERE = Path(sys.executable).anchor
# Seconds after which an installation is stopped.
TIMEOUT = 1800.0
# Bytes that are read of the end of what an installer prints: a build script may print without end.
MAX_OUTPUT = 512 * 1024
_COMMIT = re.compile(r"Resolved \S+ to commit ([0-9a-f]{40})")


@dataclass
class Installer:
    """Installs into the environment of this interpreter, with pip.

    :param building: whether a package may be built from its sources, which runs its build script.
    """

    environ: Mapping[str, str]
    building: bool = False
    # The descriptor of the installation's lock; installers inherit it, so that the lock is held as long as they run.
    lock_descriptor: int = -1

    # ---------------------------------------------------------------- verbs

    def fetch(self, origin: PackageOrigin, folder: Path) -> tuple[Path, str]:
        """Put the wheel of `origin`, without its dependencies, into `folder`; return it, and the commit if it came from git.

        :raises InstallError: there is no wheel, or it cannot be built; the message has pip's output.
        """
        command = [*self._pip(), "wheel", "--no-deps", "--wheel-dir", str(folder), *self._wheels_only(origin)]
        output = self._run([*command, "--", origin.text], f"{origin.text} cannot be fetched")
        wheels = sorted(folder.glob("*.whl"))
        if len(wheels) != 1:
            raise InstallError(f"{origin.text} gave {len(wheels)} wheels instead of one")
        commit = _COMMIT.search(output)
        return wheels[0], commit[1] if commit else ""

    def plan(self, origin: PackageOrigin, package: str) -> list[tuple[str, str]]:
        """Return name and version of the packages that would be installed besides `package`, which is at `origin`.

        :raises InstallError: it does not fit what is held back by :func:`constraints`; the message has the resolver's output.
        """
        with tempfile.TemporaryDirectory() as folder:
            report, what = Path(folder, "report.json"), self._operands(origin, package, Path(folder))
            self._run([*self._pip(), "install", "--dry-run", "--report", str(report), *what], _refusal(package))
            found = json.loads(report.read_text("utf-8"))["install"]
        return [(item["metadata"]["name"], item["metadata"]["version"]) for item in found if not item.get("requested")]

    def install(
        self, origin: PackageOrigin, package: str, also: Sequence[tuple[str, str]] = (), *, again: bool = False
    ) -> None:
        """Install `package` from `origin`: a wheel that was fetched, or the folder of an editable installation.

        :param also: the packages that were shown besides; they are installed in exactly these versions.
        :param again: install it even if the same version is installed.
        :raises InstallError: it failed; the message has the installer's output.
        """
        command = [*self._pip(), "install", "--quiet", "--no-warn-conflicts"]
        command += ["--force-reinstall", "--no-deps"] if again else []
        with tempfile.TemporaryDirectory() as folder:
            self._run([*command, *self._operands(origin, package, Path(folder), also)], _refusal(package))

    def uninstall(self, *names: str) -> None:
        """Remove distributions.

        :raises InstallError: it failed; the message has the installer's output.
        """
        self._run([*self._pip(), "uninstall", "--quiet", "--yes", "--", *names], f"{', '.join(names)} cannot be removed")

    def clone(self, address: str, folder: Path, revision: str = "") -> str:
        """Clone a git repository into `folder`, at a revision if one is given; return the commit.

        :raises InstallError: it failed; the message has git's output.
        """
        whole = [] if revision else ["--depth", "1"]
        command = ["git", "clone", "--quiet", "--no-recurse-submodules", *whole, "--", address, str(folder)]
        self._run(command, f"{address} cannot be fetched")
        if revision:
            self._run(["git", "-C", str(folder), "checkout", "--quiet", "--detach", revision], f"{address} has no {revision}")
        return self._run(["git", "-C", str(folder), "rev-parse", "HEAD"], f"{address} has no commit").strip()

    # ---------------------------------------------------------------- commands

    def _pip(self) -> list[str]:
        if find_spec("pip"):
            return [sys.executable, "-P", "-m", "pip"]
        raise InstallError("this Python has no pip, which installs packages", next_step="python3 -m ensurepip")

    def _operands(self, origin: PackageOrigin, package: str, folder: Path, also: Sequence[tuple[str, str]] = ()) -> list[str]:
        file = folder / "constraints.txt"
        file.write_text("\n".join([*constraints(package), *(f"{name}=={version}" for name, version in also)]), "utf-8")
        what = ["--editable", origin.text] if origin.kind == "editable" else ["--", origin.text]
        return ["--constraint", str(file), *self._wheels_only(origin), *what]

    def _wheels_only(self, origin: PackageOrigin) -> list[str]:
        """Return the option that keeps an index's packages from running build scripts; a folder that was named is built."""
        return [] if self.building or origin.kind in ("folder", "editable", "git") else ["--only-binary", ":all:"]

    def _run(self, command: Sequence[str], problem: str) -> str:
        mark = f"moryflow-install-{os.getpid()}"
        environ = {**self._environ(), CALL_MARK: mark}
        held = (self.lock_descriptor,) if self.lock_descriptor >= 0 else ()
        with _exit_on_terminate(), tempfile.TemporaryFile() as printed:  # not a pipe: whoever holds it open is not waited for
            try:
                done = subprocess.run(
                    command, env=environ, cwd=_NOWHERE, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
                    pass_fds=held, timeout=TIMEOUT, check=False,
                )  # fmt: skip
            except OSError as error:
                raise InstallError(f"{problem}: {error.strerror}", where=str(command[0])) from error
            except subprocess.TimeoutExpired as error:
                raise InstallError(f"{problem}: not done after {TIMEOUT:.0f} s") from error
            finally:
                end_marked((mark,))  # a build script that still runs
            printed.seek(max(0, printed.seek(0, os.SEEK_END) - MAX_OUTPUT))
            output = printed.read().decode("utf-8", "replace")
        if done.returncode:
            why = _relevant_output(output) or f"  it ended with exit code {done.returncode} and said nothing"
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
def _exit_on_terminate() -> Iterator[None]:
    """Let SIGTERM raise :exc:`SystemExit`, so that the installer is ended too."""

    def leave(*_: object) -> None:
        raise SystemExit(130)

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _refusal(package: str) -> str:
    return f"{package} cannot be installed beside what Moryflow and your plugins run on"


_CAUSE = re.compile(r"The conflict is caused by:\n((?: +\S.*\n)+)")


def _relevant_output(output: str) -> str:
    """Return the end of an installer's output; for a conflict, only who requires what."""
    if cause := _CAUSE.search(output):
        output = cause[1]
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[-30:])


def _hint(output: str) -> str:
    low = output.lower()
    if "externally-managed" in low or "externally managed" in low:
        return "install Moryflow into an environment of its own: python3 -m venv, pipx or uv tool"
    if "conflict" in low or "unsatisfiable" in low:
        return "ask for a version that fits, or ask its author; what Moryflow and your plugins run on stays as it is"
    if "no matching distribution" in low or "only-binary" in low:
        return "check the name; if the package has no wheel, --build runs its build script"
    return ""


HOST = "moryflow"
# Releases that are never installed, because they are malicious.
BAD_RELEASES: Mapping[str, tuple[str, ...]] = {"litellm": ("1.82.7", "1.82.8")}


def constraints(package: str = "") -> list[str]:
    """Return the lines of a constraints file for the installation of `package`.

    They pin the host and all that it requires, with its extras; they keep what the other plugins and what they use require,
    which an installer does not look at; and they exclude bad releases.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    known = installed_packages()
    plugins = [name for name, item in known.items() if name not in (normal(package), HOST) and item.plugins]
    waiting = [(HOST, True, ("sandbox", "web")), *((name, False, ()) for name in plugins)]
    lines = {f"{name}!={version}": None for name, versions in BAD_RELEASES.items() for version in versions}
    seen: set[tuple[str, bool, tuple[str, ...]]] = set()
    while waiting:
        name, host, extras = item = waiting.pop()
        if item in seen or name not in known:
            continue
        seen.add(item)
        if host and known[name].version:
            lines[f"{name}=={known[name].version}"] = None
        for text in known[name].requires:
            try:
                wanted = Requirement(text)
            except InvalidRequirement:
                continue
            if wanted.marker is not None and not any(wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                continue
            needed = normal(wanted.name)
            there = needed in known and wanted.specifier.contains(known[needed].version, prereleases=True)
            if not host and there and wanted.specifier:  # a requirement that is broken already does not count
                lines[f"{needed}{wanted.specifier}"] = None
            waiting.append((needed, host, tuple(sorted(wanted.extras))))
    return list(lines)
