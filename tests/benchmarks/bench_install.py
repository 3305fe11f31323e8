"""From nothing to a tool that ran, installation included: three commands, from a warm package cache."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measuring import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from document_terminals import typed

ROOT = Path(__file__).resolve().parents[2]
WANTED = ("pyproject.toml", "README.md", "LICENSE", "host", "plugin_sdk", "builtin_plugins")
TARGET = 60.0


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure. The cache is warmed by a run that does not count."""
    ways: dict[str, Callable[[Path, Path], None]] = {
        "python -m venv, pip install": lambda env, source: _with_pip(env, source),
        "python -m venv, pip install --no-compile": lambda env, source: _with_pip(env, source, "--no-compile"),
    }
    if shutil.which("uv"):
        ways["uv venv, uv pip install"] = _with_uv
    rows: list[Figure] = []
    for name, install in ways.items():
        if not rows:
            _from_nothing(install)
        wall, work = _from_nothing(install)
        rows += [
            (f"{name}, new tool, its first run", wall, "s", TARGET),
            ("  of that, work of the processor", work, "s", TARGET),
        ]
    return rows


def _from_nothing(install: Callable[[Path, Path], None]) -> tuple[float, float]:
    """Return seconds of wall time and of processor time."""
    with tempfile.TemporaryDirectory() as name:
        folder, source = Path(name), Path(name, "source")
        source.mkdir()
        for item in WANTED:
            copy = shutil.copytree if (ROOT / item).is_dir() else shutil.copyfile
            copy(ROOT / item, source / item)
        before, started = _work(), time.perf_counter()
        install(folder / "env", source)
        environ = {
            "PATH": f"{folder / 'env' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": name,
            "MORYFLOW_HOME": str(folder / "home"),
        }
        typed("moryflow new tool hello -y", "", folder, environ)
        shown = typed("moryflow tool run hello --name Ada", "o", folder, environ)
        assert shown.rstrip().endswith("Hello, Ada!"), shown
        return time.perf_counter() - started, _work() - before


def _with_pip(env: Path, source: Path, *options: str) -> None:
    _run(sys.executable, "-m", "venv", str(env))
    _run(str(env / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", *options, str(source))


def _with_uv(env: Path, source: Path) -> None:
    _run("uv", "venv", "-q", "-p", sys.executable, str(env))
    _run("uv", "pip", "install", "-q", "-p", str(env / "bin" / "python"), str(source))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _work() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
