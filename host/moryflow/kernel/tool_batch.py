"""The calls of one answer: judged in call order, run one by one or side by side, each with exactly one result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from moryflow_sdk import ToolRequest, ToolResult

from moryflow.store import Unfinished

from .model_call import Tally
from .outcome import EndReason
from .ports import Journal
from .tool_executor import Door, Judged, interrupted, skipped
from .turn_context import TurnScope

PATIENCE = 0.02
"""Seconds that the start of calls that only read may wait for their results, so that both cost one commit.

Cut off before, such a call is asked for again: it has changed nothing, and nobody was told of it.
"""


class Batch:
    """Runs the calls of a turn and remembers which have no result yet."""

    def __init__(self, scope: TurnScope, journal: Journal, door: Door, tally: Tally) -> None:
        self._scope = scope
        self._journal = journal
        self._door = door
        self._tally = tally
        self._open: list[ToolRequest] = []
        self._started: set[str] = set()

    async def run(self, requests: Sequence[ToolRequest]) -> EndReason | None:
        """Judge and run `requests`; return why the turn must end, if it must."""
        self._open = list(requests)
        return await (self._side_by_side(requests) if self._all_parallel(requests) else self._one_by_one(requests))

    async def direct(self, request: ToolRequest) -> Judged:
        """Judge and run a single call and return what became of it."""
        self._open = [request]
        judged = await self._door.judge(request)
        await self._execute([judged])
        return judged

    async def resume(self, unfinished: Sequence[Unfinished]) -> EndReason | None:
        """Give every open call of an earlier turn its one result; what had started is never run twice."""
        requests = [ToolRequest(**item.request) for item in unfinished]
        self._open = list(requests)
        for index, (request, item) in enumerate(zip(requests, unfinished, strict=True)):
            self._scope.node = item.node  # its record is that of the answer it stands in, not a second one
            if item.action == "interrupted":
                left = self._scope.live.remains.by_call.get(request.id, "")
                judged = interrupted(request, "; ".join(filter(None, ("the host ended while it ran", left))))
            else:
                judged = await self._door.judge(request)
            await self._execute([judged])
            if judged.stops:
                return await self._stop(judged, requests[index + 1 :])
        return None

    async def close(self, why: str) -> None:
        """Give what is still open a result that says why it has none."""
        for request in tuple(self._open):
            judged = interrupted(request, why) if request.id in self._started else skipped(request, why)
            await self._finish(judged, *(await self._door.body(judged)))

    def _all_parallel(self, requests: Sequence[ToolRequest]) -> bool:
        tools = self._scope.plugin_set.tools
        return len(requests) > 1 and all(r.name in tools and tools[r.name].tool.parallel_safe for r in requests)

    async def _one_by_one(self, requests: Sequence[ToolRequest]) -> EndReason | None:
        for index, request in enumerate(requests):
            judged = await self._door.judge(request)
            await self._execute([judged])
            if judged.stops:
                return await self._stop(judged, requests[index + 1 :])
        return None

    async def _side_by_side(self, requests: Sequence[ToolRequest]) -> EndReason | None:
        """Gates and counters in call order, bodies together, results in call order."""
        judged: list[Judged] = []
        for request in requests:
            judged.append(await self._door.judge(request))
            if judged[-1].stops:
                break
        await self._execute(judged)
        stopping = next((item for item in judged if item.stops), None)
        return await self._stop(stopping, requests[len(judged) :]) if stopping else None

    async def _execute(self, group: Sequence[Judged]) -> None:
        """Commit the starts, run the bodies together, note the results in order; the next commit writes those."""
        running = [judged for judged in group if judged.result is None]
        for judged in running:
            self._door.record_start(judged)
        started = {judged.call.id for judged in running}
        if all(judged.only_reads for judged in running):
            self._started |= started
            async with self._journal.within(PATIENCE):
                outcomes = await self._bodies(group)
        else:
            await self._journal.commit()
            self._started |= started
            outcomes = await self._bodies(group)
        for judged, (result, ms) in zip(group, outcomes, strict=True):
            await self._finish(judged, result, ms)

    async def _bodies(self, group: Sequence[Judged]) -> Sequence[tuple[ToolResult, int]]:
        """Run the bodies together; a single one needs no task of its own."""
        if len(group) == 1:
            return [await self._door.body(group[0])]
        return await asyncio.gather(*(self._door.body(judged) for judged in group))

    async def _finish(self, judged: Judged, result: ToolResult, ms: int) -> None:
        final = await self._door.finish(judged, result, ms)
        self._open = [request for request in self._open if request.id != judged.call.id]
        if final.status == "denied":
            self._tally.denied.append(_denial(judged, final.output))
        elif judged.stops and judged.ruling is not None:
            self._tally.denied.append(_denial(judged, judged.ruling.reason))

    async def _stop(self, judged: Judged, rest: Sequence[ToolRequest]) -> EndReason:
        ruling = judged.ruling
        assert ruling is not None
        await self._execute([skipped(request, ruling.reason) for request in rest])
        return ruling.end_reason or "denied"


def _denial(judged: Judged, output: str) -> dict[str, Any]:
    cause = judged.ruling.cause if judged.ruling else "user"
    targets = [target.text for target in judged.call.targets]
    about = {"call_id": judged.call.id, "tool": judged.call.tool, "targets": targets, "cause": cause, "reason": output}
    rules = [item for item in judged.ruling.remember if item.scope == "user"] if judged.ruling else []
    return {**about, "rules": [{"domain": rule.domain, "pattern": rule.pattern} for rule in rules]}
