"""The runner of the table: fresh processes, honest verdicts, and a failing module that does not hide the others."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
RUNNER = runpy.run_path(str(HERE / "__main__.py"))
MODULES = sorted(HERE.glob("bench_*.py"))


@pytest.mark.parametrize(
    ("value", "target", "verdict"), [(59.9, 60.0, "ok"), (60.1, 60.0, "OVER"), (1.0, None, ""), (1.0, float("inf"), "")]
)
def test_a_figure_over_its_target_says_so(value: float, target: float | None, verdict: str) -> None:
    """A table that calls everything ok would be worthless (STYLE)."""
    assert RUNNER["Figure"]("x", value, "ms", target).verdict == verdict


def test_a_module_runs_in_a_process_of_its_own_without_the_switch_that_drops_byte_code(tmp_path, monkeypatch) -> None:
    """What is measured is what a user has (STYLE)."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    module = tmp_path / "bench_x.py"
    module.write_text("import os, sys\ndef figures(): return [(str(os.getpid()), float(sys.dont_write_bytecode), '', None)]\n")
    rows, problem = RUNNER["measured"](module)
    assert problem == ""
    assert rows[0].value == 0.0
    assert rows[0].name.isdigit()


def test_a_module_that_fails_is_reported_with_its_error(tmp_path) -> None:
    """One broken benchmark is a line in the table (STYLE)."""
    module = tmp_path / "bench_x.py"
    module.write_text("def figures(): raise ValueError('no server')\n")
    assert RUNNER["measured"](module) == ([], "ValueError: no server")


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    """A typo does not print an empty table (STYLE)."""
    done = subprocess.run([sys.executable, str(HERE), "starup"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "startup" in done.stderr


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_every_benchmark_gives_figures(module: Path) -> None:
    """The runner asks each module for `figures()` (STYLE)."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    assert "figures" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
