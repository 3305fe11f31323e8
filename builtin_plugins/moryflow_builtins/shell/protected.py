"""Files of a vault that run later or hold secrets: found by one walk before and after a sandboxed command, and restored.

Files are recognised by their names, and by what a rebase will run; links are not followed. New files are set aside, so nothing
is lost. This happens after the command has ended, so only people and their other programs could race it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping, Set
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from moryflow_sdk.support.protected_files import RUNS_LATER, SECRETS, named_by_git, plain_names, read_start

# The entries of a git directory that can make git run something; the others change with every commit.
GIT_PARTS = frozenset({"hooks", "config", "config.worktree", "info", "modules", "worktrees", "commondir"})

# Characters of the longest path that is entered; a longer one counts as an attempt to hide something.
LONGEST = 3000


_EXECUTES = re.compile(rb"^\s*(?:x|exec)\s", re.MULTILINE)
_LONGEST_TODO = 1 << 20


class GuardedEntry(NamedTuple):
    """The identity of one guarded file or folder.

    :ivar kind: ``file``, ``folder``, ``repository`` (a folder ``.git``), ``link`` or ``unseen`` (a folder that is unreadable).
    :ivar holder: the inode of the folder it is in.
    :ivar leads: the text of a link.
    """

    kind: str
    device: int
    inode: int
    holder: int
    leads: str = ""

    def is_same(self, other: GuardedEntry) -> bool:
        """Whether both are the same object on the disk."""
        return (self.device, self.inode) == (other.device, other.inode)


# Folders of installed packages. Keys and certificates in them are not the user's secrets; hiding them breaks the packages.
INSTALLED = frozenset({"site-packages", "dist-packages", "node_modules"})


class Survey:
    """The results of one walk, by path relative to the vault.

    :ivar guarded: files that run later; a folder in which every file does is one entry.
    :ivar secrets: files and folders whose names suggest secrets, or that `also` selected → whether it is a folder.
    """

    def __init__(self) -> None:
        self.guarded: dict[str, GuardedEntry] = {}
        self.secrets: dict[str, bool] = {}


class _Folder(NamedTuple):
    """A folder to walk; `below` is its path, with a slash at the end.

    :ivar guarded: everything in it runs later; `secret`: everything in it is secret.
    :ivar git: it is a git directory.
    :ivar noted: it is in a folder that was recorded as a whole.
    """

    below: str
    inode: int
    guarded: bool = False
    secret: bool = False
    git: bool = False
    noted: bool = False


class Search(NamedTuple):
    """The search of a vault for guarded files and secrets.

    :param opened: paths relative to the vault; a folder that holds one of them is recorded file by file.
    :param also: whether the file at a path is secret although its name does not suggest it.
    :param each_secret: record the files in a folder of secrets instead of the folder.
    """

    vault: str
    opened: frozenset[str] = frozenset()
    also: Callable[[str], bool] | None = None
    each_secret: bool = False

    def before(self) -> Survey:
        """Find the files that run later, and the secrets."""
        return _Walk(self, secrets=True).run()

    def after(self, before: Mapping[str, GuardedEntry]) -> dict[str, GuardedEntry]:
        """Find the files that run later now, also in folders that the command made unreadable.

        Folders that could not be listed before were hidden from the command and are not entered.
        """
        unseen = {entry.inode for entry in before.values() if entry.kind == "unseen"}
        return _Walk(self, secrets=False, unseen=unseen).run().guarded


class _Walk:
    def __init__(self, search: Search, *, secrets: bool, unseen: Set[int] = frozenset()) -> None:
        self._search = search
        self._unseen = unseen
        self._secrets = secrets
        self._named = frozenset(named_by_git(Path(search.vault)))
        self._above_opened = {str(parent) for path in search.opened for parent in Path(path).parents}
        self._found = Survey()
        self._todo = [_Folder("", _inode(search.vault))]

    def run(self) -> Survey:
        while self._todo:
            folder = self._todo.pop()
            for entry in self._entries(folder):
                self._visit(entry, folder, is_folder=entry.is_dir(follow_symlinks=False))
        return self._found

    def _entries(self, folder: _Folder) -> list[os.DirEntry[str]]:
        """List a folder; record one that cannot be listed as guarded."""
        place = f"{self._search.vault}/{folder.below}"
        try:
            if len(place) < LONGEST and folder.inode not in self._unseen:
                return _list_folder(place, reopen=not self._secrets)
        except FileNotFoundError:
            return []
        except OSError:
            pass
        self._found.guarded.setdefault(folder.below.rstrip("/"), GuardedEntry("unseen", 0, folder.inode, 0))
        return []

    def _visit(self, entry: os.DirEntry[str], folder: _Folder, *, is_folder: bool) -> None:
        name, path = entry.name, folder.below + entry.name
        later = folder.guarded
        if not later and (plain_names(name)[-1] in GIT_PARTS if folder.git else _may_run_later(name)):
            later = folder.git or (RUNS_LATER.find_folder(path) if is_folder else RUNS_LATER.find(path)) is not None
        later = later or path in self._named or (not folder.below and name.lower() == "memory-bank")
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
        """Record `path` if it is secret, and return whether everything in it is secret too."""
        if folder.noted:
            return True
        find = SECRETS.find_folder if is_folder else SECRETS.find
        secret = folder.secret or (_may_be_secret(name) and find(path) is not None and not _is_installed(folder.below))
        each = self._search.each_secret or path in self._above_opened
        if (secret and not (is_folder and each)) or (self._search.also and not is_folder and self._search.also(path)):
            self._found.secrets[path] = is_folder
        return secret

    def _look_for_secrets(self, start: _Folder) -> None:
        """Search only for secrets, below a folder that is guarded as a whole."""
        todo = [start]
        while todo:
            folder = todo.pop()
            if _is_installed(folder.below):
                continue
            try:
                entries = _list_folder(f"{self._search.vault}/{folder.below}", reopen=False)
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
            return  # it was removed meanwhile
        kind = "link" if leads else "file"
        if is_folder:
            kind = "repository" if _is_git(entry.name) else "folder"
        self._found.guarded[path] = GuardedEntry(kind, status.st_dev, status.st_ino, holder, leads)


def _list_folder(place: str, reopen: bool) -> list[os.DirEntry[str]]:
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
def _may_run_later(name: str) -> bool:
    return RUNS_LATER.tells(name)


@lru_cache(maxsize=65536)
def _may_be_secret(name: str) -> bool:
    return SECRETS.tells(name)


def _inode(place: str) -> int:
    """Return the inode of a folder; 0 if it does not exist any more."""
    try:
        return Path(place).stat().st_ino
    except OSError:
        return 0


def _executes(rebase: str) -> bool:
    """Whether an unfinished rebase will run programs when it continues."""
    try:
        todo = read_start(f"{rebase}/git-rebase-todo", _LONGEST_TODO + 1)
    except OSError:
        return False
    return len(todo) > _LONGEST_TODO or _EXECUTES.search(todo) is not None


def _is_git(name: str) -> bool:
    return plain_names(name)[-1] == ".git"


def _is_installed(below: str) -> bool:
    return not INSTALLED.isdisjoint(below.split("/"))


SHOWN = 5


class Relocation(NamedTuple):
    """One file or folder that runs later and that a command made or replaced.

    :ivar path: where the command put it, relative to the vault.
    :ivar now: where it is now: in the plugin's folder for files that are set aside.
    """

    path: str
    now: Path

    @property
    def sentence(self) -> str:
        """The file and its kind, for people."""
        line = RUNS_LATER.find(self.path)
        return self.path + (f" ({line.reason})" if line else "")


class Settled:
    """The changes of a command that were put back.

    :ivar left: paths that could not be put back, each with the reason.
    """

    def __init__(self, left: list[str] | None = None) -> None:
        self.changes: list[Relocation] = []
        self.left = left or []

    def __bool__(self) -> bool:
        return bool(self.changes or self.left)

    @property
    def summary(self) -> str:
        """The changes as the end of a sentence."""
        more = f" and {len(self.changes) - SHOWN} more" if len(self.changes) > SHOWN else ""
        return ", ".join(change.sentence for change in self.changes[:SHOWN]) + more


def put_back(vault: Path, before: Mapping[str, GuardedEntry], now: Mapping[str, GuardedEntry], aside: Path) -> Settled:
    """Move new guarded files in `vault` into the folder `aside`.

    Files of `before` that the command moved with a folder above them stay: they were read-only, and what they are named by
    could not be moved itself.
    """
    settled = Settled()
    known = {(entry.device, entry.inode) for entry in before.values() if entry.kind != "link"}
    new = [path for path, entry in now.items() if path not in before and (entry.device, entry.inode) not in known]
    new = sorted([*new, *(path for path in before.keys() & now.keys() if _was_replaced(before[path], now[path]))])
    for path in new:
        if os.path.lexists(vault / path):  # else it went with a folder above it
            place = aside / path
            _attempt(settled, path, lambda path=path, place=place: _move(vault / path, place))
            if os.path.lexists(place):
                settled.changes.append(Relocation(path, place))
    return settled


def _was_replaced(before: GuardedEntry, now: GuardedEntry) -> bool:
    """Whether the command may have put `now` in the place of `before`.

    The file was read-only for the command: if its folder is the same, another program has saved it.
    """
    if before.is_same(now):
        return before.leads != now.leads
    return before.kind != "file" or now.kind != "file" or before.holder != now.holder


def _attempt(settled: Settled, path: str, work: Callable[[], None]) -> None:
    try:
        work()
    except (OSError, shutil.Error) as error:
        settled.left.append(f"{path} ({getattr(error, 'strerror', None) or 'it cannot be moved'})")


def _move(source: Path, goal: Path) -> None:
    """Move without replacing anything and without following a link."""
    if os.path.lexists(goal):
        raise FileExistsError(0, "its place is taken")
    goal.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    shutil.move(os.fspath(source), os.fspath(goal))


def put_in_place(vault: Path, changes: list[Relocation]) -> list[str]:
    """Move `changes` to where the command had put them, as the user agreed; return the paths that failed, with reasons."""
    settled = Settled()
    for change in changes:
        (vault / change.path).parent.mkdir(parents=True, exist_ok=True)
        _attempt(settled, change.path, lambda change=change: _move(change.now, vault / change.path))
    return settled.left
