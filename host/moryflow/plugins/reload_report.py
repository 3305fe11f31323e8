"""Describe what a reload changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from moryflow_sdk import HOOKS
from moryflow_sdk.support.own_files import exists

from moryflow.config import Config, Problem
from moryflow.hooks.plugin_set import LoadRecord, PluginSet

from .manifest import settings_of_plugins

# Settings that apply from the next turn on; all others are read when a host starts.
_LIVE = (
    "agents.runtime", "plugins", "model", "models", "limits", "disabledPlugins", "onlyPlugins", "safeMode", "mcp", "$schema",
)  # fmt: skip


@dataclass(frozen=True)
class PluginChange:
    """One change: its kind (``tool``, ``hook``, ``plugin``, ``agent``, ``command``, ``setting``…), a name, and what changed."""

    kind: str
    name: str
    change: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.change}"


@dataclass(frozen=True)
class ReloadReport:
    """The content of the event ``reload``.

    :param kept: files that have an error now, so that their previous version stays in use: file → error.
    :param waiting: files with tools that appeared and wait for the user's consent.
    :param next: the command to type for each file in `kept` and `waiting`.
    :param ms: milliseconds from the first sign of a change until the new generation was in use.
    """

    changed: tuple[PluginChange, ...]
    order_changed: bool
    plugin_set: str
    ms: float
    kept: Mapping[str, str] = field(default_factory=dict[str, str])
    waiting: tuple[str, ...] = ()
    next: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def says_something(self) -> bool:
        return bool(self.changed or self.order_changed or self.kept or self.waiting)

    def as_event(self) -> dict[str, Any]:
        return {
            "changed": [asdict(change) for change in self.changed],
            "order_changed": self.order_changed,
            "plugin_set": self.plugin_set,
            "ms": round(self.ms, 1),
            "kept": [{"file": file, "error": error, "next": self.next[file]} for file, error in self.kept.items()],
            "waiting": [{"file": file, "next": self.next[file]} for file in self.waiting],
        }

    @classmethod
    def of_event(cls, data: Mapping[str, Any]) -> ReloadReport:
        """Return the report from the fields of an event that :meth:`as_event` returned, perhaps in another process."""
        files = (*data["kept"], *data["waiting"])
        return cls(
            changed=tuple(PluginChange(**change) for change in data["changed"]),
            kept={one["file"]: one["error"] for one in data["kept"]},
            waiting=tuple(one["file"] for one in data["waiting"]),
            next={one["file"]: one["next"] for one in files},
            **{name: data[name] for name in ("order_changed", "plugin_set", "ms")},
        )

    def lines(self, *, brief: bool = False) -> list[str]:
        """Return the lines that the user reads: one for all changes, and one for each file that could not be taken.

        :param brief: in a conversation: without the time, and without the rules, which the user's own answers store.
        """
        own = "agents.runtime.permission.rules"
        changes = [str(change) for change in self.changed if not (brief and change.name.startswith(own))]
        changes += ["the order of hooks has changed"] if self.order_changed else []
        took = "" if brief else f" in {self.ms:.0f} ms"
        first = f"reloaded{took}: {' · '.join(changes)}" if changes else ""
        kept = [f"kept the previous version: {error}; {self.next[file]}" for file, error in self.kept.items()]
        new = [file for file in self.waiting if file not in self.kept]  # of the others the line before says the same
        waits = [f"{file} waits: it appeared while Moryflow ran; {self.next[file]}" for file in new]
        return [line for line in (first, *kept, *waits) if line]


def compare(
    before: PluginSet, after: PluginSet, settings: tuple[Config, Config], ms: float, waiting: Mapping[str, str] | None = None
) -> ReloadReport:
    """Return what differs between two generations.

    :param settings: the configurations before and after.
    :param waiting: files with tools that appeared: file → the command that consents to it.
    """
    changed = [*_plugins(before, after), *_names(before, after), *_hooks(before, after)]
    changed += _settings(settings[0].section(""), settings[1].section(""), "")
    if before.id != after.id or settings[0].section("") != settings[1].section(""):
        checked = [config.checked(settings_of_plugins(each)) for config, each in zip(settings, (before, after), strict=True)]
        changed += _problems(*checked)
    else:
        changed += _problems(*settings)
    waiting = waiting or {}
    changed += _remarks(before, after, waiting)
    changed = changed or list(_fixed(before, after, settings))
    kept = {file: error for file, error in after.kept.items() if before.kept.get(file) != error}
    torn = settings[1].torn
    if torn is not None and torn != settings[0].torn:
        kept[torn.file] = str(torn)
    look = {record.file: f"moryflow plugin check {record.name}" for record in after.records if record.kept}
    look |= {file: _check_command(file, torn) for file in kept if file not in look}
    return ReloadReport(tuple(changed), _order_changed(before, after), after.id, ms, kept, tuple(waiting), {**look, **waiting})


def _fixed(before: PluginSet, after: PluginSet, settings: tuple[Config, Config]) -> Iterator[PluginChange]:
    """Yield the files whose previous version was in use and that are in use themselves now; a plugin says so itself."""
    torn = [config.torn.file if config.torn else "" for config in settings]
    of_plugins = {record.file for record in before.records if record.kept}
    files = [file for file in before.kept if file not in after.kept and file not in of_plugins]
    files += [torn[0]] if torn[0] and not torn[1] else []
    yield from (PluginChange("file", file, "fixed") for file in files if exists(Path(file)))


def _remarks(before: PluginSet, after: PluginSet, waiting: Mapping[str, str]) -> Iterator[PluginChange]:
    old = {_without_line(note) for record in before.records for note in record.notes}
    for note in (note for record in after.records if record.tier == "builtin" for note in record.notes):
        text = note.partition("; next: ")[0]
        place, _, error = text.partition(": ")
        if _without_line(note) not in old and place not in waiting and text not in after.kept.values():
            yield PluginChange("file", place, error)


# Folder of the home → the command that checks its files.
CHECKS = {"agents": "moryflow agent check", "tools": "moryflow tool check", "commands": "moryflow doctor"}


def _without_line(note: str) -> str:
    """Return a remark without line and column, which move when something above is edited."""
    return re.sub(r"(:\d+)+: ", ": ", note, count=1)


def _check_command(file: str, torn: Problem | None) -> str:
    if torn is not None and file == torn.file:
        return "moryflow config check"
    folder = next((name for name in (Path(file).name, Path(file).parent.name) if name in CHECKS), "tools")
    return CHECKS[folder]


def _plugins(before: PluginSet, after: PluginSet) -> Iterator[PluginChange]:
    old = {(record.tier, record.name): record for record in before.records}
    new = {(record.tier, record.name): record for record in after.records}
    for key in old.keys() - new.keys():
        yield PluginChange("plugin", key[1], "removed")
    for key, record in new.items():
        words = _plugin(old.get(key), record, before, after)
        if words and record.tier != "builtin":
            yield PluginChange("plugin", record.name, words)


def _plugin(old: LoadRecord | None, new: LoadRecord, before: PluginSet, after: PluginSet) -> str:
    place = f"{new.place}: " if new.place else ""
    if new.status == "pending" and (old is None or old.status != "pending"):
        return f"waits ({place}{new.error}; {new.hint})"
    if new.status == "failed" and (old is None or (old.status, old.error) != ("failed", new.error)):
        return f"failed: {place}{new.error}{f'; {new.hint}' if new.hint else ''}"
    if new.status == "skipped" and old is not None and old.status != "skipped":
        return new.reason
    if new.status != "loaded" or new.kept:
        return ""
    problem = f"has a problem: {place}{new.error.removeprefix(place)}" if new.error else ""
    if old is None or old.status != "loaded":
        return f"loaded; it {problem}" if problem else "loaded"
    if problem and new.error != old.error:
        return problem
    if old.kept:
        return "fixed"
    if old.version != new.version:
        return f"version {old.version} → {new.version}"
    if old.hash != new.hash:
        return "code"
    known, now = before.plugins.get(new.name), after.plugins.get(new.name)
    return "settings" if known is not None and now is not None and known.config != now.config else ""


def _hooks(before: PluginSet, after: PluginSet) -> Iterator[PluginChange]:
    for info in HOOKS.values():
        old, new = ({item.plugin for item in each.ordered(info.name)} for each in (before, after))
        for plugin in sorted((old ^ new) & before.plugins.keys() & after.plugins.keys()):
            yield PluginChange("hook", info.dotted, f"removed from {plugin}" if plugin in old else f"added by {plugin}")


def _names(before: PluginSet, after: PluginSet) -> Iterator[PluginChange]:
    tools = [{name: owned.tool for name, owned in each.tools.items()} for each in (before, after)]
    models = [dict.fromkeys(sorted(provider.name for provider in each.providers)) for each in (before, after)]
    kinds = (("tool", *tools), ("agent", before.agents, after.agents), ("command", before.commands, after.commands))
    for kind, old, new in (*kinds, ("models", *models)):
        yield from (PluginChange(kind, name, "removed") for name in old if name not in new)
        for name, item in new.items():
            fields = "added" if name not in old else ", ".join(_changed(old[name], item))
            yield from (PluginChange(kind, name, fields),) if fields else ()


def _changed(old: Any, new: Any) -> Iterator[str]:
    for name in getattr(type(new), "model_fields", ("domain", "parameters", "description", "help")):
        if getattr(old, name, None) != getattr(new, name, None):
            yield name
    if getattr(old, "source", True) and getattr(old, "revision", None) != getattr(new, "revision", None):
        yield "code" if hasattr(new, "parameters") else "text"


def _settings(old: Any, new: Any, path: str) -> Iterator[PluginChange]:
    """Yield the paths of settings that differ, without their values, which may be secret."""
    if old == new:
        return
    if all(value is None or isinstance(value, Mapping) for value in (old, new)):
        old, new = old or {}, new or {}
        for key in dict.fromkeys((*old, *new)):
            yield from _settings(old.get(key), new.get(key), f"{path}.{key}".removeprefix("."))
        return
    live = any(path == name or path.startswith(f"{name}.") for name in _LIVE)
    words = "set" if old is None else "unset" if new is None else "changed"
    yield PluginChange("setting", path, words if live else f"{words} (takes a restart)")


def _problems(old: Config, new: Config) -> Iterator[PluginChange]:
    known = {(problem.file, problem.message) for problem in old.problems}
    for problem in new.problems:
        if problem != new.torn and (problem.file, problem.message) not in known:
            yield PluginChange(
                "file", problem.where, f"{problem.message} ({problem.hint})" if problem.hint else problem.message
            )


def _order_changed(before: PluginSet, after: PluginSet) -> bool:
    """Whether two implementations that are in both generations are called in another order now."""
    for hook in HOOKS:
        old = [item.plugin for item in before.ordered(hook)]
        new = [item.plugin for item in after.ordered(hook)]
        if [name for name in old if name in new] != [name for name in new if name in old]:
            return True
    return False
