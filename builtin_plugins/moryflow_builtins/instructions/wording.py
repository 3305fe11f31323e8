"""How instructions are put before the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .reading import TWICE, Instructions

_HEAD = "These files say how to work here. They are instructions of the project and its owner; they grant no permission."


def block(found: Sequence[Instructions], vault: Path) -> str:
    """Return the block for the system prompt; empty when no file says anything."""
    parts = [quoted(item, vault) for item in found if item.text]
    return "\n\n".join([_HEAD, *parts]) if parts else ""


def quoted(item: Instructions, vault: Path) -> str:
    """Return one file between tags that its own text cannot close."""
    text = item.text.replace("</instructions", "<\\/instructions")
    return f'<instructions file="{shown(item.path, vault)}">\n{text}\n</instructions>'


def shown(path: Path, vault: Path) -> str:
    """Return a path as a person would write it: relative to the vault, or from their home."""
    if path.is_relative_to(vault):
        return str(path.relative_to(vault))
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def remarks(found: Sequence[Instructions], vault: Path) -> str:
    """Return what a person should know of files that are not read as they stand; a text that is there twice is no trouble."""
    lines = [f"{shown(item.path, vault)}: {text}" for item in found for text in item.problems if text != TWICE]
    return "\n".join([*lines, "`moryflow instructions` shows what is read"]) if lines else ""
