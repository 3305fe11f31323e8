"""What a person is asked about code that appeared while Moryflow ran."""

from __future__ import annotations

from pathlib import PurePosixPath


def question(item: str) -> str:
    """Return what a person is asked about code that waits."""
    if PurePosixPath(item).is_absolute():
        return f"{item} changed while a command ran. Did you change it, and may it run?"
    return f"{item} is new. Did you put it there, and may it run?"
