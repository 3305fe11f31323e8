"""Several changes as one: all of them, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moryflow_sdk import Target, ToolError
from moryflow_sdk.services import Files

from .text import MAX_BYTES


@dataclass(frozen=True)
class Change:
    """One file: what it held (nothing: it was not there) and what it shall hold (nothing: it goes)."""

    target: Target
    before: bytes | None
    after: bytes | None


def commit(files: Files, changes: Sequence[Change]) -> None:
    """Make all changes, or put back what was made and raise.

    :raises ToolError: ``changed`` when a file is no longer what was read; otherwise why a file could not be written.
    """
    for change in changes:
        _refuse_changed(files, change)
    undo: list[Change] = []
    try:
        for change in changes:
            undo.insert(0, _make(files, change))
    except ToolError as error:
        left = [name for change in undo if (name := _undo(files, change))]
        if left:
            raise ToolError(
                f"{error.message}; these files could not be put back and hold the change: {', '.join(left)}",
                code=error.code,
                next_step="read them before going on",
            ) from error
        raise


def _refuse_changed(files: Files, change: Change) -> None:
    """Another program may have written the same file since it was read."""
    if change.before is not None and files.read(change.target, limit=MAX_BYTES) != change.before:
        raise ToolError(f"{change.target.given} changed while it was edited", code="changed", next_step="read it again")


def _make(files: Files, change: Change) -> Change:
    """Make one change and return the one that undoes it."""
    if change.after is None:
        files.remove(change.target)
        return Change(change.target.replace(identity=None), None, change.before)
    return Change(files.write(change.target, change.after), change.after, change.before)


def _undo(files: Files, change: Change) -> str:
    """Make the change that undoes one; return the file's name when that fails."""
    try:
        _make(files, change)
    except ToolError:
        return change.target.given
    return ""
