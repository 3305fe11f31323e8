"""The plugins of one generation: load records, hook implementations, failures of hook calls, and the immutable plugin set."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from moryflow_sdk import Agent, Command, Event, HookOptions, ModelProvider, PluginError, Tool

from moryflow.base.foreign_errors import place_of

if TYPE_CHECKING:
    from .threads import PluginThreads

Tier = Literal["builtin", "installed", "user"]
TIERS: tuple[Tier, ...] = ("builtin", "installed", "user")
Stage = Literal["discover", "consent", "probe", "manifest", "import", "register", "config", "start", "contribute"]
Status = Literal["loaded", "pending", "failed", "skipped"]
# What identifies an implementation: hook, plugin, the plugin's hash, position.
LedgerKey = tuple[str, str, str, int]
_numbers = itertools.count(1)


class LoadRecord(NamedTuple):
    """The result of loading one plugin that was found. Every surface shows it.

    :param error: why the plugin failed; for a loaded plugin, the items that could not be taken, or only with a remark.
    :param reason: why the plugin was skipped.
    :param notes: for a loaded plugin, a text on each such item, with its file.
    :param failed_hooks: for a loaded plugin, the contribute hooks that raised, took too long or returned an invalid value.
    :param refused: for a loaded plugin, how many contributed items could not be taken.
    :param kept: the plugin's files cannot be used as they are now, so the previous version stays in use.
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
    agents: tuple[str, ...] = ()
    refused: int = 0

    @property
    def place(self) -> str:
        """The file and line of what is wrong; empty if they are unknown."""
        return f"{self.file}:{self.line}" if self.line else self.file


class LoadFailure(PluginError):
    """A plugin cannot be loaded. The error becomes the plugin's load record."""

    def __init__(self, stage: Stage, message: str, *, file: str = "", line: int = 0, hint: str = "") -> None:
        super().__init__(message, where=f"{file}:{line}" if line else file, next_step=hint)
        self.stage: Stage = stage
        self.file = file
        self.line = line
        self.hint = hint


class Pending(LoadFailure):
    """A plugin is not loaded yet: it waits for the user's consent, or for the probe."""


@dataclass(frozen=True, eq=False)
class Implementation:
    """One function of one plugin for one hook.

    :param arguments: the names of the hook's arguments that the function takes, in its own order.
    :param timeout: seconds a call may take.
    :param position: its index among all implementations of the hook.
    :param inline: whether it is called directly on the event loop: a plain, non-blocking function of a built-in.
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
    def ledger_key(self) -> LedgerKey:
        """What identifies it in the ledger and in the quarantine."""
        return (self.hook, self.plugin, self.plugin_hash, self.position)

    @property
    def withholds(self) -> bool:
        """Whether the value must be withheld from everyone if this implementation fails, as for a redactor."""
        return self.options.on_failure == "withhold"

    @property
    def place(self) -> tuple[str, int]:
        """File and line of the function, as far as they are known."""
        return place_of(self.function)


@dataclass(frozen=True, eq=False)
class Plugin:
    """A loaded plugin.

    :param object: the module or object that was registered.
    :param config: its validated settings.
    :param file: the file its code begins in; empty if it has no file.
    :param life: its thread, its disposer and whether it is broken; shared by the generations that use it.
    :param implementations: its functions for hooks, in no order.
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
    implementations: tuple[Implementation, ...] = field(default=(), repr=False)


class RegisteredTool(NamedTuple):
    """A tool and the plugin that it belongs to."""

    tool: Tool
    plugin: str
    tier: Tier
    life: PluginThreads

    @property
    def foreign(self) -> bool:
        """Whether its code is not the host's own: it is a plugin's, or a file of the user's."""
        return self.tier != "builtin" or bool(self.tool.source)


class HookFailure(NamedTuple):
    """A hook call that failed, and what the host did about it.

    :param outcome: ``failed``, ``timeout``, ``withheld`` or ``blocked`` (the call kept the event loop from running).
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
    count: int = 1  # pyright: ignore[reportIncompatibleMethodOverride]  # hides tuple.count, which nobody calls

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
    """All plugins of one generation. It never changes once it has started.

    :param id: hash of names, versions, sources and order; every turn records it.
    :param number: distinguishes the generations of this process, also those with equal content.
    :param missing_gates: plugins that are known to have a gate and are not loaded; if any, every call is at least asked about.
    :param kept: files that have an error now, so that their previous content stays in use: file → error.
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

    def ordered(self, hook: str) -> tuple[Implementation, ...]:
        """Return the implementations of `hook` in the order they are called.

        For ``tool_after`` the last one is the implementation that holds the final phase.
        """
        return self.hooks.get(hook, ())

    def observers(self, event: Event) -> tuple[Implementation, ...]:
        """Return the implementations of the hook ``event`` that observe events like `event`."""
        found = self.ordered("event")
        return tuple([one for one in found if not one.options.events or event.is_one_of(one.options.events)])

    def pending_hint(self) -> str:
        """Return a hint that a missing tool may be in a plugin that is still being tried out; empty if none is."""
        tried_out = sum(record.status == "pending" and record.stage == "probe" for record in self.records)
        plugins = "a plugin that is" if tried_out == 1 else f"one of {tried_out} plugins that are"
        return f"; it may be in {plugins} still being tried out" if tried_out else ""
