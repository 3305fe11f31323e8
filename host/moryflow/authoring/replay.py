"""Call a changed plugin's hooks with the inputs of a stored session (``moryflow replay``), and report what differs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from moryflow_sdk import HOOKS, ConfigError, PluginError, SystemBlock

from moryflow.hooks.checks import summary_of
from moryflow.hooks.plugin_set import PluginSet
from moryflow.plugins import dispose, load_plugin_set, start
from moryflow.plugins.discovery import Candidate, PluginSettings, discover, in_development
from moryflow.plugins.lifecycle import PlainContext

from .recorded_inputs import UNKNOWN, Moment, deltas_of, has_listener
from .rerun import Rerun, as_json, with_only

if TYPE_CHECKING:
    from moryflow.runtime.host import Host
    from moryflow.store import HookCallRow

    from .rerun import RerunResult
    from .trace import RecordedSession, RecordedTurn

    Rows = Sequence[HookCallRow]

GATES = tuple(name for name, info in HOOKS.items() if info.kind == "gate")
REPLAYED = ("system_blocks", *(name for name, info in HOOKS.items() if info.kind in ("transform", "gate", "observe")))
"""The hooks that turns call. The others are called while a plugin loads, without any input from a session."""
PATIENCE = 10.0
"""Seconds within which the changed plugin must be imported, as many as in ``plugin check``."""
LOST = "its input was not recorded (a redactor, or too large)"


@dataclass
class Replay:
    """The result of a replay: how many hook calls were compared, what differs, and what could not be compared.

    :ivar left_out: hooks, events and tools of the plugin that no replay compares, each with the reason.
    """

    plugin: str
    recorded_as: str
    compared: int = 0
    found: list[HookDifference] = field(default_factory=list["HookDifference"])
    skipped: list[tuple[Moment, str]] = field(default_factory=list[tuple[Moment, str]])
    left_out: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


async def replay(
    host: Host, family: Sequence[tuple[RecordedSession, Sequence[RecordedTurn]]], path: Path, recorded_as: str | None = None
) -> Replay:
    """Call the hooks of the plugin at `path` with the inputs that the plugin of its name got in turns of a session and of its
    sub-agents.

    Earlier turns are run as well, because the plugin may keep state from turn to turn, but not compared.

    :param family: the turns of the session, then those of its sub-agents.
    :param recorded_as: the name that the plugin had in the session, if it was another.
    :raises ConfigError: there is no plugin at `path`, or there are several.
    :raises PluginError: the plugin does not load.
    """
    candidate = _candidate(path)
    await _probe_plugin(host, candidate, path)
    with TemporaryDirectory(prefix="moryflow-replay-") as folder:
        loaded = await _load(host, Path(folder), candidate)
        try:
            result = Replay(candidate.name, recorded_as or candidate.name)
            for recorded, turns in family:
                found, skipped = len(result.found), len(result.skipped)
                await _run_turns(Rerun(host, recorded, loaded), recorded, turns, result)
                if recorded is not family[0][0]:
                    _name_session(result, recorded, found, skipped)
        finally:
            await dispose(loaded)
    return result


def _name_session(result: Replay, recorded: RecordedSession, found: int, skipped: int) -> None:
    """Add the sub-agent's session to the new entries of `result`, those after the first `found` and `skipped`."""
    id = recorded.session.id
    for place, one in enumerate(result.found[found:], found):
        result.found[place] = replace(
            one, place=f"{recorded.session.agent} {id}, {one.place}", about={"session": id, **one.about}
        )
    result.skipped[skipped:] = [(moment, f"in {id}: {reason}") for moment, reason in result.skipped[skipped:]]


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
    """Let the probe import the plugin first: code that hangs or ends the process is reported and cannot hurt the replay.

    :raises PluginError: the plugin does not load.
    """
    from moryflow.plugins.preflight.policy import probe

    verdict = await probe(candidate, home=host.home, config=host.config.section(""), seconds=PATIENCE)
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
    return with_only(started, frozenset({name}))


async def _run_turns(rerun: Rerun, recorded: RecordedSession, turns: Sequence[RecordedTurn], result: Replay) -> None:
    compared = {turn.run.id for turn in turns}
    before = recorded.until(turns[-1]) if turns else ()
    _leave_out(rerun, before, result)
    for turn in before:
        for moment in rerun.moments(turn):
            if moment.hook in REPLAYED:
                await _compare(rerun, moment, result, turn.run.id in compared)
        if turn.run.id in compared:
            _compare_state(rerun, recorded, turn, result)


async def _compare(rerun: Rerun, moment: Moment, result: Replay, counts: bool) -> None:
    """Call the plugin's hook with its recorded input, and note whether it does the same as then."""
    implementations = rerun.plugin_set.ordered(moment.hook)
    own = [row for row in moment.rows if row.plugin == result.recorded_as]
    called = has_listener(implementations, moment.values[0]) if moment.hook == "event" else bool(implementations)
    if not called and not any(row.outcome == "changed" or row.delta for row in own):
        return
    given = recorded_input(moment, own)
    failed = next((row.outcome for row in own if row.outcome not in ("ok", "changed")), "")
    lost = LOST if given is UNKNOWN else f"it was not called then: {failed}" if failed in NOT_CALLED else ""
    if lost:
        result.skipped += [(moment, lost)] if counts else []
        return
    outcome = await rerun.call(moment, given)
    if not counts:
        return
    result.compared += 1
    if outcome.failures or failed:
        found = outcome_difference(moment, outcome, failed)
        result.found += [found] if found else []
        return
    difference = result_difference(moment, own, given, outcome.value)
    if difference is not None:
        file, line = implementations[0].place if implementations else ("", 0)
        result.found.append(hook_difference(moment, difference, file, line))


def _leave_out(rerun: Rerun, turns: Sequence[RecordedTurn], result: Replay) -> None:
    """Note which of the plugin's hooks, events and tools are not compared, and why."""
    plugin_set = rerun.plugin_set
    loading = [HOOKS[hook].dotted for hook in HOOKS if hook not in REPLAYED and plugin_set.ordered(hook)]
    left_out = [(hook, "called while a plugin loads, not in a turn") for hook in loading]
    left_out += [(f"event {kind}", "not stored") for kind in deltas_of(plugin_set.ordered("event"))]
    own = {name for name, owned in plugin_set.tools.items() if owned.plugin == result.plugin}
    ran = {call.tool for turn in turns for call in turn.calls} & own
    left_out += [(f"tool {name}", "no tool is called") for name in sorted(ran)]
    result.left_out += [one for one in left_out if one not in result.left_out]


def _compare_state(rerun: Rerun, recorded: RecordedSession, turn: RecordedTurn, result: Replay) -> None:
    """Compare the plugin's state after `turn`, because an observer can change nothing else.

    The session's state is stored only as it was last, so it is compared after the last turn. Nothing is compared if calls were
    skipped or left out, because they may have changed the state too.
    """
    if result.skipped or any(hook.startswith(("event ", "tool ")) for hook, _ in result.left_out):
        return
    of_turn, of_session = rerun.state(result.plugin)
    pairs = [("turn.state", f"turn:{turn.run.id}", of_turn)]
    if turn is recorded.turns[-1]:
        pairs.append(("turn.session_state", "session", of_session))
    for kind, scope, now in pairs:
        difference = first_difference(recorded.state.get((result.recorded_as, scope), {}), now, kind)
        if difference is not None:
            file = rerun.plugin_set.plugins[result.plugin].file
            about = f"after {turn.place}"
            result.found.append(HookDifference(about, {"turn": turn.number}, difference, file))


AROUND = 30
"""Characters of a text that are shown before the first difference; from there on, three times as many are shown."""


@dataclass(frozen=True)
class ValueDifference:
    """The first place where two values differ: a path such as ``messages[2].text, line 3``."""

    path: str
    before: Any
    after: Any

    def lines(self) -> list[str]:
        """Return the difference as two lines for a person."""
        before, after = self.before, self.after
        if not (isinstance(before, str) and isinstance(after, str)):
            texts = [json.dumps(value, ensure_ascii=False, default=str) for value in (before, after)]
            before, after = ("(nothing)" if text == "null" else text for text in texts)
        start = max(0, _common(before, after) - AROUND)
        return [f"- {_cut(before, start)}", f"+ {_cut(after, start)}"]


def first_difference(before: Any, after: Any, path: str = "") -> ValueDifference | None:
    """Return the first difference between two JSON values, in the order of the first; ``None`` when they are equal."""
    if before == after:
        return None
    if isinstance(before, dict) and isinstance(after, dict):
        return _in_mapping(cast("dict[str, Any]", before), cast("dict[str, Any]", after), path)
    if isinstance(before, list) and isinstance(after, list):
        return _in_list(cast("list[Any]", before), cast("list[Any]", after), path)
    if isinstance(before, str) and isinstance(after, str) and "\n" in before + after:
        line = before[: _common(before, after)].count("\n") + 1
        return ValueDifference(f"{path}, line {line}" if path else f"line {line}", before, after)
    return ValueDifference(path, before, after)


def _in_mapping(before: dict[str, Any], after: dict[str, Any], path: str) -> ValueDifference | None:
    for key in [*before, *(key for key in after if key not in before)]:
        place = f"{path}.{key}" if path else key
        found = first_difference(before.get(key), after.get(key), place)
        if found is not None:
            return found
    return ValueDifference(path, before, after)  # a field that is null differs from one that is missing


def _in_list(before: list[Any], after: list[Any], path: str) -> ValueDifference | None:
    for index, (one, other) in enumerate(zip(before, after, strict=False)):
        found = first_difference(one, other, f"{path}[{index}]")
        if found is not None:
            return found
    index = min(len(before), len(after))
    rest = (before[index] if len(before) > index else None, after[index] if len(after) > index else None)
    return ValueDifference(f"{path}[{index}]", *rest) if rest[0] != rest[1] else ValueDifference(path, before, after)


def _common(before: str, after: str) -> int:
    return len(os.path.commonprefix([before, after]))  # noqa: RUF071


def _cut(text: str, start: int) -> str:
    shown = text[start : start + 4 * AROUND].replace("\n", "⏎")
    return f"{'…' if start else ''}{shown}{'…' if len(text) > start + 4 * AROUND else ''}"


NOT_CALLED = ("quarantined", "skipped")
"""The outcomes that mean that the host did not call the plugin."""


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


def hook_difference(moment: Moment, difference: ValueDifference, file: str = "", line: int = 0) -> HookDifference:
    place: dict[str, Any] = {"turn": moment.turn.number, "step": moment.step, "hook": HOOKS[moment.hook].dotted}
    if moment.call is not None:
        place |= {"call_id": moment.call.id, "tool": moment.call.tool}
    if moment.hook == "event":
        place["event"] = moment.values[0].type
    return HookDifference(moment.place, place, difference, file, line)


def recorded_input(moment: Moment, own: Rows) -> Any:
    """Return the value that the plugin was given; if it has no row, the value before truncation, else the last value."""
    if HOOKS[moment.hook].kind != "transform":
        return None
    if own:
        return moment.before(own[0].position)
    final = next((row.position for row in moment.rows if row.plugin == "truncation"), None)
    return moment.before(final) if final is not None else moment.values[-1]


def outcome_difference(moment: Moment, outcome: RerunResult, failed: str) -> HookDifference | None:
    """Return the difference between a call that failed and one that did not; ``None`` if both failed."""
    if failed and outcome.failures:
        return None
    if failed:
        return hook_difference(moment, ValueDifference("outcome", failed, "worked"))
    failure = outcome.failures[0]
    difference = ValueDifference("outcome", "worked", f"{failure.outcome}: {failure.error}")
    return hook_difference(moment, difference, failure.file, failure.line)


def result_difference(moment: Moment, own: Rows, given: Any, now: Any) -> ValueDifference | None:
    """Return the first difference between what a hook made of `given` then and what it made of it now."""
    match HOOKS[moment.hook].kind:
        case "gate":
            recorded = next((row.delta for row in own if row.delta), None)
            return first_difference(recorded, next(iter(now.values()), None))
        case "contribute":
            return _of_blocks([block for row in own for block in (row.delta or {}).get("blocks", ())], now)
        case "observe":
            return None
        case _:
            recorded = next((row.delta for row in own if isinstance(row.delta, dict) and "decision" in row.delta), None)
            then = moment.before(own[-1].position + 1) if own else given
            before = {"verdict": recorded} if recorded else as_json(then)
            return first_difference(before, now, HOOKS[moment.hook].value)


def _of_blocks(then: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> ValueDifference | None:
    """Compare blocks of the system prompt; of the recorded blocks, only id, length and hash are known."""
    for index, (old, new) in enumerate(zip_longest(then, now)):
        path = f"blocks[{index}]"
        if old is None or new is None:
            return ValueDifference(path, old and _unstored_text(old), new and new.get("text", ""))
        if old["id"] != new["id"]:
            return ValueDifference(f"{path}.id", old["id"], new["id"])
        if summary_of(SystemBlock.model_validate(new)) != dict(old):
            return ValueDifference(f"{path}.text", _unstored_text(old), new.get("text", ""))
    return None


def _unstored_text(block: Mapping[str, Any]) -> str:
    return f"(another text of {block['chars']} characters, which is not stored)"
