"""Keep a copy of the files that an installation changes until the new code has been tried.

A process that finds the note of an unfinished installation restores the copy, so a killed process or pip does no harm.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib
import json
import os
import shutil
import site
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from moryflow.base.paths import make_folder, write_private
from moryflow.plugins.entry_points import normal

from . import INSTALLING, NO_SPACE, InstallError
from .distributions import Distribution, installed_packages
from .lock import Locked, Lockfile

_NOTE = "note.json"


class Rollback:
    """The packages that one installation changes, as they were before.

    :param names: the packages that are to be installed; :meth:`take_back` also removes others that have appeared.
    :param files: the files that the installation writes.
    """

    def __init__(self, home: Path, names: Iterable[str], files: Iterable[str], entry: Locked | None, locked_name: str) -> None:
        self._home = home
        self._folder = _folder(home)
        self._before = set(installed_packages())
        self._names = {normal(name) for name in names}
        self._keep_copies(files, entry, locked_name)

    def _keep_copies(self, files: Iterable[str], entry: Locked | None, locked_name: str) -> None:
        """Copy the current files, and write the note last: while there is no note, nothing has been changed.

        :raises InstallError: the files cannot be copied, for example because the disk is full.
        """
        purelib = Path(sysconfig.get_path("purelib"))
        fresh = [path for name in files if (path := _inside(purelib / name)) is not None]
        try:
            shutil.rmtree(self._folder, ignore_errors=True)
            make_folder(self._folder)
            there = [path for item in _distributions(self._names) for path in _files(item)]
            kept = [_copy_file(path, self._folder / str(number)) for number, path in enumerate(dict.fromkeys([*there, *fresh]))]
            note = {
                "names": sorted(self._names),
                "sites": [str(folder) for folder in _sites()],
                "left": [str(path) for path in _leftovers(_sites())],
                "fresh": [str(path) for path in fresh],
                "kept": [item for item in kept if item is not None],
                "locked": [locked_name, entry._asdict() if entry else None],
            }
            write_private(self._folder / _NOTE, json.dumps(note), sync=True)
        except OSError as error:
            _drop(self._folder)
            problem = f"what is installed now cannot be kept for the case that the new one does not load: {error.strerror}"
            step = NO_SPACE if error.errno == errno.ENOSPC else ""
            raise InstallError(problem, where=str(error.filename or self._folder), next_step=step) from error

    def done(self) -> None:
        """Keep the installation: drop the copies."""
        _drop(self._folder)

    def take_back(self) -> None:
        """Restore everything as it was, and remove packages that came along.

        :raises InstallError: a file cannot be written; the note stays, and the next start tries again.
        """
        _restore(self._home, sorted(set(installed_packages()) - self._before))


def recover(home: Path, held: InstallLock | None = None) -> list[str]:
    """Undo an installation that was killed; return the names of its packages. Costs one ``stat`` if there is none.

    :param held: the lock, if the caller holds it.
    :raises InstallError: a file cannot be written.
    """
    if not (_folder(home) / _NOTE).exists():
        return []
    if held is not None:
        return _restore(home, ())
    try:
        with InstallLock(home):
            return _restore(home, ())
    except Busy:  # it is still running: start with what is there
        return []


class Busy(InstallError):
    """Another installation is running, or the installer of one that was killed still is."""


class InstallLock:
    """The lock of an installation. Installers inherit it, so that it is held until they end even if this process is killed."""

    def __init__(self, home: Path) -> None:
        self._file = home / f".{INSTALLING}.lock"
        self.descriptor = -1

    def __enter__(self) -> InstallLock:
        try:
            make_folder(self._file.parent)
            self.descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.__exit__()
            text, step = "another installation is running", "wait for it, then try again"
            raise Busy(text, where=str(self._file), next_step=step) from error
        except OSError as error:
            raise InstallError(f"it cannot be written: {error.strerror}", where=str(error.filename or self._file)) from error
        return self

    def __exit__(self, *_: object) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


# ---------------------------------------------------------------- putting back


def _restore(home: Path, also: Iterable[str]) -> list[str]:
    folder = _folder(home)
    note = _read(folder / _NOTE)
    if note is None:
        return []
    try:
        _remove_new(note, also)
        for item in note["kept"]:
            _put_back(folder / item["copy"], Path(item["place"]))
    except OSError as error:
        step = f"make it writable; until then the installation may be incomplete: {folder}"
        problem = f"an installation did not end well and cannot be taken back: {error.strerror}"
        raise InstallError(problem, where=str(error.filename or folder), next_step=step) from error
    name, entry = note["locked"]
    lock = Lockfile(home)
    before, now = (Locked(**entry) if entry else None), lock.read().get(normal(name))
    if now != before:
        lock.put(before) if before is not None else lock.remove(name)
    _drop(folder)
    importlib.invalidate_caches()
    return list(note["names"])


def _drop(folder: Path) -> None:
    """Remove the note, then the copies: without the note nothing is restored."""
    (folder / _NOTE).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # copies of another environment are there
        folder.parent.rmdir()


def _remove_new(note: dict[str, Any], also: Iterable[str]) -> None:
    """Remove the files of the packages with these names, even if half installed, and what an installer moved aside."""
    sites = [Path(folder) for folder in note["sites"]]
    names = {*note["names"], *also}
    found = [path for item in _distributions(names, sites) for path in _files(item)]
    for path in dict.fromkeys([*found, *map(Path, note["fresh"])]):
        _remove(path, sites)
    for item in _distributions(names, sites):
        shutil.rmtree(item.info, ignore_errors=True)
    before = set(note["left"])
    for path in _leftovers(sites):
        if str(path) not in before:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _remove(path: Path, sites: list[Path]) -> None:
    """Remove a file and its byte code, and folders that are empty then."""
    with suppress(FileNotFoundError, NotADirectoryError):
        path.unlink()
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)
    for folder in (path.parent / "__pycache__", path.parent, *path.parents):
        if folder in sites or not any(folder.is_relative_to(top) for top in sites):
            continue
        with suppress(OSError):  # it is not empty, or does not exist
            folder.rmdir()


def _put_back(copy: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_name(f".{place.name}.{os.getpid()}.back")
    shutil.copy2(copy, fresh, follow_symlinks=False)
    fresh.replace(place)


def _copy_file(path: Path, copy: Path) -> dict[str, str] | None:
    """Copy a file, links as links, and return both names for the note; ``None`` if it is a folder or does not exist."""
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            return None
        shutil.copy2(path, copy, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return {"place": str(path), "copy": copy.name}


def _files(item: Distribution) -> list[Path]:
    """Return the files of an installed distribution that are inside this environment."""
    named = [path for name in item.names() if (path := _inside(item.site / name)) is not None]
    own = [path for path in sorted(item.info.rglob("*")) if path.is_file()] if item.info.is_dir() else [item.info]
    return [*named, *own]


def _folder(home: Path) -> Path:
    """Return the folder of the copies; each environment that uses this home has its own."""
    return home / INSTALLING / hashlib.sha256(sys.prefix.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _inside(path: Path) -> Path | None:
    """Return a path without ``..``; ``None`` if it leads out of the environment, as wrong metadata may."""
    plain = Path(os.path.normpath(path))
    roots = {Path(sys.prefix), *_sites()}
    return plain if any(plain.is_relative_to(root) for root in roots) else None


def _distributions(names: Iterable[str], sites: Iterable[Path] | None = None) -> Iterator[Distribution]:
    """Yield the distributions with these names. A killed installation may have left two versions of one."""
    wanted = set(names)
    for folder in _sites() if sites is None else sites:
        with suppress(OSError):
            for path in sorted(folder.iterdir()):
                stem = path.name.removesuffix(".egg-info").split("-")[0]
                if path.name.endswith((".dist-info", ".egg-info")) and normal(stem) in wanted:
                    yield Distribution(path)


def _sites() -> list[Path]:
    """Return the folders that installers write packages to."""
    found = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    found += [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [Path(folder) for folder in dict.fromkeys(found)]


def _leftovers(sites: Iterable[Path]) -> list[Path]:
    """Return what pip has moved aside during an installation (``~name``)."""
    return [path for folder in sites if folder.is_dir() for path in sorted(folder.iterdir()) if path.name.startswith("~")]


def _read(file: Path) -> dict[str, Any] | None:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
