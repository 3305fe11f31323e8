"""A stored session's hook inputs against a changed plugin: what would it have done otherwise? (``moryflow replay``)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from moryflow_sdk import HOOKS, ConfigError, PluginError

from moryflow.kernel.plugins import PluginSet, PluginSettings, dispose, load_plugin_set, start
from moryflow.loading.discovery import Candidate, discover, in_development
from moryflow.loading.plugin_context import plain_context

from .difference import Difference, first_difference
from .rebuilding import UNKNOWN, Moment
from .rerunning import Rerun, as_json, only

if TYPE_CHECKING:
    from moryflow.host import Host

    from .recorded import Recorded, Turn
    from .rerunning import Outcome

GATES = tuple(name for name, info in HOOKS.items() if info.kind == "gate")
REPLAYED = ("chat_messages", "chat_system", "chat_params", "tool_before", "tool_gate", "tool_decided", "tool_after")
"""What can be replayed: observers change nothing, and what was compacted and contributed is not rebuilt."""


@dataclass(frozen=True)
class Found:
    """A hook that would have done something else; `file` is where its code is now."""

    moment: Moment
    difference: Difference
    file: str = ""
    line: int = 0

    def as_json(self) -> dict[str, Any]:
        moment, change = self.moment, self.difference
        place = {"turn": moment.turn.number, "step": moment.step, "hook": HOOKS[moment.hook].dotted}
        about = {"call_id": moment.call.id, "tool": moment.call.tool} if moment.call else {}
        where = {"file": self.file, "line": self.line} if self.file else {}
        return {**place, **about, "path": change.path, "before": change.before, "after": change.after, **where}


@dataclass
class Replay:
    """What came of it: how many hook calls were compared, what differs, and what could not be compared."""

    plugin: str
    recorded_as: str
    compared: int = 0
    found: list[Found] = field(default_factory=list[Found])
    skipped: list[tuple[Moment, str]] = field(default_factory=list[tuple[Moment, str]])


async def replay(host: Host, recorded: Recorded, turns: Sequence[Turn], path: Path, recorded_as: str | None = None) -> Replay:
    """Call the hooks of the plugin at `path` with what the turns gave to the plugin of its name.

    Earlier turns are gone through as well, for what the plugin keeps from turn to turn, but not compared.

    :param recorded_as: the plugin of the session to compare with, when it had another name.
    :raises ConfigError: there is no plugin at `path`, or there are several.
    :raises PluginError: it does not load.
    """
    candidate = _candidate(path)
    with TemporaryDirectory(prefix="moryflow-replay-") as folder:
        loaded = await _loaded(host, Path(folder), candidate)
        try:
            result = Replay(candidate.name, recorded_as or candidate.name)
            await _through(Rerun(host, recorded, loaded), recorded, turns, result)
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
        said = problem.message if problem else "no plugin is declared here"
        raise ConfigError(said, where=str(path), next_step="moryflow new plugin NAME")
    return candidates[0]


async def _loaded(host: Host, home: Path, candidate: Candidate) -> PluginSet:
    """Load the one plugin beside the built-in ones, in a home that is thrown away afterwards."""
    from moryflow.builtins import BUILTINS

    name = candidate.name
    builtins = [each for each in discover(home, BUILTINS) if each.tier == "builtin" and each.name != name]
    found = load_plugin_set(home=home, builtins=(), settings=PluginSettings(), config=host.config, found=[*builtins, candidate])
    started = await start(found, plain_context(home, environ=host.environ))
    for record in started.records:
        if record.name == name and record.status != "loaded":
            where = f"{record.file}:{record.line}" if record.line else record.file
            said = f"{record.stage}: {record.error or record.reason}"
            raise PluginError(said, where=where, next_step=record.hint or f"moryflow plugin check {name}")
    return only(started, frozenset({name}))


async def _through(rerun: Rerun, recorded: Recorded, turns: Sequence[Turn], result: Replay) -> None:
    wanted = {turn.run.id for turn in turns}
    last = max((turn.number for turn in turns), default=0)
    for turn in recorded.turns[:last]:
        for moment in rerun.moments(turn):
            if moment.hook in REPLAYED:
                await _compare(rerun, moment, result, turn.run.id in wanted)


async def _compare(rerun: Rerun, moment: Moment, result: Replay, counts: bool) -> None:
    """Call the plugin's hook as it was called then, and note whether it does the same."""
    implementations = rerun.plugin_set.ordered(moment.hook)
    own = [row for row in moment.rows if row.plugin == result.recorded_as]
    if not implementations and not any(row.outcome == "changed" or row.delta for row in own):
        return
    gate = moment.hook in GATES
    given = None if gate else _given(moment, own)
    if given is UNKNOWN:
        result.skipped.append((moment, "what it was given was not written down (a redactor, or too large)"))
        return
    failed = next((row.outcome for row in own if row.outcome not in ("ok", "changed")), "")
    expected = _verdict(own) if gate else as_json(_made(moment, own, given))
    outcome = await rerun.call(moment, given)
    if not counts:
        return
    result.compared += 1
    if outcome.failures or failed:
        result.found += _failing(moment, outcome, failed)
        return
    actual = next(iter(outcome.value.values()), None) if gate else outcome.value
    found = first_difference(expected, actual, "" if gate else HOOKS[moment.hook].value)
    if found is not None:
        file, line = implementations[0].place if implementations else ("", 0)
        result.found.append(Found(moment, found, file, line))


def _failing(moment: Moment, outcome: Outcome, failed: str) -> list[Found]:
    """Return the difference between a call that failed and one that did not; of two that failed, none."""
    if failed and outcome.failures:
        return []
    if failed:
        return [Found(moment, Difference("outcome", failed, "worked"))]
    failure = outcome.failures[0]
    return [Found(moment, Difference("outcome", "worked", f"{failure.outcome}: {failure.error}"), failure.file, failure.line)]


def _given(moment: Moment, own: Sequence[Any]) -> Any:
    """Return what the plugin was given; one that was not there, or said nothing, what came before truncation."""
    if own:
        return moment.before(own[0].position)
    final = next((row.position for row in moment.rows if row.plugin == "truncation"), None)
    return moment.before(final) if final is not None else moment.values[-1]


def _made(moment: Moment, own: Sequence[Any], given: Any) -> Any:
    return moment.before(own[-1].position + 1) if own else given


def _verdict(own: Sequence[Any]) -> Any:
    return next((row.delta for row in own if row.delta), None)
