"""The code of an installed plugin: its package, the files and hash of that, its import, and again when files have changed."""

from __future__ import annotations

import hashlib
import importlib
import linecache
import os
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

from moryflow.hooks.plugin_set import LoadFailure

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


_lock = threading.RLock()
_imported: dict[str, str] = {}
"""By unit: the hash of the sources that its modules in ``sys.modules`` were made from."""


def import_module(name: str, unit: Unit | None, digest: str) -> ModuleType:
    """Return the module called `name`, made from the sources that have the hash `digest`.

    When its unit was imported from other sources before, all its modules leave ``sys.modules`` and are imported again
    from source bytes; the old ones return if that fails.

    :raises LoadFailure: it has compiled modules, which one process can load only once.
    """
    with _lock:
        if unit is None:
            return importlib.import_module(name)
        known = _imported.get(unit.name)
        if known == digest or unit.name not in sys.modules or (known is None and unit.name in sys.modules):
            _imported[unit.name] = digest
            return importlib.import_module(name)
        return _again(name, unit, digest)


def read_fresh(unit: Unit) -> None:
    """Let the modules of `unit` be compiled from their sources from now on, whatever byte code lies beside them."""
    finder = next((finder for finder in sys.meta_path if isinstance(finder, _FreshFinder)), None)
    if finder is None:
        finder = _FreshFinder()
        sys.meta_path.insert(0, finder)
    finder.units[unit.name] = unit


def _again(name: str, unit: Unit, digest: str) -> ModuleType:
    old = _modules_of(unit)
    compiled = [key for key, module in old.items() if str(getattr(module, "__file__", "")).endswith(tuple(EXTENSION_SUFFIXES))]
    if compiled:
        text = f"{compiled[0]} is compiled, so what was saved takes a restart"
        raise LoadFailure("import", text, file=str(unit.file), hint="end this program and start it again")
    read_fresh(unit)
    for key in old:
        del sys.modules[key]
    importlib.invalidate_caches()
    for path in unit.files():
        linecache.cache.pop(str(path), None)
    try:
        module = importlib.import_module(name)
    except BaseException:
        for key in _modules_of(unit):
            del sys.modules[key]
        sys.modules.update(old)
        _rebind(unit, old)
        raise
    _imported[unit.name] = digest
    return module


def _modules_of(unit: Unit) -> dict[str, ModuleType]:
    return {name: module for name, module in list(sys.modules.items()) if unit.owns(name)}


def _rebind(unit: Unit, modules: dict[str, ModuleType]) -> None:
    """A submodule is an attribute of its package too: of a namespace package, that one stayed."""
    parent, _, leaf = unit.name.rpartition(".")
    if parent in sys.modules and unit.name in modules:
        setattr(sys.modules[parent], leaf, modules[unit.name])


class _FreshFinder:
    """Finds modules of reloaded units where Python would, but compiles them from source bytes."""

    def __init__(self) -> None:
        self.units: dict[str, Unit] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not any(unit.owns(fullname) for unit in self.units.values()):
            return None
        spec = PathFinder.find_spec(fullname, path, target) or _elsewhere(self, fullname, path)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _FreshLoader(spec.loader.name, spec.loader.path)
        return spec


def _elsewhere(finder: _FreshFinder, fullname: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Ask the finders after this one: some editable installs bring their own."""
    for other in sys.meta_path[sys.meta_path.index(finder) + 1 :]:  # type: ignore[arg-type]
        find = getattr(other, "find_spec", None)
        spec = find(fullname, path, None) if find is not None and other is not PathFinder else None
        if spec is not None:
            return spec
    return None


class _FreshLoader(SourceFileLoader):
    """Neither reads nor writes byte code: two saves within a second may have one size and one time."""

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.get_data(self.path), self.path, "exec", dont_inherit=True)
