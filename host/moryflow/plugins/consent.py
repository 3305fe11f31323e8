"""Whose code may run: what appears in ``tools/`` and ``plugins/`` while a host runs waits for a person.

What lies there when a host starts, and is not on this list, was put there by the person whose ``config.jsonc`` lies
beside it. A file that *appears while a host runs* may have been written by an agent; it is listed in ``consents.json``
and is not imported until a person says yes, over all restarts. After that its edits are taken freely.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Protocol

from moryflow_sdk import ConfigError
from moryflow_sdk.support.own_files import MANIFESTS

from moryflow.base.events import now

from .discovery import Candidate
from .sources import Fingerprints

FOLDERS = ("plugins", "tools")
"""The folders of the home whose files are code."""
FILE = "consents.json"
WAITS = "it appeared while Moryflow was running, so an agent may have written it; it waits for your consent"


class Consents:
    """The items of a home that wait, by path relative to it: ``tools/x.py``, ``plugins/x.py``, ``plugins/package``.

    A file that is given by any name or path, also one deep in a package, stands for the item it belongs to. The list is
    read again when it has changed: another process may have got the yes. One that cannot be read means that everything
    waits; one that cannot be written still holds for this process.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._file = home / FILE
        self._seen: tuple[int, int, int] | None = None
        self._listed: dict[str, str] = {}
        self._given: dict[str, str] = {}
        self._unwritten: dict[str, str] = {}

    def waiting(self) -> dict[str, str]:
        """Return what waits: the item's path relative to the home, and since when."""
        try:
            status = self._file.stat()
        except OSError:
            return dict(self._unwritten)
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen != self._seen:
            (self._listed, self._given), self._seen = self._read(), seen
        return {**self._listed, **self._unwritten}

    def is_waiting(self, path: Path | str) -> bool:
        """Whether the item of `path` waits for a person."""
        waiting = self.waiting()
        return bool(waiting) and self.item(path) in waiting

    def hold(self, *paths: Path | str) -> list[str]:
        """Let the items of `paths` wait, unless a person has said yes to them; return those that wait from now on."""
        known = self.waiting()
        held = sorted({item for path in paths if (item := self.item(path)) and item not in known and item not in self._given})
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
        """A person said yes to the item of `path`, or made it; return whether it had waited.

        :raises ConfigError: the list cannot be written.
        """
        item = self.item(path)
        waited = item in self.waiting()

        def move(waiting: dict[str, str], given: dict[str, str]) -> None:
            waiting.pop(item, None)
            given[item] = now()

        if item:
            self._change(move, must=True)
        self._unwritten.pop(item, None)
        return waited

    def item(self, path: Path | str) -> str:
        """Return the item that `path` belongs to, empty when it is not below a folder of code."""
        absolute = Path(path) if Path(path).is_absolute() else self._home / path
        for home, place in ((self._home, absolute), (self._home.resolve(), absolute.parent.resolve() / absolute.name)):
            parts = place.relative_to(home).parts if place.is_relative_to(home) else ()
            if len(parts) > 1 and parts[0] in FOLDERS and ".." not in parts:
                return "/".join(parts[:2])
        return ""

    def _read(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return what waits and what was agreed to."""
        try:
            content = json.loads(self._file.read_bytes())
            waiting = {str(item): str(since) for item, since in content["waiting"].items()}
            return waiting, {str(item): str(since) for item, since in content.get("given", {}).items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return dict.fromkeys(items(self._home), ""), {}  # it is not known which of them wait

    def _change(self, change: Callable[[dict[str, str], dict[str, str]], None], *, must: bool = False) -> bool:
        from moryflow.base.atomic_write import locked, write_atomically

        try:
            with locked(self._file):
                waiting, given = self._read() if self._file.exists() else ({}, {})
                change(waiting, given)
                given = {item: since for item, since in given.items() if (self._home / item).exists()}
                content = {"v": 1, "waiting": dict(sorted(waiting.items())), "given": dict(sorted(given.items()))}
                write_atomically(self._file, f"{json.dumps(content, indent=2)}\n".encode())
        except ConfigError:
            if must:
                raise
            return False
        self._seen = None
        return True


def said_yes_with(item: str) -> str:
    """Return the command that lets an item of the home run, or code elsewhere that changed while a command ran."""
    path = PurePosixPath(item)
    if path.is_absolute():
        return "start Moryflow again to take it"
    return f"moryflow tool allow {path.name}" if path.parts[0] == "tools" else f"moryflow plugin enable {path.stem}"


def items(home: Path) -> frozenset[str]:
    """Return what lies in the folders of code, by path relative to the home: Python files, packages, programs."""
    found: set[str] = set()
    for folder in FOLDERS:
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
    """Whether it is a tool in another language, or may describe one."""
    try:
        return entry.is_file() and (entry.name.endswith(MANIFESTS) or bool(entry.stat().st_mode & 0o111))
    except OSError:
        return False


class Admission(Protocol):
    """Says no by raising :class:`~moryflow.hooks.plugin_set.LoadFailure`, or ``Pending`` for not yet.

    :ivar prints: content hashes of installed code.
    """

    prints: Fingerprints

    def place(self, candidate: Candidate) -> None:
        """Judge where a candidate lies, before it is read."""
        ...

    def code(self, candidate: Candidate, digest: str) -> bool:
        """Judge code that was not loaded before, by its content hash; return whether nothing it prints is to be shown."""
        ...


class _AdmitAll:
    """Lets everything be imported: for built-in plugins, tests, and the probe itself."""

    def __init__(self) -> None:
        self.prints = Fingerprints()

    def place(self, candidate: Candidate) -> None:
        """Any place will do."""

    def code(self, candidate: Candidate, digest: str) -> bool:
        """So will any code, and what it prints is shown."""
        return False


admit_all: Admission = _AdmitAll()
