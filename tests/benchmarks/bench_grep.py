"""What ``grep`` costs over 20,000 files: beside ``rg`` itself."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from moryflow.services.files import VaultFiles
from moryflow_builtins.search import grep, ripgrep
from moryflow_sdk import Agent, ToolCall

FOLDERS, FILES, ROUNDS = 200, 100, 9
PATTERN = r"needle_\w+"
Figure = tuple[str, float, str, float | None]


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    with tempfile.TemporaryDirectory() as folder:
        vault = Path(folder).resolve() / "vault"
        _fill(vault)
        return asyncio.run(_figures(vault))


def _fill(vault: Path) -> None:
    """Write a tree as in a large repository: some folders ignore their logs, few files hold what is looked for."""
    chance = random.Random(1)
    words = [f"word{number}" for number in range(3000)]
    for number in range(FOLDERS):
        folder = vault / f"package{number // 20}" / f"module{number}"
        folder.mkdir(parents=True)
        if number % 7 == 0:
            (folder / ".gitignore").write_text("*.log\n!file1.log\nbuild/\n")
        for index in range(FILES):
            lines = [" ".join(chance.choices(words, k=7)) for _ in range(chance.randint(20, 150))]
            if chance.random() < 0.01:
                lines.insert(5, "def needle_function(): pass")
            (folder / f"file{index}.{chance.choice(['py', 'md', 'ts', 'log'])}").write_text("\n".join(lines))
    (vault / ".gitignore").write_text("*.tmp\nnode_modules\n")


async def _figures(vault: Path) -> list[Figure]:
    home = vault.parent / "home"
    rg = ripgrep.find_rg(home)
    context = _context(vault, home)
    alone = [rg, "--no-require-git", "--line-number", PATTERN, "."]
    plain, ours = await _alternating(lambda: _program(alone, vault), lambda: _grep(context))
    return [("grep, 20,000 files, rg alone", plain, "ms", None), ("grep, 20,000 files, the tool", ours, "ms", None),
            ("grep, the tool beside rg", ours / plain, "x", 1.5)]  # fmt: skip


def _context(vault: Path, home: Path) -> Any:
    files = VaultFiles(vault, home, home)
    rules = SimpleNamespace(all=lambda: ())
    return SimpleNamespace(
        files=files,
        vault=vault,
        home=home,
        rules=rules,
        agent=Agent(id="build"),
        mode="agent",
        cancelled=False,
        config=None,
        mark="",
    )


async def _program(arguments: list[str], vault: Path) -> None:
    await asyncio.to_thread(subprocess.run, arguments, cwd=vault, capture_output=True, check=False)


async def _grep(context: Any) -> None:
    """One call, with resolving its target, as the host makes it."""
    args = {"pattern": PATTERN}
    targets = tuple(context.files.resolve(request.value) for request in grep.target_requests(args))
    context.call = ToolCall(id="c", tool="grep", args=args, targets=targets)
    result = await grep.function(**grep.bind(json.dumps(args).encode(), context))
    assert result.metadata["matches"] > 100, result.output


async def _alternating(first: Callable[[], Awaitable[None]], second: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """Return both medians, measured in turns, so that other work on the machine disturbs both alike."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS + 1):
        for one, found in zip((first, second), times, strict=True):
            found.append(await _timed(one))
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


async def _timed(work: Callable[[], Awaitable[None]]) -> float:
    started = time.perf_counter()
    await work()
    return (time.perf_counter() - started) * 1000


if __name__ == "__main__":
    for name, value, unit, target in figures():
        print(f"{name:60} {value:10.1f} {unit:4} target {target or '-'}")
