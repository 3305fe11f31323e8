"""What tools in files cost: loading a hundred of them, taking them over, and a call in a process of its own."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moryflow import open_host

TOOL = (
    "from moryflow_sdk import tool\n@tool\ndef t{0}(text: str, times: int = 1) -> str:\n    'Say.'\n    return text * times\n"
)
FILES = 100
BUILTINS = ("moryflow_builtins.permission", "moryflow_builtins.external_tools")


def figures() -> Iterator[tuple[str, Any, str, str]]:
    """Yield (name, value, unit, target)."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        (home / "tools").mkdir(mode=0o700)
        for number in range(FILES):
            (home / "tools" / f"t{number}.py").write_text(TOOL.format(number), encoding="utf-8")
        enabled = '{"agents": {"runtime": {"tools": {"external": {"enabled": true}}}}}'
        (home / "config.jsonc").write_text(enabled, encoding="utf-8")
        yield from asyncio.run(_measured(home))


async def _measured(home: Path) -> list[tuple[str, Any, str, str]]:
    from moryflow_builtins.external_tools.environment import Environment
    from moryflow_builtins.external_tools.loader import Outside, _run_worker

    started = time.perf_counter()
    async with await open_host(home, environ={}, builtins=BUILTINS, probe=False) as host:
        first = time.perf_counter() - started
        assert len(host.tools) == FILES
        started = time.perf_counter()
        await host.refresh()
        again = time.perf_counter() - started
    here = Environment((), Path(sys.prefix))
    outside = Outside(home / "tools" / "t0.py", (home / "tools" / "t0.py").read_bytes(), here, home)
    request = {"do": "call", "tool": "t0", "args": {"text": "x"}, "context": {}}
    times: list[float] = []
    for _ in range(5):
        started = time.perf_counter()
        await _run_worker(outside, request, lambda _: None)
        times.append(time.perf_counter() - started)
    return [
        (f"start of a host with {FILES} tool files", round(first * 1000), "ms", ""),
        (f"a new generation with {FILES} unchanged tool files", round(again * 1000), "ms", "300"),
        ("a call in a process of its own", round(sorted(times)[2] * 1000), "ms", ""),
    ]


if __name__ == "__main__":
    for row in figures():
        print(*row, sep="  ")
