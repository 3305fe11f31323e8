"""git as a store of file contents: nothing of the vault's repository, of the system or of the person is read."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from moryflow_sdk import ToolError

_OFF: Mapping[str, str] = {
    "core.bare": "false",
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "core.autocrlf": "false",
    "core.safecrlf": "false",
    "core.untrackedCache": "false",
    "core.fileMode": "true",
    "core.symlinks": "true",
    "core.quotePath": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "submodule.recurse": "false",
}
READ_BY_GIT = frozenset({".gitignore", ".gitattributes"})
_SETTINGS = [part for name, value in _OFF.items() for part in ("-c", f"{name}={value}")]


class Git:
    """Runs git on a repository of our own with a foreign folder as its work tree."""

    def __init__(self, repository: Path, tree: Path, *, timeout: float) -> None:
        self.repository = repository
        self.tree = tree
        self._timeout = timeout

    def __call__(self, *arguments: str, given: bytes = b"", repository: Path | None = None, where: Path | None = None) -> bytes:
        """Return what git prints.

        :param repository: another git folder, for reading its index; its hooks, monitors and filters stay off.
        :param where: the folder to work in, where the tree may be gone.
        :raises ToolError: ``git_missing``, ``timeout`` or ``git``, with git's own last line.
        """
        command = ["git", *_SETTINGS, *arguments]
        try:
            done = subprocess.run(
                command,
                cwd=where or self.tree,
                env=self._environ(repository or self.repository, where or self.tree),
                input=given,
                capture_output=True,
                timeout=self._timeout,
                check=False,
            )
        except FileNotFoundError as error:
            raise ToolError("git is not installed", code="git_missing") from error
        except subprocess.TimeoutExpired as error:
            raise ToolError(f"git {arguments[0]} took longer than {self._timeout:g} s", code="timeout") from error
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
            raise ToolError(f"git {arguments[0]}: {said[-1]}", code="git")
        return done.stdout

    def _environ(self, repository: Path, tree: Path) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": os.devnull,
            "LC_ALL": "C.UTF-8",
            "GIT_DIR": str(repository),
            "GIT_WORK_TREE": str(tree),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_TERMINAL_PROMPT": "0",
        }


def split(output: bytes) -> Sequence[str]:
    """Return the names that git printed with ``-z``."""
    return [os.fsdecode(name) for name in output.split(b"\0") if name]


def refuse_pipes(vault: Path) -> None:
    """Name a file of git's own that is a pipe, as nobody would make by mistake; looks for a second at most.

    :raises ToolError: there is one; git waited for it.
    """
    until = time.monotonic() + 1.0
    for folder, _, files in os.walk(vault):
        for name in READ_BY_GIT & set(files):
            place = Path(folder, name)
            refuse_pipe(place, place.relative_to(vault).as_posix())
        if time.monotonic() > until:
            break


def refuse_pipe(place: Path, name: str) -> None:
    """Refuse `place`, shown as `name`, if it is a pipe."""
    with suppress(OSError):
        if stat.S_ISFIFO(place.lstat().st_mode):
            raise ToolError(f"{name} is a pipe, and git waits for what it says", code="pipe", next_step="remove it")
