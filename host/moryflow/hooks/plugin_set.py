"""The plugins of one generation, and a record of their calls: load records, implementations, the immutable set; the ledger of
hook calls, and who is skipped because it failed too often.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from moryflow_sdk import HOOKS, Agent, Command, Event, Frozen, HookOptions, ModelProvider, PluginError, Tool
from moryflow_sdk.events import OTHER_NAMES
from moryflow_sdk.support.secrets import hidden

from moryflow.base.foreign_errors import place_of

if TYPE_CHECKING:
    from moryflow.store import HookCallRow

    from .threads import PluginThreads


Tier = Literal["builtin", "installed", "user"]
TIERS: tuple[Tier, ...] = ("builtin", "installed", "user")
Stage = Literal["discover", "consent", "probe", "manifest", "import", "register", "config", "start", "contribute"]
Status = Literal["loaded", "pending", "failed", "skipped"]
_numbers = itertools.count(1)
DELTA_LIMIT = 65536
"""Characters of JSON that either side of one change may take in the store."""


class LoadRecord(NamedTuple):
    """What became of one plugin that was found; every surface shows it.

    :param error: why it failed; of a loaded plugin, what it had to leave out.
    :param reason: why it was skipped.
    :param notes: of a loaded plugin, each item that it had to leave out, with its file.
    :param failed_hooks: of a loaded plugin, the contribute hooks that raised, took too long or returned nonsense.
    :param kept: what lies there now cannot be used, so the version before goes on.
    """

    name: str
    version: str
    tier: Tier
    status: Status
    source: str
    stage: str = ""
    error: str = ""
    file: str = ""
    line: int = 0
    hint: str = ""
    reason: str = ""
    import_ms: float = 0.0
    hash: str = ""
    hooks: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    services: tuple[str, ...] = ()
    gate: bool = False
    kept: bool = False
    notes: tuple[str, ...] = ()
    failed_hooks: tuple[str, ...] = ()


class LoadFailure(PluginError):
    """A plugin cannot be loaded; becomes its load record."""

    def __init__(self, stage: Stage, message: str, *, file: str = "", line: int = 0, hint: str = "") -> None:
        super().__init__(message, where=f"{file}:{line}" if line else file, next_step=hint)
        self.stage: Stage = stage
        self.file = file
        self.line = line
        self.hint = hint


class Pending(LoadFailure):
    """A plugin is not loaded yet: it waits for a person, or for the probe."""


@dataclass(frozen=True, eq=False)
class Implementation:
    """One function of one plugin for one hook.

    :param arguments: the arguments it takes, in its own order.
    :param timeout: seconds it may take.
    :param position: its place among all implementations of the hook, from 0.
    :param inline: called directly on the loop: a plain, non-blocking function of a built-in.
    """

    plugin: str
    tier: Tier
    hook: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    options: HookOptions
    is_async: bool
    timeout: float
    life: PluginThreads = field(repr=False)
    position: int = 0
    plugin_hash: str = ""
    inline: bool = False

    @cached_property
    def who(self) -> tuple[str, str, str, int]:
        """How the ledger names it: hook, plugin, the plugin's hash, place."""
        return (self.hook, self.plugin, self.plugin_hash, self.position)

    @property
    def withholds(self) -> bool:
        """Whether its failing must keep the value from everyone (a redactor)."""
        return self.options.on_failure == "withhold"

    @property
    def place(self) -> tuple[str, int]:
        """File and line of its code, as far as they are known."""
        return place_of(self.function)


@dataclass(frozen=True, eq=False)
class Plugin:
    """A loaded plugin.

    :param object: the module or object that was registered.
    :param config: its validated settings.
    :param file: where its code begins; empty when it has no file.
    :param life: its thread, its disposer and whether it is broken; shared by the generations that use it.
    """

    name: str
    version: str
    tier: Tier
    hash: str
    object: Any = field(repr=False)
    config: Any = field(repr=False)
    life: PluginThreads = field(repr=False)
    file: str = ""
    services: tuple[str, ...] = ()
    gate: bool = False


class RegisteredTool(NamedTuple):
    """A tool and the plugin it goes with."""

    tool: Tool
    plugin: str
    tier: Tier
    life: PluginThreads

    @property
    def foreign(self) -> bool:
        """Whether its code did not come with the host: a plugin's, or a file of the person's."""
        return self.tier != "builtin" or bool(self.tool.source)


class HookFailure(NamedTuple):
    """A hook call that failed, and what was done about it.

    :param outcome: ``failed``, ``timeout``, ``withheld`` or ``blocked`` (it kept the loop from running).
    :param action: what the host did: ``skipped``, ``denied``, ``withheld`` or ``ignored``.
    """

    plugin: str
    tier: str
    hook: str
    outcome: str
    error: str
    file: str = ""
    line: int = 0
    hint: str = ""
    action: str = "skipped"
    quarantined: bool = False
    count: int = 1  # pyright: ignore[reportIncompatibleMethodOverride]  # the method of tuples, which nobody calls

    def as_event(self) -> dict[str, Any]:
        """Return the fields of ``plugin.failed`` or ``plugin.quarantined``."""
        if self.quarantined:
            return {"plugin": self.plugin, "hook": self.hook, "reason": self.error, "count": self.count}
        place = {"file": self.file, "line": self.line, "hint": self.hint}
        known = {"plugin": self.plugin, "tier": self.tier, "stage": "hook", "hook": self.hook, "error": self.error}
        return {**known, **{key: value for key, value in place.items() if value}, "action": self.action}


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, eq=False)
class PluginSet:
    """All plugins of one generation; never changes once it was started.

    :param id: hash of names, versions, sources and order; every turn records it.
    :param number: tells apart generations of this process, also those with equal content.
    :param missing_gates: plugins known to gate that are not loaded; each puts a floor of ask under every call.
    :param kept: files that are wrong now, so that what they gave before goes on: file → what is wrong.
    """

    id: str
    records: tuple[LoadRecord, ...] = ()
    plugins: Mapping[str, Plugin] = field(default_factory=_empty)
    hooks: Mapping[str, tuple[Implementation, ...]] = field(default_factory=_empty, repr=False)
    tools: Mapping[str, RegisteredTool] = field(default_factory=_empty)
    agents: Mapping[str, Agent] = field(default_factory=_empty)
    providers: tuple[ModelProvider, ...] = ()
    commands: Mapping[str, Command] = field(default_factory=_empty)
    command_owners: Mapping[str, str] = field(default_factory=_empty)
    missing_gates: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=_empty)
    home: Path = field(default_factory=Path, repr=False)
    number: int = field(default_factory=_numbers.__next__)
    _observers: dict[str, tuple[Implementation, ...]] = field(
        default_factory=dict[str, tuple[Implementation, ...]], init=False, repr=False
    )

    def ordered(self, hook: str) -> tuple[Implementation, ...]:
        """Return the implementations of `hook` in the order they are called.

        For ``tool_after`` the occupant of the final phase is the last one.
        """
        return self.hooks.get(hook, ())

    def observers(self, event: Event) -> tuple[Implementation, ...]:
        """Return the implementations of ``event`` that want to be told of `event`."""
        every = self._observers.get(event.type)
        if every is None:  # most types concern few plugins, and a step has eight events
            every = tuple(one for one in self.ordered("event") if _may_concern(one.options.events, event.type))
            self._observers[event.type] = every
        return tuple(one for one in every if not one.options.events or event.is_one_of(one.options.events))

    def perhaps_later(self) -> str:
        """Say how many plugins are being tried out, whose tools nobody knows yet."""
        tried_out = sum(record.status == "pending" and record.stage == "probe" for record in self.records)
        plugins = "a plugin that is" if tried_out == 1 else f"one of {tried_out} plugins that are"
        return f"; it may be in {plugins} still being tried out" if tried_out else ""


def _may_concern(names: Collection[str], type: str) -> bool:
    return not names or any(name == type or OTHER_NAMES.get(name, ("",))[0] == type for name in names)


Place = tuple[str, str, int, str | None]
"""Session, turn, step and call id of the hook calls that follow."""


class Ledger:
    """Keeps hook calls until the journal writes them with their node.

    Calling :meth:`add` costs an append and nothing else; rows are built when they are drained.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Place, Implementation, str, int, Any]] = []
        self._drained: list[tuple[Place, Implementation, str, int, Any]] = []
        self.keep = False
        """Whether :meth:`chain` still knows what was drained (``tool run``, ``hook fire``)."""

    def add(self, place: Place, implementation: Implementation, outcome: str, ns: int, delta: Any = None) -> None:
        """Record one call; `delta` is JSON of what changed, or the verdict of a gate."""
        self._entries.append((place, implementation, outcome, ns, delta))

    def drain(self) -> list[HookCallRow]:
        """Return rows for everything since the last drain.

        Calls that changed and said nothing are counted by step, call, hook and plugin, with their total time.
        """
        from moryflow.store import HookCallRow

        entries, self._entries = self._entries, []
        if self.keep:
            self._drained += entries
        quiet: dict[tuple[Place, Implementation], tuple[int, int]] = {}
        rows: list[HookCallRow] = []
        for place, implementation, outcome, ns, delta in entries:
            if outcome != "ok" or delta is not None:
                row = (*place[:3], *implementation.who, outcome, ns // 1000, place[3], hidden(_shorten(delta)), 1)
                rows.append(HookCallRow(*row))
                continue
            key = (place, implementation)
            count, total = quiet.get(key, (0, 0))
            quiet[key] = (count + 1, total + ns)
        steps: dict[tuple[str, str, int], list[tuple[Any, ...]]] = {}
        for (place, implementation), (count, ns) in quiet.items():
            steps.setdefault(place[:3], []).append((*implementation.who, ns // 1000, place[3], count))
        return rows + [HookCallRow.quiet(*step, calls) for step, calls in steps.items()]

    def chain(self, call_id: str | None = None) -> list[dict[str, Any]]:
        """Return the calls in the order they were made, of one tool call or of the whole turn."""
        return [
            {"hook": implementation.hook, "plugin": implementation.plugin, "outcome": outcome, "us": ns // 1000}
            for place, implementation, outcome, ns, _ in (*self._drained, *self._entries)
            if call_id is None or place[3] == call_id
        ]


def _shorten(delta: Any) -> Any:
    """Return `delta` without the sides of it that are very large; in their place stand its fields and their size."""
    if isinstance(delta, Frozen):
        return {"decision": getattr(delta, "decision", ""), **delta.model_dump(mode="json", exclude_defaults=True)}
    if not isinstance(delta, dict):
        return delta
    values = cast("dict[str, Any]", delta)
    was = values.get("was")
    new = {name: value for name, value in values.items() if name != "was"}
    if (size := _size(new)) > DELTA_LIMIT:
        new = {"too_large": size, "fields": sorted(new)}
    if was is None or _size(was) > DELTA_LIMIT:
        return new
    return {**new, "was": was}


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, default=str))


MOST_FAILURES = 3
"""Failures, or overruns, of one implementation in a session until it is skipped."""
_Key = tuple[str, str, str, int]


class Quarantine:
    """Counts failures and overruns of one session. Gates and withholding transforms are never quarantined.

    A new version of a plugin, told by its hash, starts afresh.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[_Key, str], int] = {}
        self._out: dict[_Key, str] = {}

    def holds(self, implementation: Implementation) -> bool:
        """Whether `implementation` is to be skipped."""
        return bool(self._out) and _key(implementation) in self._out

    def count(self, implementation: Implementation, outcome: str) -> tuple[int, bool]:
        """Count a failure; return how many of its kind there are, and whether `implementation` is skipped from now on."""
        key = (_key(implementation), outcome)
        number = self._counts[key] = self._counts.get(key, 0) + 1
        enough = number >= MOST_FAILURES and HOOKS[implementation.hook].kind != "gate" and not implementation.withholds
        if enough:
            self._out[_key(implementation)] = outcome
        return number, enough

    def names(self) -> list[tuple[str, str]]:
        """Return (plugin, hook) of all that are skipped."""
        return [(plugin, hook) for plugin, hook, _, _ in self._out]

    def release(self, plugin: str) -> bool:
        """Bring the implementations of `plugin` back; return whether there were any."""
        found = [key for key in self._out if key[0] == plugin]
        for key in found:
            del self._out[key]
        self._counts = {key: number for key, number in self._counts.items() if key[0][0] != plugin}
        return bool(found)


def _key(implementation: Implementation) -> _Key:
    return (implementation.plugin, implementation.hook, implementation.plugin_hash, implementation.position)
