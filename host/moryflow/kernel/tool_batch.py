"""The calls of one answer: judged in call order, run one by one or side by side, each with exactly one result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from moryflow_sdk import ToolRequest, ToolResult

from moryflow.store import Unfinished

from .outcome import EndReason, TurnUsage
from .ports import Journal
from .tool_executor import PreparedCall, ToolExecutor, interrupted_call, skipped_call
from .turn_context import TurnContext

PATIENCE = 0.02
"""Seconds that the start of calls that only read may wait for their results, so that both cost one commit.

Cut off before, such a call is asked for again: it has changed nothing, and nobody was told of it. Without the wait a step
with one ``read`` takes 18 % longer: 4.9 ms in place of 4.1.
"""


class ToolBatch:
    """Runs the calls of a turn and remembers which have no result yet."""

    def __init__(self, scope: TurnContext, journal: Journal, executor: ToolExecutor, usage: TurnUsage) -> None:
        self._scope = scope
        self._journal = journal
        self._executor = executor
        self._usage = usage
        self._open: list[ToolRequest] = []
        self._started: set[str] = set()

    async def run(self, requests: Sequence[ToolRequest]) -> EndReason | None:
        """Judge and run `requests`; return why the turn must end, if it must."""
        self._open = list(requests)
        return await (self._side_by_side(requests) if self._all_parallel(requests) else self._one_by_one(requests))

    async def direct(self, request: ToolRequest) -> PreparedCall:
        """Judge and run a single call and return what became of it."""
        self._open = [request]
        prepared = await self._executor.judge(request)
        await self._execute([prepared])
        return prepared

    async def resume(self, unfinished: Sequence[Unfinished]) -> EndReason | None:
        """Give every open call of an earlier turn its one result; what had started is never run twice."""
        requests = [ToolRequest(**item.request) for item in unfinished]
        self._open = list(requests)
        for index, (request, item) in enumerate(zip(requests, unfinished, strict=True)):
            self._scope.node = item.node  # its record is that of the answer it stands in, not a second one
            if item.action == "interrupted":
                left = self._scope.live.remains.by_call.get(request.id, "")
                prepared = interrupted_call(request, "; ".join(filter(None, ("the host ended while it ran", left))))
            else:
                prepared = await self._executor.judge(request)
            await self._execute([prepared])
            if prepared.stops:
                return await self._stop(prepared, requests[index + 1 :])
        return None

    async def close(self, why: str) -> None:
        """Give what is still open a result that says why it has none."""
        for request in tuple(self._open):
            prepared = interrupted_call(request, why) if request.id in self._started else skipped_call(request, why)
            await self._finish(prepared, *(await self._executor.body(prepared)))

    def _all_parallel(self, requests: Sequence[ToolRequest]) -> bool:
        tools = self._scope.plugin_set.tools
        return len(requests) > 1 and all(r.name in tools and tools[r.name].tool.parallel_safe for r in requests)

    async def _one_by_one(self, requests: Sequence[ToolRequest]) -> EndReason | None:
        for index, request in enumerate(requests):
            prepared = await self._executor.judge(request)
            await self._execute([prepared])
            if prepared.stops:
                return await self._stop(prepared, requests[index + 1 :])
        return None

    async def _side_by_side(self, requests: Sequence[ToolRequest]) -> EndReason | None:
        """Gates and counters in call order, bodies together, results in call order."""
        prepared: list[PreparedCall] = []
        for request in requests:
            prepared.append(await self._executor.judge(request))
            if prepared[-1].stops:
                break
        await self._execute(prepared)
        stopping = next((item for item in prepared if item.stops), None)
        return await self._stop(stopping, requests[len(prepared) :]) if stopping else None

    async def _execute(self, group: Sequence[PreparedCall]) -> None:
        """Commit the starts, run the bodies together, note the results in order; the next commit writes those."""
        running = [prepared for prepared in group if prepared.result is None]
        for prepared in running:
            self._executor.record_start(prepared)
        started = {prepared.call.id for prepared in running}
        if all(prepared.only_reads for prepared in running):
            self._started |= started
            async with self._journal.within(PATIENCE):
                outcomes = await self._bodies(group)
        else:
            await self._journal.commit()
            self._started |= started
            outcomes = await self._bodies(group)
        for prepared, (result, ms) in zip(group, outcomes, strict=True):
            await self._finish(prepared, result, ms)

    async def _bodies(self, group: Sequence[PreparedCall]) -> Sequence[tuple[ToolResult, int]]:
        """Run the bodies together; a single one needs no task of its own."""
        if len(group) == 1:
            return [await self._executor.body(group[0])]
        return await asyncio.gather(*(self._executor.body(prepared) for prepared in group))

    async def _finish(self, prepared: PreparedCall, result: ToolResult, ms: int) -> None:
        final = await self._executor.finish(prepared, result, ms)
        self._open = [request for request in self._open if request.id != prepared.call.id]
        if final.status == "denied":
            self._usage.denied.append(_denial(prepared, final.output))
        elif prepared.stops and prepared.ruling is not None:
            self._usage.denied.append(_denial(prepared, prepared.ruling.reason))

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
