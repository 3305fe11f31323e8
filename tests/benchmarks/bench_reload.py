"""From a save to the next generation that holds it, the probe included; what 1,000 reloads leave behind."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from measuring import Figure, place
from moryflow import open_host
from moryflow.plugins.reload import Reloader

SAVES = 60
RELOADS = 1000
STORM = 500
STORM_SECONDS = 10.0
MODULES = 20
TOOL = """
from moryflow_sdk import hookimpl, tool

@tool(domain="read")
def hello(name: str) -> str:
    "Say hello."
    return "{word}"

@hookimpl
def tools():
    return [hello]
"""
EXTERNAL = """
from moryflow_sdk import tool

@tool(domain="read")
def greet(name: str) -> str:
    "Greet."
    return "{word}"
"""
PACKAGE = "from moryflow_sdk import hookimpl, tool\n{imports}\n{tool}"


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    return asyncio.run(_figures())


async def _figures() -> list[Figure]:
    with place() as here:
        os.environ.pop("MORYFLOW_HOME", None)
        here.configure(agents={"runtime": {"tools": {"external": {"enabled": True}}}})
        plugin = _write(here.home / "plugins" / "mine.py", TOOL.format(word="0"))
        external = _write(here.home / "tools" / "greet.py", EXTERNAL.format(word="0"))
        module = _project(here.root)
        async with await open_host(here.home, environ={}, development=[here.root / "project"]) as host:
            reloader = Reloader(host)
            reloader.start()
            try:
                measured = [
                    ("plugin file", await _saves(host, plugin, lambda word: TOOL.format(word=word), "hello")),
                    ("tool file", await _saves(host, external, lambda word: EXTERNAL.format(word=word), "greet")),
                    ("editable plugin of 20 modules", await _saves(host, module, _module, "many")),
                ]
                rows = [row for name, times in measured for row in _rows(name, times)]
                return [*rows, await _storm(host, plugin), *await _flat(host, plugin)]
            finally:
                await reloader.aclose()


def _rows(name: str, times: list[float]) -> list[Figure]:
    slow = name.startswith("editable")
    last = quantiles(times, n=20)[-1]
    first = (f"save to active, {name}, median", median(times), "ms", 300.0 if slow else 150.0)
    return [first, (f"save to active, {name}, p95", last, "ms", 300.0)]


async def _saves(host: Any, file: Path, source: Callable[[str], str], tool: str) -> list[float]:
    """Save again and again; measure from the write until the next turn would have it."""
    times = []
    for number in range(1, SAVES + 1):
        word = f"{file.stem}-{number}"
        started = time.perf_counter()
        file.write_text(source(word), encoding="utf-8")
        await _until(lambda word=word: _word(host, tool) == word)
        times.append((time.perf_counter() - started) * 1000)
        await asyncio.sleep(0.03)
    return times[5:]


def _word(host: Any, tool: str) -> str:
    owned = host.tools.get(tool)
    return owned.tool.function("x") if owned is not None else ""


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while True:
            if true():
                return
            await asyncio.sleep(0.001)


async def _storm(host: Any, file: Path) -> Figure:
    """Save 500 times in ten seconds, every third time half; measure how long after the last one it holds."""
    pause = STORM_SECONDS / STORM
    for number in range(STORM):
        text = TOOL.format(word=f"storm-{number}")
        file.write_text(text if number % 3 else text[: len(text) // 2], encoding="utf-8")
        await asyncio.sleep(pause)
    started = time.perf_counter()
    file.write_text(TOOL.format(word="calm"), encoding="utf-8")
    await _until(lambda: _word(host, "hello") == "calm")
    return ("last of 500 saves in 10 s to active", (time.perf_counter() - started) * 1000, "ms", 1000.0)


async def _flat(host: Any, file: Path) -> list[Figure]:
    """Reload 1,000 times, and compare memory and descriptors with those after the first 100."""
    refresh: Callable[[], Awaitable[bool]] = host.refresh
    early = (0.0, 0)
    for number in range(RELOADS):
        file.write_text(TOOL.format(word=f"flat-{number}"), encoding="utf-8")
        await refresh()
        if number == 100:
            early = _used()
    late = _used()
    return [
        ("memory that 900 more reloads take", late[0] - early[0], "MB", 10.0),
        ("descriptors that 900 more reloads take", late[1] - early[1], "", 0.0),
    ]


def _used() -> tuple[float, int]:
    gc.collect()
    with Path("/proc/self/statm").open(encoding="ascii") as statm:
        pages = int(statm.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(list(Path("/proc/self/fd").iterdir()))


def _write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)
    return file


def _module(word: str) -> str:
    return f'WORD = "{word}"\n'


def _project(root: Path) -> Path:
    """Lay out a plugin as its author has it; return the module that is saved."""
    project = root / "project"
    package = project / "src" / "bench_many"
    points = '[project.entry-points."moryflow.plugins"]\nbench-many = "bench_many"\n'
    entry = f'[project]\nname = "bench-many"\nversion = "1"\n{points}'
    _write(project / "pyproject.toml", entry)
    imports = "\n".join(f"from . import part_{number}" for number in range(MODULES - 2))
    tool = '@tool(domain="read")\ndef many(name: str) -> str:\n    "Many."\n    return word.WORD\n'
    hook = "@hookimpl\ndef tools():\n    return [many]\n"
    _write(package / "__init__.py", PACKAGE.format(imports=f"from . import word\n{imports}", tool=f"{tool}\n{hook}"))
    for number in range(MODULES - 2):
        _write(package / f"part_{number}.py", f"VALUE = {number}\n\n\ndef work(value):\n    return value + VALUE\n")
    return _write(package / "word.py", _module("0"))


if __name__ == "__main__":
    for row in figures():
        print(row)
