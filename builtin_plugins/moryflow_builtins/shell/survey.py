"""What runs later and what is secret in a vault, found by one walk before and after a sandboxed command.

Names are looked at, and what a rebase will run; links are not followed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from moryflow_sdk.git_files import named_by_git, read_start
from moryflow_sdk.protected_files import RUNS_LATER, SECRETS, plain_names

GIT_PARTS = frozenset({"hooks", "config", "config.worktree", "info", "modules", "worktrees", "commondir"})
"""What makes git run something, by its name in a repository; the rest changes with every commit."""

LONGEST = 3000
"""Paths beyond it are taken for an attempt to hide something where nobody can look."""


_EXECUTES = re.compile(rb"^\s*(?:x|exec)\s", re.MULTILINE)
_LONGEST_TODO = 1 << 20


class Entry(NamedTuple):
    """One file or folder, told from every other.

    :ivar kind: ``file``, ``folder``, ``repository`` (a folder ``.git``), ``link`` or ``unseen``: nobody can look into it.
    :ivar holder: the inode of the folder it is in.
    :ivar leads: where a link leads.
    """

    kind: str
    device: int
    inode: int
    holder: int
    leads: str = ""

    def is_same(self, other: Entry) -> bool:
        """Whether both are one object."""
        return (self.device, self.inode) == (other.device, other.inode)


INSTALLED = frozenset({"site-packages", "dist-packages", "node_modules"})
"""Folders of installed packages. Keys and certificates in them are not a person's secrets; hiding them breaks the packages."""


@dataclass(slots=True)
class Survey:
    """What was found, by path from the vault.

    :param guarded: what runs later; of a folder in which all does, the folder alone.
    :param secrets: files and folders whose names tell of secrets, or that `also` named; the value says whether it is a folder.
    """

    guarded: dict[str, Entry] = field(default_factory=dict[str, Entry])
    secrets: dict[str, bool] = field(default_factory=dict[str, bool])


class _Folder(NamedTuple):
    """A folder to look into, `below` with a slash at its end.

    :ivar guarded: what is in it runs later, because it does; so for `secret`.
    :ivar noted: it is in a folder that was noted as a whole.
    """

    below: str
    inode: int
    guarded: bool = False
    secret: bool = False
    git: bool = False
    noted: bool = False


@dataclass(frozen=True, slots=True)
class Search:
    """How a vault is looked through.

    :param opened: paths from the vault; a folder that holds one of them is told file by file.
    :param also: whether a file at a path is secret though its name does not tell.
    :param each_secret: tell the files of a folder of secrets instead of the folder.
    """

    vault: str
    opened: frozenset[str] = frozenset()
    also: Callable[[str], bool] | None = None
    each_secret: bool = False

    def before(self) -> Survey:
        """Find what runs later, and what is secret."""
        return _Walk(self, secrets=True).run()

    def after(self, before: Mapping[str, Entry]) -> Survey:
        """Find what runs later by now, also in folders that the command has closed, and what was `before` wherever it is."""
        now = _Walk(self, secrets=False).run()
        there = now.guarded
        lost = {entry.inode for path, entry in before.items() if path not in there or not entry.is_same(there[path])}
        return _Walk(self, secrets=False, lost=lost).run() if lost else now


class _Walk:
    def __init__(self, search: Search, *, secrets: bool, lost: Set[int] = frozenset()) -> None:
        self._search = search
        self._lost = lost
        self._secrets = secrets
        self._named = frozenset(named_by_git(Path(search.vault)))
        self._above_opened = {str(parent) for path in search.opened for parent in Path(path).parents}
        self._found = Survey()
        self._todo = [_Folder("", _inode(search.vault))]

    def run(self) -> Survey:
        while self._todo:
            folder = self._todo.pop()
            for entry in self._entries(folder):
                self._look(entry, folder, is_folder=entry.is_dir(follow_symlinks=False))
        return self._found

    def _entries(self, folder: _Folder) -> list[os.DirEntry[str]]:
        """List a folder. One that cannot be looked into is taken for one that holds something."""
        place = f"{self._search.vault}/{folder.below}"
        try:
            if len(place) < LONGEST:
                return _listed(place, reopen=not self._secrets)
        except FileNotFoundError:
            return []
        except OSError:
            pass
        self._found.guarded.setdefault(folder.below.rstrip("/"), Entry("unseen", 0, folder.inode, 0))
        return []

    def _look(self, entry: os.DirEntry[str], folder: _Folder, *, is_folder: bool) -> None:
        name, path = entry.name, folder.below + entry.name
        later = folder.guarded
        if not later and (_part_of_git(name) if folder.git else _tells_later(name)):
            later = folder.git or (RUNS_LATER.find_folder(path) if is_folder else RUNS_LATER.find(path)) is not None
        later = later or path in self._named or entry.inode() in self._lost
        later = later or (folder.git and name == "rebase-merge" and _executes(entry.path))
        if later:
            self._guard(entry, path, folder.inode, is_folder=is_folder)
        secret = self._secrets and not folder.git and self._note_secret(name, path, folder, is_folder=is_folder)
        if not is_folder or folder.git:
            return
        git = later and _is_git(name)
        inside = later and not git and path in self._above_opened
        if not later or git or inside:
            noted = folder.noted or path in self._found.secrets
            self._todo.append(_Folder(f"{path}/", entry.inode(), inside, secret, git, noted))
        elif self._secrets and not folder.noted and path not in self._found.secrets:
            self._look_for_secrets(_Folder(f"{path}/", 0, secret=secret))

    def _note_secret(self, name: str, path: str, folder: _Folder, *, is_folder: bool) -> bool:
        """Note a secret, and return whether what is in it is secret too."""
        if folder.noted:
            return True
        find = SECRETS.find_folder if is_folder else SECRETS.find
        secret = folder.secret or (_tells_secret(name) and find(path) is not None and not _is_installed(folder.below))
        each = self._search.each_secret or path in self._above_opened
        if (secret and not (is_folder and each)) or (self._search.also and not is_folder and self._search.also(path)):
            self._found.secrets[path] = is_folder
        return secret

    def _look_for_secrets(self, start: _Folder) -> None:
        """Look for secrets alone, below a folder that is guarded as a whole."""
        todo = [start]
        while todo:
            folder = todo.pop()
            if _is_installed(folder.below):
                continue
            try:
                entries = _listed(f"{self._search.vault}/{folder.below}", reopen=False)
            except OSError:
                continue
            for entry in entries:
                is_folder, path = entry.is_dir(follow_symlinks=False), folder.below + entry.name
                secret = self._note_secret(entry.name, path, folder, is_folder=is_folder)
                if is_folder and path not in self._found.secrets:
                    todo.append(_Folder(f"{path}/", 0, secret=secret))

    def _guard(self, entry: os.DirEntry[str], path: str, holder: int, *, is_folder: bool) -> None:
        try:
            status = entry.stat(follow_symlinks=False)
            leads = os.readlink(entry.path) if entry.is_symlink() else ""  # noqa: PTH115
        except OSError:
            return  # it went while it was looked at
        kind = "link" if leads else "file"
        if is_folder:
            kind = "repository" if _is_git(entry.name) else "folder"
        self._found.guarded[path] = Entry(kind, status.st_dev, status.st_ino, holder, leads)


def _listed(place: str, reopen: bool) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(place) as entries:
            return list(entries)
    except PermissionError:
        if not reopen:
            raise
    Path(place).chmod(0o700)
    with os.scandir(place) as entries:
        return list(entries)


@lru_cache(maxsize=65536)
def _tells_later(name: str) -> bool:
    return RUNS_LATER.tells(name)


@lru_cache(maxsize=65536)
def _tells_secret(name: str) -> bool:
    return SECRETS.tells(name)


def _inode(place: str) -> int:
    """Return what a folder is known by; 0 where it is not there any more."""
    try:
        return Path(place).stat().st_ino
    except OSError:
        return 0


def _executes(rebase: str) -> bool:
    """Whether a rebase that is under way runs programs when it goes on."""
    try:
        todo = read_start(f"{rebase}/git-rebase-todo", _LONGEST_TODO + 1)
    except OSError:
        return False
    return len(todo) > _LONGEST_TODO or _EXECUTES.search(todo) is not None


def _is_git(name: str) -> bool:
    return plain_names(name)[-1] == ".git"


def _part_of_git(name: str) -> bool:
    return plain_names(name)[-1] in GIT_PARTS


def _is_installed(below: str) -> bool:
    return not INSTALLED.isdisjoint(below.split("/"))
