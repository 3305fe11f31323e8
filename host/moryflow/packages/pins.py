"""The host's constraints: no plugin may change the versions of its dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from moryflow.plugins.entry_points import normal

from . import InstallError
from .distributions import Distribution, installed_packages
from .lock import Locked
from .manifest_summary import PluginPackage, metadata_of

HOST = "moryflow"
BAD_RELEASES: Mapping[str, tuple[str, ...]] = {"litellm": ("1.82.7", "1.82.8")}
"""Releases that are never installed: these two were malicious."""


def host_pins(installed: Mapping[str, Distribution] | None = None) -> dict[str, str]:
    """Return name and version of the host and of all it needs, as they are installed now.

    What an extra would add is pinned too when it is there: the host uses what it finds.
    """
    from packaging.requirements import Requirement

    known = installed_packages() if installed is None else installed
    pins: dict[str, str] = {}
    waiting: list[tuple[str, frozenset[str]]] = [(HOST, frozenset({"re2", "search", "sandbox"}))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = item = waiting.pop()
        if item in seen or name not in known:
            continue
        seen.add(item)
        _, version, requires = metadata_of(_metadata(known[name]))
        if version:
            pins[name] = version
        for text in requires:
            wanted = Requirement(text)
            if _applies(wanted, extras):
                waiting.append((normal(wanted.name), frozenset(wanted.extras)))
    return pins


def constraints(pins: Mapping[str, str]) -> str:
    """Return a constraints file that holds the host's packages and keeps bad releases out."""
    lines = [f"{name}=={version}" for name, version in sorted(pins.items())]
    lines += [f"{name}!={version}" for name, versions in BAD_RELEASES.items() for version in versions]
    return "\n".join(lines) + "\n"


def refuse_conflicts(package: PluginPackage, pins: Mapping[str, str]) -> None:
    """Refuse a package that wants another version of something the host runs on.

    :raises InstallError: naming who wants what, and what is here.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    for text in package.requires:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue
        here = pins.get(normal(wanted.name))
        if here is None or not _applies(wanted, frozenset()) or wanted.specifier.contains(here, prereleases=True):
            continue
        who = f"{package.name} {package.version}".rstrip()
        needs = f"{wanted.name}{wanted.specifier}"
        raise InstallError(
            f"{who} wants {needs}, but Moryflow runs on {wanted.name} {here}, which a plugin may not change",
            next_step=f"ask for a version of {package.name} that works with {wanted.name} {here}",
        )


def refuse_breaking(items: Iterable[tuple[str, str]], installed: Mapping[str, Distribution] | None = None) -> None:
    """Refuse a plan that takes from a plugin that is there something that it, or what it uses, needs.

    An installer looks at what it installs and not at what is there, which it would leave broken.

    :param items: name and version of all that would be installed.
    :raises InstallError: naming who needs what.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    known = installed_packages() if installed is None else installed
    coming = {normal(name): version for name, version in items}
    waiting = [(name, name) for name, item in known.items() if item.package().cards and name not in coming]
    seen: set[str] = set()
    while waiting:
        plugin, name = waiting.pop()
        if name in seen or name not in known or name in coming:
            continue
        seen.add(name)
        own, version, requires = metadata_of(_metadata(known[name]))
        for text in requires:
            try:
                wanted = Requirement(text)
            except InvalidRequirement:
                continue
            if not _applies(wanted, frozenset()):
                continue
            needed = normal(wanted.name)
            there = metadata_of(_metadata(known[needed]))[1] if needed in known else ""
            fits = there and wanted.specifier.contains(there, prereleases=True)  # what is broken already is not kept whole
            if fits and needed in coming and not wanted.specifier.contains(coming[needed], prereleases=True):
                who = f"{own} {version}" if name == plugin else f"{own} {version} (of the plugin {plugin})"
                raise InstallError(
                    f"{who} needs {wanted.name}{wanted.specifier}, but {wanted.name} {coming[needed]} would be installed "
                    f"in place of {there}",
                    next_step=f"ask for a version that works with {wanted.name} {there}, or moryflow plugin uninstall {plugin}",
                )
            waiting.append((plugin, needed))


def bad_release(name: str, version: str) -> bool:
    """Whether this release is known to be malicious."""
    return version in BAD_RELEASES.get(normal(name), ())


def refuse_bad(items: Iterable[tuple[str, str]]) -> None:
    """Refuse a plan that holds a release known to be malicious.

    :raises InstallError: naming it.
    """
    for name, version in items:
        if bad_release(name, version):
            raise InstallError(f"{name} {version} is known to be malicious and is not installed")


def _applies(wanted: object, extras: frozenset[str]) -> bool:
    marker = getattr(wanted, "marker", None)
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def _metadata(item: Distribution) -> str:
    try:
        return (item.info / "METADATA").read_text("utf-8", "replace")
    except OSError:
        return ""


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
