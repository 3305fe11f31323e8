"""Entry points of plugins: those of installed packages, which are cached, and those in a project's ``pyproject.toml``."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from moryflow.base.paths import keep_start, recall_start

from .sources import unit_of

PLUGINS = "moryflow.plugins"
MANIFESTS = "moryflow.manifest"
_VERSION = 4
# Seconds after a change of a folder in which its content is not cached.
_RACY = 2.0
# The folders of the home that hold code.
CODE_FOLDERS = ("plugins", "tools")
# The folders of the home whose Markdown files are contributions.
TEXT_FOLDERS = ("agents", "commands")


class EntryPoint(NamedTuple):
    """One entry point; `file` and `line` are where it is declared.

    :param editable: the project's folder, if the package is installed from its sources.
    :param roots: the folders that the ``.pth`` files of such a package add to ``sys.path``.
    :param problem: why the package's entry points cannot be read, although it has some.
    """

    name: str
    value: str
    dist: str
    version: str
    file: str
    line: int = 0
    manifest: str = ""
    editable: str = ""
    roots: tuple[str, ...] = ()
    problem: str = ""


class InstalledPlugins(NamedTuple):
    """The installed plugins, and a hash of the names and versions of all installed distributions."""

    found: tuple[EntryPoint, ...]
    surroundings: str


def installed(cache: Path) -> tuple[EntryPoint, ...]:
    """Return the entry points of :data:`PLUGINS` of all installed packages; see :func:`read_installed`."""
    return read_installed(cache).found


def read_installed(cache: Path) -> InstalledPlugins:
    """Return the installed plugins.

    The result is kept in `cache` under the search path and the change time of each folder on it: installing or removing a
    package changes one of them. A start that finds this key unchanged reads no metadata and does not import
    importlib_metadata.
    """
    key = environment_key()
    known = _remembered(recall_start(cache, "installed", key))
    if known is not None:
        return known
    importlib.invalidate_caches()
    folders = metadata_folders().values()
    found = tuple([point for folder in folders for point in _of_package(folder)])
    names = sorted(folder.name for folder in folders)
    surroundings = hashlib.sha256("\n".join([sys.version, *names]).encode()).hexdigest()
    if just_changed(key):  # an installation may be half done, and its rest may change no folder's time
        return InstalledPlugins(found, surroundings)
    keep_start(cache, "installed", key, {"found": [item._asdict() for item in found], "surroundings": surroundings})
    return InstalledPlugins(found, surroundings)


def search_path() -> list[str]:
    """Return ``sys.path`` without the current folder and relative paths: a repository must not bring plugins."""
    try:
        here: Path | None = Path.cwd().resolve()
    except OSError:  # the folder was removed
        here = None
    return [entry for entry in dict.fromkeys(sys.path) if Path(entry).is_absolute() and Path(entry).resolve() != here]


def environment_key() -> list[Any]:
    """Return the search path with each folder's change time; it changes when a package is installed or removed."""
    places: list[Any] = [_VERSION, sys.version]
    for entry in search_path():
        try:
            places.append([entry, Path(entry).stat().st_mtime_ns])
        except OSError:
            continue
    return places


def just_changed(key: list[Any]) -> bool:
    """Whether a folder in an :func:`environment_key` has just changed, so that an installation may be half done."""
    newest = max((place[1] for place in key if isinstance(place, list)), default=0)
    return time.time() - newest / 1e9 < _RACY


def _remembered(content: Any) -> InstalledPlugins | None:
    try:
        found = (EntryPoint(**{**item, "roots": tuple(item["roots"])}) for item in content["found"])
        return InstalledPlugins(tuple(found), str(content["surroundings"]))
    except (TypeError, KeyError):
        return None


def metadata_folders() -> dict[str, Path]:
    """Return the folder of the metadata of each installed distribution, by normalised name.

    Of two distributions with the same name the first on the search path counts, as for imports.
    """
    found: dict[str, Path] = {}
    for entry in search_path():
        try:
            names = sorted([path.name for path in os.scandir(entry)])
        except OSError:
            continue
        for name in names:
            if not name.endswith((".dist-info", ".egg-info")) or name.startswith("~"):
                continue
            found.setdefault(normal(name.removesuffix(".egg-info").split("-")[0]), Path(entry, name))
    return found


def normal(name: str) -> str:
    """Return the normalised name of a distribution, by which packaging tools compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _of_package(folder: Path) -> list[EntryPoint]:
    file = folder / "entry_points.txt"
    try:
        data = file.read_bytes()
    except OSError:
        return []
    if f"[{PLUGINS}]" not in data.decode("utf-8", "replace").replace(" ", ""):
        return []
    from importlib_metadata import Distribution

    package = Distribution.at(folder)
    name, version = identity(package, folder.name)
    try:
        data.decode("utf-8")
        points = list(package.entry_points)
    except Exception as error:  # a third party's metadata: an error in it is reported, not raised
        return [EntryPoint(name, "", name, version, str(file), problem=f"its entry points cannot be read: {error}")]
    editable, roots = editable_sources(folder)
    manifests = {point.name: point.value for point in points if point.group == MANIFESTS}
    found: list[EntryPoint] = []
    for point in points:
        if point.group == PLUGINS:
            place = manifests.get(point.name, "")
            sources = (*roots, f"{editable}/src", editable) if editable else ()
            toml = str(locate_file(place, folder.parent, sources)) if place else ""
            found.append(EntryPoint(point.name, point.value, name, version, str(file), 0, toml, editable, roots))
    return found


class DirectUrl(NamedTuple):
    """The content of ``direct_url.json``: where a distribution was installed from, if not from an index.

    :param path: the path of a ``file:`` address.
    :param folder: whether that is the folder of a project; `editable`, whether the project is used in place.
    :param vcs: for example ``git``; `commit` is the commit's id.
    """

    url: str = ""
    path: str = ""
    folder: bool = False
    editable: bool = False
    vcs: str = ""
    commit: str = ""


def direct_url(folder: Path) -> DirectUrl:
    """Return where the distribution with this metadata folder was installed from; empty if that file is missing or invalid."""
    try:
        document = json.loads((folder / "direct_url.json").read_text("utf-8"))
        place = urlsplit(document["url"])
        path = unquote(place.path) if place.scheme == "file" else ""
        project, repository = document.get("dir_info"), document.get("vcs_info") or {}
        editable = bool(project and project.get("editable"))
        vcs, commit = str(repository.get("vcs", "")), str(repository.get("commit_id", ""))
        return DirectUrl(document["url"], path, project is not None, editable, vcs, commit)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return DirectUrl()


def editable_sources(folder: Path) -> tuple[str, tuple[str, ...]]:
    """Return the project's folder of an editable installation, and the folders that its ``.pth`` files add to ``sys.path``."""
    direct = direct_url(folder)
    if not direct.editable:
        return "", ()
    try:
        record = (folder / "RECORD").read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return "", ()
    lines: list[str] = []
    for name in (row.partition(",")[0] for row in record):
        if name.endswith(".pth") and "/" not in name:
            with suppress(OSError, UnicodeDecodeError):
                lines += (folder.parent / name).read_text("utf-8").splitlines()
    return direct.path, tuple(line for line in lines if Path(line).is_absolute() and Path(line).is_dir())


def identity(package: Any, folder: str) -> tuple[str, str]:
    """Return name and version of a package; if its metadata is broken, from the name of the metadata's folder."""
    stem = folder.rpartition(".")[0]
    try:
        return (package.metadata["Name"] or stem.split("-")[0], package.version or "")
    except Exception:  # as above: metadata of a third party
        return (stem.split("-")[0], stem.partition("-")[2])


def locate_file(place: str, site: Path, sources: Iterable[str] = ()) -> Path:
    """Return the path of ``package:plugin.toml`` without importing the package.

    :param sources: other folders to search: those of a project that Python adds to its path only at its next start.
    """
    package, _, name = place.partition(":")
    top, *rest = package.split(".")
    path = site.joinpath(top, *rest, name or "plugin.toml")
    for other in (path, *(Path(folder).joinpath(top, *rest, name or "plugin.toml") for folder in sources)):
        if other.is_file():
            return other
    try:
        spec = find_spec(top)  # for a top-level name this imports nothing
    except (ImportError, ValueError):
        spec = None
    for folder in (spec.submodule_search_locations if spec else None) or ():
        other = Path(folder).joinpath(*rest, name or "plugin.toml")
        if other.is_file():
            return other
    return path


class ProjectTable(NamedTuple):
    """The table ``project`` of a ``pyproject.toml``. `points` are its entry points by group."""

    name: str
    version: str
    points: dict[str, dict[str, str]]


def read_project(project: Path) -> ProjectTable:
    """Read a project's ``pyproject.toml``, as far as that is possible without building the project.

    :raises OSError: it cannot be read.
    :raises ValueError: it is not TOML, or a value in it has the wrong type.
    """
    import tomllib

    try:
        table: dict[str, Any] = tomllib.loads((project / "pyproject.toml").read_text("utf-8")).get("project", {})
        groups: dict[str, dict[str, Any]] = table.get("entry-points", {})
        points = {group: {name: str(value) for name, value in found.items()} for group, found in groups.items()}
        return ProjectTable(str(table.get("name", project.name)), str(table.get("version", "")), points)
    except (TypeError, AttributeError) as error:
        raise ValueError("a value of its table project is of the wrong kind") from error
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def entry_points_of(project: Path) -> list[EntryPoint]:
    """Return the plugins that a project declares, and put its modules on ``sys.path``."""
    file = str(project / "pyproject.toml")
    try:
        table = read_project(project)
    except (OSError, ValueError) as error:
        place = re.search(r"at line (\d+)", str(error))
        line, problem = int(place[1]) if place else 0, f"it cannot be read: {error}"
        return [EntryPoint(project.name, "", project.name, "", file, line, editable=str(project), problem=problem)]
    root = project / "src" if (project / "src").is_dir() else project
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    found: list[EntryPoint] = []
    for name, value in table.points.get(PLUGINS, {}).items():
        manifest = table.points.get(MANIFESTS, {}).get(name, "")
        toml = str(locate_file(manifest, root)) if manifest else ""
        found.append(EntryPoint(name, value, table.name, table.version, file, manifest=toml, editable=str(project)))
    return found


def editable_code(home: Path, development: Iterable[Path]) -> list[Path]:
    """Return the files and folders outside the home whose code is used as soon as it is saved.

    These are the packages of plugins that are installed from their sources, the paths that ``dev`` was given, and the files
    and folders that links in the home's code folders lead to.
    """
    found = [unit.root for point in read_installed(home / "cache").found if point.editable and (unit := unit_of(point.value))]
    return [*dict.fromkeys((*found, *(path.absolute() for path in development), *_linked(home)))]


def linked_settings(home: Path, config: Path) -> list[Path]:
    """Return the files and folders outside the home that Moryflow reads in place of its own: what links in the home lead to,
    and the configuration file.

    :param config: the path of the configuration file, wherever it is.
    """
    inside = os.path.realpath(home)
    names = {*CODE_FOLDERS, *TEXT_FOLDERS}
    links = [path for folder in (home, *map(home.joinpath, TEXT_FOLDERS)) for path in _links_in(folder)]
    targets = [path for link in links if (path := link.resolve()).is_file() or link.name in names]
    own = [config.resolve()] if os.path.isfile(config) else []  # noqa: PTH113 (Path.is_file raises in a closed folder)
    return [path for path in dict.fromkeys((*own, *targets)) if not path.is_relative_to(inside)]


def _linked(home: Path) -> Iterator[Path]:
    targets = (link.resolve() for folder in CODE_FOLDERS for link in _links_in(home / folder))
    return (path for path in targets if path.is_file() or (path / "__init__.py").is_file())


def _links_in(folder: Path) -> list[Path]:
    with suppress(OSError):
        return [Path(entry.path) for entry in list(os.scandir(folder)) if entry.is_symlink() and os.path.exists(entry.path)]  # noqa: PTH110
    return []
