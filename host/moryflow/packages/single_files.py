"""Plugins in one file: copied into the home, moved aside when they go, never deleted."""

from __future__ import annotations

import hashlib
import os
import re
import time
from pathlib import Path

from moryflow_sdk import PluginError

from moryflow.plugins.sources import read_owned

from . import InstallError
from .lock import Locked

FOLDER = "plugins"
ASIDE = "removed"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def content_of(path: Path) -> bytes:
    """Return what a file holds, if only its owner can change it.

    :raises InstallError: somebody else can, or it is not there.
    """
    try:
        return read_owned(path)
    except PluginError as error:
        raise InstallError(error.message, where=error.where, next_step=error.next_step) from error


def plugin_name(path: Path) -> str:
    """Return the name a file gives its plugin.

    :raises InstallError: it is none.
    """
    if not _NAME.fullmatch(path.stem):
        problem = f"{path.stem!r} is not a plugin name: letters, digits, - and _"
        raise InstallError(problem, where=str(path), next_step="rename the file")
    return path.stem


def file_digest(data: bytes) -> str:
    """Return the hash of a file."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def write_new(path: Path, data: bytes) -> None:
    """Write a file for its owner alone, where there is none."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as stream:
        stream.write(data)


def put_file(home: Path, name: str, data: bytes) -> Path:
    """Write a plugin into the home; one that is there already goes aside."""
    from moryflow.base.atomic_write import write_atomically

    folder = home / FOLDER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    target = folder / f"{name}.py"
    if target.exists() and target.read_bytes() != data:
        copy_aside(home, target)  # a copy: whatever happens now, there is a plugin
    write_atomically(target, data)
    target.chmod(0o600)
    return target


def move_aside(home: Path, path: Path) -> Path:
    """Move a file or a folder of the home to where nothing is loaded from; return where it is now."""
    return path.rename(_place_aside(home, path))


def copy_aside(home: Path, path: Path) -> Path:
    """Copy a file of the home to where nothing is loaded from; return where the copy is."""
    target = _place_aside(home, path)
    write_new(target, path.read_bytes())
    return target


def _place_aside(home: Path, path: Path) -> Path:
    aside = home / ASIDE
    aside.mkdir(parents=True, exist_ok=True, mode=0o700)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        target = aside / f"{path.stem}-{stamp}{f'-{number}' if number else ''}{path.suffix}"
        if not os.path.lexists(target):
            return target
    raise InstallError("there are too many removed plugins of this name", where=str(aside), next_step=f"empty {aside}")


def file_entry(name: str, origin: Path, data: bytes) -> Locked:
    """Return the line of the lock for a plugin in one file."""
    plugins = {name: {"manifest": False, "hooks": [], "tools": [], "services": [], "capabilities": {}}}
    return Locked(f"{FOLDER}/{name}.py", "", "file", str(origin), file_digest(data), plugins)
