"""Start the plugins of a set, collect their contributions, and dispose of them after their last turn.

The end of the file has the context that a plugin gets during its setup, and the registry of watched paths.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Literal, cast

from moryflow_sdk import Agent, Command, Diagnostic, ModelProvider, PluginContext, PluginError

from moryflow.base.foreign_errors import class_name, describe, plugin_error, root_of
from moryflow.base.paths import make_folder
from moryflow.hooks.dispatcher import CallOutcome, call, run_in_task, what_went_wrong
from moryflow.hooks.plugin_set import Implementation, LoadRecord, Plugin, PluginSet, RegisteredTool
from moryflow.hooks.threads import CallTimeout

from .agent_tools import with_tools
from .consent import Admission, Consents, admit_all
from .importer import LoadedCode, read_consented
from .load_failures import describe_raised
from .registration import MAX_TOOLS, Refused, at, next_step, place_of, source_of, usable_item

log = logging.getLogger(__name__)
CONTRIBUTED: tuple[str, ...] = ("tools", "agents", "models", "commands")
# Seconds that a disposer may take.
CLEANUP = 1.0


async def start(
    plugin_set: PluginSet,
    contexts: Callable[[Plugin], PluginContext] | None = None,
    *,
    reserved: Mapping[str, frozenset[str]] | None = None,
    previous: PluginSet | None = None,
) -> PluginSet:
    """Start all plugins side by side, call their contribute hooks, and return the set with the contributions.

    ``plugin_start`` runs once per plugin object; if it fails, the plugin fails. A contribute hook that fails, or an item
    that cannot be used, is left out and noted in the plugin's record.

    :param contexts: returns the context that a plugin gets.
    :param reserved: by hook (``agents``, ``commands``, ``slash`` in ``chat``), the host's own names, which no plugin may use.
    :param previous: the previous generation; if a file has an error now, its agent or tools of `previous` stay in use.
    """
    make = contexts or PlainContext(plugin_set.home).of
    mine: dict[str, dict[str, list[Implementation]]] = {name: {} for name in plugin_set.plugins}
    for hook in _SET_UP:
        for item in plugin_set.ordered(hook):
            mine[item.plugin].setdefault(hook, []).append(item)
    calls = [_set_up(plugin_set, plugin, mine[name], make) for name, plugin in plugin_set.plugins.items()]
    outcomes = dict(zip(plugin_set.plugins, await asyncio.gather(*calls), strict=True))
    collector = ContributionCollector(plugin_set, reserved or {}, previous)
    for name, (error, _) in outcomes.items():
        if error is not None:
            collector.fail(name, *error)
            await _release(plugin_set, plugin_set.plugins[name])
    for hook in CONTRIBUTED:
        for implementation in plugin_set.ordered(hook):
            if (outcome := outcomes[implementation.plugin][1].get(implementation)) is not None:
                collector.take(implementation, outcome)
    collector.look_at_agents()
    return collector.finish()


async def dispose(plugin_set: PluginSet) -> None:
    """End the plugins that only this generation uses; each has :data:`CLEANUP` seconds to clean up. Never raises."""
    await asyncio.gather(*(_release(plugin_set, plugin) for plugin in plugin_set.plugins.values()))


# Text, file and line.
Failure = tuple[str, str, int]


async def _set_up(
    plugin_set: PluginSet,
    plugin: Plugin,
    mine: Mapping[str, Sequence[Implementation]],
    contexts: Callable[[Plugin], PluginContext],
) -> tuple[Failure | None, dict[Implementation, CallOutcome]]:
    life = plugin.life
    life.generations.add(plugin_set.number)
    if not mine:
        return None, {}
    context = {"ctx": contexts(plugin)}
    if not life.started:
        for implementation in mine.get("plugin_start", ()):
            outcome = await call(implementation, context)
            if outcome.status == "ok" and outcome.value is not None and not callable(outcome.value):
                error = TypeError(f"plugin_start must return a function or None, not {class_name(outcome.value)}")
                outcome = CallOutcome(None, outcome.ns, "failed", error)
            if outcome.status != "ok":
                return what_went_wrong(implementation, outcome), {}
            life.disposer = outcome.value
        life.started = True
    wanted = [item for hook in CONTRIBUTED for item in mine.get(hook, ())]
    known = life.contributed
    if life.busy and known.keys() == {item.function for item in wanted}:  # a tool runs: a save must not wait for its end
        return None, {item: known[item.function] for item in wanted}
    found = {item: await call(item, context) for item in wanted}
    life.contributed = {item.function: outcome for item, outcome in found.items()}
    return None, found


_SET_UP = ("plugin_start", *CONTRIBUTED)


async def _release(plugin_set: PluginSet, plugin: Plugin) -> None:
    """Note that this generation no longer uses `plugin`; end the plugin if no other generation does."""
    life = plugin.life
    if plugin_set.number not in life.generations:
        return
    life.generations.discard(plugin_set.number)
    if not life.generations:
        await _end(plugin)


async def _end(plugin: Plugin) -> None:
    life = plugin.life
    disposer, life.disposer, life.started = life.disposer, None, False
    if disposer is not None and not life.broken:
        try:
            plain = life.serial and not inspect.iscoroutinefunction(disposer)
            value = await life.run(disposer, (), CLEANUP) if plain else disposer()
            if inspect.isawaitable(value):
                await run_in_task(life, value, CLEANUP)
        except BaseException as error:  # the isolation boundary of a plugin's clean-up, which may call sys.exit
            name, reason = plugin.name, describe_cleanup(plugin_error(error), plugin.object)
            log.warning("plugin %s did not clean up: %s; moryflow plugin info %s", name, reason, name)
    life.stop()
    if life.forget is not None:
        life.forget()
        life.forget = None


@dataclass(eq=False, repr=False)
class ContributionCollector:
    """Accepts what plugins contribute, item by item."""

    base: PluginSet
    reserved: Mapping[str, frozenset[str]]
    previous: PluginSet | None = None
    kept: dict[str, str] = field(default_factory=dict[str, str])
    failed: dict[str, Failure] = field(default_factory=dict[str, Failure])
    remarks: dict[str, list[Failure]] = field(default_factory=dict[str, list[Failure]])
    failed_hooks: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    offered: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    tools: dict[str, RegisteredTool] = field(default_factory=dict[str, RegisteredTool])
    agents: dict[str, Agent] = field(default_factory=dict[str, Agent])
    agent_owners: dict[str, str] = field(default_factory=dict[str, str])
    providers: list[ModelProvider] = field(default_factory=list[ModelProvider])
    commands: dict[str, Command] = field(default_factory=dict[str, Command])
    command_owners: dict[str, str] = field(default_factory=dict[str, str])
    owners: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])

    def fail(self, plugin: str, text: str, file: str, line: int) -> None:
        """Note that a plugin did not start."""
        self.failed[plugin] = (text, file, line)

    def take(self, implementation: Implementation, outcome: CallOutcome) -> None:
        """Take the items that one contribute hook returned; leave out and note those that cannot be used."""
        notes = self.remarks.setdefault(implementation.plugin, [])
        if outcome.status != "ok":
            text, file, line = what_went_wrong(implementation, outcome)
            step = f"; next: moryflow plugin check {implementation.plugin}" if implementation.tier != "builtin" else ""
            notes.append((f"{at(file, line)}{implementation.hook}: {text}{step}", file, line))
            self.failed_hooks.setdefault(implementation.plugin, set()).add(implementation.hook)
            return
        wrong = [item for item in outcome.value or () if issubclass(type(item), Diagnostic)]  # isinstance asks the item too
        right = [item for item in outcome.value or () if not issubclass(type(item), Diagnostic)]
        if self.previous is not None and implementation.tier == "builtin":  # of another plugin, the whole version is kept
            judged = [(item, self._refusal(implementation, item)) for item in right]
            right = [item for item, error in judged if error is None]
            wrong += [error for _, error in judged if error is not None]
        notes += [(str(item), item.file, item.line or 0) for item in wrong]
        for item in (*self._previous_items(implementation, right, wrong), *right):  # another file must not take a kept name
            try:
                problem, refused = self._add(implementation, item), False
            except BaseException as error:  # a plugin's item may raise anything when it is read
                problem, refused = _reason(error), True
            if problem:
                file, line = place_of(item) or implementation.place
                step = next_step(item, implementation)
                notes.append((f"{at(file, line)}{problem}{f'; next: {step}' if step else ''}", file, line))
                self.refused[implementation.plugin] += refused

    def _refusal(self, implementation: Implementation, item: Any) -> Diagnostic | None:
        """Return an error for an item that was made from a file and cannot be used, whatever the plugin's other items are."""
        if not (source := source_of(item)):
            return None
        try:
            self._check(implementation, item)
        except BaseException as error:  # as above
            file, line = place_of(item) or (source, 0)
            at_line = line if file == source and line else None
            step = next_step(item, implementation)
            return Diagnostic(file=source, line=at_line, message=_reason(error), next_step=step)
        return None

    def _previous_items(self, implementation: Implementation, right: list[Any], wrong: list[Diagnostic]) -> Iterator[Any]:
        """Yield, for each file that has an error now and gives nothing, its items of the previous generation."""
        if self.previous is None:
            return
        given = {source_of(item) for item in right}
        for file, text in {item.file: item.sentence for item in wrong if item.file not in given}.items():
            for known in items_from(self.previous, implementation.hook, implementation.plugin, file):
                if self._refusal(implementation, known) is None:  # else another plugin has its name by now
                    self.kept[file] = text
                    yield known

    def look_at_agents(self) -> None:
        """Give the user's agents the tools that they name in other words; note the names that no plugin knows."""
        complete = all(record.status == "loaded" or record.reason == "disabled" for record in self.base.records)
        for agent in list(self.agents.values()):
            if Path(agent.source).parent == self.base.home / "agents":
                self.agents[agent.id], notes = with_tools(agent, self.tools, complete=complete)
                self.remarks[self.agent_owners[agent.id]] += notes

    def finish(self) -> PluginSet:
        """Return the set with all contributions and without the plugins that failed to start."""
        base = self.base
        gates = {name for name in self.failed if base.plugins[name].gate}
        hooks = {hook: tuple([i for i in items if i.plugin not in self.failed]) for hook, items in base.hooks.items()}
        return replace(
            base,
            id=self._identity(),
            records=tuple(self._record(record) for record in base.records),
            plugins=MappingProxyType({name: item for name, item in base.plugins.items() if name not in self.failed}),
            hooks=MappingProxyType(hooks),
            tools=MappingProxyType(self.tools),
            agents=MappingProxyType(self.agents),
            providers=tuple(self.providers),
            commands=MappingProxyType(self.commands),
            command_owners=MappingProxyType(self.command_owners),
            missing_gates=tuple(sorted({*base.missing_gates, *gates})),
            kept=MappingProxyType({**base.kept, **self.kept}),
        )

    def _identity(self) -> str:
        """Return the hash of the set including its contributions: they may change although the code does not."""
        total = hashlib.sha256(f"{self.base.id}\0{sorted(self.failed)}".encode())
        for owned in self.tools.values():
            tool = owned.tool
            shape = f"{tool.name}\0{owned.plugin}\0{tool.domain}\0{tool.description}\0{tool.schema}\0{tool.revision}\n"
            total.update(shape.encode("utf-8", "surrogatepass"))
        for agent in self.agents.values():
            total.update(f"{agent!r}\n".encode())
        return total.hexdigest()[:16]

    def _record(self, record: LoadRecord) -> LoadRecord:
        if record.status != "loaded":
            return record
        if record.name in self.failed:
            text, file, line = self.failed[record.name]
            return record._replace(status="failed", stage="start", error=text, file=file, line=line)
        names = tuple([tool.tool.name for tool in self.tools.values() if tool.plugin == record.name])
        own = tuple([id for id, agent in self.agents.items() if self.agent_owners[id] == record.name and not agent.hidden])
        record = record._replace(tools=names, agents=own)
        notes = self.remarks.get(record.name)
        if not notes:
            return record
        texts = tuple(dict.fromkeys(text for text, _, _ in notes))  # the same error of a thousand items is reported once
        hooks = tuple(sorted(self.failed_hooks.get(record.name, ())))
        record = record._replace(notes=texts, failed_hooks=hooks, refused=self.refused[record.name])
        if record.kept:  # its error and place are those of the version that cannot be used
            return record
        text = "; ".join(texts)
        error = f"{record.error}; {text}" if record.error else text
        return record._replace(stage=record.stage or "contribute", error=error, file=notes[0][1], line=notes[0][2])

    # ---------------------------------------------------------------- one item

    def _add(self, by: Implementation, item: Any) -> str:
        plugin, source = self.base.plugins[by.plugin], source_of(item)
        if by.hook == "tools":
            self.offered[source or by.plugin] += 1
            if (more := self.offered[source or by.plugin] - MAX_TOOLS) > 0:
                raise Refused(f"more than {MAX_TOOLS} tools: the others are left out" if more == 1 else "")
        item, names, remark = self._check(by, item)
        if by.hook == "tools":
            self.tools[item.name] = RegisteredTool(item.with_settings(plugin.config), by.plugin, by.tier, by.life)
        elif by.hook == "agents":
            self.agents[item.id], self.agent_owners[item.id] = item, by.plugin
        elif by.hook == "commands":
            self.commands[item.name], self.command_owners[item.name] = item, by.plugin
        else:
            self.providers.append(item)
        of_person = bool(source) and Path(source).is_relative_to(self.base.home)
        owner = source if of_person else f"the {plugin.tier} plugin {plugin.name}"
        self.owners.update({(by.hook, name.casefold()): owner for name in names})
        return remark

    def _check(self, by: Implementation, item: Any) -> tuple[Any, Sequence[str], str]:
        item, names, remark = usable_item(item, by)
        wanted = [(by.hook, name) for name in names]
        if by.hook == "commands" and item.slash is not None:
            wanted.append(("slash", item.name))
        for hook, name in wanted:
            key = name.casefold()
            owner = "the host" if key in self.reserved.get(hook, ()) else self.owners.get((hook, key))
            if owner is not None:
                raise Refused(f"the name {name!r} is taken by {owner}")
        return item, names, remark


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, Refused) else describe_raised(error, "")[0]


def items_from(plugin_set: PluginSet, hook: str, plugin: str, file: str) -> Iterator[Any]:
    """Yield the agents, tools or commands that a plugin made from `file`, or from the files in it if it is a folder."""
    owned = [tool.tool for tool in plugin_set.tools.values() if tool.plugin == plugin]
    items = {"agents": plugin_set.agents.values(), "tools": owned, "commands": plugin_set.commands.values()}
    yield from (item for item in items.get(hook, ()) if file in (item.source, str(Path(item.source).parent)))


def describe_cleanup(error: Exception, plugin: object) -> str:
    """Return a text on the error that a plugin's clean-up raised, and where; or that it took too long."""
    if isinstance(error, CallTimeout):
        return f"it took longer than {CLEANUP:g} s"
    text, file, line = describe(error, root_of(str(getattr(plugin, "__file__", "") or "")))
    return f"{text} ({file}:{line})" if file else text


Watches = dict[tuple[str, Path], Callable[[Path], None]]


class WatchRegistry:
    """The paths that plugins want watched, by plugin and path. A host that does not reload never reads it.

    :ivar changed: called, from any thread, when `watches` has changed; `asked`, when a plugin asks for a new generation.
    """

    def __init__(self) -> None:
        self.watches: Watches = {}
        self.changed: Callable[[], None] = lambda: None
        self.asked: Callable[[], None] = lambda: None

    def watch(self, plugin: str, path: Path, tell: Callable[[Path], None]) -> Callable[[], None]:
        """Call `tell` after changes below `path`; return a function that ends it. Watching a path again replaces the watch."""
        key = (plugin, path.absolute())
        self.watches[key] = tell
        self.changed()

        def end() -> None:
            if self.watches.get(key) is tell:
                del self.watches[key]
                self.changed()

        return end


@dataclass(eq=False, repr=False)
class PlainContext:
    """A :class:`moryflow_sdk.PluginContext` of a host that stores no events of plugins.

    :param code: the code that plugins of this host imported in earlier generations.
    :param admission: decides which code may be imported; ``None`` admits all.
    :param watch_registry: holds the paths that plugins want watched.
    """

    home: Path
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    profile: str = "local"
    safe_mode: bool = False
    code: LoadedCode = field(default_factory=LoadedCode)
    admission: Admission | None = None
    watch_registry: WatchRegistry = field(default_factory=WatchRegistry)
    name: str = ""
    config: Any = None

    def of(self, plugin: Plugin) -> PluginContext:
        return cast("PluginContext", replace(self, name=plugin.name, config=plugin.config))

    @property
    def data_dir(self) -> Path:
        folder = self.home / "data" / self.name
        make_folder(folder)
        return folder

    @property
    def log(self) -> logging.Logger:
        return logging.getLogger(f"moryflow.plugin.{self.name}")

    @property
    def code_loader(self) -> PlainContext:
        return self

    def read(self, path: Path) -> bytes:
        """Return the content of a Python file that only its owner may write and that the user consented to."""
        if self.safe_mode:
            raise PluginError("safe mode runs no code of the user's own", where=str(path))
        return read_consented(path, self.home)

    def consent(self, path: Path) -> Literal["", "changed", "allowed"]:
        """Return whether the user consented to the content of the file."""
        return Consents(self.home).of_content(path)

    def load(self, path: Path) -> ModuleType:
        """Run such a file as a module of its own and return the module; see :meth:`read`."""
        self.read(path)
        return self.code.load(self.name, path, self.home, self.admission or admit_all)

    def emit(self, type: str, **data: Any) -> None:
        """Write the event to the log, because there is no session yet that it could belong to."""
        self.log.info("%s %s", type, data)

    def watch(self, path: Path, changed: Callable[[Path], None]) -> Callable[[], None]:
        """Call `changed` on the event loop after changes below `path`, if the host watches files."""
        return self.watch_registry.watch(self.name, path, changed)

    def invalidate(self) -> None:
        """Ask for a new generation, if the host reloads."""
        self.watch_registry.asked()
