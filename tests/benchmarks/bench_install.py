"""From nothing to a tool that ran, installation included: three commands, from a warm package cache.

Then what an installation downloads without a cache, and what each dependency of ours costs, with what only it brings along.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Mapping
from email.parser import HeaderParser
from pathlib import Path
from typing import NamedTuple

from measuring import Figure
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
    return rows + _downloads()


class Wheel(NamedTuple):
    """One release: its size as it is downloaded and on the disk, in MB, and what it needs here."""

    packed: float
    unpacked: float
    needs: frozenset[str]


def _downloads() -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        started = time.perf_counter()
        _run(sys.executable, "-m", "pip", "download", "-q", "--no-cache-dir", "-d", name, str(ROOT))
        seconds = time.perf_counter() - started
        wheels = dict(map(_read, Path(name).glob("*.whl")))
    wheels.pop("moryflow", None)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    ours = frozenset(canonicalize_name(Requirement(line).name) for line in declared)
    rows: list[Figure] = [
        (f"pip download without a cache, {len(wheels)} packages", seconds, "s", None),
        ("  downloaded", sum(wheel.packed for wheel in wheels.values()), "MB", None),
    ]
    costs: list[Figure] = []
    for one in ours:
        alone = _closure(wheels, ours) - _closure(wheels, ours - {one})
        disk = sum(wheels[each].unpacked for each in alone)
        named = f"    {one}" + (f" and {len(alone) - 1} that only it needs" if len(alone) > 1 else "")
        if alone:  # what others need as well costs nothing by itself
            costs.append((f"{named}, {disk:.0f} MB on disk", sum(wheels[each].packed for each in alone), "MB", None))
    return rows + sorted(costs, key=lambda row: -row[1])


def _read(path: Path) -> tuple[str, Wheel]:
    with zipfile.ZipFile(path) as file:
        [metadata] = [name for name in file.namelist() if name.count("/") == 1 and name.endswith(".dist-info/METADATA")]
        said = HeaderParser().parsestr(file.read(metadata).decode())
        unpacked = sum(item.file_size for item in file.infolist()) / 1e6
    needed = map(Requirement, said.get_all("Requires-Dist") or ())
    needs = frozenset(canonicalize_name(each.name) for each in needed if not each.marker or each.marker.evaluate({"extra": ""}))
    return canonicalize_name(said["Name"]), Wheel(path.stat().st_size / 1e6, unpacked, needs)


def _closure(wheels: Mapping[str, Wheel], names: Iterable[str]) -> set[str]:
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in wheels and name not in found:
            found.add(name)
            waiting += wheels[name].needs
    return found


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
