"""Turn a candidate into a plugin object: the one place where plugin code is imported."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from moryflow_sdk import PluginError

from moryflow.kernel.calls import describe, root_of
from moryflow.kernel.records import LoadFailure, Plugin

from .discovery import Candidate
from .manifest import ATTRIBUTES
from .sources import Sources, digest, forget, keep, load_sources, read_sources


@dataclass(frozen=True)
class Imported:
    """A plugin object, the hash of its sources, and how to let go of its modules."""

    object: Any
    hash: str
    file: str
    forget: Callable[[], None] | None = None


def sources_of(candidate: Candidate) -> Sources:
    """Read the files of a user's plugin.

    :raises LoadFailure: they are not safe to run (R17), or cannot be read.
    """
    try:
        return read_sources(Path(candidate.target))
    except PluginError as error:
        file = error.where or candidate.file
        raise LoadFailure("discover", error.message, file=file, hint=error.next_step) from error
    except OSError as error:
        raise LoadFailure("discover", f"it cannot be read: {error}", file=candidate.file) from error


def import_sources(candidate: Candidate, known: Plugin | None) -> Imported:
    """Run a user's plugin as a new module, or take the module of `known` if its files are the same.

    :raises LoadFailure: its files are not safe to run, or its code raised, with the line in its own files.
    """
    sources = sources_of(candidate)
    if known is not None and known.tier == "user" and known.hash == sources.hash:
        module = known.object
        keep(module.__name__)
    else:
        try:
            module = load_sources(candidate.name, sources)
        except BaseException as error:
            raise _failure(error, str(sources.main), candidate) from error
    return Imported(module, sources.hash, str(sources.main), partial(forget, module.__name__))


def import_named(candidate: Candidate, known: Plugin | None) -> Imported:
    """Import ``module`` or ``module:attribute``.

    :raises LoadFailure: it cannot be imported, or is not something with hooks.
    """
    module_name, attributes = _parts(candidate.target)
    try:
        module = importlib.import_module(module_name)
        plugin: Any = module
        for part in attributes:
            plugin = getattr(plugin, part)
    except BaseException as error:
        raise _failure(error, "", candidate, module_name) from error
    if inspect.isclass(plugin) or plugin is None:
        raise LoadFailure(
            "import",
            f"{candidate.target} is {'a class' if plugin else 'None'}, not a module or an object",
            file=candidate.file,
            line=candidate.line,
            hint="let the entry point name the module, or an instance",
        )
    file = getattr(module, "__file__", None) or ""
    same = known is not None and known.object is plugin
    return Imported(plugin, known.hash if known is not None and same else _hash(module, file), file)


def source_file(candidate: Candidate) -> str:
    """Return where the code of a plugin probably is, without importing it; empty when that cannot be told."""
    if candidate.tier == "user":
        return candidate.file
    module_name, _ = _parts(candidate.target)
    top, *rest = module_name.split(".")
    try:
        spec = find_spec(top)  # of a top-level name: looks, and imports nothing
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    for folder in spec.submodule_search_locations or ():
        path = Path(folder).joinpath(*rest)
        for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
            if file.is_file():
                return str(file)
    return "" if rest else spec.origin or ""


def hidden(plugin: Any, file: str, hooks: Iterable[str]) -> str:
    """Say which files of a package will take the place of its hooks and settings once Python imports them."""
    if not isinstance(plugin, ModuleType) or Path(file).name != "__init__.py":
        return ""
    names = [name for name in (*hooks, *ATTRIBUTES) if hasattr(plugin, name) and f"{plugin.__name__}.{name}" not in sys.modules]
    taken = [name for name in names if Path(file).with_name(f"{name}.py").is_file() or Path(file).with_name(name).is_dir()]
    return f"rename {', '.join(taken)}: once that file is imported it hides what has its name" if taken else ""


def _parts(target: str) -> tuple[str, list[str]]:
    """Split ``module:object.attribute [extras]``."""
    module_name, _, attributes = target.partition("[")[0].partition(":")
    return module_name.strip(), [part for part in attributes.strip().split(".") if part]


def _hash(module: Any, file: str) -> str:
    """Return a hash of the Python files of a module, or of the package that it is."""
    if not file.endswith(".py"):
        return digest({module.__name__: b""})
    path = Path(file)
    paths = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    try:
        return digest({item.relative_to(path.parent).as_posix(): item.read_bytes() for item in paths})
    except OSError:
        return digest({module.__name__: b""})


def _failure(error: BaseException, file: str, candidate: Candidate, module: str = "") -> LoadFailure:
    """Say what went wrong while importing, at the last line of the plugin's own code; Ctrl-C goes on."""
    if isinstance(error, KeyboardInterrupt) and _pressed():
        raise error
    root = root_of(file or _first_file(error))
    text, found, line = describe(error, root)
    if isinstance(error, SystemExit):
        text = f"it called sys.exit({error.code!r}) while it was imported"
    hint = ""
    if isinstance(error, ModuleNotFoundError) and error.name:
        ours = module == error.name or module.startswith(f"{error.name}.")
        hint = "reinstall the package, or uninstall it" if ours else f"install what it needs: {error.name}"
    if not found:
        found, line = (file, 0) if file else (candidate.file, candidate.line)
    return LoadFailure("import", text, file=found, line=line, hint=hint)


def _pressed() -> bool:
    """Whether a KeyboardInterrupt is a person's: asyncio cancels the task at the first Ctrl-C and raises at the second."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return True
    return task is None or task.cancelling() > 0


def _first_file(error: BaseException) -> str:
    """Return the first file after the import machinery: where the plugin's own code begins."""
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name not in (__file__, importlib.__file__) and not name.startswith("<"):
            return name
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename
    return ""
