"""What sub-agents cost: eight side by side against a server on loopback, and the start of one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler
from statistics import median

from measuring import MODEL, Figure, Place, place
from moryflow import open_host
from moryflow_sdk import Event
from moryflow_sdk.testing.replies import Reply, calls, text
from moryflow_sdk.testing.server import LoopbackServer, Recorded

CHILDREN, SLOWEST, STARTS = 8, 1.0, 21


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    with place() as here:
        slowest = asyncio.run(_children(here, [CHILDREN - 1]))[0]
    with place() as here:
        together, _ = asyncio.run(_children(here, range(CHILDREN)))
    with place() as here:
        starts = asyncio.run(_starts(here))
    return [
        (f"{CHILDREN} sub-agents side by side, longer than the slowest", (together / slowest - 1) * 100, "%", 20.0),
        (f"{CHILDREN} sub-agents side by side", together * 1000, "ms", None),
        ("the slowest of them alone", slowest * 1000, "ms", None),
        ("from the call of task to the sub-agent's first request (median)", median(starts), "ms", 10.0),
        ("from the call of task to the sub-agent's first request (worst)", max(starts), "ms", None),
    ]


class Orchestra(LoopbackServer):
    """Answers a parent, which starts the children `numbers`, and the children: they look once, the later ones slower.

    :ivar came: when each child's first request had come.
    """

    def __init__(self, numbers: list[int], slowest: float) -> None:
        super().__init__()
        self._slowest = slowest
        self.came: list[float] = []
        self._orders = [("task", {"agent": "explore", "prompt": f"part {number}"}) for number in numbers]

    def answer(self, request: Recorded, handler: BaseHTTPRequestHandler) -> bool:
        """Send the reply for `request`."""
        messages = request.body["messages"]
        asked = next(message["content"] for message in messages if message["role"] == "user")
        looked = any(message["role"] == "tool" for message in messages)
        return self._send(self._reply(str(asked), looked), handler)

    def _reply(self, asked: str, looked: bool) -> Reply:
        if not asked.startswith("part"):
            return text("done") if looked else calls(*self._orders)
        if not looked:
            self.came.append(time.perf_counter())
            return calls(("read", {"path": "notes.md"}))
        return text("found it").but(before=self._slowest * (int(asked.split()[1]) + 1) / CHILDREN)


async def _children(here: Place, numbers: Iterable[int], slowest: float = SLOWEST) -> tuple[float, list[float]]:
    """Run a turn whose agent starts these children; return how long the tasks took, and each child's way to its request."""
    with Orchestra(list(numbers), slowest) as server:
        environ = {**here.environ, "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-loopback-benchmark"}
        async with await open_host(here.home, environ=environ) as host:
            times: dict[str, float] = {}

            def seen(event: Event) -> None:
                if event.parent is None and event.data.get("tool") == "task" and event.data.get("state") != "pending":
                    times.setdefault(event.type, time.perf_counter())

            host.bus.subscribe(seen)
            session = await host.new_session(here.vault, model=MODEL)
            result = await session.prompt("go")
            if result.end_reason != "completed":
                raise RuntimeError(f"the turn ended: {result.end_reason} {result.error}")
        began = times["tool.start"]
        return times["tool.result"] - began, [(came - began) * 1000 for came in server.came]


async def _starts(here: Place) -> list[float]:
    """Return the way of one child after another, each alone; the first of a process does not count."""
    found: list[float] = []
    for _ in range(STARTS):
        found += (await _children(here, [0], slowest=0.0))[1]
    return found[1:]


if __name__ == "__main__":
    for name, value, unit, target in figures():
        print(f"{name}: {value:.1f} {unit}" + (f" (target {target:g})" if target is not None else ""))
