"""The inputs of hooks that were called in the past, rebuilt from nodes, calls and recorded changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moryflow_sdk import ChatParams, CompactionPlan, Event, Message, SystemPrompt, ToolCall, ToolError, ToolResult
from moryflow_sdk.events import DELTAS

from moryflow.compaction.plan import in_view
from moryflow.compaction.summarizer import first_params
from moryflow.compaction.summary import first_plan
from moryflow.config.schema import COMPACTION_PATH, CompactionSettings
from moryflow.kernel.tool_call import parse
from moryflow.store.messages import ContextBuilder

if TYPE_CHECKING:
    from moryflow_sdk import ModelInfo

    from moryflow.config import Config
    from moryflow.hooks.plugin_set import Implementation
    from moryflow.store import CallRow, HookCallRow

    from .trace import RecordedSession, RecordedTurn


UNKNOWN: Any = object()
"""A value that was not recorded: a redactor had to see it first, or it was too large."""
CHAT = ("chat_messages", "chat_system", "system_blocks", "chat_params")
TOOL = ("tool_before", "tool_gate", "tool_decided", "tool_after")


@dataclass(frozen=True)
class Moment:
    """One call of a hook chain in a past turn.

    :ivar call: for a hook of tools, the record of the tool call.
    :ivar rows: the ledger's rows of this chain that changed, said or failed something, by position.
    :ivar values: for a transform, the value before each of `rows` and after the last; :data:`UNKNOWN` if it is lost.
        For an observer, the event.
    :ivar node: the active node then.
    """

    turn: RecordedTurn
    step: int
    hook: str
    call: CallRow | None = None
    rows: Sequence[HookCallRow] = ()
    values: Sequence[Any] = field(default=(), repr=False)
    node: str | None = None

    @property
    def place(self) -> str:
        """Where in the session it was, for people."""
        about = f" {self.call.tool} ({self.call.id})" if self.call else ""
        about = f" {self.values[0].type}" if self.hook == "event" else about
        return f"{self.turn.place}, step {self.step}, {self.hook.replace('_', '.', 1)}{about}"

    def before(self, position: int) -> Any:
        """Return the value as it was before the implementation at `position`."""
        number = sum(row.position < position for row in self.rows)
        return self.values[number]


@dataclass(frozen=True)
class Base:
    """What a turn began with before any plugin changed it. That is not stored, so it is what the host would make today.

    :ivar plan: for a turn that is a compaction, its plan; like `params`, :data:`UNKNOWN` if it is lost.
    """

    prompt: SystemPrompt
    params: ChatParams | Any
    plan: CompactionPlan | Any = UNKNOWN


def moments(recorded: RecordedSession, turn: RecordedTurn, base: Base) -> Iterator[Moment]:
    """Yield the hooks that a turn called, in order, without those that only observe."""
    if turn.run.is_compaction:
        yield from _of_compaction(turn, base)
        return
    for step in range(1, turn.run.steps + 1):
        if turn.run.purpose in ("main", "child"):
            yield from _of_chat(recorded, turn, step, base)
        for call in turn.calls:
            if call.step == step:
                yield from _of_call(recorded, turn, call)


def _of_compaction(turn: RecordedTurn, base: Base) -> Iterator[Moment]:
    """Yield the hook that got the plan, and ``chat_params`` if a summary was requested."""
    step = next((row.step for row in turn.rows), 0)
    anchor = next((str(event.data["anchor"]) for event in turn.events if "anchor" in event.data), None)
    for hook, first in (("compaction", base.plan), ("chat_params", base.params)):
        if hook == "compaction" or turn.run.steps:
            rows = _rows(turn, step, hook, None)
            yield Moment(turn, step, hook, None, rows, _forward(_before_changes(first, rows), rows), anchor)


def _of_chat(recorded: RecordedSession, turn: RecordedTurn, step: int, base: Base) -> Iterator[Moment]:
    node = recorded.nodes.get(turn.answers.get(step, ""))
    path = recorded.path(node.parent) if node is not None else None
    for hook in CHAT:
        rows = _rows(turn, step, hook, None)
        values: Sequence[Any] = ()
        match hook:
            case "chat_system" | "system_blocks" if step > 1:
                continue  # once per turn
            case "chat_messages":
                values = _forward(tuple(ContextBuilder().build(path)) if path is not None else UNKNOWN, rows)
            case "chat_system" | "chat_params":
                values = _forward(_before_changes(base.prompt if hook == "chat_system" else base.params, rows), rows)
        yield Moment(turn, step, hook, None, rows, values, node.parent if node else None)


def _of_call(recorded: RecordedSession, turn: RecordedTurn, call: CallRow) -> Iterator[Moment]:
    for hook in TOOL:
        rows = _rows(turn, call.step, hook, call.id)
        if hook in ("tool_gate", "tool_decided"):
            if call.ruling is not None:
                yield Moment(turn, call.step, hook, call, rows, node=call.node)
            continue
        values = _arguments(recorded, call, rows) if hook == "tool_before" else _results(recorded, call, rows)
        if values:
            yield Moment(turn, call.step, hook, call, rows, values, call.node)


def _rows(turn: RecordedTurn, step: int, hook: str, call_id: str | None) -> list[HookCallRow]:
    """Return the rows of one chain; of a hook that a step called twice (a prompt that did not fit), the last ones."""
    found = [
        row
        for row in turn.rows
        if (row.hook, row.step, row.call_id) == (hook, step, call_id) and (row.outcome != "ok" or row.delta is not None)
    ]
    latest = {row.position: row for row in found}
    return [latest[position] for position in sorted(latest)]


def _arguments(recorded: RecordedSession, call: CallRow, rows: Sequence[HookCallRow]) -> list[Any]:
    """Return the calls between the implementations of ``tool_before``, from the arguments that the model wrote onwards."""
    node = recorded.nodes.get(call.node)
    requested = (node.payload.get("calls") or ()) if node else ()
    written = next((item for item in requested if item["id"] == call.id), None)
    try:
        args = parse(written["arguments"]) if written and not written.get("problem") else None
    except ToolError:
        args = None
    if args is None:
        return []
    return _forward(ToolCall(id=call.id, tool=call.tool, args=args, step=call.step), rows)


def _results(recorded: RecordedSession, call: CallRow, rows: Sequence[HookCallRow]) -> list[Any]:
    """Return the results between the implementations of ``tool_after``, from the stored one backwards."""
    node = recorded.result_of(call)
    if node is None:
        return []
    stored = ToolResult(**{key: value for key, value in node.payload.items() if key in ToolResult.model_fields})
    return _backward(stored, rows, recorded.outputs)


def _before_changes(base: Any, rows: Sequence[HookCallRow]) -> Any:
    """Return `base` with the recorded values of the fields that plugins changed, as they were before the changes."""
    for row in reversed(rows):
        base = _with_fields(base, (row.delta or {}).get("was", {})) if row.outcome == "changed" else base
    return base


def _forward(base: Any, rows: Sequence[HookCallRow]) -> list[Any]:
    values = [base]
    for row in rows:
        values.append(_apply_delta(values[-1], row.delta) if row.outcome == "changed" else values[-1])
    return values


def _backward(final: Any, rows: Sequence[HookCallRow], outputs: Mapping[str, str]) -> list[Any]:
    values = [final]
    for row in reversed(rows):
        was: dict[str, Any] = dict((row.delta or {}).get("was") or {"output": {"too_large": 0}})
        stored = was["output"].get("stored") if isinstance(was.get("output"), dict) else None
        if stored:
            was["output"] = outputs.get(stored, {"too_large": 0})
        values.append(_with_fields(values[-1], was) if row.outcome == "changed" else values[-1])
    return values[::-1]


def _apply_delta(value: Any, delta: Any) -> Any:
    if value is UNKNOWN or not isinstance(delta, dict):
        return UNKNOWN
    if "inserted" in delta:
        if any("withheld" in item for item in delta["inserted"]):
            return UNKNOWN
        inserted = tuple(Message(**item) for item in delta["inserted"])
        return (*value[: delta["at"]], *inserted, *value[delta["at"] + delta["removed"] :])
    return _with_fields(value, {name: item for name, item in delta.items() if name != "was"})


def _with_fields(value: Any, fields: Mapping[str, Any]) -> Any:
    """Return `value` with other `fields`; :data:`UNKNOWN` if one of them was not recorded."""
    if value is UNKNOWN or any(name not in type(value).model_fields or _is_lost(item) for name, item in fields.items()):
        return UNKNOWN
    return type(value).model_validate({**value.model_dump(mode="json"), **fields})


def _is_lost(item: Any) -> bool:
    return isinstance(item, dict) and len(item) == 1 and next(iter(item)) in ("withheld", "too_large")


def compaction_base(recorded: RecordedSession, turn: RecordedTurn, config: Config, model: ModelInfo | None) -> Base:
    """Return the plan and the parameters of the compaction `turn`; instructions and limits are those of today.

    :param model: the model that wrote the summary; ``None`` if no provider knows it any more.
    """
    settings = CompactionSettings.model_validate(dict(config.section(COMPACTION_PATH)))
    params = first_params(model, settings) if model is not None else UNKNOWN
    return Base(SystemPrompt(), params, _plan(recorded, turn, settings))


def _plan(recorded: RecordedSession, turn: RecordedTurn, settings: CompactionSettings) -> Any:
    begun = next((event.data for event in turn.events if event.type == "compaction" and "anchor" in event.data), None)
    if begun is None:
        return UNKNOWN
    _, visible, previous = in_view(recorded.path(begun["anchor"]))
    at = next((place for place, node in enumerate(visible) if node.id == begun["first_kept"]), None)
    if at is None:
        return UNKNOWN
    focus = str(begun.get("focus", ""))
    return first_plan(visible[:at], begun["first_kept"], previous, begun["tokens_before"], settings, focus)


def with_events(turn: RecordedTurn, hooks: Iterable[Moment]) -> Iterator[Moment]:
    """Yield `hooks` with the events between them, because observers get an event when it is committed.

    An answer with its calls is committed when the first call is about to run, and a result together with what follows it. So a
    hook comes after the event that led to its call, and after all events before that one.
    """
    waiting, reached, since = deque(turn.events), 0, _marks(turn)
    for moment in hooks:
        reached = max(reached, since.get(_mark(moment), 0))
        while waiting and (waiting[0].seq or 0) <= reached:
            yield _moment(turn, waiting.popleft())
        yield moment
    for event in waiting:
        yield _moment(turn, event)


def has_listener(implementations: Iterable[Implementation], event: Event) -> bool:
    """Return whether one of these observers asks for events of this type."""
    return any(not item.options.events or event.is_one_of(item.options.events) for item in implementations)


def deltas_of(implementations: Iterable[Implementation]) -> list[str]:
    """Return the types of events that these observers get although no store keeps them."""
    options = [item.options for item in implementations]
    return [
        name
        for name in sorted(DELTAS)
        if any(not o.events or Event(type=name, session="").is_one_of(o.events) for o in options)
    ]


def _marks(turn: RecordedTurn) -> Mapping[tuple[str, str | int], int]:
    """Return the sequence numbers of the events that led to calls of hooks, by kind and by step or call."""
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
