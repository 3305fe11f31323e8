"""The code of plugins: the user's files and installed packages are hashed, imported, and imported again after a change.

The user's files are checked, hashed and compiled from the same bytes. Each time a plugin is loaded, it becomes a module with
a new name, ``moryflow_plugins.NAME__gN``: nothing is reloaded in place and no ``.pyc`` is read, so what was hashed is what
runs.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import linecache
import os
import stat
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

from moryflow_sdk import PluginError
from moryflow_sdk.support.own_files import LOST_HINT, doubt_about, doubt_about_one, leads_nowhere, open_regular

from moryflow.hooks.plugin_set import LoadFailure

PREFIX = "moryflow_plugins"
# The most bytes of one Python file; a larger file is data, or too large for the memory.
MAX_SOURCE = 8 * 1024 * 1024
_numbers = itertools.count(1)
_live: dict[str, Sources] = {}
_users: dict[str, int] = {}


class Sources(NamedTuple):
    """The main file of a plugin, the content of all its files by absolute path, and a hash of them all."""

    main: Path
    files: Mapping[str, bytes]
    hash: str


def read_owned(path: Path) -> bytes:
    """Return the content of a regular file that only the user or root may change.

    :raises PluginError: others may change the file, it is not a regular file, or it is too large or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        problem = leads_nowhere(path)
        step = LOST_HINT if problem else ""
        raise PluginError(problem or f"the file cannot be read: {error.strerror}", where=str(path), next_step=step) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            is_folder = stat.S_ISDIR(status.st_mode)
            raise PluginError("a folder, not a Python file" if is_folder else "not a regular file", where=str(path))
        check_owned(path, status)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_SOURCE + 1)
        if len(data) > MAX_SOURCE:
            raise PluginError(f"larger than {MAX_SOURCE // 2**20} MiB, so it is not run", where=str(path))
        return data
    except OSError as error:
        raise PluginError(f"the file cannot be read: {error.strerror}", where=str(path)) from error
    finally:
        os.close(descriptor)


def check_owned(path: Path, status: os.stat_result | None = None) -> None:
    """Refuse a file or folder that someone else could have written.

    :param status: the status of `path`; if given, the folders above it are not checked.
    :raises PluginError: someone else may write it; the error has the command that fixes this.
    :raises OSError: it cannot be checked.
    """
    doubt = doubt_about(path) if status is None else doubt_about_one(path, status)
    if doubt is not None:
        raise PluginError(f"{doubt.reason}, so its code is not run", where=str(path), next_step=doubt.step)


def read_sources(path: Path) -> Sources:
    """Read a plugin: one file, or a folder with ``__init__.py``.

    :raises PluginError: others may change one of its files or folders, or one cannot be read.
    """
    files: dict[str, bytes] = {}
    if path.is_dir():
        check_owned(path)
        for folder, names, leaves in os.walk(path):
            names[:] = sorted(name for name in names if not name.startswith((".", "__pycache__")))
            check_owned(Path(folder), Path(folder).stat())
            for leaf in filter(_is_module, sorted(leaves)):
                files[f"{folder}{os.sep}{leaf}"] = read_owned(Path(folder, leaf))
        main = path / "__init__.py"
        if str(main) not in files:
            raise PluginError(
                "a folder without __init__.py is not a plugin", where=str(path), next_step="rename it, or add one"
            )
    else:
        main = path
        files[str(path)] = read_owned(path)  # also raises if it does not exist
        check_owned(path)
    return Sources(main, files, digest({os.path.relpath(name, path.parent): data for name, data in files.items()}))


def _is_module(leaf: str) -> bool:
    """Whether a file is a Python module. Editors put other files beside it: ``.#x.py`` is a lock file of Emacs."""
    return leaf.endswith(".py") and not leaf.startswith(".")


def digest(files: Mapping[str, bytes]) -> str:
    """Return one hash of names and contents."""
    total = hashlib.sha256()
    for name, data in sorted(files.items()):
        total.update(f"{name}\0{len(data)}\0".encode("utf-8", "surrogateescape"))
        total.update(data)
    return total.hexdigest()


def load_sources(name: str, sources: Sources) -> ModuleType:
    """Run `sources` as a new module and return it. Raises whatever its code raises; the module is then forgotten."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if PREFIX not in sys.modules:
        sys.modules[PREFIX] = ModuleType(PREFIX, "Plugins of the user; one submodule for each time one was loaded.")
        sys.modules[PREFIX].__path__ = []
    full = f"{PREFIX}.{name}__g{next(_numbers)}"
    _live[full], _users[full] = sources, 1
    spec, loader = _spec(full, sources.main, sources)
    module = module_from_spec(spec)
    sys.modules[full] = module
    try:
        loader.exec_module(module)
    except BaseException:
        forget(full)
        raise
    return module


def keep(full: str) -> None:
    """Count one more user of a module made by :func:`load_sources`."""
    _users[full] += 1


def forget(full: str) -> None:
    """Count one user less; after the last one, remove the module and its submodules from ``sys.modules``."""
    _users[full] = _users.get(full, 1) - 1
    if _users[full] > 0:
        return
    del _users[full]
    _live.pop(full, None)
    for name in [key for key in list(sys.modules) if key == full or key.startswith(f"{full}.")]:
        del sys.modules[name]


class _Loader(SourceFileLoader):
    """Compiles the bytes that were read and hashed, without reading the file again."""

    def __init__(self, name: str, path: str, data: bytes) -> None:
        super().__init__(name, path)
        self._data = data

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._data, self.path, "exec", dont_inherit=True)


class _Finder:
    """Finds the submodules of a plugin that is a folder among the files that were read."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if not fullname.startswith(f"{PREFIX}."):
            return None
        _, top, *rest = fullname.split(".")
        sources = _live.get(f"{PREFIX}.{top}")
        if sources is None or not rest:
            return None
        stem = sources.main.parent.joinpath(*rest)
        for file in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")):
            if str(file) in sources.files:
                return _spec(fullname, file, sources)[0]
        return None


def _spec(fullname: str, file: Path, sources: Sources) -> tuple[ModuleSpec, _Loader]:
    package = [str(file.parent)] if file.name == "__init__.py" else None
    loader = _Loader(fullname, str(file), sources.files[str(file)])
    spec = spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=package)
    assert spec is not None
    return spec, loader


class Unit(NamedTuple):
    """Code that is loaded and reloaded together: a top-level module, or a package with everything below it.

    :param name: its dotted name; in a namespace package it has several parts.
    :param root: its file, or its folder.
    """

    name: str
    root: Path

    @property
    def file(self) -> Path:
        return self.root / "__init__.py" if self.root.is_dir() else self.root

    def files(self) -> list[Path]:
        if not self.root.is_dir():
            return [self.root]
        found: list[Path] = []
        for folder, names, leaves in os.walk(self.root):
            names[:] = sorted(name for name in names if name != "__pycache__" and not name.startswith("."))
            found += [Path(folder, leaf) for leaf in filter(_is_module, sorted(leaves))]
        return found

    def owns(self, module: str) -> bool:
        """Whether `module` is this unit or below it."""
        return module == self.name or module.startswith(f"{self.name}.")


def unit_of(target: str) -> Unit | None:
    """Return the unit that ``module:attribute`` belongs to, without importing it; ``None`` if it has no files."""
    name = target.partition("[")[0].partition(":")[0].strip()
    top, *rest = name.split(".")
    try:
        spec = find_spec(top)  # for a top-level name this imports nothing
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
    """Content hashes of units, cached by the state of their files, so that unchanged files are not read again.

    :param stamps: root → [hash of the files' states, hash of their contents]; changed in place.
    """

    def __init__(self, stamps: dict[str, list[str]] | None = None) -> None:
        self._stamps = {} if stamps is None else stamps

    def of(self, unit: Unit) -> str:
        """Return the hash of a unit's contents; empty if a file cannot be read."""
        files = unit.files()
        try:
            stamp = _stamp(files)
            known = self._stamps.get(str(unit.root))
            if known is not None and known[0] == stamp:
                return known[1]
            content = digest({path.relative_to(unit.root.parent).as_posix(): _content(path) for path in files})
        except OSError:
            return ""
        self._stamps[str(unit.root)] = [stamp, content]
        return content


def check_readable(unit: Unit) -> None:
    """Check that each file of a unit can be read.

    :raises LoadFailure: a file cannot be read; the error names the first.
    """
    for path in unit.files():
        try:
            _content(path)
        except OSError as error:
            lost = leads_nowhere(path)
            text = lost or f"it cannot be read: {error.strerror}"
            raise LoadFailure(
                "import", text, file=str(path), hint=LOST_HINT if lost else "remove it, or make it a file that you may read"
            ) from error


def _content(path: Path) -> bytes:
    with open_regular(path) as stream:  # opening a named pipe would block the host forever
        return stream.read()


def _stamp(files: list[Path]) -> str:
    total = hashlib.sha256()
    for path in files:
        status = path.stat()
        times = (status.st_mtime_ns, status.st_ctime_ns)  # programs can set the first to any value
        total.update(f"{path}\0{times}\0{status.st_size}\0{status.st_ino}\n".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


_lock = threading.RLock()
# Unit → the hash of the sources that its modules in `sys.modules` were made from.
_imported: dict[str, str] = {}


def import_module(name: str, unit: Unit | None, digest: str) -> ModuleType:
    """Return the module called `name`, made from the sources that have the hash `digest`.

    If its unit was imported from other sources before, all modules of the unit are removed from ``sys.modules`` and imported
    again from their sources; if that fails, the old modules are restored.

    :raises LoadFailure: the unit has compiled modules, which a process can load only once.
    """
    with _lock:
        if unit is None:
            return importlib.import_module(name)
        if unit.name not in sys.modules or _imported.get(unit.name, digest) == digest:
            _imported[unit.name] = digest
            return importlib.import_module(name)
        return _import_again(name, unit, digest)


def read_fresh(unit: Unit) -> None:
    """Compile the modules of `unit` from their sources from now on, and ignore their byte code."""
    finder = next((finder for finder in sys.meta_path if isinstance(finder, _FreshFinder)), None)
    if finder is None:
        finder = _FreshFinder()
        sys.meta_path.insert(0, finder)
    finder.units[unit.name] = unit


def _import_again(name: str, unit: Unit, digest: str) -> ModuleType:
    old = _modules_of(unit)
    compiled = [key for key, module in old.items() if str(getattr(module, "__file__", "")).endswith(tuple(EXTENSION_SUFFIXES))]
    if compiled:
        text = f"{compiled[0]} is a compiled module, so the change takes a restart"
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
        parent, _, leaf = unit.name.rpartition(".")
        if parent in sys.modules and unit.name in old:  # a namespace package was not reloaded, and has the new module
            setattr(sys.modules[parent], leaf, old[unit.name])
        raise
    _imported[unit.name] = digest
    return module


def _modules_of(unit: Unit) -> dict[str, ModuleType]:
    return {name: module for name, module in list(sys.modules.items()) if unit.owns(name)}


class _FreshFinder:
    """Finds the modules of reloaded units where Python would find them, but compiles them from their sources."""

    def __init__(self) -> None:
        self.units: dict[str, Unit] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not any(unit.owns(fullname) for unit in self.units.values()):
            return None
        spec = PathFinder.find_spec(fullname, path, target) or _find_elsewhere(self, fullname, path)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _FreshLoader(spec.loader.name, spec.loader.path)
        return spec


def _find_elsewhere(finder: _FreshFinder, fullname: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Ask the finders after `finder`: some editable installations have their own."""
    for other in sys.meta_path[sys.meta_path.index(finder) + 1 :]:  # type: ignore[arg-type]
        find = getattr(other, "find_spec", None)
        spec = find(fullname, path, None) if find is not None and other is not PathFinder else None
        if spec is not None:
            return spec
    return None


class _FreshLoader(SourceFileLoader):
    """Neither reads nor writes byte code: two versions saved within a second may have the same size and time."""

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.get_data(self.path), self.path, "exec", dont_inherit=True)
