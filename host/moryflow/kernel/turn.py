"""Run one turn, from a user prompt to its end reason: the loop of steps, and the tool calls of each answer.

A step is one model call and its tool calls. Nodes are committed before their events are published, and the start of a
call that may have an effect is on the disk before the call runs. So a step of n calls, one after another, costs n + 1
commits: the answer with the first call's start, each result with the next call's start, the last result with the next
step's beginning. Calls that run side by side count as one call. If they only read and finish at once, the whole step
costs one commit. A question to the user costs one more, because another program may answer it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from moryflow_sdk import Finished, ModelError, ModelProvider, MoryflowError, ToolRequest, ToolResult

from moryflow.base.events import now
from moryflow.store import RunRow, Unfinished
from moryflow.store.messages import ContextBuilder

from .model_call import ModelCall
from .model_request import RequestBuilder
from .outcome import DEFAULT_MAX_STEPS, NOT_WHOLE, EndReason, RunOptions, error_json
from .tool_executor import PreparedCall, ToolExecutor, interrupted_call, skipped_call
from .turn_context import Journal, TurnContext

# The turn ends (`doom_loop`) after this many answers in a row that end with `pause` and have the same text.
MAX_PAUSES = 5
# Seconds to wait for the results of calls that only read, so that start and result cost one commit together.
#
# If the host dies meanwhile, the call is made again: it changed nothing, and its start was not published. Without the wait a
# step with one `read` takes 18 % longer: 4.9 ms instead of 4.1.
BATCH_TIME = 0.02


class TurnLoop:
    """Runs one turn. :meth:`work` may be cancelled at any await; :meth:`end` then gives every open call a result."""

    def __init__(
        self, scope: TurnContext, provider: ModelProvider | None, context: ContextBuilder, options: RunOptions
    ) -> None:
        self._scope = scope
        self._options = options
        self._journal = Journal(scope)
        self._executor = ToolExecutor(scope, self._journal, options.on_ask)
        self._batch = ToolBatch(scope, self._journal, self._executor)
        self._model_call = ModelCall(scope, self._journal, provider)
        self._requests = RequestBuilder(scope, context, scope.model) if scope.model else None
        self._compaction = scope.around.compaction(scope, self._journal, provider, self._requests)
        self._pauses: list[str] = []
        self._started_at = now()

    async def work(
        self, prompt: dict[str, Any] | None, unfinished: Sequence[Unfinished], called: Sequence[ToolRequest] = ()
    ) -> EndReason:
        """Finish the calls an earlier turn left open, then run from `prompt` until the model makes no more calls.

        :param prompt: the payload of the user node, or ``None`` to continue without a new prompt.
        :param unfinished: calls that an earlier turn left without a result.
        :param called: calls the user made, with the prompt or by answering; they are the first step, before the model is asked.
        """
        scope = self._scope
        self._announce()
        if unfinished:
            reason = await self._batch.resume(unfinished)
            if reason is not None:
                return reason
        if prompt is not None:
            self._journal.node("user", prompt)
        if reached := scope.budget.reached():
            return reached
        await self._next_step()
        if called and (ended := await self._call(called)):
            return ended
        return await self._steps()

    async def _call(self, called: Sequence[ToolRequest]) -> EndReason | None:
        """Run the calls the user made through the whole chain, as one step."""
        finished = self._model_call.note(Finished(reason="tool_calls", tool_calls=tuple(called)))
        reason = await self._batch.run(finished.tool_calls)
        self._model_call.finish_step()
        reason = reason or self._scope.ending or self._limit()
        if reason is None:
            await self._next_step()
        return reason

    async def direct(self, request: ToolRequest) -> PreparedCall:
        """Run one call through the whole chain without a model (``moryflow tool run``)."""
        self._announce()
        self._scope.step = 1
        self._model_call.note(Finished(reason="tool_calls", tool_calls=(request,)))
        return await self._batch.direct(request)

    async def _steps(self) -> EndReason:
        assert self._requests is not None
        while True:
            await self._compaction.before_step()
            finished = await self._answer(self._requests)
            reason = await self._batch.run(finished.tool_calls) if finished.tool_calls else None
            self._model_call.finish_step()
            self._check_whole(finished)
            if reason is None and not finished.tool_calls and finished.reason != "pause":
                return "completed"
            reason = reason or self._scope.ending or self._limit() or self._pause_limit(finished)
            if reason is not None:
                return reason
            await self._next_step()

    def _pause_limit(self, finished: Finished) -> EndReason | None:
        """Return ``doom_loop`` if the model keeps pausing with the same text, else ``None``."""
        self._pauses = [*self._pauses, self._scope.usage.text] if finished.reason == "pause" else []
        last = self._pauses[-MAX_PAUSES:]
        return "doom_loop" if len(last) == MAX_PAUSES and len(set(last)) == 1 else None

    async def _answer(self, requests: RequestBuilder) -> Finished:
        """Ask the model. If the prompt does not fit its window, compact the session and ask once more; if its service fails,
        ask another one that the user named for it."""
        compacted = False
        while True:
            try:
                return await self._model_call.ask(requests)
            except ModelError as error:
                if error.code == "context" and not compacted and await self._compaction.recover():
                    compacted = True
                elif not self._model_call.fallback(error, requests):
                    raise

    def _check_whole(self, finished: Finished) -> None:
        """Raise the error that ends the turn if the answer broke off inside a call.

        By now each of its calls has a result in the journal, and none of them ran.
        """
        if self._model_call.failure is not None:
            raise self._model_call.failure
        if any(request.problem == "incomplete" for request in finished.tool_calls):
            why = f": {NOT_WHOLE[finished.reason]}" if finished.reason in NOT_WHOLE else ""
            raise ModelError(f"the answer was cut off in the middle of a tool call{why}", code="incomplete")

    def _limit(self) -> EndReason | None:
        scope, options = self._scope, self._options
        if scope.around.strict and scope.failures:
            return "plugin_failed"
        if reached := scope.budget.reached():
            return reached
        limit = options.max_steps or scope.agent.max_steps or DEFAULT_MAX_STEPS
        return "max_steps" if scope.step >= limit else None

    def _announce(self) -> None:
        scope = self._scope
        for run in scope.live.interrupted_runs:
            self._journal.run(run._replace(state="ended", end_reason="interrupted", ended=self._started_at))
            if run.is_compaction:
                reason = "the host ended before the summary was there"
                self._journal.event("compaction", kind="compact", state="stale", run=run.id, reason=reason)
        scope.live.interrupted_runs = []
        while scope.live.unfinished_calls:
            self._journal.call(scope.live.unfinished_calls.pop(0)._replace(state="interrupted", updated=self._started_at))
        for text in scope.around.store.news():
            self._journal.event("store.notice", text=text)
        while scope.live.notices:
            self._journal.event("session.notice", text=scope.live.notices.pop(0))
        scope.live.held_back.clear()  # this prompt waited for the last turn to end: the session was never idle
        self._journal.run(self._run_row("running", None))
        named = {"key": self._options.key} if self._options.key else {}
        self._journal.event("turn.start", purpose=scope.purpose, plugin_set=scope.plugin_set.id, **named)
        self._journal.event("session.status", status="busy")

    async def _next_step(self) -> None:
        """Apply what waits in the inbox, then commit it with the last step's results and the start of the next step."""
        self._take_inbox()
        self._scope.live.goes_on = False  # the model reads the notes now
        self._scope.step += 1
        self._scope.budget.spend(steps=1)
        self._journal.event("step.start")
        await self._journal.commit()

    def _take_inbox(self, *, whole: bool = True) -> None:
        """Apply the changes that waited for a pause; unless `whole`, only those that may come between a call and its result."""
        scope = self._scope
        for waiting in (scope.live.inbox, scope.live.notes) if whole else (scope.live.inbox,):
            while waiting:  # one by one: a thread of a plugin may add to it meanwhile
                waiting.pop(0)(self._journal)
        for usage, cost in scope.extra_usage:
            scope.usage.add(usage, cost)
            scope.budget.spend(cost=cost)
        for spent in scope.spent:
            scope.usage.add_child(spent)
        scope.extra_usage.clear()
        scope.spent.clear()

    async def end(self, reason: EndReason, error: MoryflowError | None = None) -> EndReason:
        """Give open calls a result, commit, and return why the turn ended. A turn that waits for an answer keeps them open."""
        self._scope.over = True
        if reason == "completed" and self._scope.around.strict and self._scope.failures:
            reason = "plugin_failed"  # it failed in the last step, or in a call without a model
        self._model_call.keep_partial()
        if reason != "approval_required":
            await self._batch.close(f"the turn ended ({reason})")
        self._take_inbox(whole=reason != "approval_required")
        await self._compaction.after_turn()
        if error is not None:
            self._journal.event("error", **error_json(error))
        self._journal.run(self._run_row("ended", reason))
        self._journal.event("turn.finish", end_reason=reason, steps=self._scope.step, cost=self._scope.usage.cost)
        self._journal.event("session.status", status="waiting" if reason == "approval_required" else "idle")
        await self._journal.commit()
        await self._journal.settle()
        return reason

    def _run_row(self, state: str, reason: str | None) -> RunRow:
        scope, used = self._scope, self._scope.usage
        return RunRow(
            id=scope.turn,
            session=scope.session,
            purpose=scope.purpose,
            agent=scope.agent.id,
            model=scope.model.id if scope.model else "",
            plugin_set=scope.plugin_set.id,
            state=state,
            end_reason=reason,
            usage=used.usage.model_dump(),
            cost=used.cost,
            steps=scope.step,
            started=self._started_at,
            ended=now() if reason else None,
        )


class ToolBatch:
    """Runs the tool calls of a turn and remembers which of them have no result yet."""

    def __init__(self, scope: TurnContext, journal: Journal, executor: ToolExecutor) -> None:
        self._scope = scope
        self._journal = journal
        self._executor = executor
        self._open: list[ToolRequest] = []
        self._started: set[str] = set()

    async def run(self, requests: Sequence[ToolRequest]) -> EndReason | None:
        """Judge and run `requests` one by one, or side by side if all their tools allow it.

        Gates run, counters count and results are noted in the order of the calls.

        :returns: the end reason if a call stops the turn, else ``None``.
        """
        self._open = list(requests)
        tools = self._scope.plugin_set.tools
        side_by_side = all(request.name in tools and tools[request.name].tool.parallel_safe for request in requests)
        group: list[PreparedCall] = []
        for count, request in enumerate(requests, 1):
            group.append(await self._executor.judge(request))
            if side_by_side and count < len(requests) and not group[-1].stops:
                continue
            await self._execute(group)
            if stopping := next((prepared for prepared in group if prepared.stops), None):
                return await self._stop(stopping, requests[count:])
            group = []
        return None

    async def direct(self, request: ToolRequest) -> PreparedCall:
        """Judge and run a single call; return it with its ruling and result."""
        self._open = [request]
        prepared = await self._executor.judge(request)
        await self._execute([prepared])
        return prepared

    async def resume(self, unfinished: Sequence[Unfinished]) -> EndReason | None:
        """Give every open call of an earlier turn its one result. One that had started runs again only if its tool says so."""
        requests = [ToolRequest(**item.request) for item in unfinished]
        self._open = list(requests)
        for index, (request, item) in enumerate(zip(requests, unfinished, strict=True)):
            self._scope.node = item.node  # the call's record belongs to the answer that made it
            tool = self._scope.plugin_set.tools.get(request.name)
            if item.action == "interrupted" and not (tool and tool.tool.retry_safe):
                prepared = interrupted_call(request, "the host ended while it ran")
            else:
                prepared = await self._executor.judge(request)
            await self._execute([prepared])
            if prepared.stops:
                return await self._stop(prepared, requests[index + 1 :])
        return None

    async def close(self, why: str) -> None:
        """Give every call that is still open a result that says why the call did not finish."""
        for request in tuple(self._open):
            prepared = interrupted_call(request, why) if request.id in self._started else skipped_call(request, why)
            await self._finish(prepared, *(await self._executor.body(prepared)))

    async def _execute(self, group: Sequence[PreparedCall]) -> None:
        """Commit the starts, run the bodies together, note the results in order. The next commit writes the results."""
        running = [prepared for prepared in group if prepared.result is None]
        for prepared in running:
            self._executor.record_start(prepared)
        started = {prepared.call.id for prepared in running}
        if all(prepared.only_reads for prepared in running):
            self._started |= started
            async with self._journal.within(BATCH_TIME):
                outcomes = await self._bodies(group)
        else:
            await self._journal.commit()
            self._started |= started
            outcomes = await self._bodies(group)
        for prepared, (result, ms) in zip(group, outcomes, strict=True):
            await self._finish(prepared, result, ms)

    async def _bodies(self, group: Sequence[PreparedCall]) -> Sequence[tuple[ToolResult, int]]:
        """Run the bodies together; a single body needs no task of its own."""
        if len(group) == 1:
            return [await self._executor.body(group[0])]
        return await asyncio.gather(*(self._executor.body(prepared) for prepared in group))

    async def _finish(self, prepared: PreparedCall, result: ToolResult, ms: int) -> None:
        final = await self._executor.finish(prepared, result, ms)
        self._open = [request for request in self._open if request.id != prepared.call.id]
        if final.status == "denied":
            self._scope.usage.denied.append(_denial(prepared, final.output))
        elif prepared.stops and prepared.ruling is not None:
            self._scope.usage.denied.append(_denial(prepared, prepared.ruling.reason))

    async def _stop(self, prepared: PreparedCall, rest: Sequence[ToolRequest]) -> EndReason:
        ruling = prepared.ruling
        assert ruling is not None
        await self._execute([skipped_call(request, ruling.reason) for request in rest])
        return ruling.end_reason or "denied"


def _denial(prepared: PreparedCall, output: str) -> dict[str, Any]:
    cause = prepared.ruling.cause if prepared.ruling else "user"
    targets = [target.text for target in prepared.call.targets]
    about = {"call_id": prepared.call.id, "tool": prepared.call.tool, "targets": targets, "cause": cause, "reason": output}
    rules = [item for item in prepared.ruling.remember if item.scope == "user"] if prepared.ruling else []
    return {**about, "rules": [{"domain": rule.domain, "pattern": rule.pattern} for rule in rules]}
