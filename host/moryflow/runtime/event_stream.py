"""The events of one turn as an async generator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from moryflow_sdk import Event

from moryflow.kernel.outcome import TurnResult


async def stream(turn: Callable[[Callable[[Event], None]], Coroutine[Any, Any, TurnResult]]) -> AsyncGenerator[Event]:
    """Run `turn`, yield the events that it is called back with, and at last its ``result``.

    Closing the generator early interrupts the turn; what it has is kept.
    """
    events: asyncio.Queue[Event | None] = asyncio.Queue()
    work = asyncio.create_task(turn(events.put_nowait))
    work.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            yield event
        yield _result_event(await work)
    finally:
        if not work.done():
            work.cancel()
            await asyncio.wait((work,))


def _result_event(result: TurnResult) -> Event:
    found = result.as_json()
    head = {key: found.pop(key) for key in ("v", "type", "ts", "session")}
    return Event(**head, data=found)
