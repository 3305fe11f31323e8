"""The shadow repository of a vault, which holds trees of its files; and the settings in `agents.runtime.snapshots`.

git stores the contents. The git configuration of the vault's own repository, of the system and of the user is not read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import stat
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

from moryflow_sdk import ToolError
from moryflow_sdk.support.settings import Meta, Settings

_CONFIGURATION: Mapping[str, str] = {
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
_SETTINGS = [part for name, value in _CONFIGURATION.items() for part in ("-c", f"{name}={value}")]


class Git:
    """Runs git on our own repository, with the vault as its work tree."""

    def __init__(self, repository: Path, tree: Path, *, timeout: float) -> None:
        self.repository = repository
        self.tree = tree
        self._timeout = timeout

    def __call__(self, *arguments: str, given: bytes = b"", where: Path | None = None) -> bytes:
        """Return the output of git.

        :param where: the folder to work in, if the work tree may not exist any more.
        :raises ToolError: ``git_missing``, ``timeout``, or ``git`` with the last line of its error output.
        """
        command = ["git", *_SETTINGS, *arguments]
        try:
            done = subprocess.run(
                command,
                cwd=where or self.tree,
                env=self._environ(where or self.tree),
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
            error_lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
            raise ToolError(f"git {arguments[0]}: {error_lines[-1]}", code="git")
        return done.stdout

    def _environ(self, tree: Path) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": os.devnull,
            "LC_ALL": "C.UTF-8",
            "GIT_DIR": str(self.repository),
            "GIT_WORK_TREE": str(tree),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_TERMINAL_PROMPT": "0",
        }


def split(output: bytes) -> Sequence[str]:
    """Return the names in the output of git with ``-z``."""
    return [os.fsdecode(name) for name in output.split(b"\0") if name]


class SnapshotSettings(Settings):
    """Which files can be brought back.

    :ivar ignored: also record files that ``.gitignore`` names.
    :ivar max_file_bytes: larger files are never recorded.
    :ivar enabled: false: record no files, so that ``undo`` takes back only messages.
    """

    enabled: bool = True
    ignored: bool = False
    max_file_bytes: Annotated[int, Meta(gt=0, le=2**30, strict=True)] = 10 * 1024 * 1024
    # Seconds that git may take for one snapshot; a session in which it takes longer is not recorded.
    timeout: ClassVar[float] = 20.0


# Content is stored as it is, whatever `.gitattributes` in the vault says: this file overrides all of them.
_PLAIN = b"* -text -eol -ident -filter -working-tree-encoding -diff -merge\n"

# The mode of a tree entry for a file whose content is not recorded.
UNRECORDED = "160000"
_SURROGATES = re.compile(r"[\ud800-\udfff]")


class Blob(NamedTuple):
    """A file in a tree: its mode as git writes it (``100644``, ``100755``, ``120000``) and the hash of its content."""

    mode: str
    hash: str


_SEED = "the files of this folder"
# git lists a repository inside the vault as one path, with a slash at its end, until the index holds a file of it: this one,
# which counts as removed and leaves the index again in the same snapshot.
_NO_CONTENT = Blob("100644", hashlib.sha1(b"blob 0\0", usedforsecurity=False).hexdigest())


class VaultTree(NamedTuple):
    """A snapshot: the id of its tree, and its number in the order of the vault's snapshots."""

    tree: str
    number: int


class BlobChange(NamedTuple):
    """A file that differs between two trees; ``None`` if a tree does not hold it."""

    path: str
    before: Blob | None
    after: Blob | None


class Shadow:
    """The shadow repository of one vault, below the plugin's data folder. Its methods block: call them in a thread.

    :param home: Moryflow's own folder. It is never recorded, because it changes by itself and no file in it may be restored.
    """

    def __init__(self, data: Path, vault: Path, settings: SnapshotSettings, *, home: Path | None = None) -> None:
        self.vault = vault
        self._home = home.resolve() if home is not None and home.resolve().is_relative_to(vault) else None
        self.changed = 0
        """How many files a snapshot that is being taken has to read; 0 until git has found them."""
        self.folder = data / hashlib.sha256(os.fsencode(vault)).hexdigest()[:16]
        self._repository = self.folder / "git"
        self._settings = settings
        self.git = Git(self._repository, vault, timeout=settings.timeout)

    def snapshot(self) -> VaultTree:
        """Record the files as they are now.

        :raises ToolError: git is missing or failed, or took too long.
        """
        with self._locked():
            self._prepare()
            changed = self._outdated_paths()
            self.changed = len(changed)
            gone = {path for path in changed if _replaced(self.vault, path)}
            stand_ins = {path: blob for path in changed if path not in gone and (blob := self._stand_in(path))}
            self._update(gone, "--force-remove")
            self._update([path for path in changed if path not in gone | stand_ins.keys()], "--add", "--remove", "--replace")
            self._add_entries(stand_ins)
            self._note_modes(changed)
            tree = self.git("write-tree").decode().strip()
            file = self.folder / "number"
            try:
                number = int(file.read_text()) + 1
            except (OSError, ValueError):
                number = time.time_ns()  # greater than every earlier number, if the file was lost
            file.write_text(str(number))
            return VaultTree(tree, number)

    def differences(self, before: str, after: str) -> list[BlobChange]:
        fields = split(self.git("diff-tree", "-r", "-z", "--no-renames", before, after))
        return [_difference(*pair) for pair in zip(fields[::2], fields[1::2], strict=True)]

    def contents(self, hashes: Iterable[str]) -> dict[str, bytes]:
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

    def prune(self, trees: Collection[str]) -> None:
        """Remove all contents except those of `trees`. The next snapshot reads all files again.

        :raises ToolError: git is missing or failed.
        """
        with self._locked():
            (self._repository / "index").unlink(missing_ok=True)
            lines = "".join(f"040000 tree {tree}\t{place}\n" for place, tree in enumerate(sorted(trees)))
            kept = self.git("mktree", given=lines.encode(), where=self.folder).decode().strip()
            self.git("prune", "--expire=now", "--", kept, where=self.folder)

    def modes(self) -> dict[str, int]:
        """Return the unusual modes of files, such as private ones: git itself keeps only whether a file can be run."""
        try:
            return json.loads((self.folder / "modes").read_bytes())
        except (OSError, ValueError):
            return {}

    # ---------------------------------------------------------------- inside

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time use the index; the lock file of a git that was killed is removed."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            (self._repository / "index.lock").unlink(missing_ok=True)
            yield
        finally:
            os.close(descriptor)

    def _prepare(self) -> None:
        """Create the repository. Its attributes are written last: if they exist, it is complete."""
        attributes = self._repository / "info" / "attributes"
        if attributes.exists():
            return
        self.git("init", "--quiet", "--template=")
        attributes.parent.mkdir(exist_ok=True)
        attributes.write_bytes(_PLAIN)

    def _update(self, paths: Collection[str], *how: str) -> None:
        if paths:
            self.git("update-index", "-z", *how, "--stdin", given=b"\0".join(os.fsencode(path) for path in paths))

    def _add_entries(self, blobs: Mapping[str, Blob]) -> None:
        if blobs:
            lines = (os.fsencode(f"{blob.mode} {blob.hash}\t{path}\0") for path, blob in blobs.items())
            self.git("update-index", "--replace", "-z", "--index-info", given=b"".join(lines))

    def _note_modes(self, paths: Iterable[str]) -> None:
        """Remember the modes that a new file would not have by itself; a file that is gone comes back with its last one."""
        known = self.modes()
        modes = dict(known)
        usual = (self.folder / "number").stat().st_mode if (self.folder / "number").exists() else 0o644
        for path in paths:
            with suppress(OSError):
                mode = os.lstat(self.vault / path).st_mode
                modes.pop(path, None)
                if stat.S_ISREG(mode) and mode & 0o666 != usual & 0o666:
                    modes[path] = mode & 0o666
        if modes != known:
            (self.folder / "modes").write_text(json.dumps(modes))

    def _stand_in(self, path: str) -> Blob | None:
        """Return the tree entry for a file that is too large or cannot be read: of its size, time and inode."""
        with suppress(OSError):
            found = os.lstat(self.vault / path)
            too_large = found.st_size > self._settings.max_file_bytes
            if stat.S_ISREG(found.st_mode) and (too_large or not os.access(self.vault / path, os.R_OK)):
                about = f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"
                return Blob(UNRECORDED, hashlib.sha1(about.encode(), usedforsecurity=False).hexdigest())
        return None

    def _outdated_paths(self) -> Sequence[str]:
        """Return the paths whose record is out of date, without those that cannot or may not be recorded."""
        if self._home == self.vault:
            return ()
        ignore = () if self._settings.ignored else ("--exclude-standard",)
        but = ("--", ".", f":(exclude,literal){self._home.relative_to(self.vault)}") if self._home else ()
        options = ("ls-files", "-z", "--modified", "--others", *ignore, *but)
        paths, seeds = dict.fromkeys(split(self.git(*options))), dict[str, Blob]()
        while inner := {path + _SEED: _NO_CONTENT for path in paths if path.endswith("/") and path + _SEED not in seeds}:
            seeds |= inner
            self._add_entries(inner)
            paths = dict.fromkeys(split(self.git(*options)))
        return [path for path in paths if self._recordable(path)]

    def _recordable(self, path: str) -> bool:
        """Whether `path` is a file or link that can be restored, or was one: it is gone, or a folder has its name now.

        A name that is not UTF-8 cannot be restored. What is in a folder that this user may not enter stays as it was recorded.
        """
        if path.endswith("/") or _SURROGATES.search(path):
            return False
        try:
            found = os.lstat(self.vault / path)
        except PermissionError:
            return False
        except OSError:
            return True
        return stat.S_ISLNK(found.st_mode) or stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)


def blob_of(path: Path) -> tuple[Blob, bytes] | None:
    """Return the tree entry of a file as it is now, and its content; ``None`` if there is no file."""
    try:
        found = path.lstat()
        if stat.S_ISLNK(found.st_mode):
            mode, content = "120000", os.fsencode(os.readlink(path))  # noqa: PTH115  Path.readlink drops "./", git does not
        elif not stat.S_ISREG(found.st_mode):
            return Blob("040000", ""), b""
        else:
            mode, content = "100755" if found.st_mode & stat.S_IXUSR else "100644", path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        return Blob(UNRECORDED, ""), b""
    hash = hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()
    return Blob(mode, hash), content


def _replaced(vault: Path, path: str) -> bool:
    """Whether a file has become a folder, or a folder above it a link, so the recorded file is gone."""
    place = vault / path
    with suppress(PermissionError):  # what is in a folder that is closed by now is not gone
        return (place.is_dir() and not place.is_symlink()) or any(
            (vault / folder).is_symlink() for folder in Path(path).parents
        )
    return False


def _difference(facts: str, path: str) -> BlobChange:
    """Parse an entry of ``diff-tree -z``: ``:mode mode hash hash status``, and the path."""
    mode_before, mode_after, before, after, _ = facts.lstrip(":").split(" ")
    return BlobChange(path, _blob(mode_before, before), _blob(mode_after, after))


def _blob(mode: str, name: str) -> Blob | None:
    return Blob(mode, name) if int(mode, 8) else None
