"""Moryflow's home folder, the caches that are kept in it, and the vault, the folder to work in."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from moryflow_sdk import ConfigError, MoryflowError
from moryflow_sdk.support.own_files import LOST_HINT, doubt_about_one, leads_nowhere, replace_file


def home_folder(home: Path | str | None, environ: Mapping[str, str]) -> Path:
    """Return Moryflow's home folder; it need not exist yet.

    :raises MoryflowError: this user has no home folder, or nothing can be read or made in Moryflow's.
    """
    try:
        person = Path.home()  # needed even if Moryflow's home is elsewhere: its keys are protected
        folder = Path(home or environ.get("MORYFLOW_HOME") or person / ".moryflow").expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError("this user has no home folder", next_step="export HOME=DIR") from error
    _look_at(folder)
    return folder


def _look_at(folder: Path) -> None:
    """Check that files can be read and made in `folder`: once, here, and not in each place that needs it."""
    problem, step = "", "set MORYFLOW_HOME to a folder that you may write to"
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            problem = "cannot be made: there is a file with its name"
        elif not os.access(folder, os.X_OK):
            problem, step = f"cannot be read: {os.strerror(errno.EACCES)}", f"chmod u+rwx it, or {step}"
    except FileNotFoundError:
        if lost := leads_nowhere(folder):
            message = f"Moryflow's own folder is not there: {lost}"
            raise ConfigError(message, where=str(folder), next_step=LOST_HINT) from None
    except OSError as error:
        problem = f"cannot be reached: {error.strerror}"
    if problem:
        raise MoryflowError(f"Moryflow's own folder {problem}", where=str(folder), next_step=step)


def make_folder(folder: Path) -> None:
    """Make a folder in the home, and its parents, for the owner alone: ``mkdir(parents=True)`` leaves parents to the umask.

    :raises OSError: the folder cannot be made.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def keep(file: Path, text: str) -> bool:
    """Write a cache file in the home; return whether it was written. A home that cannot be written has no cache."""
    try:
        write_private(file, text)
    except OSError:
        return False
    return True


def write_private(file: Path, text: str, *, sync: bool = False) -> None:
    """Write a file in the home at once or not at all, for the owner alone.

    :param sync: hold this even after a power cut.
    :raises OSError: it cannot be written; what was there is unchanged.
    """
    make_folder(file.parent)
    replace_file(file, text.encode(), sync=sync)


# What a session of a cluster works in, where that is not a folder of one path on all machines: `volume:NAME` is what the
# configuration of each worker calls so, `worktree:REPO@REF` becomes a git worktree of the session's own.
VOLUME, WORKTREE = "volume:", "worktree:"


def is_workspace(vault: Path | str | None) -> bool:
    """Whether `vault` names a volume or a worktree rather than a folder."""
    return str(vault).startswith((VOLUME, WORKTREE))


def repository_of(vault: str) -> tuple[str, str]:
    """Return repository and commit of ``worktree:REPO@REF``, ``HEAD`` without one; of anything else, itself and nothing."""
    if not vault.startswith(WORKTREE):
        return vault, ""
    repository, at, commit = vault.removeprefix(WORKTREE).rpartition("@")
    return (repository, commit) if at else (commit, "HEAD")


def readable_vault(vault: Path | str | None) -> Path:
    """Return the resolved path of the vault.

    :raises ConfigError: the vault does not exist, is not a folder, or cannot be read.
    """
    given, hint = str(vault or "."), "give a folder with --vault DIR"
    try:
        folder = Path(vault or ".").resolve()
        next(iter(folder.iterdir()), None)
    except FileNotFoundError as error:
        raise ConfigError("the vault does not exist", where=given, next_step=hint) from error
    except NotADirectoryError as error:
        raise ConfigError("the vault is not a folder", where=given, next_step=hint) from error
    except ValueError as error:  # a NUL, which no path has
        raise ConfigError("the vault is not a path", where=repr(given), next_step=hint) from error
    except OSError as error:
        problem = f"the vault cannot be read: {error.strerror}"
        step = "check its permissions" if error.errno in (errno.EACCES, errno.EPERM) else hint
        raise ConfigError(problem, where=given, next_step=step) from error
    return folder


_FORMAT = 1
_FILE = "start.json"


def recall_start(cache: Path, part: str, key: object) -> Any:
    """Return the content that :func:`keep_start` stored for `part`; ``None`` if there is none or its key is not `key`."""
    match _read(cache / _FILE).get(part):
        case [known, content] if known == key:
            return content
        case _:
            return None


def keep_start(cache: Path, part: str, key: object, content: object) -> None:
    """Store `content` under `key` as one part of the start cache; the other parts stay. Both must be plain JSON."""
    parts = {**_read(cache / _FILE), part: [key, content]}
    keep(cache / _FILE, json.dumps({"format": _FORMAT, "parts": parts}))


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            if doubt_about_one(file, os.fstat(stream.fileno())):
                return {}
            match json.load(stream):
                case {"format": form, "parts": {**parts}} if form == _FORMAT:
                    return cast("dict[str, Any]", parts)
                case _:
                    return {}
    except (OSError, ValueError, RecursionError):
        return {}


def call_mark(home: Path, session: str, node: str, call: str) -> str:
    """Return the mark that the processes of a call carry in their environment, a hash of ids recorded before the call runs."""
    import hashlib

    return hashlib.sha256("\0".join((str(home.resolve()), session, node, call)).encode()).hexdigest()[:32]
