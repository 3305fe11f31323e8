"""What 100 installed plugins add to a start, the first time and the second, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

Figure = tuple[str, float, str, float]
NUMBER = 100
RUNS = 7
PLUGIN = """
from moryflow_sdk import ToolResult, hookimpl, tool

@tool
def hello_{number}(name: str) -> str:
    "Say hello."
    return name

@hookimpl
def tools():
    return [hello_{number}]

@hookimpl
def tool_after(result: ToolResult):
    return None
"""
START = """
import asyncio, sys, time
import moryflow_sdk, moryflow.kernel.plugins as plugins
from pathlib import Path
from types import SimpleNamespace
config = SimpleNamespace(section=lambda dotted: {}, origin=lambda dotted: None)
async def main():
    began = time.perf_counter()
    loaded = plugins.load_plugin_set(home=Path(sys.argv[1]), builtins=(), settings=plugins.PluginSettings(), config=config)
    loaded = await plugins.start(loaded)
    print((time.perf_counter() - began) * 1000, len(loaded.tools))
asyncio.run(main())
"""


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        without = _second(root / "home0", None)
        site = _install(root / "site")
        first = _start(root / "home1", site)
        second = _second(root / "home1", site)
        return [
            ("first start with 100 installed plugins, discovery to ready", first, "ms", float("inf")),
            ("second start with 100 installed plugins, more than with none", second - without, "ms", 150.0),
        ]


def _install(site: Path) -> Path:
    for number in range(NUMBER):
        name = f"bench_plugin_{number}"
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text(PLUGIN.format(number=number), "utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
        (info / "entry_points.txt").write_text(f"[moryflow.plugins]\n{name} = {name}\n", "utf-8")
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(site)], check=True)
    return site


def _second(home: Path, site: Path | None) -> float:
    _start(home, site)
    return sorted(_start(home, site) for _ in range(RUNS))[RUNS // 2]


def _start(home: Path, site: Path | None) -> float:
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    if site is not None:
        environ["PYTHONPATH"] = str(site)
    done = subprocess.run([sys.executable, "-c", START, str(home)], env=environ, capture_output=True, text=True, check=True)
    ms, tools = done.stdout.split()
    assert int(tools) >= (NUMBER if site else 0)
    return float(ms)


if __name__ == "__main__":
    for name, value, unit, target in figures():
        print(f"{name:<64} {value:8.1f} {unit}   target {target:g}")
