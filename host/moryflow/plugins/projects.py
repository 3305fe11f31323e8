"""Plugins that are being written: the entry points that a project's ``pyproject.toml`` declares."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .code_units import unit_of
from .entry_points import MANIFESTS, PLUGINS, Found, locate_file, look_around


def entry_points_of(project: Path) -> list[Found]:
    """Return the plugins that a project declares; its modules can be imported from then on."""
    import tomllib

    file = project / "pyproject.toml"
    try:
        values: dict[str, Any] = tomllib.loads(file.read_text("utf-8")).get("project", {})
    except (OSError, ValueError, RecursionError) as error:
        return [Found(project.name, "", project.name, "", str(file), problem=f"it cannot be read: {error}")]
    groups = values.get("entry-points", {})
    root = _root(project)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    found: list[Found] = []
    for name, value in groups.get(PLUGINS, {}).items():
        said = groups.get(MANIFESTS, {}).get(name, "")
        toml = str(locate_file(said, root)) if said else ""
        dist, version = str(values.get("name", project.name)), str(values.get("version", ""))
        found.append(Found(str(name), str(value), dist, version, str(file), manifest=toml, editable=str(project)))
    return found


def being_written(home: Path, development: Iterable[Path]) -> list[Path]:
    """Return the code outside the home that runs as soon as it is saved: files and folders.

    Of plugins that are installed from their sources it is the package; of those of ``dev``, what was named.
    """
    found = [unit.root for point in look_around(home / "cache").found if point.editable and (unit := unit_of(point.value))]
    return [*dict.fromkeys((*found, *(path.absolute() for path in development)))]


def _root(project: Path) -> Path:
    """Return the folder that a project's modules are imported from."""
    return project / "src" if (project / "src").is_dir() else project
