"""Workers that are killed and paused at random while their tools count what they did outside.

``python tests/host/cluster/kill_harness.py --kills 10000 --workers 3`` prints one line: what was lost, what was done twice.

Acknowledged means that :meth:`Inbox.add` returned: the prompt must end with a result. A call whose worker dies while it runs
gets the result ``interrupted``: its effect may be there or not, and never twice. Every fourth session asks a question first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from cluster_rig import ClusterRig, Worker

STEPS = 4
AT_ONCE = 24


class Counts(NamedTuple):
    """What a run found; all of `lost`, `doubled`, `unanswered` and `open` have to be 0."""

    kills: int
    pauses: int
    turns: int
    effects: int
    interrupted: int
    lost: int
    doubled: int
    unanswered: int
    open: int
    epoch: int
    seconds: int


async def run(rig: ClusterRig, *, kills: int, workers: int, seed: int = 1) -> Counts:
    """Kill and pause `workers` until that happened `kills` times, then let everything end, and count."""
    chance, began = random.Random(seed), time.monotonic()
    turns: dict[str, str] = {}
    ended: dict[str, str] = {}
    counts = Counter[str]()
    alive = [rig.worker("--concurrency", "8") for _ in range(workers)]
    paused: list[tuple[float, Worker]] = []
    late: list[Worker] = []

    async def feed() -> None:
        while counts["kills"] + counts["pauses"] < kills:
            while len(turns) - len(ended) < AT_ONCE:
                number = len(turns)
                kind = f"asks:{STEPS}" if number % 4 == 0 else f"steps:{STEPS}"
                session, turn = await rig.ask(f"do m{number}", model=kind)
                turns[turn] = session
            await look()
            await asyncio.sleep(0.05)

    async def look() -> None:
        ended.update({turn: state for turn, (state, _) in (await rig.inbox.ends([*turns.keys() - ended.keys()])).items()})
        for row in await rig.store.approvals(state="pending"):
            await rig.store.reply(row.id, "once")
            counts["answers"] += 1

    async def strike() -> None:
        while counts["kills"] + counts["pauses"] < kills:
            await asyncio.sleep(chance.uniform(0.02, 0.2))
            for until, one in [*paused]:
                if time.monotonic() > until:
                    paused.remove((until, one))
                    with suppress(ProcessLookupError):
                        one.send_signal(signal.SIGCONT)
                    if one not in alive:  # it has work that others took, and then no place any more
                        late.append(one)
            while len(late) > workers:
                counts["kills"] += 1
                late[0].kill()
                late.pop(0).wait()
            place = chance.randrange(workers)
            one = alive[place]
            kind = chance.random()
            if kind < 0.75:
                one.send_signal(signal.SIGSTOP)
                paused.append((time.monotonic() + chance.uniform(0.05, 2 * rig.lease), one))
                counts["pauses"] += 1
                if kind < 0.6:  # it goes on later; the others are replaced, so that two take the same sessions
                    continue
            else:
                one.kill()
                one.wait()
                counts["kills"] += 1
            alive[place] = rig.worker("--concurrency", "8")
            while len(paused) > 6:
                _, extra = paused.pop(0)
                extra.kill()
                extra.wait()

    await asyncio.gather(feed(), strike())
    for _, one in paused:
        one.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + 120
    while len(ended) < len(turns) and time.monotonic() < deadline:
        await look()
        await asyncio.sleep(0.1)
    return await _counted(rig, turns, ended, counts, int(time.monotonic() - began))


async def _counted(rig: ClusterRig, turns: dict[str, str], ended: dict[str, str], counts: Counter[str], seconds: int) -> Counts:
    effects = Counter(rig.effects())
    interrupted = lost = epoch = 0
    for number, session in enumerate(turns.values()):
        nodes = await rig.store.nodes(session)
        results = [node.payload for node in nodes if node.kind == "tool"]
        interrupted += sum(result["status"] == "interrupted" for result in results)
        done = [int(result["output"].split()[-1]) for result in results if result["status"] == "ok"]
        lost += sum(not effects[f"m{number}", step] for step in done)  # a result that says something happened
        lost += not any(node.kind == "user" for node in nodes)
        epoch = max(epoch, (await rig.store.session(session)).epoch)
    pending = await rig.store.approvals(state="pending")
    return Counts(
        counts["kills"], counts["pauses"], len(turns), sum(effects.values()), interrupted, lost,
        sum(count - 1 for count in effects.values()), len(pending), len(turns) - len(ended), epoch, seconds,
    )  # fmt: skip


def main() -> int:
    """Run it on a server of its own."""
    from postgres import postgres_server

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="moryflow-kills-") as folder, postgres_server() as server:
        rig = ClusterRig(Path(folder, "home"), Path(folder, "vault"), server.schema_url("kills"), lease=2.0, pause=0.2)
        try:
            found = asyncio.run(run(rig, kills=given.kills, workers=given.workers, seed=given.seed))
        finally:
            rig.close()
    print(json.dumps(found._asdict()))
    return 1 if found.lost or found.doubled or found.unanswered or found.open else 0


if __name__ == "__main__":
    sys.exit(main())
