"""The shadow repository of a vault: trees of its files, kept outside it (S4.8)."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moryflow_sdk import ToolError

from .git import Git, split
from .settings import SnapshotSettings

_PLAIN = b"* -text -eol -ident -filter -working-tree-encoding -diff -merge\n"
"""Bytes are stored as they are, whatever ``.gitattributes`` in the vault says; this file beats all of them."""

_SURROGATES = re.compile(r"[\ud800-\udfff]")
_DAY = 86400.0


@dataclass(frozen=True)
class Blob:
    """A file in a tree: its mode as git writes it (``100644``, ``100755``, ``120000``) and the hash of its content."""

    mode: str
    hash: str


@dataclass(frozen=True)
class Difference:
    """A file that differs between two trees; ``None`` where there is none."""

    path: str
    before: Blob | None
    after: Blob | None


class Shadow:
    """One vault's repository below the plugin's data folder. Blocking: use it in a thread.

    :param home: Moryflow's own folder, which is never recorded: it changes by itself, and nothing may be restored in it.
    """

    def __init__(self, data: Path, vault: Path, settings: SnapshotSettings, *, home: Path | None = None) -> None:
        self.vault = vault
        self._home = home.resolve() if home is not None and home.resolve().is_relative_to(vault) else None
        self.folder = data / hashlib.sha256(os.fsencode(vault)).hexdigest()[:16]
        self._repository = self.folder / "git"
        self._settings = settings
        self.git = Git(self._repository, vault, timeout=settings.timeout)

    def snapshot(self) -> str:
        """Record the files as they are and return the tree's id.

        :raises ToolError: git is missing, failed, or the vault is too large for it.
        """
        self._refuse_if_slow()
        with self._locked():
            try:
                self._prepare()
                changed = self._changed()
                behind = {path for path in changed if _behind_a_link(self.vault, path)}
                self._update(behind, "--force-remove")
                self._update([path for path in changed if path not in behind], "--add", "--remove", "--replace")
                return self.git("write-tree").decode().strip()
            except ToolError as error:
                if error.code == "timeout":
                    self._slow.touch()
                raise

    def differences(self, before: str, after: str) -> list[Difference]:
        """Return what changed from one tree to another."""
        fields = split(self.git("diff-tree", "-r", "-z", "--no-renames", before, after))
        return [_difference(*pair) for pair in zip(fields[::2], fields[1::2], strict=True)]

    def contents(self, hashes: Iterable[str]) -> dict[str, bytes]:
        """Return stored contents by hash."""
        wanted = list(dict.fromkeys(hashes))
        output = self.git("cat-file", "--batch", given="".join(f"{name}\n" for name in wanted).encode())
        found: dict[str, bytes] = {}
        place = 0
        for name in wanted:
            end = output.index(b"\n", place)
            size = int(output[place:end].split()[2])
            found[name] = output[end + 1 : end + 1 + size]
            place = end + size + 2
        return found

    # ---------------------------------------------------------------- inside

    @property
    def _slow(self) -> Path:
        return self.folder / "too-slow"

    def _refuse_if_slow(self) -> None:
        try:
            since = time.time() - self._slow.stat().st_mtime
        except OSError:
            return
        if since < _DAY:
            raise ToolError(f"{self.vault} took git too long; it is tried again tomorrow", code="timeout")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time use the index; what a killed one left of its lock is removed."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            (self._repository / "index.lock").unlink(missing_ok=True)
            yield
        finally:
            os.close(descriptor)

    def _prepare(self) -> None:
        """Make the repository; its attributes come last and say that it is whole."""
        attributes = self._repository / "info" / "attributes"
        if attributes.exists():
            return
        self.git("init", "--quiet", "--template=")
        attributes.parent.mkdir(exist_ok=True)
        attributes.write_bytes(_PLAIN)

    def _update(self, paths: Collection[str], *how: str) -> None:
        if paths:
            self.git("update-index", "-z", *how, "--stdin", given=b"\0".join(os.fsencode(path) for path in paths))

    def _changed(self) -> Sequence[str]:
        """Return the paths whose record is out of date; what cannot or may not be recorded is left out."""
        if self._home == self.vault:
            return ()
        ignore = () if self._settings.ignored else ("--exclude-standard",)
        but = ("--", ".", f":(exclude,literal){self._home.relative_to(self.vault)}") if self._home else ()
        paths = dict.fromkeys(split(self.git("ls-files", "-z", "--modified", "--others", *ignore, *but)))
        tracked = None if self._settings.untracked else self._tracked()
        return [path for path in paths if (tracked is None or path in tracked) and self._recordable(path)]

    def _recordable(self, path: str) -> bool:
        """Whether a file is one that git can store and that can be restored, or is gone.

        A nested repository is listed with a slash at its end; a name that is not UTF-8 has no target to restore it by.
        """
        if path.endswith("/") or _SURROGATES.search(path):
            return False
        try:
            found = os.lstat(self.vault / path)
        except OSError:
            return True
        if stat.S_ISLNK(found.st_mode):
            return True
        readable = stat.S_ISREG(found.st_mode) and os.access(self.vault / path, os.R_OK)
        return readable and found.st_size <= self._settings.max_file_bytes

    def _tracked(self) -> frozenset[str] | None:
        """Return the files in the index of the vault's own repository, ``None`` where there is none."""
        own = self.vault / ".git"
        return frozenset(split(self.git("ls-files", "-z", repository=own))) if own.is_dir() else None


def blob_of(path: Path) -> tuple[Blob, bytes] | None:
    """Return what git would store for a file as it is now, and its content; ``None`` where there is no file."""
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            mode, content = "120000", os.fsencode(path.readlink())
        elif stat.S_ISREG(found.st_mode):
            mode, content = "100755" if found.st_mode & stat.S_IXUSR else "100644", path.read_bytes()
        else:
            return Blob("040000", ""), b""
    except (FileNotFoundError, NotADirectoryError):
        return None
    name = hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()
    return Blob(mode, name), content


def _behind_a_link(vault: Path, path: str) -> bool:
    """Whether a folder above a file has become a link since: what is recorded there is gone, whatever the link leads to."""
    return any((vault / folder).is_symlink() for folder in Path(path).parents)


def _difference(facts: str, path: str) -> Difference:
    """Read a line of ``diff-tree``: ``:mode mode hash hash status``."""
    mode_before, mode_after, before, after, _ = facts.lstrip(":").split(" ")
    return Difference(path, _blob(mode_before, before), _blob(mode_after, after))


def _blob(mode: str, name: str) -> Blob | None:
    return Blob(mode, name) if int(mode, 8) else None
