"""Import installed plugins, and import them again when their files have changed."""

from __future__ import annotations

import importlib
import linecache
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from moryflow.hooks.plugin_set import LoadFailure

from .code_units import Unit

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
