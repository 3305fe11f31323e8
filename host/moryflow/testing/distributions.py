"""Packages that look installed without being it: for tests of what the host finds through entry points."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

PLUGINS = "moryflow.plugins"
MANIFESTS = "moryflow.manifest"
EntryPoints = Mapping[str, Mapping[str, str]]
"""Group to name to value, as under ``[project.entry-points]``."""


@dataclass(frozen=True)
class Project:
    """A plugin's project folder, as its ``pyproject.toml`` describes it.

    :ivar sources: the folder that holds its package: ``src``, or the project itself.
    :ivar plugins: name to ``module`` or ``module:attribute`` of the plugins it brings.
    """

    folder: Path
    name: str
    version: str
    sources: Path
    entry_points: EntryPoints

    @property
    def plugins(self) -> Mapping[str, str]:
        return self.entry_points[PLUGINS]

    def package(self, plugin: str) -> Path:
        """Return the file or the package folder with the code of `plugin`."""
        module = self.plugins[plugin].partition("[")[0].partition(":")[0].strip()
        path = self.sources.joinpath(*module.split("."))
        return path if path.is_dir() else path.with_suffix(".py")


def read_project(folder: Path) -> Project | None:
    """Return the plugin project in `folder`, ``None`` when it is none: no ``pyproject.toml`` that names a plugin."""
    try:
        values = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None
    project = cast("Mapping[str, Any]", values.get("project", {}))
    points = cast("EntryPoints", project.get("entry-points", {}))
    if not points.get(PLUGINS):
        return None
    sources = folder / "src" if (folder / "src").is_dir() else folder
    return Project(folder, str(project.get("name", folder.name)), str(project.get("version", "0")), sources, points)


def write_distribution(site: Path, name: str, entry_points: EntryPoints, *, version: str = "0.1.0") -> Path:
    """Write the metadata of an installed package into `site`, a folder on ``sys.path``; return the metadata's folder.

    Nothing is built and nothing is installed: the modules must be importable from `site` or elsewhere.
    """
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    groups = [
        "\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in points.items()), ""])
        for group, points in entry_points.items()
    ]
    (folder / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")
    (folder / "RECORD").write_text("", encoding="utf-8")
    return folder
