"""Files of a vault that run later or hold secrets: found by one walk before and after a sandboxed command, and restored.

Files are recognised by their names, and by what a rebase will run; links are not followed. New files are set aside and moved
ones put back, so nothing is lost. This happens after the command has ended, so only people and their other programs could
race it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from moryflow_sdk.support.protected_files import RUNS_LATER, SECRETS, named_by_git, plain_names, read_start

GIT_PARTS = frozenset({"hooks", "config", "config.worktree", "info", "modules", "worktrees", "commondir"})
"""What makes git run something, by its name in a repository; the rest changes with every commit."""

LONGEST = 3000
"""Paths beyond it are taken for an attempt to hide something where nobody can look."""


_EXECUTES = re.compile(rb"^\s*(?:x|exec)\s", re.MULTILINE)
_LONGEST_TODO = 1 << 20


class GuardedEntry(NamedTuple):
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

    def is_same(self, other: GuardedEntry) -> bool:
        """Whether both are one object."""
        return (self.device, self.inode) == (other.device, other.inode)


INSTALLED = frozenset({"site-packages", "dist-packages", "node_modules"})
"""Folders of installed packages. Keys and certificates in them are not a person's secrets; hiding them breaks the packages."""


class Survey:
    """What was found, by path from the vault.

    :ivar guarded: what runs later; of a folder in which all does, the folder alone.
    :ivar secrets: files and folders whose names tell of secrets, or that `also` named; the value says whether it is a folder.
    """

    def __init__(self) -> None:
        self.guarded: dict[str, GuardedEntry] = {}
        self.secrets: dict[str, bool] = {}


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


class Search(NamedTuple):
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

    def after(self, before: Mapping[str, GuardedEntry]) -> dict[str, GuardedEntry]:
        """Find what runs later by now, also in folders that the command has closed, and what was `before` wherever it is.

        Folders that nobody could look into before were hidden from the command, and stay closed.
        """
        unseen = {entry.inode for entry in before.values() if entry.kind == "unseen"}
        now = _Walk(self, secrets=False, unseen=unseen).run().guarded
        lost = {entry.inode for path, entry in before.items() if path not in now or not entry.is_same(now[path])}
        return _Walk(self, secrets=False, lost=lost, unseen=unseen).run().guarded if lost else now


class _Walk:
    def __init__(self, search: Search, *, secrets: bool, lost: Set[int] = frozenset(), unseen: Set[int] = frozenset()) -> None:
        self._search = search
        self._lost = lost
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
                self._look(entry, folder, is_folder=entry.is_dir(follow_symlinks=False))
        return self._found

    def _entries(self, folder: _Folder) -> list[os.DirEntry[str]]:
        """List a folder. One that cannot be looked into is taken for one that holds something."""
        place = f"{self._search.vault}/{folder.below}"
        try:
            if len(place) < LONGEST and folder.inode not in self._unseen:
                return _listed(place, reopen=not self._secrets)
        except FileNotFoundError:
            return []
        except OSError:
            pass
        self._found.guarded.setdefault(folder.below.rstrip("/"), GuardedEntry("unseen", 0, folder.inode, 0))
        return []

    def _look(self, entry: os.DirEntry[str], folder: _Folder, *, is_folder: bool) -> None:
        name, path = entry.name, folder.below + entry.name
        later = folder.guarded
        if not later and (plain_names(name)[-1] in GIT_PARTS if folder.git else _tells_later(name)):
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
        self._found.guarded[path] = GuardedEntry(kind, status.st_dev, status.st_ino, holder, leads)


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


def _is_installed(below: str) -> bool:
    return not INSTALLED.isdisjoint(below.split("/"))


SHOWN = 5


class Relocation(NamedTuple):
    """One file or folder that a command made, replaced or moved.

    :ivar path: where it appeared, from the vault.
    :ivar now: where it is now: at home again, or in a folder of the plugin's own.
    :ivar home: where it had come from, when it was moved.
    """

    path: str
    now: Path
    home: str = ""

    @property
    def sentence(self) -> str:
        """What it is, for people."""
        line = RUNS_LATER.find(self.path)
        moved = f", moved from {self.home}" if self.home else ""
        return f"{self.path}{moved}" + (f" ({line.reason})" if line else "")


class Settled:
    """What was done.

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
    """Make what runs later in `vault` what it was `before`; what is new is moved into the folder `aside`."""
    settled = Settled()
    replaced = {path for path in before.keys() & now.keys() if _was_replaced(before[path], now[path])}
    missing = {path: before[path] for path in before if path not in now or path in replaced}
    new = {path: entry for path, entry in now.items() if path not in before or path in replaced}
    homes = {(entry.device, entry.inode): path for path, entry in missing.items() if entry.kind != "link"}
    moved = {path: homes[where] for path, entry in new.items() if (where := (entry.device, entry.inode)) in homes}
    for path in _topmost(path for path in new if path not in moved):
        _attempt(settled, path, lambda path=path: _put_aside(vault, path, aside, settled))
    for path in _topmost(moved):
        _attempt(settled, path, lambda path=path: _bring_home(vault, path, moved[path], settled))
    for path, entry in missing.items():
        if entry.kind == "link" and not os.path.lexists(vault / path):
            _attempt(settled, path, lambda path=path, entry=entry: _link_again(vault / path, entry.leads))
    return settled


def _was_replaced(before: GuardedEntry, now: GuardedEntry) -> bool:
    """Whether the command can have put `now` in the place of `before`.

    A file that was closed to it, in a folder that is where it was, has been saved by somebody else.
    """
    if before.is_same(now):
        return before.leads != now.leads
    return before.kind != "file" or now.kind != "file" or before.holder != now.holder


def _topmost(paths: Iterator[str] | Mapping[str, str]) -> list[str]:
    """Return `paths` without what lies below another of them."""
    kept: list[str] = []
    for path in sorted(paths):
        if not kept or not path.startswith(f"{kept[-1]}/"):
            kept.append(path)
    return kept


def _attempt(settled: Settled, path: str, work: Callable[[], None]) -> None:
    try:
        work()
    except (OSError, shutil.Error) as error:
        settled.left.append(f"{path} ({getattr(error, 'strerror', None) or 'it cannot be moved'})")


def _put_aside(vault: Path, path: str, aside: Path, settled: Settled) -> None:
    place = aside / path
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _move(vault / path, place)
    settled.changes.append(Relocation(path, place))


def _bring_home(vault: Path, path: str, home: str, settled: Settled) -> None:
    (vault / home).parent.mkdir(parents=True, exist_ok=True)
    _move(vault / path, vault / home)
    settled.changes.append(Relocation(path, vault / home, home))


def _link_again(path: Path, leads: str) -> None:
    """Make a link anew: it can be removed in the sandbox, and its number may be another file's by now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(leads)


def _move(source: Path, goal: Path) -> None:
    """Move without replacing anything and without following a link."""
    if os.path.lexists(goal):
        raise FileExistsError(0, "its place is taken")
    shutil.move(os.fspath(source), os.fspath(goal))


def put_in_place(vault: Path, changes: list[Relocation]) -> list[str]:
    """Bring `changes` to where the command had them, as a person agreed; return what could not be brought there."""
    settled = Settled()
    for change in changes:
        _attempt(settled, change.path, lambda change=change: _forth(vault, change))
    return settled.left


def _forth(vault: Path, change: Relocation) -> None:
    goal = vault / change.path
    goal.parent.mkdir(parents=True, exist_ok=True)
    _move(change.now, goal)
    folder = change.now.parent
    with suppress(OSError):
        while folder != vault and change.home:
            folder.rmdir()  # only those that are empty, which were made to bring it home
            folder = folder.parent
