"""A background child may still be running when its parent's turn ends: wait for it if nobody will prompt again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moryflow.kernel.outcome import RunOptions, TurnResult

if TYPE_CHECKING:
    from .ports import SessionPort


async def with_background(session: SessionPort, result: TurnResult, options: RunOptions) -> TurnResult:
    """Wait for the children that `session` left working and let its agent go on with what they gave.

    :returns: `result`, or one that counts everything together and holds the last answer.
    """
    children = session.children
    while result.end_reason == "completed" and (await children.settled() or children.stopped or await children.unheard()):
        if children.stopped:
            return result._replace(end_reason="stopped")
        left = options.max_steps and options.max_steps - result.steps
        if left is not None and left <= 0:
            return result._replace(end_reason="max_steps")
        cost = options.max_cost and options.max_cost - (result.cost or 0.0)
        if cost is not None and cost <= 0:
            return result._replace(end_reason="budget")
        result = _together(result, await session.proceed(options._replace(max_steps=left, max_cost=cost)))
    return result


def _together(before: TurnResult, after: TurnResult) -> TurnResult:
    known = [cost for cost in (before.cost, after.cost) if cost is not None]
    return after._replace(
        usage=before.usage + after.usage,
        cost=sum(known) if known else None,
        steps=before.steps + after.steps,
        denied=before.denied + after.denied,
        unasked=before.unasked or after.unasked,
    )
