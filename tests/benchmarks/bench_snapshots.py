"""What a snapshot of a vault of 5,000 files costs: the first, and one after a step that changed one file."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from moryflow_builtins.snapshots.shadow import Shadow, SnapshotSettings

FILES, ROUNDS = 5000, 15
Figure = tuple[str, float, str, float | None]


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    with tempfile.TemporaryDirectory() as folder:
        vault = Path(folder).resolve() / "vault"
        for number in range(FILES):
            file = vault / f"module{number // 100}" / f"file{number}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"line {number}\n" * 60)
        shadow = Shadow(Path(folder) / "data", vault, SnapshotSettings())
        first = _ms(shadow)
        after = []
        for number in range(ROUNDS):
            (vault / "module0" / "file0.py").write_text(f"changed {number}\n")
            after.append(_ms(shadow))
    return [
        ("snapshot of 5,000 files, the first", first, "ms", None),
        ("snapshot of 5,000 files, after a one-file step", median(after), "ms", 150),
    ]


def _ms(shadow: Shadow) -> float:
    began = time.perf_counter()
    shadow.snapshot()
    return (time.perf_counter() - began) * 1000
