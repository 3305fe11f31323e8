"""100 broken plugins, agents and tools of every kind in the corpus: how soon the host answers, and whether each is named."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from measuring import Figure, Place, place
from moryflow import open_host

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "data"))
from extension_adapter import adapted, cases, content

NUMBER = 100
HELLO = '''
from moryflow_sdk import hookimpl, tool

@tool(domain="read")
def good_{number}() -> str:
    """Say hello."""
    return "hello"

@hookimpl
def tools():
    return [good_{number}]
'''


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    with place() as here:
        here.configure(agents={"runtime": {"tools": {"external": {"enabled": True}}}})
        files = _write(here)
        for number in range(3):
            _save(here.home / "plugins" / f"good_{number}.py", HELLO.format(number=number).encode())
        return asyncio.run(_opened(here, files))


async def _opened(here: Place, files: list[Path]) -> list[Figure]:
    started = time.perf_counter()
    async with await open_host(here.home, environ={}) as host:
        outcome = await host.call_tool("good_0", {}, vault=here.vault)
        answered = (time.perf_counter() - started) * 1000
        assert outcome.result.output == "hello", outcome.result
        while any(record.status == "pending" for record in host.plugin_set.records):
            await asyncio.sleep(0.1)
            await host.refresh_if_changed()
        named = (time.perf_counter() - started) * 1000
        silent = [file.name for file in files if not _told(host, file)]
        works = sum(f"good_{number}" in host.tools for number in range(3))
    if silent:
        print("not named:", ", ".join(silent), file=sys.stderr)
    return [
        ("up and answering beside 100 broken extensions", answered, "ms", 5000.0),
        ("until each of them is named", named, "ms", None),
        ("broken extensions that nobody names", float(len(silent)), "", 0.0),
        ("good plugins among them that do not work", 3.0 - works, "", 0.0),
    ]


def _told(host: Any, file: Path) -> bool:
    """Whether a record names a file and says what is wrong."""
    return any(str(file) in f"{record.file} {record.error}" and record.error for record in host.plugin_set.records)


def _write(here: Place) -> list[Path]:
    """Lay out 100 extensions that must be refused: all there are of each kind, then again."""
    plugins = [case for case in cases("plugin") if case["expect"]["item"] == "rejected"]
    agents = [case for case in cases("agent") if case["expect"]["item"] == "rejected"]
    files: list[Path] = []
    while len(files) < NUMBER:
        turn = len(files)
        files += [_save(here.home / "plugins" / f"p{turn}_{case['name']}.py", adapted(case)) for case in plugins]
        files += [_save(here.home / "agents" / f"a{turn}_{case['name']}.md", content(case)) for case in agents]
        files += [_save(here.home / "tools" / f"t{turn}_{case['name']}.py", content(case)) for case in plugins[:12]]
    for file in files[NUMBER:]:
        file.unlink()
    return files[:NUMBER]


def _save(file: Path, data: bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.write_bytes(data)
    file.chmod(0o600)
    return file


if __name__ == "__main__":
    for row in figures():
        print(row)
