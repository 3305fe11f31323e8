"""What a tool output of 20 MB costs: time to cut and store it, what enters the context, and memory."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SIZE = 20 * 1024 * 1024
BUILTINS = ("moryflow_builtins.audit", "moryflow_builtins.truncation")
Figure = tuple[str, float, str, float]
TOOLS = """
from moryflow_sdk import *

@tool(domain="read")
def huge(size: int) -> str:
    "So many bytes in lines of 64."
    return ("0123456789abcdef" * 4)[:63].join(("", "\\n")) * (size // 64)

@hookimpl
def tools():
    return [huge]

@hookimpl
def tool_gate():
    return Allow()
"""


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure, measured in a process of its own."""
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    return [
        ("truncation: cut and store 20 MB", seen["ms"], "ms", 150.0),
        ("truncation: bytes that enter the context", seen["bytes"] / 1024, "KB", 60.0),
        ("truncation: peak over base, in sizes of the output", seen["peak"] / SIZE, "x", 4.0),
        ("truncation: memory kept afterwards", seen["kept"] / 1024 / 1024, "MB", 5.0),
    ]


async def _measure() -> dict[str, float]:
    from moryflow import open_host

    with tempfile.TemporaryDirectory() as folder:
        home, vault = Path(folder) / "home", Path(folder) / "vault"
        vault.mkdir()
        (home / "plugins").mkdir(parents=True, mode=0o700)
        plugin = home / "plugins" / "huge.py"
        plugin.write_text(TOOLS)
        plugin.chmod(0o600)
        async with await open_host(home, environ={}, builtins=BUILTINS) as host:
            for _ in range(3):
                await host.call_tool("huge", {"size": 200_000}, vault=vault)
            gc.collect()
            base = _memory("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # forget the highest use so far
            outcome = await host.call_tool("huge", {"size": SIZE}, vault=vault)
            peak, output = _memory("VmHWM"), len(outcome.result.output.encode())
            took = min([_took(outcome)] + [_took(await host.call_tool("huge", {"size": SIZE}, vault=vault)) for _ in range(4)])
            del outcome
            gc.collect()
            return {"ms": took, "bytes": output, "peak": peak - base, "kept": _memory("VmRSS") - base}


def _took(outcome: object) -> float:
    chain = outcome.chain
    return next(step["us"] for step in chain if (step["hook"], step["plugin"]) == ("tool_after", "truncation")) / 1000


def _memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_measure())))
