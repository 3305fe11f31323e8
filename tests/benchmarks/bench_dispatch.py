"""What a hook call costs: ten built-in implementations with their ledger, and one asynchronous or third-party one more."""

from __future__ import annotations

import asyncio
import tempfile
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from moryflow.hooks.dispatcher import Dispatcher
from moryflow.hooks.ledger import Ledger, Quarantine
from moryflow.hooks.plugin_set import PluginSet
from moryflow.plugins import dispose, load_plugin_set, start
from moryflow.plugins.discovery import PluginSettings
from moryflow_sdk import ToolCall, ToolResult

ROUNDS = 2000
Figure = tuple[str, float, str, float]


class Config:
    """No settings at all."""

    def section(self, dotted: str) -> dict[str, Any]:
        return {}

    def origin(self, dotted: str) -> None:
        return None

    def checked(self, known: object) -> Config:
        return self


class Scope:
    """A scope as cheap as the kernel's: a view is looked up, nothing is made."""

    session, turn, step = "s", "t", 1

    def __init__(self, plugin_set: PluginSet) -> None:
        self.plugin_set = plugin_set
        self.ledger = Ledger()
        self.quarantine = Quarantine()
        self._views: dict[str, Any] = {}

    def view(self, plugin: str) -> Any:
        return self._views.setdefault(plugin, SimpleNamespace())

    def report(self, failure: Any) -> None:
        raise AssertionError(failure)


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    return asyncio.run(_figures())


async def _figures() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        base = await _set(home, 10, {})
        ten = await _median(base)
        rows = [("one hook through 10 built-in implementations, rows of the ledger made", ten, "µs", 30.0)]
        for label, source in (("asynchronous third-party", ASYNC), ("plain third-party", PLAIN)):
            more = await _median(await _set(home, 10, {"extra": source}))
            rows.append((f"one {label} implementation more", more - ten, "µs", 60.0))
        return rows


PLAIN = """
    from moryflow_sdk import hookimpl
    @hookimpl
    def tool_after(call, result, turn):
        return None
"""
ASYNC = PLAIN.replace("def tool_after", "async def tool_after")


async def _set(home: Path, builtins: int, user: dict[str, str]) -> PluginSet:
    folder = home / "plugins"
    folder.mkdir(mode=0o755, exist_ok=True)
    for name, source in user.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source), "utf-8")
        (folder / f"{name}.py").chmod(0o644)
    import sys

    packages = home / "packages"
    packages.mkdir(exist_ok=True)
    names = [f"bench_builtin_{number}" for number in range(builtins)]
    for name in names:
        (packages / f"{name}.py").write_text(textwrap.dedent(PLAIN), "utf-8")
    sys.path.insert(0, str(packages))
    try:
        loaded = load_plugin_set(home=home, builtins=names, settings=PluginSettings(), config=Config())
    finally:
        sys.path.remove(str(packages))
    assert len(loaded.ordered("tool_after")) == builtins + len(user), loaded.records
    return await start(loaded)


async def _median(plugin_set: PluginSet) -> float:
    scope, dispatcher = Scope(plugin_set), Dispatcher()
    call, result = ToolCall(id="c", tool="read", args={}), ToolResult(output="x")
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        await dispatcher.transform(scope, "tool_after", result, call=call)
        scope.ledger.drain()
        times.append((time.perf_counter_ns() - began) / 1000)
    await dispose(plugin_set)
    return sorted(times)[len(times) // 2]


if __name__ == "__main__":
    for name, value, unit, target in figures():
        print(f"{name:<60} {value:8.1f} {unit}   target {target:g}")
