"""The one door to a tool body. Every call, whoever makes it, passes the whole chain exactly once:

transform → validate → freeze and resolve → gates → question → decided → record → run → transform → truncate → cap.

The functions at the end combine the verdicts of the gates. Only they let the session's mode override a verdict; gates
never do.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moryflow_sdk import (
    Allow,
    Ask,
    Denied,
    Deny,
    Ruling,
    Stop,
    ToolCall,
    ToolError,
    ToolRequest,
    ToolResult,
    Verdict,
)

from moryflow.base.events import now
from moryflow.base.foreign_errors import plugin_error
from moryflow.hooks.checks import copy_for_plugin, revalidate
from moryflow.hooks.dispatcher import Withheld
from moryflow.hooks.plugin_set import RegisteredTool
from moryflow.store import CallRow

from .outcome import OnAsk
from .tool_call import (
    Deadline,
    as_result,
    call_as_judged,
    call_row,
    cap_output,
    failure,
    input_problem,
    offered_tools,
    parse,
    refusal,
    result_of_error,
    run_body,
    tool_payload,
)
from .turn_context import Journal, TurnContext

# Characters of a result's diff that its event carries.
MAX_DIFF = 16_000

_PROBLEMS = {
    "truncated": "the answer was cut at its length limit before the arguments were complete; nothing was run",
    "incomplete": "the stream ended before the arguments were complete; nothing was run",
    "args_too_large": "the arguments are too large; nothing was run",
    "invalid_args": "the call came in pieces that do not say which arguments are its own; nothing was run: call again",
}


@dataclass(eq=False, repr=False)
class PreparedCall:
    """A call after its gates: it has a ruling that lets it run, or a result instead."""

    call: ToolCall
    owned: RegisteredTool | None = None
    ruling: Ruling | None = None
    encoded: bytes = b""
    result: ToolResult | None = None
    # Verdicts that `tool_before` returned.
    early_verdicts: Sequence[tuple[str, Verdict]] = ()
    # The preview of the call that the user saw with the question.
    preview: str = ""
    # The call's last row, and the ruling that row was made from.
    last_record: tuple[CallRow | None, Ruling | None] = (None, None)

    @property
    def only_reads(self) -> bool:
        """Whether the call can run twice without harm, going by its tool's ``parallel_safe`` and its judged targets."""
        owned = self.owned
        if owned is None or (owned.tier != "builtin" and owned.tool.context_parameter):
            return False  # with its context it could publish or ask before the call's start is published
        return owned.tool.parallel_safe and all(target.domain == "read" for target in self.call.targets)

    @property
    def stops(self) -> bool:
        return self.ruling is not None and self.ruling.decision == "stop"


class ToolExecutor:
    """Judges and runs the calls of one turn."""

    def __init__(self, scope: TurnContext, journal: Journal, on_ask: OnAsk) -> None:
        self._scope = scope
        self._journal = journal
        self._on_ask: OnAsk = on_ask
        self._dispatch = scope.around.dispatcher

    # ---------------------------------------------------------------- judging

    async def judge(self, request: ToolRequest) -> PreparedCall:
        """Take a call as far as its ruling; no tool body has run when this returns.

        :raises ApprovalRequired: the turn ends with the question open.
        """
        try:
            prepared = await self._prepare(request)
        except ToolError as error:
            call = ToolCall(id=request.id, tool=request.name, args={}, step=self._scope.step)
            return PreparedCall(call, result=failure(error))
        prepared.ruling = await self._rule(prepared)
        if prepared.ruling.decision != "allow":
            prepared.result = refusal(prepared.ruling)
        return prepared

    async def _prepare(self, request: ToolRequest) -> PreparedCall:
        if request.problem:
            raise ToolError(_PROBLEMS[request.problem], code=request.problem)
        owned = self._find_tool(request.name)
        proposed = ToolCall(id=request.id, tool=request.name, args=parse(request.arguments), step=self._scope.step)
        verdicts: list[tuple[str, Verdict]] = []
        proposed = await self._dispatch.transform(self._scope, "tool_before", proposed, verdicts=verdicts)
        call, encoded = call_as_judged(self._scope, proposed.tool, proposed.args, proposed.id, proposed.step)
        return PreparedCall(call, owned, encoded=encoded, early_verdicts=verdicts)

    def _find_tool(self, name: str) -> RegisteredTool:
        offered = offered_tools(self._scope)
        if name in offered:
            return offered[name]
        known = ", ".join(sorted(offered)) or "none"
        later = self._scope.plugin_set.pending_hint()
        raise ToolError(f"unknown tool {name[:80]!r}{later}; the tools are: {known}", code="unknown_tool")

    async def _rule(self, prepared: PreparedCall) -> Ruling:
        """Combine the verdicts of all gates, ask the user if the ruling is ask, then let ``tool_decided`` tighten it."""
        ruling = await self._gates(prepared.call, prepared.early_verdicts)
        if ruling.decision == "ask":
            ruling = await self._unless_changed(prepared, await self._ask(prepared, ruling, later=True))
        decided = await self._tighten(prepared.call, ruling)
        if decided.decision != "ask":
            return decided
        return await self._unless_changed(prepared, await self._ask(prepared, decided, later=True))

    async def _unless_changed(self, prepared: PreparedCall, answered: Ruling) -> Ruling:
        """Refuse a call that the user has allowed if it would do something else now than what the question showed.

        While the question was open, someone may have changed a link or rewritten a file. The built-in gates are asked again
        only about a command, whose files and scripts they alone know.
        """
        call, owned = prepared.call, prepared.owned
        assert owned is not None
        if answered.decision != "allow":
            return answered
        try:
            now, _ = call_as_judged(self._scope, call.tool, json.loads(prepared.encoded), call.id, call.step)
        except ToolError as error:
            return as_refused(answered, cause="invalid_input", reason=str(error), by="rule")
        same = now.targets == call.targets
        same = same and await self._scope.around.desk.preview(self._scope, owned, now) == prepared.preview
        if same and any(target.kind == "shell" for target in now.targets):
            again = await self._dispatch.gates(self._scope, "tool_gate", own=True, call=now)
            same = _objections(again) <= _objections(answered.verdicts)
        if same:
            return answered
        reason = "what this call would do has changed since the question was answered; make the call again"
        return as_refused(answered, cause="policy", reason=reason, by="rule")

    async def _settle(self, prepared: PreparedCall, ruling: Ruling) -> Ruling:
        """Settle a question of a running body. Its answer must come during the turn: the body cannot wait any longer."""
        if ruling.decision == "ask":
            ruling = await self._ask(prepared, ruling, later=False)
        decided = await self._tighten(prepared.call, ruling)
        return await self._ask(prepared, decided, later=False) if decided.decision == "ask" else decided

    async def _tighten(self, call: ToolCall, ruling: Ruling) -> Ruling:
        decided = await self._dispatch.gates(self._scope, "tool_decided", call=call, ruling=ruling)
        return restrict(ruling, decided, mode=self._scope.live.mode)

    async def _gates(self, call: ToolCall, early: Sequence[tuple[str, Verdict]] = ()) -> Ruling:
        scope = self._scope
        started = time.perf_counter_ns()
        reason = input_problem(call)
        if reason is not None:
            verdicts = [("moryflow", Deny(reason=reason, cause="invalid_input"))]
        else:
            verdicts = await self._dispatch.gates(scope, "tool_gate", call=call)
            verdicts += default_verdicts(scope.plugin_set.missing_gates, verdicts)
            verdicts += early
        spent = (time.perf_counter_ns() - started) // 1000
        return combine(verdicts, mode=scope.live.mode, gate_us=spent)

    async def _ask(self, prepared: PreparedCall, ruling: Ruling, *, later: bool) -> Ruling:
        """Ask the user about the call. With `later`, the answer may come after the turn has ended."""
        on_ask, call, owned = self._on_ask, prepared.call, prepared.owned
        assert owned is not None
        desk = self._scope.around.desk
        if on_ask != "deny" or call.id in self._scope.live.asked_calls:
            prepared.preview = await desk.preview(self._scope, owned, call)
        if on_ask == "fail" and not later:
            on_ask, self._scope.ending = "deny", "approval_required"
        settled = await desk.settle(
            self._scope, self._journal, call, ruling, on_ask, prepared.preview, ignore_earlier=not later
        )
        if settled.by == "headless":
            self._scope.usage.unasked = True
        return settled

    # ---------------------------------------------------------------- running

    def record_start(self, prepared: PreparedCall) -> None:
        """Note that the body is about to run; the caller commits before it runs the body."""
        self._record(prepared, "running")
        call = prepared.call
        targets = [target.text for target in call.targets]
        fields = {"call_id": call.id, "tool": call.tool, "domain": call.domain, "targets": targets, "args": call.args}
        self._journal.event("tool.start", **fields, state="running")

    def _record(self, prepared: PreparedCall, state: str) -> None:
        """Record the call's state. The row is built anew only if the ruling has changed since the last record."""
        row, of = prepared.last_record
        if row is None or of is not prepared.ruling:
            row = call_row(self._scope, prepared.call, state, prepared.ruling, prepared.encoded.decode() or None)
            prepared.last_record = (row, prepared.ruling)
        else:
            row = row._replace(state=state, updated=now())
        self._journal.call(row)

    async def body(self, prepared: PreparedCall) -> tuple[ToolResult, int]:
        """Run the body unless the call already has a result; return the raw result and the milliseconds it took."""
        started = time.perf_counter_ns()
        result = prepared.result or await self._body(prepared)
        return result, (time.perf_counter_ns() - started) // 1_000_000

    async def finish(self, prepared: PreparedCall, result: ToolResult, ms: int) -> ToolResult:
        """Let plugins change the result, then note what the model will read. Called in call order; the caller commits."""
        result = await self._after(prepared, result)
        self._record_end(prepared, result, ms)
        if prepared.call.id in self._scope.live.asked_calls:
            await self._scope.around.desk.lapse(self._scope, self._journal, prepared.call)
        return result

    async def _body(self, prepared: PreparedCall) -> ToolResult:
        owned = prepared.owned
        assert owned is not None
        deadline = Deadline(owned)
        visible = copy_for_plugin(prepared.call) if owned.foreign else prepared.call
        metadata: dict[str, Any] = {}
        context = self._scope.around.tool_view(
            self._scope, owned.plugin, visible, self._question_handler(prepared, deadline), metadata
        )
        try:
            keywords = owned.tool.bind(prepared.encoded, context)
            return as_result(owned, await run_body(deadline, keywords), metadata)
        except GeneratorExit:  # this coroutine is being closed
            raise
        except BaseException as error:
            # The isolation boundary around a plugin's code: the model reads the error with the plugin's name; the turn goes on.
            return result_of_error(owned, plugin_error(error))

    def _question_handler(self, prepared: PreparedCall, deadline: Deadline) -> Any:
        async def ask(question: Ask) -> None:
            with deadline.paused_clock():
                if type(question) not in (Ask, Allow, Deny, Stop):  # a subclass of a plugin's could misreport its decision
                    raise TypeError("ctx.ask takes an Ask")
                verdicts = [("tool", revalidate(question))]
                ruling = await self._settle(prepared, combine(verdicts, mode=self._scope.live.mode))
            if ruling.decision == "stop":
                self._scope.ending = ruling.end_reason or "denied"  # calls that run beside this one still get their results
            if ruling.decision != "allow":
                raise Denied(ruling.reason)

        return ask

    async def _after(self, prepared: PreparedCall, result: ToolResult) -> ToolResult:
        """Let plugins change the result or stop the turn; truncation is the last of them. Then cap the result."""
        stops: list[tuple[str, Verdict]] = []
        try:
            result = await self._dispatch.transform(self._scope, "tool_after", result, call=prepared.call, verdicts=stops)
        except Withheld as error:
            output = f"the output is withheld: plugin {error.plugin} failed while checking it"
            return ToolResult(status="error", code="withheld", output=output)
        if stops:
            prepared.ruling = combine(stops, mode=self._scope.live.mode)
        return cap_output(result, self._scope)

    def _record_end(self, prepared: PreparedCall, result: ToolResult, ms: int) -> None:
        state = "completed" if result.status == "ok" else "error"
        call = prepared.call
        self._journal.node("tool", tool_payload(call, result))
        recorded = "interrupted" if result.status == "interrupted" else state
        self._record(prepared, recorded)
        fields: dict[str, Any] = {"call_id": call.id, "tool": call.tool, "state": state, "status": result.status}
        fields["output"] = result.output
        extra = {"code": result.code, "title": result.title, "output_id": result.output_id, "path": result.path}
        diff = result.metadata.get("diff")
        extra["diff"] = diff[:MAX_DIFF] if isinstance(diff, str) else None
        fields.update({key: value for key, value in extra.items() if value})
        if result.status == "denied" or prepared.stops:
            fields["targets"] = [target.text for target in call.targets]
        self._journal.event("tool.result", **fields, truncated=result.truncated, ms=ms)


def skipped_call(request: ToolRequest, reason: str) -> PreparedCall:
    """Return `request` as a call that was not judged because the turn ended before it."""
    call = ToolCall(id=request.id, tool=request.name, args={})
    return PreparedCall(call, result=ToolResult(status="error", code="skipped", output=f"skipped: {reason}"))


def interrupted_call(request: ToolRequest, reason: str) -> PreparedCall:
    """Return `request` as a call that was running when its turn ended; it is never run again by itself."""
    call = ToolCall(id=request.id, tool=request.name, args={})
    return PreparedCall(call, result=ToolResult(status="interrupted", code="interrupted", output=f"interrupted: {reason}"))


_STRENGTH = {"allow": 0, "ask": 1, "deny": 2, "stop": 3}

Given = Sequence[tuple[str, Verdict]]


def default_verdicts(missing_gates: Sequence[str], verdicts: Given) -> list[tuple[str, Verdict]]:
    """Return the host's own asks: one if gates are missing, one if no gate gave a verdict."""
    extra: list[tuple[str, Verdict]] = []
    if missing_gates:
        names = ", ".join(missing_gates)
        reason = f"the gate of plugin {names} is not loaded; `moryflow plugin list` says why"
        extra.append(("moryflow", Ask(reason=reason, cause="gate_missing", bypass="never")))
    if not verdicts and not missing_gates:
        extra.append(("moryflow", Ask(reason="no gate judged this call", cause="no_verdict")))
    return extra


def apply_mode(verdict: Verdict, mode: str) -> Verdict:
    """Return `verdict` under `mode`: ``full_access`` turns an ask or deny that may be bypassed into an allow."""
    liftable = isinstance(verdict, Ask | Deny) and verdict.bypass == "mode"
    if mode != "full_access" or not liftable:
        return verdict
    return Allow(reason=f"full_access; otherwise: {verdict.reason}", rule=verdict.rule)


def combine(verdicts: Given, *, mode: str, gate_us: int = 0) -> Ruling:
    """Combine the gates' verdicts: stop > deny > ask > allow. Several asks become one question with all their reasons.

    :param verdicts: (plugin, verdict) in the order the gates ran; not empty.
    """
    standing = [apply_mode(verdict, mode) for _, verdict in verdicts]
    strongest = max(standing, key=lambda verdict: (_STRENGTH[verdict.decision], verdict.rule is not None))
    by_mode = any(after is not before for after, (_, before) in zip(standing, verdicts, strict=True))
    more: dict[str, Any] = {"reason": strongest.reason}
    match strongest:
        case Deny():
            more["next_step"] = strongest.next_step
        case Stop():
            more["end_reason"] = strongest.end_reason
        case Ask():
            asks = [verdict for verdict in standing if isinstance(verdict, Ask)]
            more["reason"] = "; ".join(dict.fromkeys(ask.reason for ask in asks))
            more["remember"] = tuple(dict.fromkeys(item for ask in asks for item in ask.remember))
            shown = (ask.reason if ask.unusual is None else ask.unusual for ask in asks)
            more["unusual"] = "; ".join(dict.fromkeys(filter(None, shown)))
            more["offer"] = strongest.offer if len(asks) == 1 else None  # it would not answer the other questions
        case _:
            more["reason"] = "; ".join(dict.fromkeys(verdict.reason for verdict in standing if verdict.reason))
    return Ruling(
        decision=strongest.decision,
        cause=getattr(strongest, "cause", "policy"),
        rule=strongest.rule,
        verdicts=tuple(verdicts),
        mode=mode,
        by="mode" if by_mode and strongest.decision == "allow" else "rule",
        gate_us=gate_us,
        **more,
    )


def as_refused(ruling: Ruling, *, cause: str, reason: str, by: str, stop: bool = False) -> Ruling:
    """Return `ruling` turned into a refusal, for example because nobody could be asked."""
    if stop:
        return ruling.replace(decision="stop", cause=cause, reason=reason, by=by, end_reason="stopped")
    return ruling.replace(decision="deny", cause=cause, reason=reason, by=by)


def restrict(ruling: Ruling, verdicts: Given, *, mode: str) -> Ruling:
    """Apply the verdicts of ``tool_decided``; only those stricter than `ruling` count.

    An implementation that failed denies in full access and asks in other modes, so that nothing runs unrecorded.
    """
    strict = [(plugin, _softened(verdict, mode)) for plugin, verdict in verdicts]
    stronger = [item for item in strict if _STRENGTH[apply_mode(item[1], mode).decision] > _STRENGTH[ruling.decision]]
    if not stronger:
        return ruling
    final = combine(stronger, mode=mode, gate_us=ruling.gate_us)
    return final.replace(verdicts=(*ruling.verdicts, *stronger))


def _softened(verdict: Verdict, mode: str) -> Verdict:
    if isinstance(verdict, Deny) and verdict.cause == "hook_failure" and mode != "full_access":
        return Ask(reason=verdict.reason, cause="hook_failure", bypass="never")
    return verdict


def _objections(verdicts: Given) -> set[tuple[str, Verdict]]:
    """Return the verdicts that are no allow, without the rule behind them: where that stands does not matter."""
    strict = ((plugin, verdict) for plugin, verdict in verdicts if not isinstance(verdict, Allow))
    return {(plugin, v.replace(rule=None, opens=()) if isinstance(v, Ask) else v.replace(rule=None)) for plugin, v in strict}
