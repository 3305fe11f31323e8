"""Python files of a user: checked, hashed and compiled from the same bytes.

Each loading makes a module of a new name, ``moryflow_plugins.NAME__gN``: nothing is reloaded in place and no ``.pyc``
is read, so what was hashed is what runs.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

from moryflow_sdk import PluginError
from moryflow_sdk.support.own_files import LOST_HINT, doubt_about, doubt_about_one, leads_nowhere

PREFIX = "moryflow_plugins"
MOST_SOURCE = 8 * 1024 * 1024
"""Bytes of one Python file; what is larger is data, or larger than the memory."""
_numbers = itertools.count(1)
_live: dict[str, Sources] = {}
_users: dict[str, int] = {}


class Sources(NamedTuple):
    """The files of one plugin as they were read, by absolute path, and the hash of all of them."""

    main: Path
    files: Mapping[str, bytes]
    hash: str

    @property
    def is_package(self) -> bool:
        return self.main.name == "__init__.py"


def read_owned(path: Path) -> bytes:
    """Return the content of a regular file that only its owner, the user or root, may change.

    :raises PluginError: it may be changed by others, or is not a regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
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
            data = file.read(MOST_SOURCE + 1)
        if len(data) > MOST_SOURCE:
            raise PluginError(f"larger than {MOST_SOURCE // 2**20} MiB, so it is not run", where=str(path))
        return data
    except OSError as error:
        raise PluginError(f"the file cannot be read: {error.strerror}", where=str(path)) from error
    finally:
        os.close(descriptor)


def check_owned(path: Path, status: os.stat_result | None = None) -> None:
    """Refuse what somebody else could have written.

    :param status: of `path`; with it the folders on the way are not looked at again.
    :raises PluginError: with the command that puts it right.
    :raises OSError: it cannot be looked at.
    """
    doubt = doubt_about(path) if status is None else doubt_about_one(path, status)
    if doubt is not None:
        raise PluginError(f"{doubt.reason}, so its code is not run", where=str(path), next_step=doubt.step)


def read_sources(path: Path) -> Sources:
    """Read a plugin: one file, or a folder with ``__init__.py``.

    :raises PluginError: a file or folder of it may be changed by others, or cannot be read.
    """
    files: dict[str, bytes] = {}
    if path.is_dir():
        check_owned(path)
        for folder, names, leaves in os.walk(path):
            names[:] = sorted(name for name in names if not name.startswith((".", "__pycache__")))
            check_owned(Path(folder), Path(folder).stat())
            for leaf in sorted(leaves):
                if leaf.endswith(".py"):
                    files[f"{folder}{os.sep}{leaf}"] = read_owned(Path(folder, leaf))
        main = path / "__init__.py"
        if str(main) not in files:
            raise PluginError("a folder without __init__.py is no plugin", where=str(path), next_step="rename it, or add one")
    else:
        main = path
        files[str(path)] = read_owned(path)  # says it, too, when there is none
        check_owned(path)
    return Sources(main, files, digest({os.path.relpath(name, path.parent): data for name, data in files.items()}))


def digest(files: Mapping[str, bytes]) -> str:
    """Return one hash of names and contents."""
    total = hashlib.sha256()
    for name, data in sorted(files.items()):
        total.update(f"{name}\0{len(data)}\0".encode("utf-8", "surrogateescape"))
        total.update(data)
    return total.hexdigest()


def load_sources(name: str, sources: Sources) -> ModuleType:
    """Run `sources` as a new module and return it; whatever its code raises goes to the caller, and nothing is kept."""
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
    """Count one user less; with the last one the module and its submodules are let go of."""
    _users[full] = _users.get(full, 1) - 1
    if _users[full] > 0:
        return
    del _users[full]
    _live.pop(full, None)
    for name in [key for key in list(sys.modules) if key == full or key.startswith(f"{full}.")]:
        del sys.modules[name]


class _Loader(SourceFileLoader):
    """Compiles the bytes that were read and hashed; the disk is not looked at again."""

    def __init__(self, name: str, path: str, data: bytes) -> None:
        super().__init__(name, path)
        self._data = data

    def get_code(self, fullname: str) -> CodeType:
        try:
            return compile(self._data, self.path, "exec", dont_inherit=True)
        except SyntaxError as error:
            if not error.lineno:  # Python says of neither a NUL nor an unknown encoding where it stands
                error.filename, error.lineno = self.path, _odd_line(self._data)
            raise


def _odd_line(data: bytes) -> int:
    """Return the line of the first NUL, else the one that names an encoding."""
    if (place := data.find(b"\0")) >= 0:
        return data.count(b"\n", 0, place) + 1
    first, _, rest = data.partition(b"\n")
    return 2 if b"coding" not in first and b"coding" in rest.partition(b"\n")[0] else 1


class _Finder:
    """Finds submodules of plugins that are folders, among the files that were read."""

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


def slips(paths: Iterable[Path]) -> list[str]:
    """Return a sentence with file and line for each slip; a file that cannot be compiled says so elsewhere.

    For a command with one thread: while it looks, what others warn of is not shown.
    """
    return [said for path in paths for said in _slips(path)]


def _slips(path: Path) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", SyntaxWarning)
        warnings.simplefilter("always", DeprecationWarning)  # what escapes are none, on Python 3.11
        try:
            compile(read_owned(path), str(path), "exec", dont_inherit=True)
        except (PluginError, SyntaxError, ValueError, RecursionError, MemoryError):
            return []
    return list(dict.fromkeys(f"{each.filename}:{each.lineno}: {' '.join(str(each.message).split())}" for each in found))
