"""What 100 installed plugins add to a one-shot run, the first time and after that; and 100 broken ones beside 3 good."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from measuring import MODEL, Figure, ModelServer, Place, command, place
from moryflow.testing.replies import text

NUMBER = 100
RUNS = 9
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
BROKEN = (
    "def (",
    "raise RuntimeError('no')",
    "import not_there",
    "from moryflow_sdk import hookimpl\n@hookimpl\ndef nope(): ...",
)


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    with place() as plain, place() as here, ModelServer(lambda _: text("ok")) as server:
        plain.use(server)
        here.use(server)
        run = (command(), "run", "-m", MODEL, "hello")
        good = {f"bench_plugin_{number}": PLUGIN.format(number=number) for number in range(NUMBER)}
        here.environ["PYTHONPATH"] = str(install(here.root / "good", good))
        plain.run(*run)
        first = here.run(*run).ms
        _settled(here, run)
        # Turn and turn about, so that whatever else the machine does meets both.
        pairs = [(plain.run(*run).ms, here.run(*run).ms) for _ in range(RUNS)]
        without = median(pair[0] for pair in pairs)
        assert _settled(here, run).count("loaded") >= NUMBER
        return [
            ("100 installed plugins add to a first start", first - without, "ms", None),
            ("100 installed plugins add to a later start", median(pair[1] for pair in pairs) - without, "ms", 150.0),
            _broken(here, run),
        ]


def _broken(here: Place, run: tuple[str, ...]) -> Figure:
    """Start with 100 broken plugins beside 3 good ones."""
    sources = {f"bench_broken_{number}": BROKEN[number % len(BROKEN)] for number in range(NUMBER)}
    sources |= {f"bench_good_{number}": PLUGIN.format(number=number) for number in range(3)}
    here.environ["PYTHONPATH"] = str(install(here.root / "broken", sources))
    took = here.run(*run).ms
    statuses = _settled(here, run)
    assert statuses.count("failed") == NUMBER
    return ("up with 100 broken plugins beside 3 good ones", took, "ms", 5000.0)


def _settled(here: Place, run: tuple[str, ...]) -> list[str]:
    """Start until all plugins are probed: a start does not wait for all of them."""
    while "pending" in (statuses := _statuses(here)):
        here.run(*run)
    return statuses


def _statuses(here: Place) -> list[str]:
    """What became of the installed plugins."""
    output = here.run(command(), "plugin", "list", "--json", "-q").output
    records = json.JSONDecoder().raw_decode(output[output.index("[") :])[0]
    return [record["status"] for record in records if record["tier"] == "installed"]


def install(site: Path, sources: dict[str, str]) -> Path:
    """Lay packages out as pip does: a module, its metadata, compiled byte code."""
    for name, source in sources.items():
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text(source, encoding="utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[moryflow.plugins]\n{name} = {name}\n", encoding="utf-8")
    subprocess.run([sys.executable, "-m", "compileall", "-qq", str(site)], check=False, capture_output=True)
    return site
