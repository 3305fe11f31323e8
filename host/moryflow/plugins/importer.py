"""Import plugin code: a candidate becomes a plugin object; a file that a plugin loads becomes a module.

No other module imports code of plugins.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from moryflow_sdk import PluginError

from moryflow import __version__
from moryflow.hooks.plugin_set import LoadFailure, Plugin

from .consent import WAITS, Admission, Consents, admit_all
from .discovery import Candidate
from .load_failures import file_failure, import_failure
from .sources import (
    Fingerprints,
    Sources,
    check_owned,
    check_readable,
    digest,
    forget,
    import_module,
    keep,
    load_sources,
    read_owned,
    read_sources,
    unit_of,
)

# Called with the hash of code before its import: raises if it must not be imported.
Check = Callable[[str], None]


class Imported(NamedTuple):
    """A plugin object, the hash of its sources, its file, and a function that forgets its modules."""

    object: Any
    hash: str
    file: str
    forget: Callable[[], None] | None = None


def sources_of(candidate: Candidate) -> Sources:
    """Read the files of a user's plugin.

    :raises LoadFailure: others could have written them, or they cannot be read.
    """
    try:
        return read_sources(Path(candidate.target))
    except PluginError as error:
        file = error.where or candidate.file
        raise LoadFailure("discover", error.message, file=file, hint=error.next_step) from error
    except OSError as error:
        raise LoadFailure("discover", f"it cannot be read: {error}", file=candidate.file) from error


def import_sources(candidate: Candidate, known: Plugin | None, check: Check | None = None) -> Imported:
    """Run a user's plugin as a new module, or return the module of `known` if its files are the same.

    :raises LoadFailure: others could have written its files, or its code raised; the error names the line in its own files.
    """
    sources = sources_of(candidate)
    if known is not None and known.tier == "user" and known.hash == sources.hash:
        module = known.object
        keep(module.__name__)
    else:
        if check is not None:
            check(sources.hash)
        try:
            with redirect_printing():
                module = load_sources(candidate.name, sources)
        except BaseException as error:
            raise import_failure(error, str(sources.main), candidate) from error
    return Imported(module, sources.hash, str(sources.main), partial(forget, module.__name__))


def import_named(
    candidate: Candidate, known: Plugin | None, prints: Fingerprints | None = None, check: Check | None = None
) -> Imported:
    """Import ``module`` or ``module:attribute``. If its files have changed, import its whole package again.

    :raises LoadFailure: it cannot be imported, or it is a class or ``None`` instead of an object with hooks.
    """
    module_name, attributes = _parts(candidate.target)
    unit = unit_of(candidate.target) if candidate.tier != "builtin" else None
    content = (
        (prints or Fingerprints()).of(unit) if unit else digest({candidate.target: (candidate.version or __version__).encode()})
    )
    if unit is not None and not content:
        check_readable(unit)
    if check is not None and unit is not None and (known is None or known.hash != content):
        check(content)
    try:
        with redirect_printing() if unit is not None else nullcontext():
            module = import_module(module_name, unit, content)
            plugin: Any = module
            for part in attributes:
                plugin = getattr(plugin, part)
            file = str(getattr(module, "__file__", None) or "")  # a module may replace itself by any object
    except LoadFailure:
        raise
    except BaseException as error:
        raise import_failure(error, "", candidate, module_name) from error
    if issubclass(type(plugin), type) or plugin is None:  # isinstance would run code of the object, which may raise
        raise LoadFailure(
            "import",
            f"{candidate.target} is {'a class' if plugin else 'None'}, not a module or an object",
            file=candidate.file,
            line=candidate.line,
            hint="let the entry point name the module, or an instance",
        )
    return Imported(plugin, content, file)


def code_of(candidate: Candidate) -> list[Path]:
    """Return the Python files of a plugin that is not a built-in."""
    if candidate.tier == "user":
        return [Path(file) for file in sorted(sources_of(candidate).files)]
    unit = unit_of(candidate.target)
    return unit.files() if unit is not None else []


def source_file(candidate: Candidate) -> str:
    """Return the file that a plugin's code probably begins in, without importing it; empty if none is found."""
    if candidate.tier == "user":
        return candidate.file
    unit = unit_of(candidate.target)
    if unit is None:
        return ""
    if not unit.root.is_dir():
        return str(unit.root)
    module_name, _ = _parts(candidate.target)
    path = unit.root.joinpath(*module_name.removeprefix(unit.name).strip(".").split("."))
    wanted = (path / "__init__.py", path.with_name(f"{path.name}.py"))
    return next((str(file) for file in wanted if file.is_file()), "")


def _parts(target: str) -> tuple[str, list[str]]:
    module_name, _, attributes = target.partition("[")[0].partition(":")
    return module_name.strip(), [part for part in attributes.strip().split(".") if part]


def read_consented(path: Path, home: Path) -> bytes:
    """Return the content of a file if it may be imported.

    :raises PluginError: it waits for the user's consent, others can write to it, or it cannot be read.
    """
    if Consents(home).is_waiting(path):
        raise PluginError(WAITS, where=str(path), next_step=f"moryflow tool allow {path.name}")
    data = read_owned(path)
    try:
        check_owned(path)
    except OSError as error:
        raise PluginError(f"it cannot be read: {error.strerror}", where=str(path)) from error
    return data


class LoadedCode:
    """The modules that the plugins of one host have loaded from files, in all its generations."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, Path], tuple[str, ModuleType]] = {}

    def load(self, owner: str, path: Path, home: Path, admission: Admission = admit_all) -> ModuleType:
        """Return the file at `path` as a module for the plugin `owner`. An unchanged file is not run again.

        :raises PluginError: the file may not be imported, or its code raised.
        """
        data = read_consented(path, home)
        content = digest({path.name: data})
        key = (owner, path)
        known = self._loaded.get(key)
        if known is not None and known[0] == content:
            return known[1]
        admission.code(Candidate.at(path), content)
        try:
            with redirect_printing():
                module = load_sources(f"{owner}_{path.stem}", Sources(path, {str(path): data}, content))
        except BaseException as error:  # whatever the file raises, even SystemExit, becomes an error
            raise file_failure(error, path) from error
        self._loaded[key] = (content, module)
        if known is not None:
            forget(known[1].__name__)
        return module

    def prune(self) -> None:
        """Forget the modules whose files no longer exist."""
        for key in [key for key in self._loaded if not key[1].exists()]:
            forget(self._loaded.pop(key)[1].__name__)


@contextmanager
def redirect_printing() -> Iterator[None]:
    """Redirect standard output to standard error within the block, also the output of other programs.

    Only for work that does not await anything: the host itself must not write meanwhile.
    """
    with suppress(OSError, ValueError, AttributeError):  # a closed stream, or an object that is none, holds none of our text
        sys.stdout.flush()
    saved = -1
    with suppress(OSError):  # either descriptor may be closed
        saved = os.dup(1)
        os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if saved >= 0:
            os.dup2(saved, 1)
            os.close(saved)
