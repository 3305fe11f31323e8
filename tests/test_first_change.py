"""``docs/design/first_change.md``, followed to the letter in a copy of this checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/design/first_change.md").read_text(encoding="utf-8")
PACKAGES = ("host", "plugin_sdk", "builtin_plugins")


@pytest.mark.slow
def test_the_changes_apply_and_pass_their_tests(tmp_path: Path) -> None:
    """Who follows the page arrives (S0.85)."""
    for folder in (*PACKAGES, "tests"):
        left_out = shutil.ignore_patterns("__pycache__", "node_modules", "benchmarks")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=left_out)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    changes = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    files = dict(re.findall(r"^<!-- file: (\S+) -->\n```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
    assert (len(changes), len(files)) == (3, 3)
    for change in changes:
        subprocess.run(["git", "apply", "--recount", "--unidiff-zero", "-"], input=change, text=True, cwd=tmp_path, check=True)
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    paths = os.pathsep.join(str(tmp_path / package) for package in PACKAGES)
    tests = [name for name in files if name.startswith("tests/")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
