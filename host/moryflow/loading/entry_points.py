"""Entry points of installed packages, read once and remembered until an installation changes something."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PLUGINS = "moryflow.plugins"
MANIFESTS = "moryflow.manifest"
_VERSION = 1


@dataclass(frozen=True)
class Found:
    """One entry point: `file` and `line` say where it is declared."""

    name: str
    value: str
    dist: str
    version: str
    file: str
    line: int = 0
    manifest: str = ""


def installed(cache: Path) -> list[Found]:
    """Return the entry points of :data:`PLUGINS` of all installed packages.

    The answer is kept in `cache` under a key of the search path and the change time of each folder on it: installing
    or removing a package changes one. A start that finds the key unchanged reads no metadata and does not import
    importlib_metadata.
    """
    file = cache / "entry_points.json"
    key = _key()
    known = _remembered(file, key)
    if known is not None:
        return known
    found = list(_scan())
    _write(file, {"key": key, "found": [asdict(item) for item in found]})
    return found


def search_path() -> list[str]:
    """Return ``sys.path`` without the current folder and without relative ones: a repository brings no plugins (R13)."""
    try:
        here: Path | None = Path.cwd().resolve()
    except OSError:  # the folder was removed
        here = None
    return [entry for entry in dict.fromkeys(sys.path) if Path(entry).is_absolute() and Path(entry).resolve() != here]


def _key() -> list[Any]:
    places: list[Any] = [_VERSION, sys.version]
    for entry in search_path():
        try:
            places.append([entry, Path(entry).stat().st_mtime_ns])
        except OSError:
            continue
    return places


def _remembered(file: Path, key: list[Any]) -> list[Found] | None:
    """Return what was found under `key`, ``None`` when that is not known (any more)."""
    try:
        content = json.loads(file.read_bytes())
        return [Found(**item) for item in content["found"]] if content["key"] == key else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(file: Path, content: dict[str, Any]) -> None:
    """Keep the answer; a home that cannot be written only means a slower start."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_name(f"{file.name}.{os.getpid()}")
        fresh.write_text(json.dumps(content), "utf-8")
        fresh.replace(file)
    except OSError:
        return


def _scan() -> Iterator[Found]:
    """Read the metadata folders on the search path; of two with the same name the first counts, as for imports."""
    seen: set[str] = set()
    for entry in search_path():
        try:
            names = sorted(path.name for path in Path(entry).iterdir())
        except OSError:
            continue
        for name in names:
            if not name.endswith((".dist-info", ".egg-info")) or name.startswith("~"):
                continue
            project = re.sub(r"[-_.]+", "-", name.removesuffix(".egg-info").split("-")[0]).lower()
            if project not in seen:
                seen.add(project)
                yield from _of_package(Path(entry, name))


def _of_package(folder: Path) -> Iterator[Found]:
    file = folder / "entry_points.txt"
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return
    if f"[{PLUGINS}]" not in text.replace(" ", ""):
        return
    from importlib_metadata import Distribution

    package = Distribution.at(folder)
    name, version = _identity(package, folder)
    try:
        points = list(package.entry_points)
    except Exception as error:  # metadata of a third party: whatever is wrong with it is named, not raised
        yield Found(name, f"unreadable: {error}", name, version, str(file))
        return
    manifests = {point.name: point.value for point in points if point.group == MANIFESTS}
    for point in points:
        if point.group == PLUGINS:
            said = manifests.get(point.name, "")
            toml = str(_locate(said, folder.parent)) if said else ""
            yield Found(point.name, point.value, name, version, str(file), _line(text, point.name), toml)


def _identity(package: Any, folder: Path) -> tuple[str, str]:
    """Return name and version of a package, from its folder's name when its metadata is broken."""
    stem = folder.name.rpartition(".")[0]
    try:
        return (package.metadata["Name"] or stem.split("-")[0], package.version or "")
    except Exception:  # as above: metadata of a third party
        return (stem.split("-")[0], stem.partition("-")[2])


def _locate(said: str, site: Path) -> Path:
    """Return the path of ``package:plugin.toml`` without importing the package."""
    package, _, name = said.partition(":")
    top, *rest = package.split(".")
    path = site.joinpath(top, *rest, name or "plugin.toml")
    if path.is_file():
        return path
    from importlib.util import find_spec

    try:
        spec = find_spec(top)  # of a top-level name: looks, and imports nothing
    except (ImportError, ValueError):
        spec = None
    for folder in (spec.submodule_search_locations if spec else None) or ():
        other = Path(folder).joinpath(*rest, name or "plugin.toml")
        if other.is_file():
            return other
    return path


def _line(text: str, name: str) -> int:
    """Return the line on which `name` is declared in the group of plugins."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip().startswith("["):
            inside = line.strip().strip("[] ") == PLUGINS
        elif inside and line.partition("=")[0].strip() == name:
            return number
    return 0
