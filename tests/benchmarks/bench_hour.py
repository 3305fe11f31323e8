"""From nothing to a tool that ran: what follows the installation, at a terminal, as the tutorial has it; and the site."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import Figure, repeated

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from document_terminals import typed

ROOT = Path(__file__).resolve().parents[2]
RUNS = 5


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    return [
        ("new tool and its first run, with a key pressed", repeated(RUNS, _first_tool), "s", 60.0),
        ("the documentation as a site", repeated(RUNS, _site), "s", 20.0),
    ]


def _first_tool() -> float:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environ = {"PATH": path, "HOME": name, "MORYFLOW_HOME": str(folder / "home")}
        started = time.perf_counter()
        typed("moryflow new tool hello -y", "", folder, environ)
        shown = typed("moryflow tool run hello --name Ada", "o", folder, environ)
        assert shown.rstrip().endswith("Hello, Ada!"), shown
        return time.perf_counter() - started


def _site() -> float:
    with tempfile.TemporaryDirectory() as name:
        shutil.copytree(ROOT / "docs", Path(name, "docs"))
        shutil.copyfile(ROOT / "mkdocs.yml", Path(name, "mkdocs.yml"))
        started = time.perf_counter()
        subprocess.run(
            [str(Path(sys.executable).with_name("zensical")), "build", "--strict"], cwd=name, check=True, capture_output=True
        )
        return time.perf_counter() - started
