"""What a person is shown: the card of a plugin, and what a new version asks for beyond the old one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .distributions import installed_packages, normal
from .lock import Locked
from .manifest_summary import CAPABILITIES, Card, Package

_CAPABILITY_WORDS = {"network": "uses the network", "subprocess": "starts programs", "files": "touches files itself"}


@dataclass(frozen=True)
class Change:
    """What differs between what was agreed to and what would be installed.

    :param lines: for people, one difference each.
    :param grew: whether it asks for a hook, a service or a capability that was not agreed to.
    """

    lines: tuple[str, ...]
    grew: bool


def screen(package: Package, *, origin: str, also: Sequence[tuple[str, str]] = (), editable: bool = False) -> str:
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


def changed(before: Mapping[str, Mapping[str, Any]], after: Iterable[Card]) -> Change:
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
        found, more = _compared(old, new)
        lines += [f"{name}: {line}" for line in found]
        grew = grew or more
    return Change(tuple(lines), grew)


def _compared(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[list[str], bool]:
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
            lines.append(f"capabilities: {name} {_said(was.get(name))} -> {_said(now.get(name))}")
            grew = grew or now.get(name) not in (None, False, "none", "")
    return lines, grew


def _said(value: Any) -> str:
    words = {True: "yes", False: "no", None: "not declared"}
    return words[value] if isinstance(value, bool | None) else repr(value)


class Older(NamedTuple):
    """Something that would be older than it is."""

    name: str
    now: str
    then: str

    def __str__(self) -> str:
        return f"DOWNGRADE: {self.name} {self.now} -> {self.then}, which is older"


def older(items: Iterable[tuple[str, str]], known: Mapping[str, Locked]) -> list[Older]:
    """Return which of `items`, by name and version, are older than what is installed, or else than what was agreed to.

    Versions that follow no order are not compared.
    """
    there = installed_packages()
    found: list[Older] = []
    for name, version in items:
        item, entry = there.get(normal(name)), known.get(normal(name))
        now = item.package().version if item is not None else entry.version if entry is not None else ""
        if now and version and _is_older(version, now):
            found.append(Older(name, now, version))
    return found


def _is_older(one: str, other: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(one) < Version(other)
    except InvalidVersion:
        return False


__all__ = ["Change", "Older", "card_lines", "changed", "older", "screen"]
