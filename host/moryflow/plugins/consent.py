"""Which code may run: files that appear in ``tools/`` and ``plugins/`` while a host runs wait for the user's consent.

A file that is there when a host starts, and is not on the list, is taken to be the user's own, like the ``config.jsonc``
beside it. A file that *appears while a host runs* may have been written by an agent: it is listed in ``consents.json`` and
is not imported until the user consents, even after a restart. After that, changes to a plugin need no consent. A file with
tools that was allowed by itself runs as long as it has the content that was allowed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol

from moryflow_sdk import ConfigError
from moryflow_sdk.support.own_files import MANIFESTS

from moryflow.base.events import now

from .discovery import Candidate
from .entry_points import CODE_FOLDERS
from .sources import Fingerprints

FILE = "consents.json"
WAITS = "it appeared while Moryflow was running, so an agent may have written it; it waits for your consent"


class Consents:
    """The items of a home that wait for consent, by relative path: ``tools/x.py``, ``plugins/x.py``, ``plugins/package``.

    Any path of a file, also deep in a package, stands for the item the file belongs to. The list is read again when it has
    changed, because the user may have consented in another process. If it cannot be read, every item waits; if it cannot
    be written, it still applies to this process.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._file = home / FILE
        self._seen: tuple[int, int, int] | None = None
        self._waiting: dict[str, str] = {}
        self._consented: dict[str, str] = {}
        self._unwritten: dict[str, str] = {}

    def waiting(self) -> dict[str, str]:
        """Return the items that wait: path relative to the home → since when."""
        try:
            status = self._file.stat()
        except OSError:
            return dict(self._unwritten)
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen != self._seen:
            (self._waiting, self._consented), self._seen = self._read(), seen
        return {**self._waiting, **self._unwritten}

    def is_waiting(self, path: Path | str) -> bool:
        """Whether the item of `path` waits for the user's consent."""
        waiting = self.waiting()
        return bool(waiting) and self.item(path) in waiting

    def hold(self, *paths: Path | str) -> list[str]:
        """Make the items of `paths` wait, unless the user has consented to them; return those that wait from now on."""
        known = self.waiting()
        held = sorted(
            {item for path in paths if (item := self.item(path)) and item not in known and item not in self._consented}
        )
        if not held:
            return []
        stamps = dict.fromkeys(held, now())
        self._unwritten |= stamps

        def add(waiting: dict[str, str], given: dict[str, str]) -> None:
            waiting |= {item: since for item, since in stamps.items() if item not in given and item not in waiting}

        if self._change(add):
            self._unwritten = {item: since for item, since in self._unwritten.items() if item not in stamps}
        return [item for item in held if self.is_waiting(item)]

    def give(self, path: Path | str) -> bool:
        """Record that the user consented to the item of `path`, or made it; return whether it had waited.

        :raises ConfigError: the list cannot be written.
        """
        item = self.item(path)
        waited = item in self.waiting()

        def move(waiting: dict[str, str], given: dict[str, str]) -> None:
            waiting.pop(item, None)
            given[item] = content_of(self._home / item)

        if item:
            self._change(move, must=True)
        self._unwritten.pop(item, None)
        return waited

    def of_content(self, path: Path) -> Literal["", "changed", "allowed"]:
        """Return whether the user consented to the content of a file with tools, or to another content of it."""
        item = self.item(path)
        if self.is_waiting(path) or item not in self._consented:
            return ""
        return "allowed" if self._consented[item] == content_of(path) else "changed"

    def item(self, path: Path | str) -> str:
        """Return the item that `path` belongs to; empty if `path` is not below one of :data:`CODE_FOLDERS`."""
        absolute = Path(path) if Path(path).is_absolute() else self._home / path
        for home, place in ((self._home, absolute), (self._home.resolve(), absolute.parent.resolve() / absolute.name)):
            parts = place.relative_to(home).parts if place.is_relative_to(home) else ()
            if len(parts) > 1 and parts[0] in CODE_FOLDERS and ".." not in parts:
                return "/".join(parts[:2])
        return ""

    def _read(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the items that wait, with a time, and the items the user consented to, with a hash of the content."""
        try:
            content = json.loads(self._file.read_bytes())
            waiting = {str(item): str(since) for item, since in content["waiting"].items()}
            return waiting, {str(item): str(value) for item, value in content.get("given", {}).items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return dict.fromkeys(items(self._home), ""), {}  # nobody knows which of them wait, so all do

    def _change(self, change: Callable[[dict[str, str], dict[str, str]], None], *, must: bool = False) -> bool:
        from moryflow.base.atomic_write import locked, write_atomically

        try:
            with locked(self._file):
                waiting, given = self._read() if self._file.exists() else ({}, {})
                change(waiting, given)
                given = {item: content for item, content in given.items() if (self._home / item).exists()}
                content = {"v": 1, "waiting": dict(sorted(waiting.items())), "given": dict(sorted(given.items()))}
                write_atomically(self._file, f"{json.dumps(content, indent=2)}\n".encode())
        except ConfigError:
            if must:
                raise
            return False
        self._seen = None
        return True


def content_of(path: Path) -> str:
    """Return a hash of a file with tools and of its description beside it; empty for a folder, or if it cannot be read."""
    beside = [other for suffix in MANIFESTS if (other := path.with_suffix(suffix)) != path and other.exists()]
    try:
        parts = [sha256(each.read_bytes()).hexdigest() for each in (path, *beside)]
    except OSError:
        return ""
    return sha256("".join(parts).encode()).hexdigest()


def consent_command(item: str) -> str:
    """Return the command that consents to an item of the home, or to code elsewhere that changed during a shell command."""
    path = PurePosixPath(item)
    if path.is_absolute():
        return "start Moryflow again to take it"
    return f"moryflow tool allow {path.name}" if path.parts[0] == "tools" else f"moryflow plugin enable {path.stem}"


def items(home: Path) -> frozenset[str]:
    """Return the Python files, packages and programs in the home's code folders, by path relative to the home."""
    found: set[str] = set()
    for folder in CODE_FOLDERS:
        with suppress(OSError):
            for entry in list(os.scandir(home / folder)):
                if not entry.name.startswith((".", "_")) and _is_code(entry, folder):
                    found.add(f"{folder}/{entry.name}")
    return frozenset(found)


def _is_code(entry: os.DirEntry[str], folder: str) -> bool:
    return entry.name.endswith(".py") or _is_package(entry) or (folder == "tools" and _is_program(entry))


def _is_package(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir() and Path(entry.path, "__init__.py").exists()
    except OSError:
        return False


def _is_program(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file() and (entry.name.endswith(MANIFESTS) or bool(entry.stat().st_mode & 0o111))
    except OSError:
        return False


class Admission(Protocol):
    """Decides which code may be imported. To refuse, it raises :class:`~moryflow.hooks.plugin_set.LoadFailure`; if the code
    has to wait, ``Pending``.

    :ivar prints: content hashes of installed code.
    """

    prints: Fingerprints

    def place(self, candidate: Candidate) -> None:
        """Judge a candidate by its place, before its code is read."""
        ...

    def code(self, candidate: Candidate, digest: str) -> None:
        """Judge code that was not loaded before, by its content hash."""
        ...


class _AdmitAll:
    """Admits all code: for built-in plugins, tests, and the probe itself."""

    def __init__(self) -> None:
        self.prints = Fingerprints()

    def place(self, candidate: Candidate) -> None:
        """Admit any place."""

    def code(self, candidate: Candidate, digest: str) -> None:
        """Admit any code."""


admit_all: Admission = _AdmitAll()
