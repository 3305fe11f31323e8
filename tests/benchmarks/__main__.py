"""Print the table of figures: ``python3 tests/benchmarks``, or only some: ``python3 tests/benchmarks startup step``.

Every ``bench_<topic>.py`` beside this file has a function ``figures()`` that returns rows ``(name, value, unit, target)``;
a target is an upper bound, ``None`` or infinity where there is none. Each module runs in a fresh process, one after
the other, with byte code compiled as pip compiles it. Repeating and taking medians is the module's own business.
"""

from __future__ import annotations

import compileall
import importlib.util
import json
import math
import os
import platform
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ONE = "--one"


@dataclass(frozen=True)
class Figure:
    """One row of the table."""

    name: str
    value: float
    unit: str
    target: float | None

    @property
    def verdict(self) -> str:
        """Whether the target is reached."""
        if self.target is None or not math.isfinite(self.target):
            return ""
        return "ok" if self.value <= self.target else "OVER"

    def cells(self) -> tuple[str, str, str, str, str]:
        """The row as text."""
        bound = f"≤ {self.target:g}" if self.verdict else ""
        return self.name, f"{self.value:.{1 if abs(self.value) < 1000 else 0}f}", self.unit, bound, self.verdict


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for and print the table; 1 when a module failed, whatever the figures are."""
    if arguments[:1] == [ONE]:
        print(json.dumps([list(row) for row in figures_of(Path(arguments[1]))]))
        return 0
    modules = chosen(arguments)
    compile_all()
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores\n")
    failed = False
    for module in modules:
        print(f"{module.stem.removeprefix('bench_')} …", end="", file=sys.stderr, flush=True)
        began = time.monotonic()
        rows, problem = measured(module)
        print(f" {time.monotonic() - began:.0f} s", file=sys.stderr)
        failed = failed or bool(problem)
        for line in table(rows) if not problem else [f"{module.name}: {problem}"]:
            print(line, flush=True)
    return int(failed)


def chosen(names: Sequence[str]) -> list[Path]:
    """The modules with the given names, or all."""
    found = {path.stem.removeprefix("bench_"): path for path in sorted(HERE.glob("bench_*.py"))}
    unknown = [name for name in names if name not in found]
    if unknown:
        raise SystemExit(f"no benchmark {', '.join(unknown)}; there are {', '.join(found)}")
    return [path for name, path in found.items() if not names or name in names]


def compile_all() -> None:
    """Compile the product and its libraries, so that no figure holds a first compilation."""
    folders = [ROOT / "host", ROOT / "plugin_sdk", ROOT / "builtin_plugins", Path(sysconfig.get_paths()["purelib"])]
    for folder in folders:
        compileall.compile_dir(folder, quiet=2, workers=0)


def measured(module: Path) -> tuple[list[Figure], str]:
    """Run one module in a process of its own; return its rows, or what went wrong."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, str(HERE), ONE, str(module)], env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return [], (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    return [Figure(*row) for row in json.loads(done.stdout.splitlines()[-1])], ""


def figures_of(module: Path) -> list[tuple[str, float, str, float | None]]:
    """Import a module by its path and ask it for its figures."""
    spec = importlib.util.spec_from_file_location(module.stem, module)
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module.stem] = loaded
    sys.path.insert(0, str(module.parent))
    spec.loader.exec_module(loaded)
    return loaded.figures()


def table(rows: Sequence[Figure]) -> Iterator[str]:
    """The rows as aligned lines."""
    for row in rows:
        name, value, unit, bound, verdict = row.cells()
        yield f"{name:<72} {value:>9} {unit:<6} {bound:<9} {verdict}".rstrip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
