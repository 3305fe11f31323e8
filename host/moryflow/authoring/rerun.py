"""Call hooks again with the inputs they got in a past turn. No model and no tool is called, and nothing is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from moryflow_sdk import HOOKS, NodeView, Ruling, ToolCall, ToolError, thaw

from moryflow.compaction.summarizer import COMPACT_AGENT
from moryflow.hooks.dispatcher import Withheld
from moryflow.kernel.model_request import first_params, first_prompt
from moryflow.kernel.tool_call import call_as_judged, parse
from moryflow.runtime.session_lease import read_only_scope
from moryflow.services.session import view_of

from .recorded_inputs import UNKNOWN, Base, Moment, compaction_base, moments, with_events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moryflow.hooks.plugin_set import HookFailure, PluginSet
    from moryflow.kernel.turn_context import TurnContext
    from moryflow.runtime.host import Host

    from .trace import RecordedSession, RecordedTurn

READING = ("files", "history", "resolve")
"""Services that a hook may use while it is run again: files only for reading, and the history only as it was then."""


@dataclass(frozen=True)
class RerunResult:
    """The result of a hook chain: the value, or the verdicts by plugin, as JSON; and the implementations that failed."""

    value: Any
    failures: tuple[HookFailure, ...] = ()


class Rerun:
    """Calls the hooks of a past session again, with the plugins of `plugin_set`.

    One object goes through the turns in order, so that the ``turn.state`` of plugins builds up as it did then.
    """

    def __init__(self, host: Host, recorded: RecordedSession, plugin_set: PluginSet) -> None:
        self._host = host
        self._recorded = recorded
        self._scope = read_only_scope(host, recorded.session, None)
        self._scope.around = replace(self._scope.around, services=_read_only_services(host.surroundings.services))
        self._scope.plugin_set = plugin_set

    @property
    def plugin_set(self) -> PluginSet:
        return self._scope.plugin_set

    def state(self, plugin: str) -> tuple[Any, Any]:
        """Return a plugin's state at this point, for the turn and for the session."""
        live = self._scope.live
        return live.turn_states.get(plugin, {}), live.state.get(plugin, {})

    def moments(self, turn: RecordedTurn) -> Iterator[Moment]:
        """Begin `turn`, and return the hooks that it called and its events, in order."""
        run, host = turn.run, self._host
        compact = run.is_compaction
        if not compact:
            self._scope.live.turn_states = {}  # a compaction is part of the turn around it
        fresh: dict[str, Any] = {"turn": run.id, "purpose": run.purpose, "step": 0, "offered": None, "_views": {}, "_saved": {}}
        agent = COMPACT_AGENT if compact else host.agents.get(run.agent) or host.agent(None)
        self._scope = scope = replace(self._scope, agent=agent, model=_model(host, run.model), **fresh)
        if compact:
            base = compaction_base(self._recorded, turn, host.config, scope.model)
        else:
            base = Base(first_prompt(scope), first_params(scope))
        return with_events(turn, moments(self._recorded, turn, base))

    async def call(self, moment: Moment, value: Any = None) -> RerunResult:
        """Call the hook of `moment` with `value`, or a gate with the recorded call."""
        scope, dispatcher = self._scope, self._host.surroundings.dispatcher
        scope.step, scope.failures, scope.notices = moment.step, [], []
        if moment.node is not None:
            scope.live.hold.path = self._recorded.path(moment.node)
        context: dict[str, Any] = {}
        if moment.call is not None and moment.hook != "tool_before":
            context["call"] = self._call(moment)
        if moment.hook == "tool_decided" and moment.call is not None:
            context["ruling"] = Ruling.model_validate(thaw(moment.call.ruling))
        made: Any = None
        match HOOKS[moment.hook].kind:
            case "gate":
                verdicts = await dispatcher.gates(scope, moment.hook, **context)
                made = {plugin: verdict_json(verdict) for plugin, verdict in verdicts}
            case "observe":
                await dispatcher.observe(scope, moment.values[0])
            case "contribute":
                made = as_json([block for _, block in await dispatcher.contribute(scope, moment.hook)])
            case _:
                made = await _transformed(scope, moment.hook, value, context)
        return RerunResult(made, tuple(scope.failures))

    def _call(self, moment: Moment) -> ToolCall:
        """Return the call as it was judged; its targets are resolved against the files as they are now."""
        row = moment.call
        assert row is not None
        try:
            args = parse(row.args)
            owned = self._scope.plugin_set.tools.get(row.tool)
            if owned is not None:
                return call_as_judged(self._scope, row.tool, args, row.id, row.step)[0]
        except ToolError:
            args = {}
        return ToolCall(id=row.id, tool=row.tool, args=args, step=row.step, hash=row.hash)


async def _transformed(scope: TurnContext, hook: str, value: Any, context: dict[str, Any]) -> Any:
    verdicts: list[tuple[str, Any]] = []
    try:
        made = as_json(await scope.around.dispatcher.transform(scope, hook, value, verdicts=verdicts, **context))
        return {"verdict": verdict_json(verdicts[0][1])} if verdicts else made
    except Withheld as error:
        return {"withheld by": error.plugin}


def verdict_json(verdict: Any) -> dict[str, Any]:
    """Return a verdict as the ledger records it."""
    return {"decision": verdict.decision, **verdict.model_dump(mode="json", exclude_defaults=True)}


def as_json(value: Any) -> Any:
    if value is UNKNOWN or value is None:
        return None
    if isinstance(value, tuple | list):
        return [item.model_dump(mode="json", exclude_defaults=True) for item in value]
    return value.model_dump(mode="json", exclude_defaults=True)


def _model(host: Host, name: str) -> Any:
    found = (provider.find(name) for provider in host.plugin_set.providers if name)
    return next((model for model in found if model is not None), None)


def _read_only_services(services: Mapping[str, Any]) -> dict[str, Any]:
    """Return services that change nothing. A hook that uses one of the others gets an error."""

    def refusing(name: str) -> Any:
        return lambda scope, plugin: _Refusing(name)

    kept = {name: factory for name, factory in services.items() if name in READING}
    kept["files"] = lambda scope, plugin: _ReadOnly(services["files"](scope, plugin))
    kept["history"] = lambda scope, plugin: _PastHistory(services["history"](scope, plugin), scope)
    kept["rules"] = lambda scope, plugin: _CommandParser(services["rules"](scope, plugin))
    kept["emit"] = lambda scope, plugin: lambda kind, /, **data: None
    return {**{name: refusing(name) for name in services}, **kept}


class _Refusing:
    """Stands for a service that may not be used while hooks are run again; each call of it raises a ``ToolError``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise ToolError(f"{self._name} is not used while hooks are run again", code="replay")

    def __getattr__(self, name: str) -> Any:
        return self


class _CommandParser(_Refusing):
    """The service ``rules`` without its rules, which may have changed since then; it can still parse a command."""

    def __init__(self, rules: Any) -> None:
        super().__init__("rules")
        self.commands = rules.commands


class _ReadOnly:
    """The files of the vault, without the methods that change them."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return _Refusing(f"files.{name}") if name in ("write", "remove", "move") else getattr(self._files, name)


class _PastHistory:
    """The history of the session up to the place that is run again."""

    def __init__(self, history: Any, scope: TurnContext) -> None:
        self._history, self._scope = history, scope

    async def path(self, session: str | None = None) -> Sequence[NodeView]:
        """Return the path that was active then; for another session, its path as it is now."""
        if session not in (None, self._scope.session):
            return await self._history.path(session)
        return [view_of(NodeView, node) for node in self._scope.live.hold.path]

    def __getattr__(self, name: str) -> Any:
        return _Refusing("history.switch") if name == "switch" else getattr(self._history, name)


def with_only(plugin_set: PluginSet, plugins: frozenset[str]) -> PluginSet:
    """Return `plugin_set` with the hooks of `plugins` alone."""
    hooks = {
        hook: tuple(replace(item, position=place) for place, item in enumerate(kept))
        for hook, items in plugin_set.hooks.items()
        if (kept := [item for item in items if item.plugin in plugins])
    }
    return replace(plugin_set, hooks=hooks)
