"""What sub-agents cost: eight side by side against a server on loopback, and the start of one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from statistics import median

from measuring import MODEL, Figure, Place, place
from moryflow import open_host
from moryflow.testing.replies import LoopbackServer, Recorded, Reply, calls, text
from moryflow_sdk import Event

CHILDREN, SLOWEST, STARTS = 8, 1.0, 21


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    with place() as here:
        slowest, _ = asyncio.run(_turn(here, [[CHILDREN - 1]], SLOWEST))
    with place() as here:
        together, _ = asyncio.run(_turn(here, [range(CHILDREN)], SLOWEST))
    with place() as here:
        _, ways = asyncio.run(_turn(here, [[0]] * STARTS, 0.0))
    starts, requests = [list(way)[1:] for way in zip(*ways, strict=True)]
    return [
        (f"{CHILDREN} sub-agents side by side, longer than the slowest", (together / slowest - 1) * 100, "%", 20.0),
        (f"{CHILDREN} sub-agents side by side", together * 1000, "ms", None),
        ("the slowest of them alone", slowest * 1000, "ms", None),
        ("start of a sub-agent: from the call of task to its first step (median)", median(starts), "ms", 10.0),
        ("start of a sub-agent (worst)", max(starts), "ms", None),
        ("from the call of task to the sub-agent's request at the server (median)", median(requests), "ms", None),
    ]


class Orchestra(LoopbackServer):
    """Answers a parent, which starts the children `steps`, a list for each of its steps, and the children.

    A child looks once and answers; the later ones are slower, up to `slowest` seconds.

    :ivar came: when each child's first request had come.
    """

    def __init__(self, steps: Sequence[Sequence[int]], slowest: float) -> None:
        super().__init__()
        self.came: list[float] = []
        self._slowest = slowest
        self._steps = [
            [("task", {"agent": "explore", "prompt": f"part {number} {at}"}) for number in step]
            for at, step in enumerate(steps)
        ]

    def answer(self, request: Recorded, handler: BaseHTTPRequestHandler) -> bool:
        """Send the reply for `request`."""
        messages = request.body["messages"]
        asked = next(message["content"] for message in messages if message["role"] == "user")
        return self._send(self._reply(str(asked), sum(message["role"] == "assistant" for message in messages)), handler)

    def _reply(self, asked: str, step: int) -> Reply:
        if not asked.startswith("part"):
            return calls(*self._steps[step]) if step < len(self._steps) else text("done")
        if step == 0:
            self.came.append(time.perf_counter())
            return calls(("read", {"path": "notes.md"}))
        return text("found it").but(before=self._slowest * (int(asked.split()[1]) + 1) / CHILDREN)


async def _turn(here: Place, steps: Sequence[Sequence[int]], slowest: float) -> tuple[float, list[tuple[float, float]]]:
    """Run a turn whose agent starts these children.

    Return how long it took from the first call to the last result, and each child's way from its call to its first step
    and to its request at the server.
    """
    with Orchestra(steps, slowest) as server:
        environ = {**here.environ, "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-loopback-benchmark"}
        async with await open_host(here.home, environ=environ) as host:
            began: list[float] = []
            ended: list[float] = []
            stepped: list[float] = []

            def seen(event: Event) -> None:
                if event.parent is None and event.data.get("tool") == "task" and event.data.get("state") != "pending":
                    (began if event.type == "tool.start" else ended).append(time.perf_counter())

                elif event.parent is not None and event.type == "step.start" and event.step == 1:
                    stepped.append(time.perf_counter())

            host.bus.subscribe(seen)
            session = await host.new_session(here.vault, model=MODEL)
            result = await session.prompt("go")
            if result.end_reason != "completed":
                raise RuntimeError(f"the turn ended: {result.end_reason} {result.error}")
        moments = zip(began, stepped, server.came, strict=True)
        ways = [((step - start) * 1000, (came - start) * 1000) for start, step, came in moments]
        return ended[-1] - began[0], ways


if __name__ == "__main__":
    for name, value, unit, target in figures():
        print(f"{name}: {value:.1f} {unit}" + (f" (target {target:g})" if target is not None else ""))
