"""What a model served through litellm adds to the first request, over the direct wire; and whether anything is blocked."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from measuring import Figure, ModelServer, Place, command, place, repeated
from moryflow.testing.replies import text

DIRECT, THROUGH = "openai/test-model", "litellm/openai/test-model"
"""Both read the address from ``OPENAI_BASE_URL``; a provider configured under ``litellm`` would go over the direct wire."""
RUNS = 5


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    with place() as here, ModelServer(lambda _: text("ok")) as server:
        here.use(server)
        direct = repeated(RUNS, lambda: _first_request(here, server, DIRECT))
        through = repeated(RUNS, lambda: _first_request(here, server, THROUGH))
        stalls = repeated(3, lambda: float(here.run(sys.executable, __file__, str(here.home), str(here.vault)).output))
        return [
            ("first request over the direct wire, from the start of the process", direct, "ms", None),
            ("first request through litellm, from the start of the process", through, "ms", None),
            ("litellm adds to the first request", through - direct, "ms", 2500.0),
            ("litellm: longest pause of the event loop meanwhile", stalls, "ms", None),
        ]


def _first_request(here: Place, server: ModelServer, model: str) -> float:
    asked = len(server.came)
    run = here.run(command(), "run", "-m", model, "hello")
    return (server.came[asked] - run.started) * 1000


async def longest_pause(home: Path, vault: Path) -> float:
    """Run one turn through litellm and return the longest time in milliseconds in which the loop did nothing else."""
    from moryflow import open_host

    pauses = [0.0]

    async def tick() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            pauses.append(time.perf_counter() - began - 0.005)

    async with await open_host(home) as host:
        session = await host.new_session(vault, model=THROUGH)
        ticking = asyncio.create_task(tick())
        result = await session.prompt("hello")
        ticking.cancel()
        assert result.text == "ok", result
    return max(pauses) * 1000


if __name__ == "__main__":
    print(asyncio.run(longest_pause(Path(sys.argv[1]), Path(sys.argv[2]))))
