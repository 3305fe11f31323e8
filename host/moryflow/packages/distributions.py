"""Read packages without importing them: a wheel, an installed distribution, the folder of a project.

The manifest of each plugin in a package becomes a card, which the user sees before consenting, and with which the card of a
new version is compared.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from importlib_metadata import PathDistribution
from moryflow_sdk.support.own_files import open_regular

from moryflow.hooks.plugin_set import LoadFailure
from moryflow.plugins.entry_points import (
    MANIFESTS,
    PLUGINS,
    DirectUrl,
    ProjectTable,
    direct_url,
    editable_sources,
    identity,
    metadata_folders,
    read_project,
    search_path,
)
from moryflow.plugins.manifest import manifest_in

from . import InstallError
from .code_facts import facts_of

ReadFile = Callable[[str], bytes | None]
_DATA = re.compile(r"[^/]+\.data/(purelib|platlib)/")
# Byte code, scripts, and what an installer writes: all but these is the same in a wheel and where it is installed.
_NOT_OWN = re.compile(r"\.\.|/|.*\.pyc$|[^/]+\.data/|[^/]+\.dist-info/(?!(METADATA|entry_points\.txt)$)")


def package_in_wheel(path: Path) -> PluginPackage:
    """Return the package in a wheel; it has a hash only if it has a plugin.

    :raises InstallError: the file is not a wheel.
    """
    from zipfile import BadZipFile, ZipFile
    from zipfile import Path as Inside

    try:
        with ZipFile(path) as archive:
            names = {_DATA.sub("", name, count=1): name for name in archive.namelist() if not name.endswith("/")}
            info = next((name.partition("/")[0] for name in names if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)), None)
            if info is None:
                raise InstallError("this archive has no metadata of a package", where=str(path))

            def read(name: str) -> bytes | None:
                return archive.read(names[name]) if name in names else None

            found = _package(PathDistribution(Inside(archive, f"{info}/")), info, list(names), read, hashed=True)
            return replace(found, files=_own_files(list(names), read) if found.cards else {})
    except (OSError, BadZipFile, ValueError, RuntimeError) as error:
        raise InstallError(f"the wheel cannot be read: {error}", where=str(path)) from error


class Distribution:
    """An installed distribution, found by its metadata folder."""

    def __init__(self, info: Path) -> None:
        self.info = info
        self.site = info.parent
        self._metadata = PathDistribution(info)

    @cached_property
    def names(self) -> list[str]:
        try:
            return [str(name) for name in self._metadata.files or ()]
        except Exception:  # a third party's metadata may hold anything
            return []

    def read(self, name: str) -> bytes | None:
        """Return a file's content, in an editable installation from the project's folders; ``None`` if it cannot be read."""
        return _read_below((self.site, *self._roots), name)

    @cached_property
    def _roots(self) -> tuple[str, ...]:
        project, roots = editable_sources(self.info)
        return (*roots, f"{project}/src", project) if project else ()

    def start_files(self) -> list[str]:
        """Return the names of its files that Python runs at every start."""
        return list(filter(_runs_at_start, self.names))

    @property
    def direct(self) -> DirectUrl:
        """Where it was installed from, if not from an index."""
        return direct_url(self.info)

    @property
    def version(self) -> str:
        return identity(self._metadata, self.info.name)[1]

    @property
    def requires(self) -> list[str]:
        try:
            return self._metadata.requires or []
        except Exception:  # as above
            return []

    @property
    def plugins(self) -> tuple[str, ...]:
        """The names of its plugins, read from its metadata."""
        return tuple(_points(self._metadata, PLUGINS))

    def files(self) -> dict[str, bytes]:
        """Return the content of its own files, by the names that they have in a wheel."""
        return _own_files(self.names, self.read)

    def package(self) -> PluginPackage:
        """Return the installed package with the hash of its files; an editable one has no hash, because its files are edited.

        This reads every file: a library of 100 MB takes a second.
        """
        return _package(self._metadata, self.info.name, self.names, self.read, hashed=not self.direct.editable)


def installed_packages() -> dict[str, Distribution]:
    """Return the installed distributions by normalised name; of two with the same name the first on the path counts."""
    return {name: Distribution(folder) for name, folder in metadata_folders().items()}


def start_files() -> set[Path]:
    """Return the files that Python runs at every start: ``.pth`` files, ``sitecustomize`` and ``usercustomize``."""
    paths = (path for entry in map(Path, search_path()) if entry.is_dir() for path in entry.iterdir())
    return {path for path in paths if _runs_at_start(path.name)}


def _runs_at_start(name: str) -> bool:
    """Whether Python runs this file or module of ``site-packages`` at every start."""
    top, _, rest = name.partition("/")
    return (top.endswith(".pth") and not rest) or top.partition(".")[0] in ("sitecustomize", "usercustomize")


def package_in_folder(folder: Path) -> PluginPackage:
    """Return the package of a project's folder, as far as its ``pyproject.toml`` has it, without building it.

    :raises InstallError: ``pyproject.toml`` cannot be read.
    """
    try:
        project = read_project(folder)
    except FileNotFoundError:
        project = ProjectTable(folder.name, "", {})
    except (OSError, ValueError) as error:
        problem, hint = f"its pyproject.toml cannot be read: {error}", "fix it, then install it again"
        raise InstallError(problem, where=str(folder / "pyproject.toml"), next_step=hint) from error
    plugins, manifests = project.points.get(PLUGINS, {}), project.points.get(MANIFESTS, {})
    roots = (folder / "src", folder)
    tops = {target.partition(":")[0].partition(".")[0] for target in plugins.values()}
    paths = [path for root in roots for top in tops for path in [root / f"{top}.py", *sorted((root / top).rglob("*.py"))]]
    names = [str(path.relative_to(roots[0] if path.is_relative_to(roots[0]) else roots[1])) for path in paths]
    cards = _cards(plugins, manifests, project.version, names, partial(_read_below, roots))
    return PluginPackage(project.name, project.version, cards)


def _read_below(roots: Iterable[Path | str], name: str) -> bytes | None:
    for root in roots:
        with suppress(OSError, ValueError), open_regular(Path(root, name)) as stream:
            return stream.read()
    return None


def _points(metadata: PathDistribution, group: str) -> dict[str, str]:
    try:
        return {point.name: point.value for point in metadata.entry_points if point.group == group}
    except Exception:  # as above
        return {}


def _package(metadata: PathDistribution, folder: str, names: Sequence[str], read: ReadFile, *, hashed: bool) -> PluginPackage:
    name, version = identity(metadata, folder)
    cards = _cards(_points(metadata, PLUGINS), _points(metadata, MANIFESTS), version, names, read)
    total = hashlib.sha256()
    for own in sorted(item for item in names if not _NOT_OWN.match(item)) if hashed and cards else ():
        total.update(f"{own}\0{hashlib.sha256(read(own) or b'').hexdigest()}\n".encode())
    digest = f"sha256:{total.hexdigest()}" if hashed and cards else ""
    return PluginPackage(name, version, cards, digest, tuple(filter(_runs_at_start, names)))


def _own_files(names: Sequence[str], read: ReadFile) -> dict[str, bytes]:
    own = [name for name in names if not _NOT_OWN.match(name) and ".dist-info/" not in name]
    return {name: data for name in own if (data := read(name)) is not None}


def _cards(
    plugins: Mapping[str, str], manifests: Mapping[str, str], version: str, names: Sequence[str], read: ReadFile
) -> tuple[Card, ...]:
    cards: list[Card] = []
    for plugin, target in plugins.items():
        place, _, leaf = (manifest := manifests.get(plugin, "")).partition(":")
        data = read("/".join([*place.split("."), leaf or "plugin.toml"])) if manifest else None
        if data is not None:
            card = card_of(plugin, target, version, data)
        else:
            missing = f"its metadata names a manifest that is not there: {manifest}" if manifest else ""
            card = Card(plugin, target, version, derived=True, problem=missing)
        if card.derived:  # the package itself says it: one truth
            top = target.partition(":")[0].partition(".")[0]
            own = [name for name in names if name.endswith(".py") and name.partition("/")[0] in (top, f"{top}.py")]
            facts = facts_of({name: read(name) or b"" for name in own})
            card = replace(card, hooks=facts.hooks, tools=facts.tools)
        cards.append(card)
    return tuple(cards)


# The capabilities that a manifest may declare.
CAPABILITIES = {"network": "uses the network", "subprocess": "starts programs", "files": "touches files itself"}


@dataclass(frozen=True)
class Card:
    """One plugin of a package, as its manifest describes it.

    :param manifest: whether it has a ``plugin.toml``; without one, services and capabilities are unknown.
    :param derived: whether the manifest leaves the hooks and tools to the code, from which they are read.
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
    derived: bool = False
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
    """A distribution with its plugins; `start_files` are those of its files that Python runs at every start.

    :param files: the content of a wheel's files, by name.
    """

    name: str
    version: str
    cards: tuple[Card, ...] = ()
    digest: str = ""
    start_files: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False)


def card_of(plugin: str, target: str, version: str, data: bytes) -> Card:
    """Return the card of the manifest `data`. An error in it becomes the card's problem and is not raised."""
    try:
        values = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # also for numbers of thousands of digits and endless nesting
        return Card(plugin, target, version, manifest=True, problem=f"its manifest is not valid TOML: {error}")
    problem, capabilities, services = "", values.get("capabilities"), values.get("services", ())
    if isinstance(services, Mapping):
        services = [name for name, wanted in services.items() if wanted]
    try:
        manifest_in(values, plugin)
    except LoadFailure as failure:
        problem = failure.message
    lists = (_names(values.get("hooks")), _names(values.get("tools")), _names(services))
    declared = dict(capabilities) if isinstance(capabilities, Mapping) else {}
    derived = "hooks" not in values and "tools" not in values
    return Card(plugin, target, version or str(values.get("version", "")), True, *lists, declared, derived, problem)


def _names(value: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(item) for item in value)) if isinstance(value, list | tuple) else ()


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
        found = [f"{label}: {', '.join(names)}" for label, names in (("hooks", card.hooks), ("tools", card.tools)) if names]
        lines += [f"  {line} (read from its code)" for line in found]
        lines.append("  It has no plugin.toml: it may use any other hook, and any service.")
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
    words = CAPABILITIES.get(name, name)
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
            grew |= old is None
        elif old.get("manifest") and not new["manifest"]:
            lines.append(f"{name}: its plugin.toml is gone")
            grew = True
        else:
            for kind in ("hooks", "tools", "services"):
                was, wanted = old.get(kind, ()), new[kind]
                added, gone = [f"+{x}" for x in wanted if x not in was], [f"-{x}" for x in was if x not in wanted]
                lines += [f"{name}: {kind}: {' '.join([*added, *gone])}"] if added or gone else []
                grew |= bool(added) and kind != "tools"
            was, wanted = old.get("capabilities", {}), new["capabilities"]
            for key in dict.fromkeys([*was, *wanted]):
                if (one := was.get(key)) != (other := wanted.get(key)):
                    lines.append(f"{name}: capabilities: {key} {_capability_value(one)} -> {_capability_value(other)}")
                    grew |= other not in (None, False, "none", "")
    return ConsentDiff(tuple(lines), grew)


def _capability_value(value: Any) -> str:
    words = {True: "yes", False: "no", None: "not declared"}
    return words[value] if isinstance(value, bool | None) else repr(value)
