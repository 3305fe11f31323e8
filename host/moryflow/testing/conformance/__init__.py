"""What every plugin should pass: ``pytest --moryflow-plugin PATH``. Each module is a group of checks.

A check that fails says in one sentence what is wrong, where, and what to do about it.
"""

from __future__ import annotations

from pathlib import Path

GROUPS = ("load", "imports", "hooks", "tools")


def files() -> list[str]:
    """Return the files that pytest collects."""
    return [str(Path(__file__).with_name(f"{group}.py")) for group in GROUPS]
