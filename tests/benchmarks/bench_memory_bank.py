"""What the memory bank costs a call and a turn, and how thirty conversations end.

``python3 tests/benchmarks/bench_memory_bank.py`` also prints the outcome of each conversation.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from moryflow import RunOptions, open_host
from moryflow_builtins.memory_bank import system_blocks, tool_after, tool_gate
from moryflow_builtins.memory_bank.cli import files
from moryflow_sdk import ToolResult

Figure = tuple[str, float, str, float | None]
CONVERSATIONS = Path(__file__).resolve().parents[1] / "data" / "memory_bank" / "conversations.jsonl"
TIMES = 1000
ALLOW = [{"domain": domain, "pattern": "*", "decision": "allow"} for domain in ("read", "edit", "task")]


def figures() -> list[Figure]:
    """Return the rows of the table."""
    return [*_import(), *asyncio.run(_costs()), *_counted(asyncio.run(outcomes()))]


def _import() -> list[Figure]:
    """Measure importing the room where the SDK is there already."""
    code = (
        "import moryflow_sdk, pydantic.alias_generators, time; t = time.perf_counter(); "
        "import moryflow_builtins.memory_bank; print((time.perf_counter() - t) * 1000)"
    )
    runs = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) for _ in range(9)
    ]
    return [("memory bank, import of the plugin", median(runs), "ms", None)]


async def _costs() -> list[Figure]:
    rows: list[Figure] = []
    for name, with_bank in (("no bank", False), ("with a bank", True)):
        with tempfile.TemporaryDirectory() as folder:
            home, vault = _place(Path(folder), with_bank=with_bank)
            environ = {"MEMORY_BANK_GUARD_MODE": "block"}
            async with await open_host(home, environ=environ) as host, host.read_only(str(vault)) as scope:
                scope.turn = "t_bench"
                rows += await _gates(name, scope, with_bank=with_bank)
    return rows


async def _gates(name: str, scope: Any, *, with_bank: bool) -> list[Figure]:
    turn = scope.view("memory_bank")
    read = _call(scope, "read", path="notes.md")
    risky = _call(scope, "write", path="package.json", content="x")
    plain = _call(scope, "write", path="src/deep/down/in/the/tree/file.py", content="x")
    shell = _call(scope, "bash", command="true")
    rows = [
        *await _timed(f"gate, {name}, a read", lambda: tool_gate(read, turn), 1.0),
        *await _timed(f"gate, {name}, high-risk write", lambda: tool_gate(risky, turn), 1.0),
        *await _timed(f"gate, {name}, other write", lambda: tool_gate(plain, turn), 1.0),
    ]
    result = ToolResult(output="done")

    async def around() -> None:
        await tool_after(shell, result, turn)

    async def blocks() -> None:
        system_blocks(turn)

    rows += await _timed(f"after a command, {name}", around, None)
    rows += await _timed(f"prompt block, {name}, once a turn", blocks, None)
    if with_bank:
        text = "".join(block.text for block in system_blocks(turn))
        rows.append(("prompt block of a new bank", float(len(text)), "characters", None))
    return rows


async def _timed(name: str, work: Callable[[], Awaitable[Any]], target: float | None) -> list[Figure]:
    """Return the middle and the 95th percentile in milliseconds, after a warm-up."""
    times: list[float] = []
    for number in range(TIMES + 20):
        started = time.perf_counter()
        await work()
        if number >= 20:
            times.append((time.perf_counter() - started) * 1000)
    cuts = quantiles(times, n=100)
    return [(f"memory bank, {name}, p50", cuts[49], "ms", None), (f"memory bank, {name}, p95", cuts[94], "ms", target)]


def _call(scope: Any, tool: str, **arguments: Any) -> Any:
    from moryflow.kernel.tool_call import call_as_judged

    return call_as_judged(scope, tool, arguments, "call_bench", 1)[0]


def _place(root: Path, *, with_bank: bool) -> tuple[Path, Path]:
    """Make a home and a vault."""
    home, vault = root / "home", root / "vault"
    home.mkdir(mode=0o700)
    (vault / "src").mkdir(parents=True)
    for name, text in {"src/money.py": "CENTS = 100\n", "package.json": "{}\n", "notes.md": "notes\n"}.items():
        (vault / name).write_text(text, encoding="utf-8")
    for name, text in files().items() if with_bank else ():
        (vault / name).parent.mkdir(parents=True, exist_ok=True)
        (vault / name).write_text(text, encoding="utf-8")
    return home, vault


async def outcomes() -> list[tuple[str, str, str]]:
    """Run every conversation; return its name, what it should end in and what it did."""
    lines = CONVERSATIONS.read_text(encoding="utf-8").splitlines()
    return [await _outcome(json.loads(line)) for line in lines]


async def _outcome(item: dict[str, Any]) -> tuple[str, str, str]:
    with tempfile.TemporaryDirectory() as folder:
        home, vault = _place(Path(folder), with_bank=True)
        for name in item.get("remove", ()):
            path = vault / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        script = Path(folder) / "script.json"
        script.write_text(json.dumps([answer for turn in item["turns"] for answer in turn[1:]]), encoding="utf-8")
        config = json.dumps({"agents": {"runtime": {"permission": {"rules": ALLOW}}}})
        environ = {"MEMORY_BANK_GUARD_MODE": item["guard"]}
        async with await open_host(home, environ=environ, config=config) as host:
            session = await host.new_session(vault, model=f"script:{script}", mode=item.get("mode"))
            for prompt, *_ in item["turns"]:
                await session.prompt(prompt, options=RunOptions(on_ask="deny"))
            nodes = [node.payload for node in await host.store.path(session.id) if node.kind == "tool"]
    return item["id"], item["expect"], _became(nodes[-1])


def _became(node: Any) -> str:
    if node["status"] == "denied":
        return "blocked" if node["code"] == "memory_bank" else "denied otherwise"
    return "warned" if "[memory bank] this was a" in node["output"] else "passed"


def _counted(rows: list[tuple[str, str, str]]) -> list[Figure]:
    wrong = Counter(expected for _, expected, became in rows if became != expected)
    return [
        (f"memory bank, {kind} conversations that ended otherwise (of 10)", float(wrong[kind]), "", 0.0)
        for kind in ("blocked", "warned", "passed")
    ]


if __name__ == "__main__":
    for number, (name, expected, became) in enumerate(asyncio.run(outcomes()), 1):
        print(f"{number:>2}  {expected:<8} {became:<8} {'ok' if expected == became else 'WRONG':<6} {name}")
    for name, value, unit, target in figures():
        print(f"{name:<70} {value:10.3f} {unit:<11} {'' if target is None else f'<= {target:g}'}")
