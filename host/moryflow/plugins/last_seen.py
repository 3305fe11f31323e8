"""What became of each plugin when it was last loaded: kept by every host, read by commands that load none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from moryflow.base.paths import keep
from moryflow.hooks.plugin_set import LoadRecord, PluginSet

FILE = "plugins.json"
_KEEP = 1000
"""Plugins that are remembered at most; the oldest are forgotten."""


class Known(NamedTuple):
    """A remembered load.

    :param tokens: what its tools cost in every request, by name: a quarter of the characters of schema and description.
    :param at: when it was loaded.
    :param stamp: change time and size of its main file then.
    :param settings: those of the configuration, of a plugin that failed because of it.
    """

    record: LoadRecord
    tokens: Mapping[str, int]
    at: str
    stamp: tuple[int, int] | None
    settings: tuple[int, int] | None = None

    def changed(self, home: Path) -> bool:
        """Whether its main file, or the configuration it failed for, is another one by now."""
        return self.stamp != _stamp(self.record.file) or self.settings != _settings(self.record, home)


def remember(plugin_set: PluginSet) -> None:
    """Keep what became of the plugins of a set; writes only when something differs from last time."""
    told = [record for record in plugin_set.records if record.status in ("loaded", "failed")]
    stamps = {record.file: _stamp(record.file) for record in told}
    key = hashlib.sha256(repr([(*_plain(record), stamps[record.file]) for record in told]).encode()).hexdigest()
    file = plugin_set.home / "cache" / FILE
    if _first_line(file) == key:
        return
    now = _now()
    known = _read(file)
    for record in told:
        more = {"tokens": _tokens(plugin_set, record), "at": now, "stamp": stamps[record.file]}
        entry = {**record._asdict(), **more, "settings": _settings(record, plugin_set.home)}
        known.pop(_key(record), None)
        known[_key(record)] = entry
    _write(file, key, dict(list(known.items())[-_KEEP:]))


def recall(home: Path) -> dict[str, Known]:
    """Return what is remembered, by :func:`key_of`."""
    found: dict[str, Known] = {}
    for key, entry in _read(home / "cache" / FILE).items():
        try:
            tokens, at, stamp, settings = (entry.pop(name) for name in ("tokens", "at", "stamp", "settings"))
            values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
            record = LoadRecord(**values)
            found[key] = Known(record, tokens, at, _pair(stamp), _pair(settings))
        except (TypeError, KeyError, AttributeError):
            continue
    return found


def forget(home: Path, name: str) -> None:
    """Forget every load of a plugin that a person removed."""
    file = home / "cache" / FILE
    _write(file, "", {key: entry for key, entry in _read(file).items() if entry.get("name") != name})


def key_of(tier: str, name: str, source: str) -> str:
    """Return the key of a plugin; a built-in one may have another name than the one it was found under."""
    return f"{tier} {source}" if tier == "builtin" else f"{tier} {name} {source}"


def _key(record: LoadRecord) -> str:
    return key_of(record.tier, record.name, record.source)


def _plain(record: LoadRecord) -> tuple[Any, ...]:
    return (record.name, record.tier, record.source, record.status, record.error, record.line, record.hash, record.tools)


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        status = Path(file).stat() if file else None
    except OSError:
        status = None
    return (status.st_mtime_ns, status.st_size) if status else None


def _settings(record: LoadRecord, home: Path) -> tuple[int, int] | None:
    return _stamp(str(home / "config.jsonc")) if record.stage == "config" else None


def _pair(value: Any) -> tuple[int, int] | None:
    return (int(value[0]), int(value[1])) if value else None


def _tokens(plugin_set: PluginSet, record: LoadRecord) -> dict[str, int]:
    """Return what the tools of a third-party plugin cost; the schemas of built-in ones are not made for this."""
    if record.tier == "builtin":
        return {}
    tools = (plugin_set.tools[name].tool for name in record.tools if name in plugin_set.tools)
    return {tool.name: tokens_of(tool) for tool in tools}


def tokens_of(tool: Any) -> int:
    """Return about how many tokens a tool costs in every request."""
    return (len(json.dumps(tool.parameters, default=str)) + len(tool.description)) // 4


def _now() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


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
    except (OSError, ValueError):
        return {}


def _write(file: Path, key: str, known: Mapping[str, Any]) -> None:
    keep(file, f"{key}\n{json.dumps(known)}")


__all__ = ["Known", "forget", "key_of", "recall", "remember", "tokens_of"]
