"""The files of a folder of the person's own, and what is lost of them: a link that leads nowhere is not no file."""

from __future__ import annotations

from pathlib import Path

from .diagnostics import Diagnostic

LOST_HINT = "put back what it leads to, or remove the link"
"""What helps where :func:`leads_nowhere` says something."""


def own_files(
    folder: Path, suffix: str, *, hidden: tuple[str, ...] = (".",), next_step: str = ""
) -> tuple[list[Path], list[Diagnostic]]:
    """Return the files of `folder` by name, and why it cannot be listed; one that is not there is empty.

    :param hidden: how the names of files begin that are passed over.
    """
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == suffix and not path.name.startswith(hidden)), []
    except OSError as error:
        lost = leads_nowhere(folder)
        if not lost and isinstance(error, FileNotFoundError):
            return [], []
        message, step = (lost, LOST_HINT) if lost else (f"the folder cannot be read: {error.strerror}", next_step)
        return [], [Diagnostic(file=str(folder), code="folder_unreadable", message=message, next_step=step)]


def leads_nowhere(path: Path) -> str:
    """Say that `path`, or a folder above it, is a link to something that is not there; empty where that is not so."""
    for place in (path, *path.parents):
        if place.is_symlink() and not place.exists():
            what = "this" if place == path else str(place)
            return f"{what} is a link that leads nowhere: {place.readlink()}"
    return ""
