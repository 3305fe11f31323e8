"""``web_fetch`` of one megabyte of HTML over loopback: against curl and the conversion alone."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from shutil import which
from typing import Any

RUNS = 9
SIZE = 1_000_000


def figures() -> Iterator[tuple[str, float, str, float | None]]:
    from moryflow.testing.replies import LoopbackServer, Reply
    from moryflow_builtins.web.page import markdown, result_of
    from moryflow_sdk.support.fetcher import Fetcher

    paragraph = '<h2>Part</h2><p>Some <b>words</b> and a <a href="/x">link</a>, as on many pages.</p>\n'
    page = "<html><body>" + paragraph * (SIZE // len(paragraph)) + "</body></html>"
    fetcher = Fetcher(permitted=lambda _: True)
    with LoopbackServer(otherwise=Reply(page.encode(), content_type="text/html; charset=utf-8")) as server:

        async def fetch() -> Any:
            return await asyncio.to_thread(result_of, await fetcher.fetch(server.address), "", sees_images=False)

        timed = [
            ("fetch", lambda: asyncio.run(fetch())),
            ("convert", lambda: markdown(page)),
            ("curl", lambda: subprocess.run(["curl", "-s", server.address], capture_output=True, check=True)),
        ]
        if which("curl") is None:
            del timed[2]
        took = _interleaved(timed)
    yield "1 MB of HTML, fetched and converted", took["fetch"], "ms", None
    yield "its conversion alone", took["convert"], "ms", None
    if "curl" in took:
        yield "fetch / (curl + conversion)", took["fetch"] / (took["curl"] + took["convert"]), "x", 1.5


def _interleaved(timed: list[tuple[str, Callable[[], Any]]]) -> dict[str, float]:
    """Return the medians in milliseconds; one run of each after the other, the first left out."""
    took: dict[str, list[float]] = {name: [] for name, _ in timed}
    for _ in range(RUNS + 1):
        for name, work in timed:
            began = time.perf_counter()
            work()
            took[name].append((time.perf_counter() - began) * 1000)
    return {name: statistics.median(values[1:]) for name, values in took.items()}
