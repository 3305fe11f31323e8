"""Read packages without importing them: a wheel, an installed distribution, the folder of a project."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from moryflow.plugins.entry_points import MANIFESTS, PLUGINS, metadata_folders, search_path

from . import InstallError
from .manifest_summary import PluginPackage, metadata_of, package_of, plugin_names

_DATA = re.compile(r"[^/]+\.data/(purelib|platlib)/")
_INFO = re.compile(r"[^/]+\.dist-info/")
_SAME_INFO = ("METADATA", "entry_points.txt")
"""The files of the metadata folder that an installer copies as they are."""


# ---------------------------------------------------------------- wheels


class Wheel:
    """A wheel file as a tree, with names as they will be after installation; files are read when they are asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._archive = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise InstallError(f"the wheel cannot be read: {error}", where=str(path)) from error
        entries = (item.filename for item in self._archive.infolist() if not item.is_dir())
        self._inside = {_DATA.sub("", name, count=1): name for name in entries}

    def names(self) -> Iterable[str]:
        return self._inside

    def read(self, name: str) -> bytes | None:
        if name not in self._inside:
            return None
        try:
            return self._archive.read(self._inside[name])
        except (OSError, zipfile.BadZipFile, ValueError, RuntimeError) as error:
            raise InstallError(f"the wheel cannot be read: {error}", where=str(self._path)) from error

    def close(self) -> None:
        """Let go of the file."""
        self._archive.close()


def package_in_wheel(path: Path) -> PluginPackage:
    """Return what a wheel holds; the hash only of one that brings a plugin.

    :raises InstallError: it is not a wheel.
    """
    with closing(Wheel(path)) as wheel:
        info = next((match[0] for name in wheel.names() if (match := _INFO.match(name)) and name.endswith("/METADATA")), None)
        if info is None:
            raise InstallError("this archive has no metadata of a package", where=str(path))
        name, version, requires = metadata_of((wheel.read(f"{info}METADATA") or b"").decode("utf-8", "replace"))
        points = (wheel.read(f"{info}entry_points.txt") or b"").decode("utf-8", "replace")
        starts = tuple(name for name in wheel.names() if name.endswith(".pth") and "/" not in name)
        package = package_of(name, version, requires, points, wheel, start_files=starts)
        digest = _digest((name, wheel.read) for name in wheel.names()) if package.cards else ""
        return replace(package, digest=digest)


def wheel_names(path: Path) -> list[str]:
    """Return the names of a wheel's files as they will be after installation.

    :raises InstallError: it is not a wheel.
    """
    with closing(Wheel(path)) as wheel:
        return list(wheel.names())


def _digest(files: Iterable[tuple[str, Callable[[str], bytes | None]]]) -> str:
    """Return one hash over what a package puts on the path; the same for a wheel and for what was installed from it."""
    total = hashlib.sha256()
    for name, read in sorted(files, key=lambda item: item[0]):
        if not _counts(name):
            continue
        data = read(name)
        body = hashlib.sha256(data).hexdigest() if data is not None else "missing"
        total.update(f"{name}\0{body}\n".encode())
    return f"sha256:{total.hexdigest()}"


def _counts(name: str) -> bool:
    """Whether a file is the package's own: not byte code, not a script, not a note of the installer."""
    if name.startswith(("..", "/")) or name.endswith(".pyc") or re.match(r"[^/]+\.data/", name):
        return False
    info = _INFO.match(name)
    return info is None or name[info.end() :] in _SAME_INFO


# ---------------------------------------------------------------- installed


class Distribution:
    """An installed distribution, found by its metadata folder."""

    def __init__(self, info: Path) -> None:
        self.info = info
        self.site = info.parent
        self._rows: list[str] | None = None

    def names(self) -> list[str]:
        if self._rows is None:
            text = self._text("RECORD")
            self._rows = [row[0] for row in csv.reader(io.StringIO(text)) if row]
        return self._rows

    def read(self, name: str) -> bytes | None:
        try:
            return (self.site / name).read_bytes()
        except OSError:
            return self._read_elsewhere(name)

    def _read_elsewhere(self, name: str) -> bytes | None:
        """Look where an editable installation leads, without importing it."""
        top, _, rest = name.partition("/")
        if not self.editable or not rest:
            return None
        for root in self._roots():
            for folder in (root / top, root / "src" / top):
                try:
                    return (folder / rest).read_bytes()
                except OSError:
                    continue
        return None

    def _roots(self) -> Iterator[Path]:
        for start in self.start_files():
            for line in self._lines(start):
                if Path(line).is_absolute():
                    yield Path(line)
        if project := self.project:
            yield project

    def _lines(self, name: str) -> list[str]:
        try:
            return (self.site / name).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return []

    def files(self) -> list[Path]:
        """Return the files that count as its content."""
        return [self.site / name for name in self.names() if _counts(name)]

    def start_files(self) -> list[str]:
        """Return its ``.pth`` files."""
        return [name for name in self.names() if name.endswith(".pth") and "/" not in name]

    @property
    def direct(self) -> dict[str, Any]:
        """Return ``direct_url.json``: where it was installed from, if not from an index."""
        import json

        try:
            return json.loads(self._text("direct_url.json") or "{}")
        except ValueError:
            return {}

    @property
    def editable(self) -> bool:
        return bool(self.direct.get("dir_info", {}).get("editable"))

    @property
    def project(self) -> Path | None:
        """Return the folder an editable installation leads to."""
        from urllib.parse import unquote, urlparse

        url = urlparse(str(self.direct.get("url", "")))
        return Path(unquote(url.path)) if url.scheme == "file" else None

    @property
    def metadata(self) -> tuple[str, str, tuple[str, ...]]:
        """Return name, version and requirements."""
        return metadata_of(self._text("METADATA") or self._text("PKG-INFO"))

    @property
    def plugins(self) -> tuple[str, ...]:
        """Return the names of its plugins, read from its metadata alone."""
        return plugin_names(self._text("entry_points.txt"))

    def package(self) -> PluginPackage:
        """Return what is installed, with the hash of its files; an editable one has none, for it changes as it is edited.

        It reads every file: a library of 100 MB takes a second.
        """
        name, version, requires = self.metadata
        digest = "" if self.editable else _digest((name, self.read) for name in self.names())
        more = {"digest": digest, "start_files": tuple(self.start_files())}
        return package_of(name, version, requires, self._text("entry_points.txt"), self, **more)

    def _text(self, name: str) -> str:
        try:
            return (self.info / name).read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            return ""


def installed_packages() -> dict[str, Distribution]:
    """Return the installed distributions by normal name; of two with one name the first on the path counts."""
    return {name: Distribution(folder) for name, folder in metadata_folders()}


def start_files() -> frozenset[Path]:
    """Return the ``.pth`` files that Python runs at every start."""
    return frozenset(path for entry in search_path() for path in Path(entry).glob("*.pth"))


# ---------------------------------------------------------------- projects


class SourceProject:
    """The folder of a project, where packages lie at the top or below ``src``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> Iterable[str]:
        return ()

    def read(self, name: str) -> bytes | None:
        for root in (self.folder / "src", self.folder):
            try:
                return (root / name).read_bytes()
            except OSError:
                continue
        return None


def package_in_folder(folder: Path) -> PluginPackage:
    """Return what ``pyproject.toml`` says, as far as it can be known without building anything."""
    try:
        said = tomllib.loads((folder / "pyproject.toml").read_text("utf-8")).get("project", {})
    except FileNotFoundError:
        said = {}
    except (OSError, ValueError, RecursionError) as error:
        raise InstallError(f"its pyproject.toml cannot be read: {error}", where=str(folder / "pyproject.toml")) from error
    points = said.get("entry-points", {})
    lines = [
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.get(group, {}).items()) for group in (PLUGINS, MANIFESTS)
    ]
    name, version = str(said.get("name", folder.name)), str(said.get("version", ""))
    requires = [str(item) for item in said.get("dependencies", ())]
    return package_of(name, version, requires, "\n".join(lines), SourceProject(folder))


def manifest_file(folder: Path, plugin: str) -> str:
    """Return the ``plugin.toml`` of a plugin in a project, empty when there is none."""
    try:
        points = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"][MANIFESTS]
        place, _, leaf = str(points[plugin]).partition(":")
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    paths = (root.joinpath(*place.split("."), leaf or "plugin.toml") for root in (folder / "src", folder))
    return next((str(path) for path in paths if path.is_file()), "")
