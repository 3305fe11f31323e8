"""Several changes as one: all of them, or none."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from moryflow_sdk import Target, ToolError
from moryflow_sdk.services import Files

from .text import MAX_BYTES


@dataclass(frozen=True)
class Change:
    """One file: what it held (nothing: it was not there) and what it shall hold (nothing: it goes).

    :param into: where it goes, as the file that it is: its mode, its other names and what else the volume keeps of it stay.
        A file that only moves has neither `before` nor `after`.
    """

    target: Target
    before: bytes | None
    after: bytes | None
    into: Target | None = None


Undo = tuple[str, Callable[[], object]]
"""The name of a file that was changed, and what puts it back."""


def commit(files: Files, changes: Sequence[Change]) -> None:
    """Make all changes, or put back what was made and raise.

    :raises ToolError: ``changed`` when a file is no longer what was read; otherwise why a file could not be written.
    """
    for change in changes:
        _refuse_changed(files, change)
    undo: list[Undo] = []
    try:
        for change in changes:
            _make(files, change, undo)
    except ToolError as error:
        left = [name for name, put_back in reversed(undo) if not _done(put_back)]
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


def _make(files: Files, change: Change, undo: list[Undo]) -> None:
    """Make one change and add to `undo` what undoes each part of it."""
    target, name, before = change.target, change.target.given, change.before
    if change.after is not None:
        target = files.write(target, change.after)
        put_back = partial(files.remove, target) if before is None else partial(files.write, target, before)
        undo.append((name, put_back))
    elif change.into is None:
        mode = _mode(files, target)
        files.remove(target)
        undo.append((name, partial(files.write, target.replace(identity=None), before or b"", mode=mode)))
    if change.into is not None:
        files.move(target, change.into)
        moved = change.into.replace(identity=target.identity)
        undo.append((name, partial(files.move, moved, target.replace(identity=None))))


def _mode(files: Files, target: Target) -> int:
    with files.open(target) as file:
        return os.fstat(file.fileno()).st_mode & 0o777


def _done(put_back: Callable[[], object]) -> bool:
    try:
        put_back()
    except ToolError:
        return False
    return True
