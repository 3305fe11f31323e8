"""How a person says yes to code that appeared while Moryflow ran."""

from __future__ import annotations

from pathlib import PurePosixPath


def said_yes_with(item: str) -> str:
    """Return the command that lets an item of the home run."""
    path = PurePosixPath(item)
    return f"moryflow tool allow {path.name}" if path.parts[0] == "tools" else f"moryflow plugin enable {path.stem}"
