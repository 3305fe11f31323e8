"""Compaction: the view and the plan of a long path, how well sizes are estimated, and a thousand turns in a window of
32,000 tokens."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from conversations import Extractive, Item, append, path_of, step
from measuring import Figure, Place, place
from moryflow import open_host
from moryflow.compaction.measure import Meter, limit_of, request_tokens
from moryflow.compaction.plan import plan_job, room_for
from moryflow.config.schema import CompactionSettings
from moryflow.store.messages import ContextBuilder
from moryflow.testing import replies
from moryflow.testing.replies import LoopbackServer

NODES, TURNS, WINDOW = 10_000, 1000, 32_000


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    return [*_view(), *asyncio.run(_rescue()), *asyncio.run(_thousand())]


# -------------------------------------------------------------------- view and plan


def _long() -> list[Item]:
    items: list[Item] = []
    for number in count():
        if len(items) >= NODES:
            return items[:NODES]
        items += [("user", {"text": "please " * 30}), *step(number), ("assistant", {"text": "done " * 60, "calls": []})]
    raise AssertionError


def _view() -> list[Figure]:
    path = path_of(_long() + [item for number in range(50) for item in step(NODES + number)])
    first = min(_timed(lambda: ContextBuilder().build(path[:NODES])) for _ in range(5))
    builder, meter, settings = ContextBuilder(), Meter(), CompactionSettings()
    builder.build(path[:NODES])
    steps = sorted(_timed(lambda end=end: builder.build(path[:end])) for end in range(NODES + 2, NODES + 100, 2))
    view = builder.build(path)
    counting = _timed(lambda: request_tokens(path, view, meter, 0.0))
    room = room_for(settings, limit_of(128_000, settings), 3000)
    plan = _timed(lambda: plan_job(path, builder, meter, settings, room, 800_000, "threshold"))
    return [
        (f"view of a {NODES}-node path, first", first, "ms", 30.0),
        ("view, one further step (median)", steps[len(steps) // 2], "ms", 1.0),
        ("estimating all of it, first", counting, "ms", None),
        ("planning its compaction", plan, "ms", 100.0),
    ]


def _timed(work: Any) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


# -------------------------------------------------------------------- rescue and endurance


async def _rescue() -> list[Figure]:
    with place() as here:
        async with await open_host(here.home, environ={}, builtins=()) as host:
            model = Extractive(WINDOW)
            host.plugin_set = replace(host.plugin_set, providers=(model,))
            session = await host.new_session(here.vault)
            await append(
                host,
                session.id,
                [("user", {"text": "words and " * 200}), ("assistant", {"text": "done " * 400, "calls": []})] * 100,
            )
            began = time.perf_counter()
            result = await session.prompt("and now?")
            ms = (time.perf_counter() - began) * 1000
    return [
        ("a session at three times the window: rescued", float(result.end_reason == "completed"), "", 1.0),
        ("its largest request, of the window", max(model.sizes) / WINDOW * 100, "%", 100.0),
        ("model calls, and the host's own time for all", float(len(model.sizes)), "", None),
        ("the host's own time", ms, "ms", None),
    ]


class Watching(LoopbackServer):
    """Answers a thousand turns, one tool call each, and checks every request: its size, and a result behind each call."""

    def __init__(self) -> None:
        super().__init__()
        self.overflows = self.broken = self.summaries = self.asked = 0

    def answer(self, request: Any, handler: Any) -> bool:
        messages = request.body["messages"] if request.body else []
        size = len(request.raw) // 4
        self.overflows += size > WINDOW
        self.broken += not _paired(messages)
        self.asked += 1
        if messages and messages[0]["content"].startswith("You write the record"):
            self.summaries += 1
            reply = replies.text("## Goal\nGo on.\n## Progress\nMuch was read.")
        elif messages[-1]["role"] == "tool":
            reply = replies.text("read it. " * 40)
        else:
            reply = replies.calls(("read", {"path": f"notes_{self.asked % 7}.md"}), ids=[f"call_{self.asked}"])
        return self._send(reply, handler)


def _paired(messages: list[dict[str, Any]]) -> bool:
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if not waiting or message["tool_call_id"] != waiting.pop(0):
                return False
            continue
        if waiting:
            return False
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
    return not waiting


async def _thousand() -> list[Figure]:
    with place() as here, Watching() as server:
        _settle_in(here)
        environ = {**here.environ, "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-loopback-benchmark"}
        ends, memory = [], []
        async with await open_host(here.home, environ=environ) as host:
            session = await host.new_session(here.vault, model="openai/test-model")
            await session.keep()
            began = time.perf_counter()
            for number in range(TURNS):
                result = await session.prompt(f"Turn {number}: read on, please. " + "Some words around it. " * 30)
                ends.append(result.end_reason)
                if number in (TURNS * 3 // 10, TURNS - 1):
                    memory.append(_resident())
            seconds = time.perf_counter() - began
            size = (here.home / "sessions.db").stat().st_size
    return [
        (f"{TURNS} turns in a window of {WINDOW}: completed", float(ends.count("completed")), "", float(TURNS)),
        ("requests larger than the window", float(server.overflows), "", 0.0),
        ("requests with a call without its result", float(server.broken), "", 0.0),
        ("summaries written", float(server.summaries), "", None),
        ("memory at the end, above that at three tenths", memory[-1] - memory[0], "MB", 3.0),
        ("history on disk by then", size / 2**20, "MB", None),
        ("a turn of two steps, compactions included (mean)", seconds / TURNS * 1000, "ms", None),
    ]


def _settle_in(here: Place) -> None:
    never = {"maxAttempts": 10**6, "maxToolCalls": 10**6, "sameToolThreshold": 10**6}
    limits = {"providers": {"openai": {"models": {"test-model": {"contextWindow": WINDOW}}}}}
    here.configure(agents={"runtime": {"doomLoop": never}}, models=limits)
    for number in range(7):
        (here.vault / f"notes_{number}.md").write_text(
            f"# Notes {number}\n\n" + "A line of some words.\n" * 100, encoding="utf-8"
        )


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
