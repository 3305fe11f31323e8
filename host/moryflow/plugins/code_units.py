"""The code of an installed plugin: which package it is, which files that has, and a hash of their contents."""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from .sources import digest


class Unit(NamedTuple):
    """What is loaded and reloaded together: a top-level module, or package with all below it.

    :param name: its dotted name; below a namespace package it is not the first part.
    :param root: its file, or its folder.
    """

    name: str
    root: Path

    @property
    def file(self) -> Path:
        """Where its code begins."""
        return self.root / "__init__.py" if self.root.is_dir() else self.root

    def files(self) -> list[Path]:
        """Return its Python files."""
        if not self.root.is_dir():
            return [self.root]
        found: list[Path] = []
        for folder, names, leaves in os.walk(self.root):
            names[:] = sorted(name for name in names if name != "__pycache__" and not name.startswith("."))
            found += [Path(folder, leaf) for leaf in sorted(leaves) if leaf.endswith(".py")]
        return found

    def owns(self, module: str) -> bool:
        """Whether `module` is this unit or below it."""
        return module == self.name or module.startswith(f"{self.name}.")


def unit_of(target: str) -> Unit | None:
    """Return the unit that ``module:attribute`` is in, without importing it; ``None`` when it has no files."""
    name = target.partition("[")[0].partition(":")[0].strip()
    top, *rest = name.split(".")
    try:
        spec = find_spec(top)  # of a top-level name: looks, and imports nothing
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    if spec.origin and spec.has_location:
        origin = Path(spec.origin)
        return Unit(top, origin.parent if origin.name == "__init__.py" else origin)
    return _below_namespace(top, rest, [Path(folder) for folder in spec.submodule_search_locations or ()])


def _below_namespace(name: str, rest: list[str], folders: list[Path]) -> Unit | None:
    for part in rest:
        name = f"{name}.{part}"
        for folder in folders:
            if (folder / part / "__init__.py").is_file():
                return Unit(name, folder / part)
            if (folder / f"{part}.py").is_file():
                return Unit(name, folder / f"{part}.py")
        folders = [folder / part for folder in folders if (folder / part).is_dir()]
    return None


class Fingerprints:
    """Content hashes of units, remembered by the state of their files: what has not been touched is not read.

    :param stamps: by root: hash of the files' states, hash of their contents. Changed in place.
    """

    def __init__(self, stamps: dict[str, list[str]] | None = None) -> None:
        self._stamps = {} if stamps is None else stamps

    def of(self, unit: Unit) -> str:
        """Return the hash of a unit's contents; empty when they cannot be read."""
        files = unit.files()
        try:
            stamp = _stamp(files)
            known = self._stamps.get(str(unit.root))
            if known is not None and known[0] == stamp:
                return known[1]
            content = digest({path.relative_to(unit.root.parent).as_posix(): path.read_bytes() for path in files})
        except OSError:
            return ""
        self._stamps[str(unit.root)] = [stamp, content]
        return content


def _stamp(files: list[Path]) -> str:
    total = hashlib.sha256()
    for path in files:
        status = path.stat()
        times = (status.st_mtime_ns, status.st_ctime_ns)  # the first can be set at will
        total.update(f"{path}\0{times}\0{status.st_size}\0{status.st_ino}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()
