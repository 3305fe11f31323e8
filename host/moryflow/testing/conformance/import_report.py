"""What a plugin does while it is imported, as a process of its own saw it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_LONGEST = 60.0
"""Seconds that a process with a host and the plugin may take on a busy machine."""


@dataclass
class ImportReport:
    """What was seen; each event with the line of the plugin that made it.

    :ivar cpu: seconds of computing that loading took.
    """

    network: list[str] = field(default_factory=list[str])
    programs: list[str] = field(default_factory=list[str])
    writes: list[str] = field(default_factory=list[str])
    printed: str = ""
    threads: list[str] = field(default_factory=list[str])
    changed: list[str] = field(default_factory=list[str])
    cpu: float = 0.0
    error: str = ""


def watch(path: Path, root: Path, environ: Mapping[str, str], settings: Mapping[str, Any]) -> ImportReport:
    """Load the plugin in a child and return what it did."""
    folder = root / "watched"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "report.json"
    command = [sys.executable, "-m", f"{__package__}.import_watcher", str(path), str(folder), str(target)]
    child = {**environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, input=json.dumps(settings), capture_output=True, text=True, env=child, timeout=_LONGEST)
    except subprocess.TimeoutExpired:
        return ImportReport(error=f"it does not end within {_LONGEST:g} s")
    if not target.exists():
        return ImportReport(error=(done.stderr or done.stdout).strip()[-2000:] or f"exit code {done.returncode}")
    return ImportReport(**json.loads(target.read_text(encoding="utf-8")), printed=done.stdout + done.stderr)
