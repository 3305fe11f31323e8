"""The folders in the home that hold plugins of other systems: where they are, their files, and a hash of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from . import InstallError

FOLDER = "claude-plugins"
MAX_FILES, MAX_BYTES = 5000, 64 * 1024 * 1024


def folder_of(home: Path, name: str) -> Path:
    """Return where the files of the plugin are that the lock calls `name`: ``claude/reviewer``."""
    return home / FOLDER / name.rpartition("/")[2]


def folder_digest(folder: Path) -> str:
    """Return one hash of all files of a folder."""
    total = hashlib.sha256()
    for name, data in sorted(folder_files(folder).items()):
        total.update(f"{name}\0{hashlib.sha256(data).hexdigest()}\n".encode())
    return f"sha256:{total.hexdigest()}"


def folder_files(folder: Path) -> dict[str, bytes]:
    """Return the content of the files of a folder, by relative path; git's own and links are left out.

    :raises InstallError: there are too many, or they are too large.
    """
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if ".git" in name.parts or path.is_symlink() or not path.is_file():
            continue
        found[str(name)] = path.read_bytes()
        if len(found) > MAX_FILES or sum(map(len, found.values())) > MAX_BYTES:
            raise InstallError(f"it has more than {MAX_FILES} files or {MAX_BYTES // 2**20} MiB", where=str(folder))
    return found
