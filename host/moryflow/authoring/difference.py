"""The first difference between two JSON values, with a few words of context from each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, cast

from moryflow_sdk import HOOKS, SystemBlock

from moryflow.hooks.checks import summary_of

from .rerun import as_json

if TYPE_CHECKING:
    from moryflow.store import HookCallRow

    from .moments import Moment
    from .rerun import RerunResult

    Rows = Sequence[HookCallRow]


AROUND = 30
"""Characters of a text that are shown on either side of the first difference."""


@dataclass(frozen=True)
class ValueDifference:
    """The first place where two values differ: a path such as ``messages[2].text, line 3``."""

    path: str
    before: Any
    after: Any

    def lines(self) -> list[str]:
        """Return the difference as two lines for a person."""
        before, after = _excerpts(self.before, self.after)
        return [f"- {before}", f"+ {after}"]


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
    return ValueDifference(path, before, after)  # a field that is there and null is not one that is missing


def _in_list(before: list[Any], after: list[Any], path: str) -> ValueDifference | None:
    for index, (one, other) in enumerate(zip(before, after, strict=False)):
        found = first_difference(one, other, f"{path}[{index}]")
        if found is not None:
            return found
    index = min(len(before), len(after))
    rest = (before[index] if len(before) > index else None, after[index] if len(after) > index else None)
    return ValueDifference(f"{path}[{index}]", *rest) if rest[0] != rest[1] else ValueDifference(path, before, after)


def _common(before: str, after: str) -> int:
    for index, (one, other) in enumerate(zip(before, after, strict=False)):
        if one != other:
            return index
    return min(len(before), len(after))


def _excerpts(before: Any, after: Any) -> tuple[str, str]:
    import json

    if not (isinstance(before, str) and isinstance(after, str)):
        texts = [json.dumps(value, ensure_ascii=False, default=str) for value in (before, after)]
        before, after = ("(nothing)" if text == "null" else text for text in texts)
    start = max(0, _common(before, after) - AROUND)
    return _cut(before, start), _cut(after, start)


def _cut(text: str, start: int) -> str:
    shown = text[start : start + 4 * AROUND].replace("\n", "⏎")
    return f"{'…' if start else ''}{shown}{'…' if len(text) > start + 4 * AROUND else ''}"


NOT_CALLED = ("quarantined", "skipped")
"""Outcomes of a plugin that the host passed over."""


@dataclass(frozen=True)
class HookDifference:
    """Something that would have been otherwise; `file` is where its code is now.

    :ivar place: where it was, for people; `about` says it for programs.
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


def at(moment: Moment, difference: ValueDifference, file: str = "", line: int = 0) -> HookDifference:
    """Return what was found in a hook."""
    place: dict[str, Any] = {"turn": moment.turn.number, "step": moment.step, "hook": HOOKS[moment.hook].dotted}
    if moment.call is not None:
        place |= {"call_id": moment.call.id, "tool": moment.call.tool}
    if moment.hook == "event":
        place["event"] = moment.values[0].type
    return HookDifference(moment.place, place, difference, file, line)


def given_to(moment: Moment, own: Rows) -> Any:
    """Return the value that the plugin was given; one that was not there, or said nothing, what came before truncation."""
    if HOOKS[moment.hook].kind != "transform":
        return None
    if own:
        return moment.before(own[0].position)
    final = next((row.position for row in moment.rows if row.plugin == "truncation"), None)
    return moment.before(final) if final is not None else moment.values[-1]


def outcome_difference(moment: Moment, outcome: RerunResult, failed: str) -> HookDifference | None:
    """Return the difference between a call that failed and one that did not; of two that failed, none."""
    if failed and outcome.failures:
        return None
    if failed:
        return at(moment, ValueDifference("outcome", failed, "worked"))
    failure = outcome.failures[0]
    return at(moment, ValueDifference("outcome", "worked", f"{failure.outcome}: {failure.error}"), failure.file, failure.line)


def result_difference(moment: Moment, own: Rows, given: Any, made: Any) -> ValueDifference | None:
    """Return where what a hook made now differs from what it made of `given` then."""
    match HOOKS[moment.hook].kind:
        case "gate":
            said = next((row.delta for row in own if row.delta), None)
            return first_difference(said, next(iter(made.values()), None))
        case "contribute":
            return _of_blocks([block for row in own for block in (row.delta or {}).get("blocks", ())], made)
        case "observe":
            return None
        case _:
            said = next((row.delta for row in own if isinstance(row.delta, dict) and "decision" in row.delta), None)
            then = moment.before(own[-1].position + 1) if own else given
            before = {"verdict": said} if said else as_json(then)
            return first_difference(before, made, HOOKS[moment.hook].value)


def _of_blocks(then: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> ValueDifference | None:
    """Compare blocks of the system prompt; of those then only id, length and hash are known."""
    for index, (old, new) in enumerate(zip_longest(then, now)):
        path = f"blocks[{index}]"
        if old is None or new is None:
            return ValueDifference(path, old and _lengthy(old), new and new.get("text", ""))
        if old["id"] != new["id"]:
            return ValueDifference(f"{path}.id", old["id"], new["id"])
        if summary_of(SystemBlock.model_validate(new)) != dict(old):
            return ValueDifference(f"{path}.text", _lengthy(old), new.get("text", ""))
    return None


def _lengthy(block: Mapping[str, Any]) -> str:
    return f"(another text of {block['chars']} characters, which is not stored)"
