"""What a plugin says of itself, read without importing it: what a person is shown, and what a new version adds to it."""

from __future__ import annotations

import configparser
import email
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from moryflow_sdk import API
from moryflow_sdk.services import SERVICES

from moryflow.plugins.entry_points import MANIFESTS, PLUGINS

CAPABILITIES = ("network", "subprocess", "files")
"""What a manifest may say about a plugin's own doings, in the order in which it is shown."""


class PackageFiles(Protocol):
    """The files of a package by their path in it: a wheel, an installed package, a project's folder."""

    def names(self) -> Iterable[str]: ...

    def read(self, name: str) -> bytes | None:
        """Return a file, ``None`` when there is none."""
        ...


@dataclass(frozen=True)
class Card:
    """One plugin of a package.

    :param manifest: whether there is a ``plugin.toml``; without one nothing else here is known.
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
        """What a person agrees to, as it is kept in the lock."""
        lists = {"hooks": list(self.hooks), "tools": list(self.tools), "services": list(self.services)}
        return {"manifest": self.manifest, **lists, "capabilities": dict(self.capabilities)}


@dataclass(frozen=True)
class PluginPackage:
    """A distribution, its plugins, and what it wants besides."""

    name: str
    version: str
    cards: tuple[Card, ...] = ()
    requires: tuple[str, ...] = ()
    digest: str = ""
    start_files: tuple[str, ...] = ()
    """``.pth`` files: Python runs them at every start."""


def package_of(
    name: str, version: str, requires: Iterable[str], entry_points: str, tree: PackageFiles, **more: Any
) -> PluginPackage:
    """Return a package from its metadata and its files."""
    plugins, manifests = _groups(entry_points)
    cards = tuple(_card(plugin, target, version, manifests.get(plugin, ""), tree) for plugin, target in plugins.items())
    return PluginPackage(name, version, cards, tuple(requires), **more)


def plugin_names(entry_points: str) -> tuple[str, ...]:
    """Return the names of a package's plugins; no file is read for them."""
    return tuple(_groups(entry_points)[0])


def metadata_of(text: str) -> tuple[str, str, tuple[str, ...]]:
    """Return name, version and requirements from a ``METADATA`` file."""
    said = email.message_from_string(text)
    return said.get("Name", ""), said.get("Version", ""), tuple(said.get_all("Requires-Dist") or ())


class _EntryPoints(configparser.ConfigParser):
    """``entry_points.txt``: like an INI file whose names keep their case."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def _groups(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the entry points of plugins and of manifests."""
    parser = _EntryPoints(delimiters=("=",), interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}, {}
    found = [dict(parser.items(group)) if parser.has_section(group) else {} for group in (PLUGINS, MANIFESTS)]
    return found[0], found[1]


def _card(plugin: str, target: str, version: str, manifest: str, tree: PackageFiles) -> Card:
    place, _, leaf = manifest.partition(":")
    data = tree.read("/".join([*place.split("."), leaf or "plugin.toml"])) if manifest else None
    if data is None:
        missing = f"its metadata names a manifest that is not there: {manifest}" if manifest else ""
        return Card(plugin, target, version, problem=missing)
    return card_of(plugin, target, version, data)


def card_of(plugin: str, target: str, version: str, data: bytes) -> Card:
    """Return what the manifest `data` says; what cannot be understood is named, not raised."""
    try:
        said = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: endless digits, endless nesting
        return Card(plugin, target, version, manifest=True, problem=f"its manifest is not valid TOML: {error}")
    services = said.get("services", ())
    if isinstance(services, Mapping):
        services = [name for name, wanted in services.items() if wanted]
    capabilities = said.get("capabilities")
    return Card(
        name=plugin,
        target=target,
        version=str(said.get("version", version)),
        manifest=True,
        hooks=_names(said.get("hooks")),
        tools=_names(said.get("tools")),
        services=_names(services),
        capabilities=dict(capabilities) if isinstance(capabilities, Mapping) else {},
        problem=_problem(plugin, said, _names(services)),
    )


def _names(value: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(item) for item in value)) if isinstance(value, list | tuple) else ()


def _problem(plugin: str, said: Mapping[str, Any], services: tuple[str, ...]) -> str:
    """Say what will keep this plugin from loading."""
    if said.get("api", API) != API:
        return f"it was written for api = {said['api']!r} of the SDK; this host speaks api = {API}"
    if said.get("name", plugin) != plugin:
        return f"its manifest says name = {said['name']!r}"
    if not isinstance(said.get("hooks", []), list):
        return f"its manifest has no list of names for hooks: {said['hooks']!r}"[:200]
    unknown = [name for name in services if name not in SERVICES]
    return f"it wants a service that this host does not have: {', '.join(unknown)}" if unknown else ""


_CAPABILITY_WORDS = {"network": "uses the network", "subprocess": "starts programs", "files": "touches files itself"}


@dataclass(frozen=True)
class ConsentDiff:
    """What differs between what was agreed to and what would be installed.

    :param lines: for people, one difference each.
    :param grew: whether it asks for a hook, a service or a capability that was not agreed to.
    """

    lines: tuple[str, ...]
    grew: bool


def screen(package: PluginPackage, *, origin: str, also: Sequence[tuple[str, str]] = (), editable: bool = False) -> str:
    """Return the consent screen: everything a person needs to say yes or no."""
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
    lines.append("  Nothing of this is enforced: a plugin is Python code that runs with your rights.")
    return "\n".join(lines)


def card_lines(card: Card) -> list[str]:
    """Return what one plugin says of itself, a line for each kind of thing."""
    lines = [f"plugin {card.name} {card.version}".rstrip()]
    if card.problem:
        lines.append(f"  PROBLEM: {card.problem}")
    if not card.manifest:
        lines.append("  It has no plugin.toml, so what it does is not known before it runs: it may use any hook and service.")
        return lines
    rows = (("hooks", card.hooks), ("tools", card.tools), ("services", card.services))
    lines += [f"  {label}: {', '.join(names) or 'none'}" for label, names in rows]
    said = [words for name, value in _capabilities(card.capabilities) if (words := _capability(name, value))]
    lines.append(f"  says that it {'; '.join(said)} (declared, not enforced)" if said else "  declares no capabilities")
    return lines


def _capabilities(said: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    known = [(name, said[name]) for name in CAPABILITIES if name in said]
    return [*known, *((name, value) for name, value in said.items() if name not in CAPABILITIES)]


def _capability(name: str, value: Any) -> str:
    if not value or value == "none":
        return ""
    words = _CAPABILITY_WORDS.get(name, name)
    return words if value is True else f"{words} ({value})"


def consent_diff(before: Mapping[str, Mapping[str, Any]], after: Iterable[Card]) -> ConsentDiff:
    """Compare what was agreed to with the cards of another version."""
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
