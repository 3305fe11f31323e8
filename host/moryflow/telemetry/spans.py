"""The spans of a stored session: its turns, model calls, tool calls, hooks, questions and compactions.

A trace is a turn of the main session, with the turns of the sub-agents that it started. The ids are hashes of ids in the
store. The store knows when calls, questions and turns began and ended, to the millisecond. Of a hook it knows only how many
microseconds it took; its place within the span that it was called for is reckoned: hooks before a body follow each other
from the beginning, hooks after it up to the end.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from moryflow_sdk import HOOKS, thaw
from moryflow_sdk.support.secrets import hidden

if TYPE_CHECKING:
    from moryflow_sdk import Event

    from moryflow.store import ApprovalRow, CallRow, HookCallRow, Node, RunRow, SessionRow, Store


# The version of the conventions that the names below follow. It is the last one that OpenTelemetry published in its own
# schemas; the names that we use are the same in the separate repository that continues them.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"

CHAT, EXECUTE_TOOL, INVOKE_AGENT = "chat", "execute_tool", "invoke_agent"

NAMES = {
    "agent": "gen_ai.agent.name",
    "arguments": "gen_ai.tool.call.arguments",
    "cached": "gen_ai.usage.cache_read.input_tokens",
    "call": "gen_ai.tool.call.id",
    "error": "error.type",
    "finish": "gen_ai.response.finish_reasons",
    "input": "gen_ai.usage.input_tokens",
    "input_messages": "gen_ai.input.messages",
    "model": "gen_ai.request.model",
    "operation": "gen_ai.operation.name",
    "output": "gen_ai.usage.output_tokens",
    "output_messages": "gen_ai.output.messages",
    "provider": "gen_ai.provider.name",
    "result": "gen_ai.tool.call.result",
    "session": "gen_ai.conversation.id",
    "tool": "gen_ai.tool.name",
    "tool_type": "gen_ai.tool.type",
    # Ours.
    "by": "moryflow.question.by",
    "cause": "moryflow.decision.cause",
    "cost": "moryflow.cost.usd",
    "count": "moryflow.hook.count",
    "decision": "moryflow.decision",
    "domain": "moryflow.tool.domain",
    "end_reason": "moryflow.turn.end_reason",
    "hook": "moryflow.hook",
    "kind": "moryflow.compaction.kind",
    "ms": "moryflow.tool.body_ms",
    "outcome": "moryflow.hook.outcome",
    "plugin": "moryflow.plugin",
    "plugin_set": "moryflow.plugin_set",
    "purpose": "moryflow.turn.purpose",
    "reply": "moryflow.question.reply",
    "state": "moryflow.compaction.state",
    "step": "moryflow.step",
    "steps": "moryflow.turn.steps",
    "tokens_after": "moryflow.compaction.tokens_after",
    "tokens_before": "moryflow.compaction.tokens_before",
    "trigger": "moryflow.compaction.trigger",
    "truncated": "moryflow.tool.truncated",
    "turn": "moryflow.turn",
    "us": "moryflow.hook.us",
    "verdict": "moryflow.hook.verdict",
}

# The conventions' names of services that Moryflow's models are named after otherwise.
PROVIDERS = {
    "azure": "azure.ai.openai", "bedrock": "aws.bedrock", "gemini": "gcp.gemini", "mistral": "mistral_ai",
    "moonshot": "moonshot_ai", "vertex_ai": "gcp.vertex_ai", "watsonx": "ibm.watsonx.ai", "xai": "x_ai",
}  # fmt: skip


def provider_of(model: str) -> str:
    """Return the name of the service that a model's id begins with: ``openai/gpt-5`` is ``openai``."""
    name = model.partition("/")[0].partition(":")[0]
    return PROVIDERS.get(name, name)


# A hook that changed nothing and took less is left out: a step calls twenty of them.
SLOW_HOOK_US = 1000
_CHAT_HOOKS = frozenset({"chat_messages", "chat_system", "system_blocks", "chat_params"})
# The ends of a turn that are not its failure: the user's, or a limit's.
_NO_FAILURE = frozenset({"completed", "approval_required", "stopped", "max_steps", "budget", "denied"})


class TraceSpan(NamedTuple):
    """A span.

    :ivar parent: the id of the span around it, or ``""``.
    :ivar start, end: nanoseconds since 1970.
    :ivar attributes: by the short names of :data:`~.names.NAMES`; ``None`` is left out.
    :ivar client: whether it waited for another service.
    """

    trace: str
    id: str
    parent: str
    name: str
    start: int
    end: int
    attributes: Mapping[str, Any]
    client: bool = False


class SpanOptions(NamedTuple):
    """What is exported.

    :ivar content: prompts, answers, arguments and results too.
    :ivar hooks: every call of a hook, not only those that changed or said something, failed or took a millisecond.
    :ivar parent: the trace and the span of another program that the turns of main sessions belong to.
    """

    content: bool = False
    hooks: bool = False
    parent: tuple[str, str] | None = None


async def spans(store: Store, session: str, options: SpanOptions, turn: str | None = None) -> AsyncIterator[list[TraceSpan]]:
    """Yield the spans of each turn of a session that has ended, oldest first, or only those of `turn`.

    Runs beside the turns (summaries, titles) belong to the turn they began in. They come with the first turn that ended
    after them, or, if none did, at the end.
    """
    found = await _Recorded.read(store, await store.session(session))
    turns = [run for run in found.runs if _is_turn(run) and run.ended]
    helpers = [run for run in found.runs if not _is_turn(run) and run.ended]
    since = ""
    for run in turns:
        until = run.ended or ""
        if turn in (None, run.id):
            with_it = [one for one in helpers if since < (one.ended or "") <= until]
            yield await _of_turn(store, found, run, with_it, turns, options)
        since = until
    rest = [one for one in helpers if (one.ended or "") > since]
    if turn is None and turns and rest:
        yield await _of_turn(store, found, None, rest, turns, options)


async def family_spans(store: Store, session: str, options: SpanOptions) -> AsyncIterator[list[TraceSpan]]:
    """Yield what :func:`spans` does, of a session and of its sub-agents."""
    for id in await store.family((await store.session(session)).id):
        async for part in spans(store, id, options):
            yield part


def _is_turn(run: RunRow) -> bool:
    return run.purpose in ("main", "child", "direct")


async def _of_turn(
    store: Store, found: _Recorded, run: RunRow | None, helpers: Sequence[RunRow], turns: Sequence[RunRow], options: SpanOptions
) -> list[TraceSpan]:
    spans: list[TraceSpan] = []
    for one in (*([run] if run else ()), *helpers):
        around = run if one is run else _turn_at(turns, one.started)
        assert around is not None
        trace, above = await _above(store, found.row, around, options)
        ledger = [each for hook in await store.hook_calls(found.row.id, one.id) for each in hook.each()]
        build = _TurnSpans(found, one, ledger, trace, options)
        spans += build.turn(above) if one is run else build.helper(span_id(found.row.id, around.id))
    return spans


def _turn_at(turns: Sequence[RunRow], moment: str) -> RunRow:
    return next((run for run in reversed(turns) if run.started <= moment), turns[0])


def span_id(session: str, *of: object) -> str:
    """Return the id of the span of something in a session: the turn, the node, the call or the question that has this id."""
    return _hash("span", session, *of)[:16]


def _hash(*of: object) -> str:
    return sha256("\0".join(map(str, of)).encode(errors="surrogatepass")).hexdigest()


async def _above(store: Store, row: SessionRow, run: RunRow, options: SpanOptions) -> tuple[str, str]:
    """Return the trace of a turn and the id of the span above it: for a sub-agent the call that started it."""
    if row.parent is None or run.purpose != "child":
        return options.parent or (_hash("trace", row.id, run.id)[:32], "")
    parent = await store.session(row.parent)
    starters = [one for one in await store.runs(parent.id) if _is_turn(one)]
    turn = _turn_at(starters, run.started) if starters else None
    if turn is None:
        return _hash("trace", row.id, run.id)[:32], ""
    trace, _ = await _above(store, parent, turn, options)
    calls: dict[str, Event] = {}
    for event in await store.events(parent.id, types=("tool.start", "tool.result")):
        if event.turn == turn.id and event.ts <= run.started:
            call = str(event.data.get("call_id"))
            if event.type == "tool.result":
                calls.pop(call, None)
            elif event.data.get("state") == "running" and event.data.get("domain") == "task":
                calls[call] = event
    if len(calls) > 1:  # several sub-agents side by side: the one that was given this prompt
        prompt = await store.first_prompt(row.id)
        calls = {id: event for id, event in calls.items() if dict(event.data.get("args") or {}).get("prompt") == prompt}
    return trace, span_id(parent.id, next(iter(calls))) if len(calls) == 1 else span_id(parent.id, turn.id)


@dataclass
class _Recorded:
    """What the store knows of a session. Its events are by the turn, or the run beside a turn, that they belong to."""

    row: SessionRow
    runs: Sequence[RunRow]
    events: Mapping[str, Sequence[Event]]
    calls: Mapping[str, CallRow]
    approvals: Mapping[str, ApprovalRow]
    nodes: Mapping[str, Node]
    of_call: Mapping[str, Node]

    @classmethod
    async def read(cls, store: Store, row: SessionRow) -> _Recorded:
        events: defaultdict[str, list[Event]] = defaultdict(list)
        for event in await store.events(row.id):
            events[event.turn or ""].append(event)
        runs = list(await store.runs(row.id))
        if not store.seems_held(row.id):  # the process of a turn without an end was killed
            for place, run in enumerate(runs):
                if not run.ended and events[run.id]:
                    runs[place] = run._replace(ended=events[run.id][-1].ts, end_reason="interrupted")
        nodes = {node.id: node for node in await store.nodes(row.id)}
        answers = [node for node in nodes.values() if node.kind == "assistant"]
        return cls(
            row,
            runs,
            events,
            {call.id: call for call in await store.calls(row.id)},
            {asked.id: asked for asked in await store.approvals(row.id)},
            nodes,
            {str(call.get("id")): node for node in answers for call in node.payload.get("calls") or ()},
        )


@dataclass
class _TurnSpans:
    """Makes the spans of one turn from its events, in their order."""

    found: _Recorded
    run: RunRow
    ledger: Sequence[HookCallRow]
    trace: str
    options: SpanOptions
    made: list[TraceSpan] = field(default_factory=list[TraceSpan])
    _calls: dict[str, list[HookCallRow]] = field(default_factory=dict[str, list["HookCallRow"]])
    _begun: dict[int, int] = field(default_factory=dict[int, int])
    _judged: dict[str, int] = field(default_factory=dict[str, int])
    _running: dict[str, Event] = field(default_factory=dict[str, "Event"])
    _chats: dict[int, tuple[int, int, str]] = field(default_factory=dict[int, tuple[int, int, str]])
    _error: str = ""

    def __post_init__(self) -> None:
        # By identity: two calls of a hook may be equal in everything that is recorded of them.
        self._numbers = {id(row): number for number, row in enumerate(self.ledger)}

    def turn(self, above: str) -> list[TraceSpan]:
        run, found = self.run, self.found
        for row in self.ledger:
            self._calls.setdefault(row.call_id or "", []).append(row)
        events = found.events.get(run.id, ())
        for event in events:
            self._take(event)
        end = _ns(run.ended or run.started)
        for step in self._begun.keys() - self._chats.keys():  # a model call that failed, or was stopped
            self._chats[step] = (self._begun[step], end, "")
        for step in sorted(self._chats):
            self._chat(step)
        self._hooks(self.own, _ns(run.started), [row for row in self.ledger if not row.call_id and row.hook not in _CHAT_HOOKS])
        failed = run.end_reason not in _NO_FAILURE
        about = {"end_reason": run.end_reason, "steps": run.steps, "cost": run.cost, "plugin_set": run.plugin_set}
        about |= {"turn": run.id, "purpose": run.purpose, "error": (self._error or run.end_reason) if failed else None}
        if self.options.content:
            about |= self._prompt_and_answer(events)
        attributes = {"operation": INVOKE_AGENT, **self._model(), **_usage(run.usage), **about}
        top = self._span(self.own, above, f"{INVOKE_AGENT} {run.agent}", _ns(run.started), end, attributes)
        return [top, *self.made]

    @property
    def own(self) -> str:
        return span_id(self.found.row.id, self.run.id)

    def helper(self, turn: str) -> list[TraceSpan]:
        """Return the spans of a run beside the turns: a summary, or a plugin's own question to a model."""
        run = self.run
        events = [event for of in self.found.events.values() for event in of if event.data.get("run") == run.id]
        failed = {"error": None if run.end_reason == "completed" else run.end_reason}
        if not run.is_compaction:
            about: dict[str, Any] = {"operation": CHAT, "purpose": run.purpose, "plugin": run.agent, **failed}
            name, client = f"{CHAT} {run.model}".strip(), True
        else:
            about = {**_compaction(events[-1].data if events else {}), **failed}
            name, client = "compaction", False
        about |= self._model() | _usage(run.usage)
        top = self._span(self.own, turn, name, _ns(run.started), _ns(run.ended or ""), about, client)
        self._hooks(self.own, top.start, self.ledger)
        return [top, *self.made]

    def _take(self, event: Event) -> None:
        moment, step, data = _ns(event.ts), event.step or 0, event.data
        call = str(data.get("call_id", ""))
        match event.type, data.get("state"):
            case "step.start", _:
                self._begun[step] = moment
            case "compaction", "done" if data.get("kind") == "prune":
                id = span_id(event.session, self.run.id, "prune", step, event.ts)
                self.made.append(self._span(id, self.own, "compaction", moment, moment, _compaction(data)))
                self._begun[step] = moment  # the model is called after it
            case "tool.start", "pending":
                self._judged[call] = moment
                self._answered(step, moment, self.found.of_call.get(call))
            case "tool.start", _:
                self._running[call] = event
            case (("permission.replied" | "permission.expired"), _):
                self._question(event, call)
            case "tool.result", _:
                self._tool(event, call)
            case "step.finish", _:
                self._answered(step, moment, self.found.nodes.get(str(data.get("node"))))
            case "error", _:
                self._error = str(data.get("code") or "")
            case _:
                pass

    # ------------------------------------------------------------ model calls

    def _answered(self, step: int, moment: int, node: Node | None) -> None:
        """Note that the model call of a step has ended; the first sign of it counts."""
        if step in self._begun and step not in self._chats:
            self._chats[step] = (self._begun[step], moment, node.id if node else "")

    def _chat(self, step: int) -> None:
        start, end, place = self._chats[step]
        node = self.found.nodes.get(place)
        hooks = [row for row in self.ledger if row.step == step and row.hook in _CHAT_HOOKS]
        payload: Mapping[str, Any] = node.payload if node else {}
        used = payload.get("usage") or {}
        asked = bool(hooks) or any(used.values()) or node is None
        if self.run.purpose == "direct" or not asked:  # calls that the user made: no model was asked
            return
        failed = None if node else self._error or self.run.end_reason
        finish = [payload["finish"]] if payload.get("finish") else None
        about = {"operation": CHAT, "step": step, **self._model(), **_usage(used), "finish": finish, "error": failed}
        if node and self.options.content:
            about["output_messages"] = _text([_answer(payload)])
        id = span_id(self.found.row.id, place or f"{self.run.id} {step}")
        self.made.append(self._span(id, self.own, f"{CHAT} {self.run.model}".strip(), start, end, about, client=True))
        self._hooks(id, start, hooks)

    def _model(self) -> dict[str, Any]:
        model = self.run.model
        return {"model": model or None, "provider": provider_of(model) or None, "agent": self.run.agent}

    def _prompt_and_answer(self, events: Iterable[Event]) -> dict[str, Any]:
        """Return the turn's prompt and its last answer: the user's node above the first answer, and the last one."""
        places = [self._chats[step][2] for step in sorted(self._chats)]
        nodes = [self.found.nodes[place] for place in places if place]
        if not nodes:
            return {}
        at = self.found.nodes.get(nodes[0].parent or "")
        while at is not None and at.kind != "user":
            at = self.found.nodes.get(at.parent or "")
        asked = [{"role": "user", "parts": [{"type": "text", "content": at.payload.get("text", "")}]}] if at else []
        return {"input_messages": _text(asked), "output_messages": _text([_answer(nodes[-1].payload)])}

    # ------------------------------------------------------------ tool calls

    def _tool(self, event: Event, call: str) -> None:
        row, data, running = self.found.calls.get(call), event.data, self._running.get(call)
        rows = self._calls.get(call, [])
        after = [hook for hook in rows if hook.hook == "tool_after"]
        before = [hook for hook in rows if hook.hook != "tool_after"]
        end = _ns(event.ts)
        asked = [one.created for one in self.found.approvals.values() if one.call_id == call and one.turn == self.run.id]
        decided = _ns(min([*asked, running.ts if running else event.ts]))
        start = max(self._judged.get(call, _ns(self.run.started)), decided - _nanoseconds(before))
        tool = str(data.get("tool", ""))
        about: dict[str, Any] = {"operation": EXECUTE_TOOL, "tool": tool, "tool_type": "function", "call": call}
        about |= {"step": event.step, "ms": data.get("ms"), "truncated": data.get("truncated") or None}
        about |= {"decision": row.decision, "cause": row.cause} if row else {}
        about["domain"] = running.data.get("domain") if running else None
        status = data.get("status")
        about["error"] = None if status == "ok" else status if status == "denied" else data.get("code") or status
        if self.options.content:
            about |= {"arguments": row.args if row else None, "result": hidden(str(data.get("output", "")))}
        id = span_id(event.session, call)
        self.made.append(self._span(id, self.own, f"{EXECUTE_TOOL} {tool}", start, max(start, end), about))
        self._hooks(id, start, before)
        self._hooks(id, max(start, end - _nanoseconds(after)), after)

    def _question(self, event: Event, call: str) -> None:
        """Add the span of a question: how long it waited. It may have begun in an earlier turn."""
        row = self.found.approvals.get(str(event.data.get("approval_id")))
        if row is None:
            return
        end = _ns(row.replied_at or event.ts)
        about = {"call": call, "tool": row.request.get("tool"), "cause": row.kind, "by": event.data.get("by")}
        about["reply"] = event.data.get("reply") or "expired"
        id = span_id(event.session, row.id)
        self.made.append(self._span(id, span_id(event.session, call), "question", _ns(row.created), end, about))

    # ------------------------------------------------------------ hooks

    def _hooks(self, parent: str, start: int, rows: Sequence[HookCallRow]) -> None:
        for row in rows:
            end = start + row.us * 1000
            said = thaw(row.delta) if isinstance(row.delta, Mapping) else {}
            if self.options.hooks or row.outcome != "ok" or said or row.us >= SLOW_HOOK_US:
                about = {"hook": HOOKS[row.hook].dotted if row.hook in HOOKS else row.hook, "plugin": row.plugin}
                about |= {"outcome": row.outcome, "us": row.us, "count": row.count if row.count > 1 else None}
                about |= {"verdict": said.get("decision"), "call": row.call_id, "step": row.step or None}
                about["error"] = row.outcome if row.outcome not in ("ok", "changed") else None
                own = span_id(row.session, row.turn, "hook", self._numbers[id(row)])
                self.made.append(self._span(own, parent, f"hook {about['hook']} {row.plugin}", start, end, about))
            start = end

    def _span(
        self, id: str, parent: str, name: str, start: int, end: int, about: Mapping[str, Any], client: bool = False
    ) -> TraceSpan:
        return TraceSpan(self.trace, id, parent, name, start, end, {**about, "session": self.found.row.id}, client)


def _nanoseconds(rows: Iterable[HookCallRow]) -> int:
    return sum(row.us for row in rows) * 1000


def _compaction(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: data.get(name) for name in ("kind", "state", "trigger", "tokens_before", "tokens_after")}


def _usage(used: Mapping[str, Any]) -> dict[str, Any]:
    return {name: used.get(name) for name in ("input", "output", "cached")} if used else {}


def _answer(payload: Mapping[str, Any]) -> dict[str, Any]:
    text = [{"type": "text", "content": payload["text"]}] if payload.get("text") else []
    calls = [
        {"type": "tool_call", "id": call.get("id"), "name": call.get("name"), "arguments": call.get("arguments")}
        for call in payload.get("calls") or ()
    ]
    return {"role": "assistant", "parts": [*text, *calls], "finish_reason": str(payload.get("finish", ""))}


def _text(messages: list[Any]) -> str:
    return json.dumps(hidden(messages), ensure_ascii=False)


def _ns(moment: str) -> int:
    since = datetime.fromisoformat(moment) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
