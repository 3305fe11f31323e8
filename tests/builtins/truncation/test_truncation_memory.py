"""What a large output leaves behind in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_truncation.py"
MB = 1024 * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_large_output_leaves_nothing_behind() -> None:
    """After 20 MB, five times: at most four times the size at the peak, and base + 5 MB afterwards (S0.50)."""
    done = subprocess.run([sys.executable, BENCHMARK], capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    assert seen["peak"] <= 4 * 20 * MB
    assert seen["kept"] <= 5 * MB
    assert seen["bytes"] <= 60 * 1024
