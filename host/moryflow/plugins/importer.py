"""The one place where plugin code is imported: a candidate becomes a plugin object, a file that a plugin loads a module."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
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
from .manifest import ATTRIBUTES
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

Check = Callable[[str], bool]
"""Called with the hash of code before it is imported; raises if it must not be, and says whether it prints too much."""
_LOUD = "it prints more than 64 KB while it is imported, none of which is shown"


class Imported(NamedTuple):
    """A plugin object, the hash of its sources, how to let go of its modules, and what is to be said of the import."""

    object: Any
    hash: str
    file: str
    forget: Callable[[], None] | None = None
    remark: str = ""


def sources_of(candidate: Candidate) -> Sources:
    """Read the files of a user's plugin.

    :raises LoadFailure: they are not safe to run, or cannot be read.
    """
    try:
        return read_sources(Path(candidate.target))
    except PluginError as error:
        file = error.where or candidate.file
        raise LoadFailure("discover", error.message, file=file, hint=error.next_step) from error
    except OSError as error:
        raise LoadFailure("discover", f"it cannot be read: {error}", file=candidate.file) from error


def import_sources(candidate: Candidate, known: Plugin | None, check: Check | None = None) -> Imported:
    """Run a user's plugin as a new module, or take the module of `known` if its files are the same.

    :raises LoadFailure: its files are not safe to run, or its code raised, with the line in its own files.
    """
    sources = sources_of(candidate)
    if known is not None and known.tier == "user" and known.hash == sources.hash:
        module, loud = known.object, False
        keep(module.__name__)
    else:
        loud = check is not None and check(sources.hash)
        try:
            with printing_aside(loud=loud):
                module = load_sources(candidate.name, sources)
        except BaseException as error:
            raise import_failure(error, str(sources.main), candidate) from error
    return Imported(module, sources.hash, str(sources.main), partial(forget, module.__name__), _LOUD if loud else "")


def import_named(
    candidate: Candidate, known: Plugin | None, prints: Fingerprints | None = None, check: Check | None = None
) -> Imported:
    """Import ``module`` or ``module:attribute``; again, with all of its package, when its files have changed.

    :raises LoadFailure: it cannot be imported, or is not something with hooks.
    """
    module_name, attributes = _parts(candidate.target)
    unit = unit_of(candidate.target) if candidate.tier != "builtin" else None
    content = (
        (prints or Fingerprints()).of(unit) if unit else digest({candidate.target: (candidate.version or __version__).encode()})
    )
    if unit is not None and not content:
        check_readable(unit)
    is_known = known is not None and known.hash == content
    loud = check is not None and unit is not None and not is_known and check(content)
    try:
        with printing_aside(loud=loud) if unit is not None else nullcontext():
            module = import_module(module_name, unit, content)
            plugin: Any = module
            for part in attributes:
                plugin = getattr(plugin, part)
            file = str(getattr(module, "__file__", None) or "")  # a module may have put any object in its place
    except LoadFailure:
        raise
    except BaseException as error:
        raise import_failure(error, "", candidate, module_name) from error
    if issubclass(type(plugin), type) or plugin is None:  # isinstance would ask the object, which may break
        raise LoadFailure(
            "import",
            f"{candidate.target} is {'a class' if plugin else 'None'}, not a module or an object",
            file=candidate.file,
            line=candidate.line,
            hint="let the entry point name the module, or an instance",
        )
    return Imported(plugin, content, file, remark=_LOUD if loud else "")


def code_of(candidate: Candidate) -> list[Path]:
    """Return the Python files of a plugin that is not built in."""
    if candidate.tier == "user":
        return [Path(file) for file in sorted(sources_of(candidate).files)]
    unit = unit_of(candidate.target)
    return unit.files() if unit is not None else []


def source_file(candidate: Candidate) -> str:
    """Return where the code of a plugin probably is, without importing it; empty when that cannot be told."""
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


def read_consented(path: Path, home: Path) -> bytes:
    """Return the content of a file that may be imported.

    :raises PluginError: no consent, others can write to it, or it cannot be read.
    """
    if Consents(home).is_waiting(path):
        raise PluginError(
            WAITS,
            where=str(path),
            next_step=f"moryflow tool allow {path.name}",
        )
    data = read_owned(path)
    try:
        check_owned(path)
    except OSError as error:
        raise PluginError(f"it cannot be read: {error.strerror}", where=str(path)) from error
    return data


class LoadedCode:
    """The files that the plugins of one host have imported, over all its generations."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, Path], tuple[str, ModuleType]] = {}

    def load(self, owner: str, path: Path, home: Path, admission: Admission = admit_all) -> ModuleType:
        """Return the file at `path` as a module for the plugin `owner`; one that has not changed is not run again.

        :raises PluginError: it may not be imported, or its code raised.
        """
        data = read_consented(path, home)
        content = digest({path.name: data})
        key = (owner, path)
        known = self._loaded.get(key)
        if known is not None and known[0] == content:
            return known[1]
        loud = admission.code(Candidate.at(path), content)
        try:
            with printing_aside(loud=loud):
                module = load_sources(f"{owner}_{path.stem}", Sources(path, {str(path): data}, content))
        except BaseException as error:  # whatever a person's file raises, SystemExit too, is told and not passed on
            raise file_failure(error, path) from error
        self._loaded[key] = (content, module)
        if known is not None:
            forget(known[1].__name__)
        return module

    def prune(self) -> None:
        """Let go of the modules whose files are gone."""
        for key in [key for key in self._loaded if not key[1].exists()]:
            forget(self._loaded.pop(key)[1].__name__)


_as_it_is = False


def leave_as_it_is() -> None:
    """Move nothing from here on: in the probe, which wants to see it."""
    global _as_it_is
    _as_it_is = True


@contextmanager
def printing_aside(*, loud: bool = False) -> Iterator[None]:
    """Let standard error take what is written to standard output meanwhile, also what other programs write.

    :param loud: let nothing take it, because it is too much.

    For work that does not wait: nothing of the host's may be written until it ends.
    """
    if _as_it_is:
        yield
        return
    with suppress(OSError, ValueError, AttributeError):  # one that is closed, or no stream, has nothing of ours in it
        sys.stdout.flush()
    with Path(os.devnull).open("w", encoding="utf-8") if loud else nullcontext(sys.stderr) as other:
        ours = _swapped(other.fileno() if loud else 2)
        try:
            with redirect_stdout(other):
                yield
        finally:
            if ours >= 0:
                os.dup2(ours, 1)
                os.close(ours)


def _swapped(other: int) -> int:
    """Put another descriptor in the place of standard output; return what is to be put back, -1 when one of them is closed."""
    try:
        ours = os.dup(1)
    except OSError:
        return -1
    try:
        os.dup2(other, 1)
    except OSError:
        os.close(ours)
        return -1
    return ours
