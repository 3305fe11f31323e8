"""Call a changed plugin's hooks with the kept inputs of a stored session (``moryflow replay``), and report what differs.

No model and no tool is called, and nothing is stored. A call is the same if the ledger says the same of it: how it ended, and
what it changed or said.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from moryflow_sdk import HOOKS, ConfigError, PluginError, ToolError, thaw
from moryflow_sdk.field_types import check_of

from moryflow.compaction.summarizer import COMPACT_AGENT
from moryflow.hooks.ledger import Ledger
from moryflow.hooks.plugin_set import PluginSet
from moryflow.plugins import dispose, load_plugin_set, start
from moryflow.plugins.discovery import Candidate, PluginSettings, discover, in_development
from moryflow.plugins.lifecycle import PlainContext
from moryflow.runtime.session_lease import read_only_scope

from .fire import TYPES, call_chain

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import TurnContext
    from moryflow.runtime.host import Host
    from moryflow.store import HookCallRow

    from .trace import RecordedSession, RecordedTurn

# Seconds within which the changed plugin must be imported, as many as in `plugin check`.
TIMEOUT = 10.0
_REFUSED = "is not used in a replay"
_LOST = "its input was not kept (keepInputs was off, a redactor had yet to see it, or it was too large)"
_WORKED = ("ok", "changed")
_NOT_CALLED = ("quarantined", "skipped")


@dataclass
class Replay:
    """The result of a replay: how many hook calls were compared, what differs, and what could not be compared, and why."""

    plugin: str
    recorded_as: str
    compared: int = 0
    found: list[HookDifference] = field(default_factory=list["HookDifference"])
    skipped: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


@dataclass(frozen=True)
class HookDifference:
    """A difference between what the plugin did then and what it does now; `file` is where its code is now.

    :ivar place: where in the session it is, for people; `about` says it for programs.
    """

    place: str
    about: Mapping[str, Any]
    difference: ValueDifference
    file: str = ""
    line: int = 0

    def as_json(self) -> dict[str, Any]:
        change = self.difference
        where = {"file": self.file, "line": self.line} if self.file else {}
        return {**self.about, "path": change.path, "before": change.before, "after": change.after, **where}


async def replay(
    host: Host, family: Sequence[tuple[RecordedSession, Sequence[RecordedTurn]]], path: Path, recorded_as: str | None = None
) -> Replay:
    """Call the hooks of the plugin at `path` with the inputs that the plugin of its name got in turns of a session and of its
    sub-agents.

    Earlier turns are run as well, because the plugin may keep state from turn to turn, but not compared.

    :param family: the turns of the session, then those of its sub-agents.
    :param recorded_as: the name that the plugin had in the session, if it was another.
    :raises ConfigError: there is no plugin at `path`, or there are several, or no input of the plugin was kept.
    :raises PluginError: the plugin does not load.
    """
    candidate = _candidate(path)
    await _probe_plugin(host, candidate, path)
    result = Replay(candidate.name, recorded_as or candidate.name)
    rows = [row for recorded, _ in family for turn in recorded.turns for row in turn.rows if row.plugin == result.recorded_as]
    if not any(row.input is not None for row in rows):
        message = f"what {result.recorded_as} was given was not kept in session {family[0][0].session.id}"
        raise ConfigError(message, next_step="moryflow config set keepInputs true; then run the session again")
    with TemporaryDirectory(prefix="moryflow-replay-") as folder:
        loaded = await _load(host, Path(folder), candidate)
        try:
            for recorded, turns in family:
                about = {} if recorded is family[0][0] else {"session": recorded.session.id}
                await _replay_session(host, recorded, turns, loaded, result, about)
        finally:
            await dispose(loaded)
    return result


def _candidate(path: Path) -> Candidate:
    candidates = in_development(path.resolve())
    if len(candidates) > 1:
        names = ", ".join(candidate.name for candidate in candidates)
        raise ConfigError(f"there are several plugins here: {names}", where=str(path), next_step="name the file of one")
    problem = candidates[0].problem if candidates else None
    if problem is not None or not candidates:
        message = problem.message if problem else "no plugin is declared here"
        raise ConfigError(message, where=str(path), next_step="moryflow new plugin NAME")
    return candidates[0]


async def _probe_plugin(host: Host, candidate: Candidate, path: Path) -> None:
    """Let the probe import the plugin first: code that hangs or ends the process is reported and cannot hurt the replay."""
    from moryflow.plugins.preflight.policy import probe_all

    work = partial(probe_all, [candidate], home=host.home, config=host.config.section(""), seconds=TIMEOUT)
    [verdict] = await asyncio.to_thread(work)
    if not verdict.ok:
        step = verdict.hint or f"moryflow plugin check {path}"
        raise PluginError(f"{verdict.stage}: {verdict.error}", where=verdict.place, next_step=step)


async def _load(host: Host, home: Path, candidate: Candidate) -> PluginSet:
    """Load the one plugin beside the built-in ones, in the temporary folder `home`; only its hooks are kept."""
    from moryflow.base.builtins import BUILTINS

    name = candidate.name
    builtins = [each for each in discover(home, BUILTINS) if each.tier == "builtin" and each.name != name]
    found = load_plugin_set(home=home, builtins=(), settings=PluginSettings(), config=host.config, found=[*builtins, candidate])
    started = await start(found, PlainContext(home, host.environ).of)
    for record in started.records:
        if record.name == name and record.status != "loaded":
            message = f"{record.stage}: {record.error or record.reason}"
            raise PluginError(message, where=record.place, next_step=record.hint or f"moryflow plugin check {name}")
    own = {hook: [item for item in items if item.plugin == name] for hook, items in started.hooks.items()}
    hooks = {hook: tuple(replace(item, position=place) for place, item in enumerate(items)) for hook, items in own.items()}
    return replace(started, hooks=hooks)


async def _replay_session(
    host: Host,
    recorded: RecordedSession,
    turns: Sequence[RecordedTurn],
    loaded: PluginSet,
    result: Replay,
    about: Mapping[str, Any],
) -> None:
    scope = read_only_scope(host, recorded.session, None)
    scope.around = replace(scope.around, services=_refusing(host.surroundings.services))
    scope.plugin_set = loaded
    for turn in recorded.turns[: recorded.turns.index(turns[-1]) + 1] if turns else ():
        scope = _in_turn(host, scope, turn)
        for row in turn.rows:
            if row.plugin == result.recorded_as:
                await _compare(scope, turn, row, result, about, counts=turn in turns)


def _in_turn(host: Host, scope: TurnContext, turn: RecordedTurn) -> TurnContext:
    """Return the scope as it was when `turn` began; ``turn.session_state`` stays."""
    run = turn.run
    if not run.is_compaction:
        scope.live.turn_states = {}  # a compaction is part of the turn around it
    agent = COMPACT_AGENT if run.is_compaction else host.agents.get(run.agent) or host.agent(None)
    found = (provider.find(run.model) for provider in host.plugin_set.providers if run.model)
    model = next((model for model in found if model is not None), None)
    fresh: dict[str, Any] = {"turn": run.id, "purpose": run.purpose, "offered": None, "_views": {}, "_saved": {}}
    return replace(scope, agent=agent, model=model, **fresh)


async def _compare(
    scope: TurnContext, turn: RecordedTurn, row: HookCallRow, result: Replay, about: Mapping[str, Any], *, counts: bool
) -> None:
    """Call the plugin's hook with the input of `row`, and note whether the ledger says the same of it as then."""
    tool = turn.tools.get(row.call_id or "", "")
    of = f" {tool} ({row.call_id})" if row.call_id else ""
    if row.hook == "event" and row.input:
        of = f" {row.input['event']['type']}"
    agent = f"{turn.run.agent} {about['session']}, " if about else ""
    place = f"{agent}{turn.place}, step {row.step}, {HOOKS[row.hook].dotted}{of}"
    if row.input is None:
        if row.hook == "event":
            return  # of a type that is not stored
        reason = f"it was not called then: {row.outcome}" if row.outcome in _NOT_CALLED else _LOST
        result.skipped += [(place, reason)] if counts else []
        return
    given = {name: check_of(TYPES[name]).convert(thaw(item)) for name, item in row.input.items() if item is not None}
    scope.step, scope.failures, scope.ledger = row.step, [], Ledger()
    await call_chain(scope.around.dispatcher, scope, row.hook, {**dict.fromkeys(row.input), **given})
    if not counts:
        return
    failure = scope.failures[0] if scope.failures else None
    if failure is not None and _REFUSED in failure.error:
        result.skipped.append((place, failure.error))
        return
    result.compared += 1
    now = next((each for made in scope.ledger.drain() for each in made.each()), None)
    difference = _difference(row, now, failure.error if failure else "")
    if difference is not None:
        call = {"call_id": row.call_id, "tool": tool} if row.call_id else {}
        where = {**about, "turn": turn.number, "step": row.step, "hook": HOOKS[row.hook].dotted, **call}
        own = scope.plugin_set.ordered(row.hook)
        file, line = own[0].place if own else (scope.plugin_set.plugins[result.plugin].file, 0)
        at = (failure.file, failure.line) if failure else (file, line)
        result.found.append(HookDifference(place, where, difference, *at))


def _difference(then: HookCallRow, now: HookCallRow | None, error: str) -> ValueDifference | None:
    failed, fails = then.outcome not in _WORKED, now is not None and now.outcome not in _WORKED
    if failed and fails:
        return None
    if failed or fails:
        before = f"{then.outcome}: {(then.delta or {}).get('error', '')}" if failed else "worked"
        return ValueDifference("outcome", before, f"{now.outcome}: {error}" if now is not None and fails else "worked")
    return first_difference(_change(then), _change(now), HOOKS[then.hook].value)


def _change(row: HookCallRow | None) -> dict[str, Any]:
    delta = thaw(row.delta) if row is not None else None
    return {name: value for name, value in cast("dict[str, Any]", delta or {}).items() if name != "was"}


def _refusing(services: Mapping[str, Any]) -> dict[str, Any]:
    """Return services that do nothing. A hook that uses one gets an error, except for events and the parser of commands."""

    def refusing(name: str) -> Any:
        kept = ("commands",) if name == "rules" else ()
        return lambda scope, plugin: _Refused(name, {each: getattr(services[name](scope, plugin), each) for each in kept})

    return {**{name: refusing(name) for name in services}, "emit": lambda scope, plugin: lambda kind, /, **data: None}


class _Refused:
    """Stands for a service that may not be used in a replay; each call of it raises a ``ToolError``."""

    def __init__(self, name: str, kept: Mapping[str, Any]) -> None:
        self._name = name
        vars(self).update(kept)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise ToolError(f"{self._name} {_REFUSED}", code="replay")

    def __getattr__(self, name: str) -> Any:
        return self


# Characters of a text that are shown before the first difference; from there on, three times as many are shown.
AROUND = 30


@dataclass(frozen=True)
class ValueDifference:
    """The first place where two values differ: a path such as ``messages.inserted[2].text, line 3``."""

    path: str
    before: Any
    after: Any

    def lines(self) -> list[str]:
        """Return the difference as two lines for the user."""
        before, after = self.before, self.after
        if not (isinstance(before, str) and isinstance(after, str)):
            texts = [json.dumps(value, ensure_ascii=False, default=str) for value in (before, after)]
            before, after = ("(unchanged)" if text == "null" else text for text in texts)
        start = max(0, _common(before, after) - AROUND)
        return [f"- {_cut(before, start)}", f"+ {_cut(after, start)}"]


def first_difference(before: Any, after: Any, path: str = "") -> ValueDifference | None:
    """Return the first difference between two JSON values, in the order of the first; ``None`` when they are equal."""
    if before == after:
        return None
    if isinstance(before, dict) and isinstance(after, dict):
        one, other = cast("dict[str, Any]", before), cast("dict[str, Any]", after)
        keys = [*one, *(key for key in other if key not in one)]
        parts = [(f"{path}.{key}" if path else key, one.get(key), other.get(key)) for key in keys]
    elif isinstance(before, list) and isinstance(after, list):
        pairs = enumerate(zip_longest(cast("list[Any]", before), cast("list[Any]", after)))
        parts = [(f"{path}[{index}]", one, other) for index, (one, other) in pairs]
    else:
        if isinstance(before, str) and isinstance(after, str) and "\n" in before + after:
            line = f"line {before[: _common(before, after)].count(chr(10)) + 1}"
            path = f"{path}, {line}" if path else line
        return ValueDifference(path, before, after)
    found = (first_difference(one, other, place) for place, one, other in parts)
    return next((each for each in found if each is not None), ValueDifference(path, before, after))


def _common(before: str, after: str) -> int:
    return len(os.path.commonprefix([before, after]))  # noqa: RUF071


def _cut(text: str, start: int) -> str:
    shown = text[start : start + 4 * AROUND].replace("\n", "⏎")
    return f"{'…' if start else ''}{shown}{'…' if len(text) > start + 4 * AROUND else ''}"
