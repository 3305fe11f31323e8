"""Discover and load plugins and order their hooks: one immutable :class:`PluginSet` per generation.

A plugin that fails becomes a load record.
"""

from __future__ import annotations

import hashlib
import heapq
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import MappingProxyType

from moryflow_sdk import HOOKS

from moryflow.hooks.plugin_set import (
    TIERS,
    Implementation,
    LoadFailure,
    LoadRecord,
    Pending,
    Plugin,
    PluginSet,
)
from moryflow.hooks.threads import PluginThreads

from .consent import Admission, admit_all
from .discovery import Candidate, NameReserved, NotWanted, PluginChoice, PluginSettings, discover
from .importer import Imported, import_named, import_sources, source_file
from .last_seen import GateMemory, looks_like_gate
from .load_failures import absent_gate, describe_raised, failed_record, failure_line, problem_record
from .manifest import ConfigReader, Manifest, manifest_of, nearest_or_all, read_manifest, settings_of
from .registration import Registry

NOTHING: Mapping[str, LoadFailure] = MappingProxyType({})


def load_plugin_set(
    *,
    home: Path,
    builtins: Sequence[str],
    settings: PluginSettings,
    config: ConfigReader,
    final_after: str = "truncation",
    among_user: Container[str] = (),
    previous: PluginSet | None = None,
    admission: Admission | None = None,
    found: Iterable[Candidate] | None = None,
    held_back: Mapping[str, LoadFailure] = NOTHING,
) -> PluginSet:
    """Load every plugin and return the set, not yet started. A bad plugin raises nothing here.

    A plugin that is known to have a gate and is not loaded is named in ``missing_gates``. It is known by its manifest, its
    source, or its last good load, even if it is not found any more: deleting a gate must not open the door. Only disabling
    it by name takes it off that list; safe mode and ``MORYFLOW_PLUGINS`` do not.

    :param final_after: the built-in plugin that has the final phase of ``tool_after``.
    :param among_user: built-in plugins whose hooks are called with those of user plugins.
    :param previous: the previous generation. Plugins whose code and settings are unchanged are taken over from it, with
        their threads and what they have started. If a plugin cannot be loaded any more, its previous version stays in use.
    :param admission: decides whose code may be imported; by default everyone's.
    :param found: the candidates, if they are known already.
    :param held_back: plugins that failed when their current version was tried; they are not loaded in this version.
    """
    loading = Loading(home, settings, config, previous, admission or admit_all, held_back)
    for candidate in discover(home, builtins) if found is None else found:
        loading.add(candidate)
    return loading.finish(final_after, among_user)


class Loading:
    """Builds one generation: takes candidates one by one, then closes the set."""

    def __init__(
        self,
        home: Path,
        settings: PluginSettings,
        config: ConfigReader,
        previous: PluginSet | None,
        admission: Admission = admit_all,
        held_back: Mapping[str, LoadFailure] = NOTHING,
        imported: Callable[[], None] = lambda: None,
    ) -> None:
        self._home = home
        self._settings = settings
        self._config = config
        self._admission = admission
        self._held_back = held_back
        self._on_imported = imported
        self._previous = previous.plugins if previous else {}
        self._records_before = {record.name: record for record in previous.records} if previous else {}
        self._registry = Registry()
        self._memory = GateMemory(home)
        self._choice = PluginChoice(settings)
        self._records: dict[str, list[LoadRecord]] = {}
        self._plugins: dict[str, Plugin] = {}
        self._missing: set[str] = set()
        self._unreadable: list[tuple[Candidate, LoadFailure]] = []

    def add(self, candidate: Candidate) -> None:
        """Load one plugin, or record why it is not loaded."""
        started = time.perf_counter()
        record = _first_record(candidate)
        try:
            if isinstance(candidate.problem, NameReserved):
                raise candidate.problem
            if candidate.problem is not None:
                self._unreadable.append((candidate, candidate.problem))
            self._choice.check(candidate, candidate.name)
            plugin, record = self._load(candidate, record)
            self._plugins[plugin.name] = plugin
        except NotWanted as skip:
            record = record._replace(status="skipped", reason=str(skip))
            self._note_gate(candidate)
        except LoadFailure as failure:
            record = self._keep_previous(candidate, failure) or self._failure_record(candidate, record, failure)
        ms = (time.perf_counter() - started) * 1000
        self._records.setdefault(record.name, []).append(record._replace(import_ms=round(ms, 3)))

    def alone(self, candidate: Candidate) -> PluginSet:
        """Load only `candidate` and return a set of this one plugin.

        :raises LoadFailure: it does not load.
        """
        plugin, record = self._load(candidate, _first_record(candidate))
        self._plugins[plugin.name], self._records[plugin.name] = plugin, [record]
        return self._plugin_set(self._ordered("", ()))

    def finish(self, final_after: str, among_user: Container[str]) -> PluginSet:
        """Order the hooks, record the plugins that were expected and not found, and return the set."""
        self._keep_below_unreadable()
        hooks = self._ordered(final_after, among_user)
        self._name_absent()
        for name in self._settings.disabled:
            self._memory.forget(name)
        for plugin in self._plugins.values():
            self._memory.note(plugin.tier, plugin.name, plugin.gate)
        self._memory.save()
        return self._plugin_set(hooks)

    def _plugin_set(self, hooks: dict[str, tuple[Implementation, ...]]) -> PluginSet:
        records = tuple(record for records in self._records.values() for record in records)
        return PluginSet(
            id=identity(self._plugins, hooks),
            records=records,
            kept=MappingProxyType({record.file: failure_line(record) for record in records if record.kept}),
            plugins=MappingProxyType(self._plugins),
            hooks=MappingProxyType(hooks),
            missing_gates=tuple(sorted(self._missing)),
            home=self._home,
        )

    # ---------------------------------------------------------------- one plugin

    def _load(self, candidate: Candidate, record: LoadRecord) -> tuple[Plugin, LoadRecord]:
        if candidate.problem is not None:
            raise candidate.problem
        manifest = read_manifest(Path(candidate.manifest), candidate.name) if candidate.manifest else None
        known = self._previous.get(candidate.name)
        if candidate.name in self._held_back:
            raise self._held_back[candidate.name]
        imported = self._import(candidate, known)
        self._on_imported()
        try:
            return self._build(candidate, imported, manifest, record)
        except BaseException as error:
            if imported.forget is not None:
                imported.forget()
            if isinstance(error, NotWanted):
                raise
            raise _build_failure(error, imported.file) from (error.__cause__ if isinstance(error, LoadFailure) else error)

    def _import(self, candidate: Candidate, known: Plugin | None) -> Imported:
        if candidate.tier == "builtin":
            return import_named(candidate, known)
        self._admission.place(candidate)
        check = partial(self._admission.code, candidate)
        if candidate.tier == "user":
            return import_sources(candidate, known, check)
        return import_named(candidate, known, self._admission.prints, check)

    def _keep_previous(self, candidate: Candidate, failure: LoadFailure) -> LoadRecord | None:
        """Keep the plugin's previous version in use and return its record; ``None`` if there is none from the same tier, or
        another candidate has the name."""
        plugin, record = self._previous.get(candidate.name), self._records_before.get(candidate.name)
        if candidate.name in self._plugins or plugin is None or record is None or plugin.tier != candidate.tier:
            return None
        self._plugins[plugin.name] = plugin
        return problem_record(record, failure)._replace(kept=True)

    def _failure_record(self, candidate: Candidate, record: LoadRecord, failure: LoadFailure) -> LoadRecord:
        """Return the record of a plugin that is not loaded; note its gate as missing if it has or may have one."""
        never_gated = failure.stage == "consent" or isinstance(failure, NameReserved)
        if not never_gated or self._memory.knows(candidate.tier, candidate.name):
            self._note_gate(candidate)
        lost = failed_record(record, failure)
        return lost._replace(status="pending") if isinstance(failure, Pending) else lost

    def _build(
        self, candidate: Candidate, imported: Imported, base: Manifest | None, record: LoadRecord
    ) -> tuple[Plugin, LoadRecord]:
        name = self._name(candidate, imported)
        manifest = manifest_of(imported.object, base)
        config, remark = settings_of(name, candidate.tier, manifest, self._config)
        known, told = self._previous.get(name), self._records_before.get(name)
        if known is not None and known.object is imported.object and known.config == config and told and not told.error:
            if imported.forget is not None:
                imported.forget()  # the plugin that stays counts as a user of the module already
            record = record._replace(name=name, version=known.version, hash=known.hash, file=known.file, hooks=told.hooks)
            record = record._replace(services=known.services, gate=known.gate)
            return known, problem_record(record, remark) if remark else record
        plugin = Plugin(
            name=name,
            # What is installed has the version of its package, whatever a manifest says.
            version=(candidate.version if candidate.tier == "installed" else "") or manifest.version or candidate.version,
            tier=candidate.tier,
            hash=imported.hash,
            object=imported.object,
            config=config,
            life=self._life(name, candidate, imported, config),
            file=imported.file,
            services=manifest.services,
        )
        found = self._registry.add(plugin)
        if not found and self._had_hooks(candidate):
            self._registry.unregister(name=name)
            raise LoadFailure("register", self._registry.remark or "it implements no hook any more", file=imported.file)
        names = {item.hook for item in found}
        hooks = tuple([hook for hook in HOOKS if hook in names])
        plugin = replace(plugin, gate=manifest.gate or "tool_gate" in hooks, implementations=found)
        record = record._replace(name=name, version=plugin.version, hash=plugin.hash, file=imported.file, hooks=hooks)
        record = record._replace(services=plugin.services, gate=plugin.gate, error=self._registry.remark)
        return plugin, problem_record(record, remark) if remark else record

    def _had_hooks(self, candidate: Candidate) -> bool:
        """Whether the plugin implemented hooks before: while its file is being written, it is empty or ends early."""
        before = self._records_before.get(candidate.name)
        return bool(before and before.hooks) or self._memory.knows(candidate.tier, candidate.name)

    def _name(self, candidate: Candidate, imported: Imported) -> str:
        own_name = getattr(imported.object, "name", None) if candidate.tier == "builtin" else None
        if not isinstance(own_name, str) or own_name == candidate.name:
            return candidate.name
        self._choice.check(candidate, own_name)
        return own_name

    def _life(self, name: str, candidate: Candidate, imported: Imported, config: object) -> PluginThreads:
        """Return the threads of the plugin's previous generation if code and settings are the same, else new ones."""
        before = self._previous.get(name)
        if before is None or before.object is not imported.object or before.config != config:
            return PluginThreads(name, serial=candidate.tier != "builtin", forget=imported.forget)
        if imported.forget is not None:
            imported.forget()  # the life that is reused counts as a user of the module already
        return before.life

    def _note_gate(self, candidate: Candidate) -> None:
        """Note the plugin as a missing gate if it may have one, unless the user disabled it by name."""
        name = candidate.name
        if name in self._settings.disabled or name in self._missing:
            return
        if self._memory.knows(candidate.tier, name) or looks_like_gate(candidate.manifest, source_file(candidate)):
            self._missing.add(name)

    # ---------------------------------------------------------------- all plugins

    def _keep_below_unreadable(self) -> None:
        """Keep the plugins of a folder or project that cannot be read now, for example because it is being written."""
        for candidate, failure in self._unreadable:
            folder = candidate.editable or candidate.target
            for plugin in self._previous.values():
                if plugin.tier == "builtin" or plugin.name in self._records or not Path(plugin.file).is_relative_to(folder):
                    continue
                lost = candidate._replace(name=plugin.name, tier=plugin.tier)
                with suppress(NotWanted):
                    self._choice.check(lost, plugin.name)
                    if record := self._keep_previous(lost, failure):
                        self._records[plugin.name] = [record]
                        own = self._records.get(candidate.name, [])  # says the same as the records of what is kept
                        self._records[candidate.name] = [each for each in own if each.status == "loaded"]

    def _ordered(self, final_after: str, among_user: Container[str]) -> dict[str, tuple[Implementation, ...]]:
        while True:
            by_hook: dict[str, list[Implementation]] = {hook: [] for hook in HOOKS}
            for plugin in self._plugins.values():
                for item in plugin.implementations:
                    by_hook[item.hook].append(item)
            try:
                return {
                    hook: call_order(found, final_after if hook == "tool_after" else "", among_user)
                    for hook, found in by_hook.items()
                    if found
                }
            except OrderCycle as cycle:
                for name in cycle.plugins:
                    self._unload(name, LoadFailure("register", str(cycle), hint="drop one of these before= and after="))

    def _unload(self, name: str, failure: LoadFailure) -> None:
        plugin = self._plugins.pop(name)
        if self._registry.has_plugin(name):  # not if it was taken over as it is
            self._registry.unregister(name=name)
        before = self._records[name].pop()
        self._records[name].append(failed_record(before._replace(hooks=()), _replace_place(failure, before.file)))
        if plugin.gate:
            self._missing.add(name)
        if plugin.life.forget is not None and not plugin.life.generations:
            plugin.life.forget()

    def _name_absent(self) -> None:
        """Record the plugins that were asked for, or had a gate last time, and were not found."""
        settings = self._settings
        for name in sorted((settings.only or frozenset()) - set(self._records)):
            hint = nearest_or_all(name, self._records)
            failure = LoadFailure("discover", f"no plugin named {name!r} was found", hint=hint)
            self._records[name] = [failed_record(LoadRecord(name, "", "installed", "failed", "MORYFLOW_PLUGINS"), failure)]
        for tier, name in self._memory.names():
            if name in self._records or name in settings.disabled:
                continue
            self._missing.add(name)
            self._records[name] = [absent_gate(tier, name)]


def _build_failure(error: BaseException, file: str) -> LoadFailure:
    """Return the failure for an error raised while a plugin's object was read; its code may raise anything."""
    if isinstance(error, LoadFailure):
        return _replace_place(error, file)
    text, found, line = describe_raised(error, file)
    return LoadFailure("register", text, file=found, line=line)


def _replace_place(failure: LoadFailure, file: str) -> LoadFailure:
    place = (failure.file, failure.line) if failure.file else (file, 0)
    return LoadFailure(failure.stage, failure.message, file=place[0], line=place[1], hint=failure.hint)


def _first_record(candidate: Candidate) -> LoadRecord:
    return LoadRecord(candidate.name, candidate.version, candidate.tier, "loaded", candidate.source)


def load_alone(candidate: Candidate, *, home: Path, config: ConfigReader, imported: Callable[[], None]) -> PluginSet:
    """Load one plugin alone, for the probe; whether it has a gate is not remembered.

    :param imported: called once the plugin is imported, before it is registered.
    :raises LoadFailure: it does not load.
    """
    return Loading(home, PluginSettings(), config, None, imported=imported).alone(candidate)


def identity(plugins: dict[str, Plugin], hooks: dict[str, tuple[Implementation, ...]]) -> str:
    """Return a hash of the plugins' versions and code, and of the order of their hooks."""
    total = hashlib.sha256()
    for plugin in sorted(plugins.values(), key=lambda item: item.name):
        total.update(f"{plugin.name}\0{plugin.version}\0{plugin.tier}\0{plugin.hash}\n".encode())
    for hook, implementations in sorted(hooks.items()):
        total.update(f"{hook}\0{' '.join([item.plugin for item in implementations])}\n".encode())
    return total.hexdigest()[:16]


# ------------------------------------------------------------------------------------------------
# The order in which the implementations of a hook are called
# ------------------------------------------------------------------------------------------------


class OrderCycle(Exception):
    """Each of some plugins asks to be called before another, in a circle."""

    def __init__(self, hook: str, plugins: Sequence[str]) -> None:
        super().__init__(f"{hook}: {' and '.join(plugins)} each ask to come before the other (before=, after=)")
        self.plugins = tuple(plugins)


def call_order(
    implementations: Iterable[Implementation], final: str = "", among_user: Container[str] = ()
) -> tuple[Implementation, ...]:
    """Return `implementations` of one hook, ordered: by tier, then ``before=``/``after=`` within it, then by name.

    :param final: the built-in plugin that has the final phase to itself; it comes last.
    :param among_user: built-in plugins that load what the user wrote; they are ordered with user plugins.
    :raises OrderCycle: ``before=`` and ``after=`` within one tier contradict each other.
    """
    tiers: dict[str, list[Implementation]] = {tier: [] for tier in TIERS}
    last: list[Implementation] = []
    for implementation in implementations:
        if final and implementation.plugin == final and implementation.tier == "builtin":
            last.append(implementation)
        else:
            tiers["user" if implementation.plugin in among_user else implementation.tier].append(implementation)
    result = [item for tier in TIERS for item in _within_tier(tiers[tier])]
    return tuple([replace(item, position=place) for place, item in enumerate(result + last)])


def _within_tier(implementations: list[Implementation]) -> list[Implementation]:
    """Sort one tier topologically; where the order leaves a choice, by name."""
    by_name: dict[str, list[Implementation]] = {}
    for implementation in sorted(implementations, key=lambda item: (item.plugin, item.function.__name__)):
        by_name.setdefault(implementation.plugin, []).append(implementation)
    sorter = TopologicalSorter[str](dict.fromkeys(by_name, ()))
    for plugin, own in by_name.items():
        for options in (implementation.options for implementation in own):
            for name in sorted(by_name.keys() & set(options.before)):
                sorter.add(name, plugin)
            sorter.add(plugin, *sorted(by_name.keys() & set(options.after)))
    try:
        sorter.prepare()
    except CycleError as error:
        raise OrderCycle(implementations[0].hook, sorted(set(error.args[1]))) from error
    result: list[str] = []
    ready: list[str] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heapq.heappush(ready, name)
        result.append(heapq.heappop(ready))
        sorter.done(result[-1])
    return [item for name in result for item in by_name[name]]
