"""How a person says yes to code that appeared while Moryflow ran."""

from __future__ import annotations

from pathlib import PurePosixPath


def said_yes_with(item: str) -> str:
    """Return the command that lets an item of the home run."""
    path = PurePosixPath(item)
    if path.is_absolute():
        return "start Moryflow again to take it"
    return f"moryflow tool allow {path.name}" if path.parts[0] == "tools" else f"moryflow plugin enable {path.stem}"


def question(item: str) -> str:
    """Return what a person is asked about code that waits."""
    if PurePosixPath(item).is_absolute():
        return f"{item} changed while a command ran. Did you change it, and may it run?"
    return f"{item} is new. Did you put it there, and may it run?"
