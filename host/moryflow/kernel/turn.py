"""One user prompt to its end reason: the loop.

A step is one model call and its tool calls. Nodes are committed before anyone is told of them, and whatever may have an
effect is on the disk before it runs. So a step of n calls, one after another, costs n + 1 commits: the answer with the
first call's start, each result with the next call's start, the last result with the next step's beginning. Calls that
run side by side count as one call, and where they only read and are done at once they cost no commit of their own: one
for the whole step. A question to a person costs one more: it can be answered from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moryflow_sdk import Finished, ModelError, ModelProvider, MoryflowError, ToolRequest

from moryflow.base.events import now
from moryflow.store import RunRow, Unfinished
from moryflow.store.messages import ContextBuilder

from .journal import TurnJournal
from .model_call import ModelCall
from .model_request import RequestBuilder
from .outcome import DEFAULT_MAX_STEPS, NOT_WHOLE, EndReason, RunOptions, TurnUsage, error_json
from .tool_batch import ToolBatch
from .tool_executor import PreparedCall, ToolExecutor
from .turn_context import TurnContext

MOST_PAUSES = 5
"""Answers in a row that end with ``pause`` and say the same: like the same mistake five times."""


class TurnLoop:
    """Runs one turn. :meth:`work` may be cancelled at any await; :meth:`end` then settles what was open."""

    def __init__(
        self, scope: TurnContext, provider: ModelProvider | None, context: ContextBuilder, options: RunOptions
    ) -> None:
        self._scope = scope
        self._options = options
        self.usage = TurnUsage()
        self._journal = TurnJournal(scope)
        self._executor = ToolExecutor(scope, self._journal, options.on_ask, self.usage)
        self._batch = ToolBatch(scope, self._journal, self._executor, self.usage)
        self._model_call = ModelCall(scope, self._journal, self.usage, provider)
        self._requests = RequestBuilder(scope, context, scope.model) if scope.model else None
        self._compaction = scope.around.compaction(scope, self._journal, provider, self._requests)
        self._pauses: list[str] = []
        self._begun = now()

    async def work(
        self, prompt: dict[str, Any] | None, unfinished: Sequence[Unfinished], called: Sequence[ToolRequest] = ()
    ) -> EndReason:
        """Settle what an earlier turn left open, then run from `prompt` until no calls are left.

        :param prompt: the payload of the user node, or ``None`` to go on without one.
        :param unfinished: calls that an earlier turn left without a result.
        :param called: calls that the person made, with the prompt or by an answer; the first step, before the model is asked.
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
        """Take a person's own calls through the whole chain, as a step."""
        finished = self._model_call.note(Finished(reason="tool_calls", tool_calls=tuple(called)))
        reason = await self._batch.run(finished.tool_calls)
        self._model_call.finish_step()
        reason = reason or self._scope.ending or self._limit()
        if reason is None:
            await self._next_step()
        return reason

    async def direct(self, request: ToolRequest) -> PreparedCall:
        """Take one call through the whole chain without a model (``moryflow tool run``)."""
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
            reason = reason or self._scope.ending or self._limit() or self._idling(finished)
            if reason is not None:
                return reason
            await self._next_step()

    def _idling(self, finished: Finished) -> EndReason | None:
        """End the turn when the model asks to be asked again and again and gives nothing new."""
        self._pauses = [*self._pauses, self.usage.text] if finished.reason == "pause" else []
        last = self._pauses[-MOST_PAUSES:]
        return "doom_loop" if len(last) == MOST_PAUSES and len(set(last)) == 1 else None

    async def _answer(self, requests: RequestBuilder) -> Finished:
        """Ask the model; a prompt that does not fit is compacted once and asked again."""
        try:
            return await self._model_call.ask(requests)
        except ModelError as error:
            if error.code != "context" or not await self._compaction.recover():
                raise
        return await self._model_call.ask(requests)

    def _check_whole(self, finished: Finished) -> None:
        """End the turn when the answer broke off inside a call; its results are noted and nothing of it ran."""
        if self._model_call.failure is not None:
            raise self._model_call.failure
        if any(request.problem == "incomplete" for request in finished.tool_calls):
            why = f": {NOT_WHOLE[finished.reason]}" if finished.reason in NOT_WHOLE else ""
            raise ModelError(f"the answer was cut off in the middle of a tool call{why}", code="incomplete")

    def _limit(self) -> EndReason | None:
        """Return why no further step may be taken, if that is so."""
        scope, options = self._scope, self._options
        if scope.strict and scope.failures:
            return "plugin_failed"
        if reached := scope.budget.reached():
            return reached
        limit = options.max_steps or scope.agent.max_steps or DEFAULT_MAX_STEPS
        return "max_steps" if scope.step >= limit else None

    def _announce(self) -> None:
        scope = self._scope
        for run in scope.live.cut_off:
            self._journal.run(run._replace(state="ended", end_reason="interrupted", ended=self._begun))
            if run.is_compaction:
                reason = "the host ended before the summary was there"
                self._journal.event("compaction", kind="compact", state="stale", run=run.id, reason=reason)
        scope.live.cut_off = []
        for call in scope.live.remains.calls:
            self._journal.call(call._replace(state="interrupted", updated=self._begun))
        scope.live.remains = scope.live.remains._replace(calls=())
        for text in scope.around.store.news():
            self._journal.event("store.notice", text=text)
        while scope.live.notices:
            self._journal.event("session.notice", text=scope.live.notices.pop(0))
        scope.live.held_back.clear()  # a prompt that waited in line goes on where another ended: it was never idle
        self._journal.run(self._run_row("running", None))
        named = {"key": self._options.key} if self._options.key else {}
        self._journal.event("turn.start", purpose=scope.purpose, plugin_set=scope.plugin_set.id, **named)
        self._journal.event("session.status", status="busy")

    async def _next_step(self) -> None:
        """Commit what the last step gave, take what waited in the inbox, and begin the next one."""
        self._take_inbox()
        self._scope.step += 1
        self._scope.budget.spend(steps=1)
        self._journal.event("step.start")
        await self._journal.commit()

    def _take_inbox(self, *, whole: bool = True) -> None:
        """Apply what waited for a pause; notes only where no call is open."""
        scope = self._scope
        for waiting in (scope.live.inbox, scope.live.notes) if whole else (scope.live.inbox,):
            while waiting:  # one by one: a thread of a plugin may add to it meanwhile
                waiting.pop(0)(self._journal)
        for usage, cost in scope.extra_usage:
            self.usage.add(usage, cost)
            scope.budget.spend(cost=cost)
        for spent in scope.spent:
            self.usage.add_child(spent)
        scope.extra_usage.clear()
        scope.spent.clear()

    async def end(self, reason: EndReason, error: MoryflowError | None = None) -> EndReason:
        """Settle what is open, commit, and return why the turn ended. One that waits for an answer keeps its calls open."""
        if reason == "completed" and self._scope.strict and self._scope.failures:
            reason = "plugin_failed"  # in its last step, or in a call without a model
        self._model_call.keep_partial()
        if reason != "approval_required":
            await self._batch.close(f"the turn ended ({reason})")
        self._take_inbox(whole=reason != "approval_required")
        await self._compaction.after_turn()
        if error is not None:
            self._journal.event("error", **error_json(error))
        self._journal.run(self._run_row("ended", reason))
        self._journal.event("turn.finish", end_reason=reason, steps=self._scope.step, cost=self.usage.cost)
        self._journal.event("session.status", status="waiting" if reason == "approval_required" else "idle")
        await self._journal.commit()
        await self._journal.settle()
        return reason

    def _run_row(self, state: str, reason: str | None) -> RunRow:
        scope, used = self._scope, self.usage
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
            started=self._begun,
            ended=now() if reason else None,
        )
