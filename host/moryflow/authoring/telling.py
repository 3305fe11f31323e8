"""The events of a past turn, between its other hooks: where observers were told of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from moryflow_sdk.events import DELTAS

from .moments import Moment

if TYPE_CHECKING:
    from moryflow_sdk import Event

    from moryflow.hooks.plugin_set import Implementation

    from .recorded import RecordedTurn


def told(turn: RecordedTurn, hooks: Iterable[Moment]) -> Iterator[Moment]:
    """Yield `hooks` and between them the events: observers hear of one when it is committed.

    An answer with its calls is committed when the first of them is about to run, a result with what follows it. So a hook
    comes after the event that let it be called, and after all that stand before that one.
    """
    waiting, reached, since = deque(turn.events), 0, _marks(turn)
    for moment in hooks:
        reached = max(reached, since.get(_mark(moment), 0))
        while waiting and (waiting[0].seq or 0) <= reached:
            yield _moment(turn, waiting.popleft())
        yield moment
    for event in waiting:
        yield _moment(turn, event)


def wants(implementations: Iterable[Implementation], event: Event) -> bool:
    """Whether one of these observers asks to be told of an event of this type."""
    return any(not item.options.events or event.type in item.options.events for item in implementations)


def deltas_of(implementations: Iterable[Implementation]) -> list[str]:
    """Return the types of events that these observers are told of although no store keeps them."""
    return [name for name in sorted(DELTAS) if any(not i.options.events or name in i.options.events for i in implementations)]


def _marks(turn: RecordedTurn) -> Mapping[tuple[str, str | int], int]:
    """Return where the events stand that let hooks be called."""
    marks: dict[tuple[str, str | int], int] = {}
    for event in turn.events:
        match event.type:
            case "step.start":
                marks["step", event.step or 0] = event.seq or 0
            case "permission.replied":
                marks["decided", event.data["call_id"]] = event.seq or 0
            case "tool.start" if event.data["state"] == "running":
                marks["ran", event.data["call_id"]] = event.seq or 0
            case "compaction" if event.data["state"] == "pending":
                marks["planned", 0] = event.seq or 0
            case _:
                continue
    return marks


def _mark(moment: Moment) -> tuple[str, str | int]:
    if moment.hook == "compaction":
        return "planned", 0
    if moment.call is None:
        return "step", moment.step
    kind = {"tool_decided": "decided", "tool_after": "ran"}.get(moment.hook, "")
    return kind, moment.call.id


def _moment(turn: RecordedTurn, event: Event) -> Moment:
    rows = [
        row for row in turn.rows if row.hook == "event" and isinstance(row.delta, dict) and row.delta.get("seq") == event.seq
    ]
    return Moment(turn, event.step or 0, "event", None, rows, (event,))
