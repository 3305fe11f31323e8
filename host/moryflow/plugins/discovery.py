"""Find plugins without importing them (built-ins by name, entry points, the user's files), and choose which to load."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from moryflow_sdk import PluginError
from moryflow_sdk.support.own_files import LOST_HINT, leads_nowhere

from moryflow.hooks.plugin_set import LoadFailure, Tier

from .entry_points import EntryPoint, entry_points_of, installed
from .sources import check_owned

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class PluginSettings(NamedTuple):
    """Which plugins the user wants to load.

    :param disabled: names of plugins that the user disabled; only these do not count as missing gates.
    :param only: the third-party plugins to load, ``None`` for all (``MORYFLOW_PLUGINS``).
    :param safe_mode: load only built-ins.
    """

    disabled: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    safe_mode: bool = False


class Candidate(NamedTuple):
    """A plugin that was found.

    :param source: a text for people on where it comes from.
    :param target: what to load: ``module``, ``module:attribute``, or a path.
    :param file: the file that declares it, for errors before its own file is known; `line`, the line in it.
    :param manifest: the path of its ``plugin.toml``, if it has one.
    :param problem: why it cannot be loaded although it was found.
    :param editable: the project's folder, if the plugin is installed from its sources.
    """

    name: str
    tier: Tier
    source: str
    target: str
    version: str = ""
    file: str = ""
    line: int = 0
    manifest: str = ""
    problem: LoadFailure | None = None
    editable: str = ""

    @classmethod
    def at(cls, path: Path, name: str = "", problem: LoadFailure | None = None) -> Candidate:
        """Return a candidate for the user's plugin, or file with tools, at `path`, without reading `path`."""
        return cls(name or path.stem, "user", str(path), str(path), file=str(path), problem=problem)

    @property
    def package(self) -> str:
        """The distribution that the plugin is installed with; empty if it is not installed."""
        return self.source.split(" ")[0] if self.tier == "installed" else ""


def discover(home: Path, builtins: Sequence[str], development: Sequence[Path] = ()) -> Iterator[Candidate]:
    """Yield every plugin: built-ins in the given order, then installed plugins by name, then the user's own by name.

    :param development: plugins under development elsewhere; each replaces the plugin of the same tier and name.
    """
    for dotted in builtins:
        yield Candidate(dotted.rpartition(".")[2], "builtin", dotted, dotted)
    for each in _third_party(home, development):
        yield each._replace(problem=_name_reserved(each)) if is_reserved(each.name, builtins) else each


def _third_party(home: Path, development: Sequence[Path]) -> Iterator[Candidate]:
    own = [candidate for path in development for candidate in in_development(path)]
    replaced = {(candidate.tier, candidate.name) for candidate in own}
    for found in sorted(installed(home / "cache"), key=lambda item: (item.name, item.dist)):
        if ("installed", found.name) not in replaced:
            yield _installed(found)
    yield from (candidate for candidate in own if candidate.tier == "installed")
    yield from (each for each in _files(home / "plugins") if ("user", each.name) not in replaced)
    yield from (candidate for candidate in own if candidate.tier == "user")


class NameReserved(LoadFailure):
    """A plugin has the name of a built-in. It never counts as that built-in: not as a gate, not when the name is disabled."""


def is_reserved(name: str, builtins: Iterable[str]) -> bool:
    """Whether `name` is that of a built-in plugin, ignoring case, Unicode variants of letters, and which dashes it has."""
    return _same(name) in {_same(dotted.rpartition(".")[2]) for dotted in builtins}


def _same(name: str) -> str:
    return re.sub(r"[-_.]+", "_", unicodedata.normalize("NFKC", name)).strip("_").casefold()


def _name_reserved(candidate: Candidate) -> NameReserved:
    installed = candidate.tier == "installed" and not candidate.editable
    hint = f"moryflow plugin uninstall {candidate.package}" if installed else f"give it another name: {candidate.target}"
    text = f"the name {candidate.name!r} belongs to a built-in plugin; this one was not loaded"
    return NameReserved("discover", text, file=candidate.file, line=candidate.line, hint=hint)


def _installed(found: EntryPoint) -> Candidate:
    for root in found.roots:
        if root not in sys.path:  # installed while this process runs: Python reads .pth files only when it starts
            sys.path.append(root)
    return Candidate(
        name=found.name,
        tier="installed",
        source=f"{found.dist} {found.version} ({found.value})".replace("  ", " "),
        target=found.value,
        version=found.version,
        file=found.file,
        line=found.line,
        manifest=found.manifest,
        problem=_unreadable(found) or _bad_name(found.name, found.file),
        editable=found.editable,
    )


def _files(folder: Path) -> Iterator[Candidate]:
    """Yield ``plugins/*.py`` and ``plugins/NAME/__init__.py``, without names that start with a dot or underscore."""
    try:
        check_owned(folder)
        paths = sorted(folder.iterdir())
    except FileNotFoundError:
        yield from filter(None, [_broken_link("plugins", folder)])
        return
    except (OSError, PluginError) as error:
        yield Candidate.at(folder, "plugins", _folder_failure(error))
        return
    yield from (candidate for path in paths if (candidate := _of_file(path)) is not None)


def _of_file(path: Path) -> Candidate | None:
    """Return the plugin at `path`, a Python file or a folder with ``__init__.py``; ``None`` for anything else.

    A broken link may have been a plugin, even one with a gate: it becomes a candidate with a problem.
    """
    main = path / "__init__.py"
    package = main.is_file()
    if path.name.startswith((".", "_")):
        return None
    if not (package or path.suffix == ".py"):
        return None if path.suffix else _broken_link(path.name, main)
    name = path.name if package else path.stem
    toml = path / "plugin.toml"
    return Candidate(
        name=name,
        tier="user",
        source=str(path),
        target=str(path),
        file=str(path / "__init__.py" if package else path),
        manifest=str(toml) if package and os.path.lexists(toml) else "",  # reading it fails if it is no file
        problem=_bad_name(name, str(path)),
    )


def in_development(path: Path) -> list[Candidate]:
    """Return the plugins at `path`: a file, a package, or a project with entry points in its ``pyproject.toml``."""
    project = path / "pyproject.toml"
    if project.is_file():
        text = "it declares no entry points of moryflow.plugins"
        problem = LoadFailure("discover", text, file=str(project), hint="moryflow new plugin NAME writes one that does")
        return [_installed(found) for found in entry_points_of(path)] or [Candidate.at(path, problem=problem)]
    single = _of_file(path)
    if single is not None:
        return [single]
    text = "there is no plugin here: a .py file, a package, or a project with entry points of moryflow.plugins"
    problem = LoadFailure("discover", text, file=str(path), hint="moryflow new plugin NAME writes one")
    return [Candidate.at(path, problem=problem)]


def _broken_link(name: str, path: Path) -> Candidate | None:
    """Return a candidate with a problem if `path` is, or lies below, a link that leads nowhere; else ``None``."""
    problem = leads_nowhere(path)
    if not problem:
        return None
    return Candidate.at(path, name, LoadFailure("discover", problem, file=str(path), hint=LOST_HINT))


def _unreadable(found: EntryPoint) -> LoadFailure | None:
    if not found.problem:
        return None
    hint = "fix it" if found.file.endswith(".toml") else "reinstall the package, or uninstall it"
    return LoadFailure("discover", found.problem, file=found.file, line=found.line, hint=hint)


def _bad_name(name: str, file: str) -> LoadFailure | None:
    if _NAME.fullmatch(name):
        return None
    words = re.findall(r"[A-Za-z0-9_-]+", name)
    hint = f"rename it, for example to {'-'.join(words).lstrip('_-') or 'mine'}"
    return LoadFailure("discover", f"{name!r} is not a plugin name: letters, digits, - and _", file=file, hint=hint)


def _folder_failure(error: Exception) -> LoadFailure:
    if isinstance(error, PluginError):
        return LoadFailure("discover", error.message, file=error.where, hint=error.next_step)
    file, reason = str(getattr(error, "filename", None) or ""), getattr(error, "strerror", None) or error
    return LoadFailure("discover", f"the folder cannot be read: {reason}", file=file, hint="make it a folder that you may read")


_TAKEN_HINT = "rename one of them, or disable the name"


class NotWanted(Exception):
    """A plugin is not to be loaded. For a built-in this may show only after its import, when its name is known."""


class PluginChoice:
    """Chooses the plugins of one generation. Of candidates with the same name, the first one is taken."""

    def __init__(self, settings: PluginSettings) -> None:
        self._settings = settings
        self._chosen: dict[str, Candidate] = {}

    def check(self, candidate: Candidate, name: str) -> None:
        """Take `candidate` as the plugin called `name`.

        :raises NotWanted: it is not to be loaded; the text is the reason.
        :raises LoadFailure: an earlier candidate has that name.
        """
        settings, third = self._settings, candidate.tier != "builtin"
        if name in settings.disabled:
            raise NotWanted("disabled")
        if third and settings.safe_mode:
            raise NotWanted("safe mode loads built-in plugins only")
        if third and settings.only is not None and name not in settings.only:
            raise NotWanted("not among the plugins asked for (MORYFLOW_PLUGINS)")
        other = self._chosen.setdefault(name, candidate)
        if other is not candidate:
            raise LoadFailure(
                "discover",
                f"the name {name!r} is taken by the {other.tier} plugin {other.source}, which comes first",
                file=candidate.file,
                line=candidate.line,
                hint=_TAKEN_HINT if other.tier != "builtin" else "give it another name",
            )
