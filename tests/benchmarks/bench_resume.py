"""What it costs to go on with a session of 10,000 nodes: from the start of the process to the first request."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from measuring import MODEL, Figure, ModelServer, command, place, repeated
from moryflow.testing.replies import text

NODES = 10_000


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    with place() as here, ModelServer(lambda _: text("ok")) as server:
        here.use(server)
        here.run(command(), "run", "-m", MODEL, "hello")
        made = here.run(sys.executable, __file__, str(here.home), str(here.vault)).output.strip()

        def first_request() -> float:
            asked = len(server.came)
            run = here.run(command(), "run", "-m", MODEL, "-r", made, "go on")
            return (server.came[asked] - run.started) * 1000

        took = repeated(7, first_request)
        return [
            ("resume a session of 10,000 nodes, to the first request", took, "ms", 500.0),
            ("resume: body of that request", server.sizes[-1] / 1024, "KB", None),
        ]


async def make(home: Path, vault: Path) -> str:
    """Write a session of prompts, calls, results and answers; return its id."""
    from moryflow.store import Commit, NewNode, open_store

    store = open_store(home)
    row = await store.create(vault=str(vault), agent="build", mode="agent", model=MODEL)
    hold = await store.hold(row.id)
    done = {"usage": {"input": 10, "output": 5}, "model": MODEL}
    for start in range(0, NODES // 4, 50):
        nodes: list[NewNode] = []
        for number in range(start, start + 50):
            call = {"id": f"c{number}", "name": "read", "arguments": '{"path":"notes.md"}'}
            nodes += [
                NewNode("user", {"text": f"ask {number}"}),
                NewNode("assistant", {"text": "", "calls": [call], "finish": "tool_calls", **done}),
                NewNode("tool", {"call_id": call["id"], "tool": "read", "status": "ok", "output": f"line {number}"}),
                NewNode("assistant", {"text": "noted", "calls": [], "finish": "stop", **done}),
            ]
        await hold.commit(Commit(nodes=nodes))
    hold.release()
    store.close()
    return row.id


if __name__ == "__main__":
    print(asyncio.run(make(Path(sys.argv[1]), Path(sys.argv[2]))))
