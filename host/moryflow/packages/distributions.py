"""Read packages without importing them: a wheel, an installed distribution, the folder of a project.

The manifest of each plugin in a package becomes a card, which the user sees before consenting, and with which the card of a
new version is compared.
"""

from __future__ import annotations

import configparser
import csv
import email
import hashlib
import io
import os
import re
import sysconfig
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from moryflow_sdk.support.own_files import open_regular

from moryflow.hooks.plugin_set import LoadFailure
from moryflow.plugins.entry_points import (
    MANIFESTS,
    PLUGINS,
    DirectUrl,
    ProjectTable,
    direct_url,
    editable_sources,
    metadata_folders,
    read_project,
    search_path,
)
from moryflow.plugins.manifest import manifest_in

from . import InstallError

ReadFile = Callable[[str], bytes | None]
_DATA = re.compile(r"[^/]+\.data/(purelib|platlib)/")
_OUTSIDE = re.compile(r"[^/]+\.data/(scripts|data)/(.+)")
_INFO = re.compile(r"[^/]+\.dist-info/")
_SAME_INFO = ("METADATA", "entry_points.txt")
"""The files of the metadata folder that an installer copies unchanged."""


# ---------------------------------------------------------------- wheels


class Wheel:
    """The files of a wheel, under their names after installation. A file is read when it is asked for."""

    def __init__(self, path: Path) -> None:
        from zipfile import BadZipFile, ZipFile

        self._path, self._broken = path, (OSError, BadZipFile, ValueError, RuntimeError)
        try:
            self._archive = ZipFile(path)
        except (OSError, BadZipFile) as error:
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
        except self._broken as error:
            raise InstallError(f"the wheel cannot be read: {error}", where=str(self._path)) from error

    def close(self) -> None:
        self._archive.close()


def package_in_wheel(path: Path) -> PluginPackage:
    """Return the package in a wheel; it has a hash only if it has a plugin.

    :raises InstallError: the file is not a wheel.
    """
    with closing(Wheel(path)) as wheel:
        info = next((match[0] for name in wheel.names() if (match := _INFO.match(name)) and name.endswith("/METADATA")), None)
        if info is None:
            raise InstallError("this archive has no metadata of a package", where=str(path))
        name, version, requires = metadata_of((wheel.read(f"{info}METADATA") or b"").decode("utf-8", "replace"))
        points = (wheel.read(f"{info}entry_points.txt") or b"").decode("utf-8", "replace")
        more = {"start_files": tuple(filter(_runs_at_start, wheel.names())), "places": _places(wheel.names(), points)}
        package = package_of(name, version, requires, points, wheel.read, **more)
        digest = _digest((name, wheel.read) for name in wheel.names()) if package.cards else ""
        return replace(package, digest=digest)


def _runs_at_start(name: str) -> bool:
    """Whether Python runs this file or module of ``site-packages`` at every start."""
    top, _, rest = name.partition("/")
    return (top.endswith(".pth") and not rest) or top.partition(".")[0] in ("sitecustomize", "usercustomize")


def _places(names: Iterable[str], points: str) -> tuple[str, ...]:
    """Return where an installer writes a wheel's files: relative to ``site-packages``, absolute outside of it."""
    folders = {"scripts": sysconfig.get_path("scripts"), "data": sysconfig.get_path("data")}
    commands = [name for group in _groups(points, "console_scripts", "gui_scripts") for name in group]
    outside = {match[0]: match for name in names if (match := _OUTSIDE.fullmatch(name))}
    written = (_place(f"{folders[outside[name][1]]}/{outside[name][2]}") if name in outside else name for name in names)
    return (*written, *(f"{folders['scripts']}/{name}" for name in commands))


def _place(path: str) -> str:
    """Return `path` relative to ``site-packages`` if it leads there, as data files of a wheel may."""
    real, site = Path(os.path.realpath(path)), os.path.realpath(sysconfig.get_path("purelib"))
    return str(real.relative_to(site)) if real.is_relative_to(site) else path


def wheel_names(path: Path) -> list[str]:
    """Return the names that a wheel's files will have after installation.

    :raises InstallError: the file is not a wheel.
    """
    with closing(Wheel(path)) as wheel:
        return list(wheel.names())


def _digest(files: Iterable[tuple[str, ReadFile]]) -> str:
    """Return one hash of a package's own files; it is the same for a wheel and for what was installed from it."""
    total = hashlib.sha256()
    for name, read in sorted(files, key=lambda item: item[0]):
        if not _is_own_file(name):
            continue
        data = read(name)
        body = hashlib.sha256(data).hexdigest() if data is not None else "missing"
        total.update(f"{name}\0{body}\n".encode())
    return f"sha256:{total.hexdigest()}"


def _is_own_file(name: str) -> bool:
    """Whether a file is the package's own: not byte code, not a script, not written by the installer."""
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
            self._rows = []
            with suppress(csv.Error):  # a RECORD may hold anything; the rows before an error count
                rows = csv.reader(io.StringIO(self._text("RECORD")))
                self._rows += (row[0] for row in rows if row and "\0" not in row[0])
        return self._rows

    def read(self, name: str) -> bytes | None:
        """Return a file's content, in an editable installation from the project's folders; ``None`` if it cannot be read."""
        return _read_below((self.site, *self._roots), name)

    @cached_property
    def _roots(self) -> tuple[str, ...]:
        project, roots = editable_sources(self.info)
        return (*roots, f"{project}/src", project) if project else ()

    def files(self) -> list[Path]:
        """Return the paths of its own files, which its hash is made from."""
        return [self.site / name for name in self.names() if _is_own_file(name)]

    def start_files(self) -> list[str]:
        """Return the names of its files that Python runs at every start."""
        return list(filter(_runs_at_start, self.names()))

    @property
    def direct(self) -> DirectUrl:
        """Where it was installed from, if not from an index."""
        return direct_url(self.info)

    @property
    def editable(self) -> bool:
        return self.direct.editable

    @property
    def metadata(self) -> tuple[str, str, tuple[str, ...]]:
        """Name, version and requirements."""
        return metadata_of(self._text("METADATA") or self._text("PKG-INFO"))

    @property
    def plugins(self) -> tuple[str, ...]:
        """The names of its plugins, read from its metadata."""
        return tuple(_groups(self._text("entry_points.txt"), PLUGINS)[0])

    def package(self) -> PluginPackage:
        """Return the installed package with the hash of its files; an editable one has no hash, because its files are edited.

        This reads every file: a library of 100 MB takes a second.
        """
        name, version, requires = self.metadata
        digest = "" if self.editable else _digest((name, self.read) for name in self.names())
        more = {"digest": digest, "start_files": tuple(self.start_files())}
        return package_of(name, version, requires, self._text("entry_points.txt"), self.read, **more)

    def _text(self, name: str) -> str:
        try:
            return (self.info / name).read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            return ""


def installed_packages() -> dict[str, Distribution]:
    """Return the installed distributions by normalised name; of two with the same name the first on the path counts."""
    return {name: Distribution(folder) for name, folder in metadata_folders()}


def start_files() -> frozenset[Path]:
    """Return the files that Python runs at every start: ``.pth`` files, ``sitecustomize`` and ``usercustomize``."""
    paths = (path for entry in map(Path, search_path()) if entry.is_dir() for path in entry.iterdir())
    return frozenset(path for path in paths if _runs_at_start(path.name))


# ---------------------------------------------------------------- projects


def package_in_folder(folder: Path) -> PluginPackage:
    """Return the package of a project's folder, as far as its ``pyproject.toml`` has it, without building it.

    :raises InstallError: ``pyproject.toml`` cannot be read.
    """
    try:
        project = read_project(folder)
    except FileNotFoundError:
        project = ProjectTable(folder.name, "", {}, ())
    except (OSError, ValueError) as error:
        problem, hint = f"its pyproject.toml cannot be read: {error}", "fix it, then install it again"
        raise InstallError(problem, where=str(folder / "pyproject.toml"), next_step=hint) from error
    points = project.points.items()
    text = "".join(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in found.items()) for group, found in points)
    read = partial(_read_below, (folder / "src", folder))
    return package_of(project.name, project.version, project.requires, text, read, places=_places((), text))


def _read_below(roots: Iterable[Path | str], name: str) -> bytes | None:
    """Return the content of a file in the first of `roots` where it can be read."""
    for root in roots:
        with suppress(OSError, ValueError), open_regular(Path(root, name)) as stream:
            return stream.read()
    return None


CAPABILITIES = ("network", "subprocess", "files")
"""The capabilities that a manifest may declare, in the order in which they are shown."""


@dataclass(frozen=True)
class Card:
    """One plugin of a package, as its manifest describes it.

    :param manifest: whether it has a ``plugin.toml``; without one, hooks, tools, services and capabilities are unknown.
    :param capabilities: declared, not enforced.
    :param problem: what is wrong with the manifest.
    """

    name: str
    target: str = ""
    version: str = ""
    manifest: bool = False
    hooks: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    capabilities: Mapping[str, Any] = field(default_factory=dict[str, Any])
    problem: str = ""

    @property
    def gate(self) -> bool:
        return "tool_gate" in self.hooks

    @property
    def asks(self) -> dict[str, Any]:
        """What the user agrees to, as the lock stores it."""
        lists = {"hooks": list(self.hooks), "tools": list(self.tools), "services": list(self.services)}
        return {"manifest": self.manifest, **lists, "capabilities": dict(self.capabilities)}


@dataclass(frozen=True)
class PluginPackage:
    """A distribution with its plugins and its requirements."""

    name: str
    version: str
    cards: tuple[Card, ...] = ()
    requires: tuple[str, ...] = ()
    digest: str = ""
    start_files: tuple[str, ...] = ()
    """Its files that Python runs at every start: ``.pth`` files, ``sitecustomize`` and ``usercustomize``."""
    places: tuple[str, ...] = ()
    """Where its files are installed: relative to ``site-packages``, absolute outside of it."""


def package_of(
    name: str, version: str, requires: Iterable[str], entry_points: str, read: ReadFile, **more: Any
) -> PluginPackage:
    """Return a package from its metadata and its files.

    :param read: returns the content of a file by its path in the package, ``None`` if there is no such file.
    """
    plugins, manifests = _groups(entry_points, PLUGINS, MANIFESTS)
    cards = tuple(_card(plugin, target, version, manifests.get(plugin, ""), read) for plugin, target in plugins.items())
    return PluginPackage(name, version, cards, tuple(requires), **more)


def metadata_of(text: str) -> tuple[str, str, tuple[str, ...]]:
    """Return name, version and requirements from a ``METADATA`` file."""
    headers = email.message_from_string(text)
    return headers.get("Name", ""), headers.get("Version", ""), tuple(headers.get_all("Requires-Dist") or ())


class _EntryPoints(configparser.ConfigParser):
    """Parser of ``entry_points.txt``, an INI file whose names are case-sensitive."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def _groups(text: str, *groups: str) -> list[dict[str, str]]:
    """Return the entry points of each of `groups`: name → value."""
    parser = _EntryPoints(delimiters=("=",), interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return [{} for _ in groups]
    return [dict(parser.items(group)) if parser.has_section(group) else {} for group in groups]


def _card(plugin: str, target: str, version: str, manifest: str, read: ReadFile) -> Card:
    place, _, leaf = manifest.partition(":")
    data = read("/".join([*place.split("."), leaf or "plugin.toml"])) if manifest else None
    if data is None:
        missing = f"its metadata names a manifest that is not there: {manifest}" if manifest else ""
        return Card(plugin, target, version, problem=missing)
    return card_of(plugin, target, version, data)


def card_of(plugin: str, target: str, version: str, data: bytes) -> Card:
    """Return the card of the manifest `data`. An error in it becomes the card's problem and is not raised."""
    try:
        values = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # also for numbers of thousands of digits and endless nesting
        return Card(plugin, target, version, manifest=True, problem=f"its manifest is not valid TOML: {error}")
    services = values.get("services", ())
    if isinstance(services, Mapping):
        services = [name for name, wanted in services.items() if wanted]
    capabilities = values.get("capabilities")
    return Card(
        name=plugin,
        target=target,
        version=str(values.get("version", version)),
        manifest=True,
        hooks=_names(values.get("hooks")),
        tools=_names(values.get("tools")),
        services=_names(services),
        capabilities=dict(capabilities) if isinstance(capabilities, Mapping) else {},
        problem=_problem(plugin, values),
    )


def _names(value: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(item) for item in value)) if isinstance(value, list | tuple) else ()


def _problem(plugin: str, values: Mapping[str, Any]) -> str:
    """Return what in the manifest will keep this plugin from loading; empty if nothing will."""
    try:
        manifest_in(values, plugin)
    except LoadFailure as failure:
        return failure.message
    return ""


_CAPABILITY_WORDS = {"network": "uses the network", "subprocess": "starts programs", "files": "touches files itself"}


class ConsentDiff(NamedTuple):
    """The difference between what the user agreed to and what would be installed.

    :param lines: for people, one difference each.
    :param grew: whether it asks for a hook, a service or a capability that the user did not agree to.
    """

    lines: tuple[str, ...]
    grew: bool


def screen(package: PluginPackage, *, origin: str, also: Sequence[tuple[str, str]] = (), editable: bool = False) -> str:
    """Return the consent screen: everything the user needs to know to agree or refuse."""
    head = f"{package.name} {package.version}".rstrip()
    lines = [f"{head}  from {origin}" + (", editable" if editable else "")]
    if not package.cards:
        lines.append("  It brings no plugin: no entry point in the group moryflow.plugins.")
    for card in package.cards:
        lines += [f"  {line}" for line in card_lines(card)]
    if also:
        lines.append("  would also be installed: " + ", ".join(f"{name} {version}" for name, version in also))
    if package.start_files:
        lines.append(f"  runs at every start of Python: {', '.join(package.start_files)}")
    lines.append("  None of this is enforced: a plugin is Python code that runs with your rights.")
    return "\n".join(lines)


def card_lines(card: Card) -> list[str]:
    """Return the card of one plugin as lines, one each for its hooks, tools, services and capabilities."""
    lines = [f"plugin {card.name} {card.version}".rstrip()]
    if card.problem:
        lines.append(f"  PROBLEM: {card.problem}")
    if not card.manifest:
        lines.append("  It has no plugin.toml, so what it does is not known before it runs: it may use any hook and service.")
        return lines
    rows = (("hooks", card.hooks), ("tools", card.tools), ("services", card.services))
    lines += [f"  {label}: {', '.join(names) or 'none'}" for label, names in rows]
    declared = [words for name, value in _capabilities(card.capabilities) if (words := _capability(name, value))]
    lines.append(f"  says that it {'; '.join(declared)} (declared, not enforced)" if declared else "  declares no capabilities")
    return lines


def _capabilities(declared: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    known = [(name, declared[name]) for name in CAPABILITIES if name in declared]
    return [*known, *((name, value) for name, value in declared.items() if name not in CAPABILITIES)]


def _capability(name: str, value: Any) -> str:
    if not value or value == "none":
        return ""
    words = _CAPABILITY_WORDS.get(name, name)
    return words if value is True else f"{words} ({value})"


def consent_diff(before: Mapping[str, Mapping[str, Any]], after: Iterable[Card]) -> ConsentDiff:
    """Compare what the user agreed to, as the lock stores it, with the cards of another version."""
    lines: list[str] = []
    grew = False
    now = {card.name: card.asks for card in after}
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name), now.get(name)
        if old is None or new is None:
            lines.append(f"{name}: {'new plugin' if old is None else 'is no longer there'}")
            grew = grew or old is None
            continue
        found, more = _compare_asks(old, new)
        lines += [f"{name}: {line}" for line in found]
        grew = grew or more
    return ConsentDiff(tuple(lines), grew)


def _compare_asks(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[list[str], bool]:
    lines: list[str] = []
    grew = False
    if old.get("manifest") and not new["manifest"]:
        return ["its plugin.toml is gone"], True
    for kind in ("hooks", "tools", "services"):
        was, now = list(old.get(kind, ())), list(new[kind])
        added, gone = [x for x in now if x not in was], [x for x in was if x not in now]
        lines += [f"{kind}: {' '.join([*(f'+{x}' for x in added), *(f'-{x}' for x in gone)])}"] if added or gone else []
        grew = grew or bool(added and kind != "tools")
    was, now = old.get("capabilities", {}), new["capabilities"]
    for name in dict.fromkeys([*was, *now]):
        if was.get(name) != now.get(name):
            lines.append(f"capabilities: {name} {_capability_value(was.get(name))} -> {_capability_value(now.get(name))}")
            grew = grew or now.get(name) not in (None, False, "none", "")
    return lines, grew


def _capability_value(value: Any) -> str:
    words = {True: "yes", False: "no", None: "not declared"}
    return words[value] if isinstance(value, bool | None) else repr(value)
