"""What a home remembers about plugins: their last load, and which of them have a gate."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from moryflow.base.events import now
from moryflow.base.paths import keep
from moryflow.hooks.plugin_set import LoadRecord, PluginSet

from .sources import MAX_SOURCE

FILE = "plugins.json"
# How many plugins are remembered; beyond that the oldest are forgotten.
_KEEP = 1000
# The fields of a load record that make it differ from the last time.
_COMPARED = attrgetter("name", "tier", "source", "status", "error", "line", "hash", "tools", "agents")


class LastLoad(NamedTuple):
    """The last load of a plugin.

    :param at: when the plugin was loaded.
    :param stamp: change time and size of the record's file at that time.
    """

    record: LoadRecord
    at: str
    stamp: tuple[int, int] | None

    @property
    def changed(self) -> bool:
        """Whether the file that its record names has changed since: its main file, or the configuration it failed for."""
        return self.stamp != _stamp(self.record.file)


def remember(plugin_set: PluginSet) -> None:
    """Store how each plugin of a set was loaded. Writes only if something differs from the last time."""
    records = [record for record in plugin_set.records if record.status in ("loaded", "failed")]
    stamps = {record.file: _stamp(record.file) for record in records}
    key = hashlib.sha256(repr([(*_COMPARED(record), stamps[record.file]) for record in records]).encode()).hexdigest()
    file = plugin_set.home / "cache" / FILE
    if _first_line(file) == key:
        return
    at = f"{now()[:19]}Z"
    known = _read(file)
    for record in records:
        more = {"at": at, "stamp": stamps[record.file]}
        known.pop(_key(record), None)
        known[_key(record)] = {**record._asdict(), **more}
    _write(file, key, dict(list(known.items())[-_KEEP:]))


def recall(home: Path) -> dict[str, LastLoad]:
    """Return the last load of each plugin, by :func:`key_of`."""
    found: dict[str, LastLoad] = {}
    for key, entry in _read(home / "cache" / FILE).items():
        try:
            at, stamp = entry.pop("at"), entry.pop("stamp")
            values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
            record = LoadRecord(**values)
            found[key] = LastLoad(record, at, (int(stamp[0]), int(stamp[1])) if stamp else None)
        except (TypeError, KeyError, AttributeError):
            continue
    return found


def forget(home: Path, name: str) -> None:
    """Forget the loads of a plugin that the user removed."""
    file = home / "cache" / FILE
    _write(file, "", {key: entry for key, entry in _read(file).items() if entry.get("name") != name})


def key_of(tier: str, name: str, source: str) -> str:
    """Return the key of a plugin. For a built-in it has no name, because a built-in may rename itself when it is loaded."""
    return f"{tier} {source}" if tier == "builtin" else f"{tier} {name} {source}"


def _key(record: LoadRecord) -> str:
    return key_of(record.tier, record.name, record.source)


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        status = Path(file).stat() if file else None
    except OSError:
        status = None
    return (status.st_mtime_ns, status.st_size) if status else None


def _first_line(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as stream:
            return stream.readline().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _read(file: Path) -> dict[str, dict[str, Any]]:
    try:
        content = json.loads(file.read_text("utf-8").partition("\n")[2])
        return content if isinstance(content, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


def _write(file: Path, key: str, known: Mapping[str, Any]) -> None:
    keep(file, f"{key}\n{json.dumps(known)}")


_GATE = rb"""(?mx)^\s*(async\s+)?def\s+tool_gate\b       # a gate in the source
    | ^gate\s*(:\s*bool\s*)?=\s*[Tt]rue\b     # declared, in the source or in plugin.toml
    | ["']tool_gate["']                       # hooks = ["tool_gate"], or specname="tool_gate"
    """


class GateMemory:
    """Remembers the plugins that have a gate, by tier, and installed ones also by environment: environments may share a home.

    A plugin that is not found any more is still remembered: deleting the file of a gate must not go unnoticed. It is
    forgotten once the user disables or uninstalls it by name.
    """

    def __init__(self, home: Path) -> None:
        self._file = home / "cache" / "gates.json"
        try:
            entries = json.loads(self._file.read_bytes())
            self._known = {(str(tier), str(place), str(name)) for tier, place, name in entries}
        except (OSError, ValueError, TypeError, RecursionError):
            self._known: set[tuple[str, str, str]] = set()
        self._saved = frozenset(self._known)

    def knows(self, tier: str, name: str) -> bool:
        """Whether plugin `name` had a gate when it was last loaded."""
        return _gate_key(tier, name) in self._known

    def names(self) -> list[tuple[str, str]]:
        """Return (tier, name) of every third-party plugin that is remembered for this environment."""
        here = {_gate_key(tier, "")[:2] for tier in ("installed", "user")}
        return sorted((entry[0], entry[2]) for entry in self._known if entry[:2] in here)

    def note(self, tier: str, name: str, gates: bool) -> None:
        """Remember or forget a plugin that was loaded, depending on whether it has a gate."""
        (self._known.add if gates else self._known.discard)(_gate_key(tier, name))

    def forget(self, name: str) -> None:
        """Forget plugin `name` in every tier, because the user disabled or removed it."""
        self._known = {entry for entry in self._known if entry[2] != name}

    def save(self) -> None:
        """Write the names if they have changed. A home that cannot be written keeps the old file."""
        if frozenset(self._known) == self._saved:
            return
        if keep(self._file, json.dumps(sorted(self._known))):
            self._saved = frozenset(self._known)


def _gate_key(tier: str, name: str) -> tuple[str, str, str]:
    return (tier, sys.prefix if tier == "installed" else "", name)


def looks_like_gate(*files: str) -> bool:
    """Whether one of `files`, manifests and sources of a plugin that is not loaded, seems to define or declare a gate."""
    for file in filter(None, files):
        path = Path(file)
        for each in sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]:
            try:
                if each.is_file() and re.search(_GATE, _beginning(each)):
                    return True
            except OSError:
                continue
    return False


def _beginning(file: Path) -> bytes:
    with file.open("rb") as source:
        return source.read(MAX_SOURCE)
