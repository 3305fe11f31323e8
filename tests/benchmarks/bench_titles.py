"""What a title adds to a turn: nothing, from the prompt's words or from a model beside it."""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any

from measuring import Figure, Place, place
from moryflow import open_host
from moryflow.testing import replies
from moryflow.testing.replies import LoopbackServer

TURNS, ROUNDS, ANSWER, TITLE = 20, 4, 0.1, 0.3
"""Turns of a round; rounds of each way, in turns; seconds until the answer and until the title come."""

WAYS: dict[str, dict[str, Any]] = {"none": {"enabled": False}, "its words": {}, "a model's": {"model": "namer/m"}}


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    slow, named = replies.text("ok").but(before=ANSWER), replies.text("A title of words").but(before=TITLE)
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    with LoopbackServer(otherwise=slow) as server, LoopbackServer(otherwise=named) as namer:
        for _ in range(ROUNDS):
            for name, titles in WAYS.items():
                with place() as here:
                    providers = {"namer": {"baseUrl": namer.url}}
                    here.configure(agents={"runtime": {"titles": titles}}, models={"providers": providers})
                    times[name] += asyncio.run(_turns(here, server.url))
    without = median(times["none"])
    return [
        ("titles, a turn without one", without, "ms", None),
        *((f"titles, added to a turn by {name}", median(times[name]) - without, "ms", 1.0) for name in list(WAYS)[1:]),
    ]


async def _turns(here: Place, url: str) -> list[float]:
    times: list[float] = []
    async with await open_host(here.home, environ={"OPENAI_BASE_URL": url}) as host:
        for _ in range(TURNS + 1):
            session = await host.new_session(here.vault, model="openai/m")
            started = time.perf_counter()
            await session.prompt("Count the words of this file, please")
            times.append((time.perf_counter() - started) * 1000)
    return times[1:]


if __name__ == "__main__":
    for name, value, unit, target in figures():
        print(f"{name:<60} {value:>8.2f} {unit:<4} {f'<= {target:g}' if target is not None else ''}")
