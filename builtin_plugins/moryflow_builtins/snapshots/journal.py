"""The journal of a vault's changes: one file for each session, one line of JSON for each change.

A *change* is the time in which calls of an answer ran that may change files: the tree before, and the tree after. Forks and
imports share answers, so the changes of an answer are sought in all files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from .shadow import UNRECORDED, Blob, Shadow


class Change(NamedTuple):
    """The files of the vault before and after calls of one answer. A dataclass would cost the first change of a process 4 ms.

    :ivar id: a later line with the same id replaces an earlier one.
    :ivar node: the model's answer with the calls; `above`: the answer of the parent session that started its turn.
    :ivar began: the number of `before` in the order of all snapshots.
    :ivar after: empty while the calls run, and for ever if the host was killed: such a change is not undone.
    """

    id: str
    node: str
    above: str
    before: str
    began: int
    after: str = ""


def file_of(folder: Path, session: str) -> Path:
    """Return the file with the changes of a session."""
    return folder / "sessions" / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', session)}.jsonl"


def add(file: Path, *changes: Change) -> None:
    """Append `changes` to a session's file."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with file.open("a", encoding="utf-8") as lines:
        lines.writelines(json.dumps(change._asdict()) + "\n" for change in changes)


def changes_in(file: Path) -> dict[str, Change]:
    """Return the changes in a session's file by id; an incomplete line is skipped."""
    found: dict[str, Change] = {}
    with suppress(FileNotFoundError):
        for line in file.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, TypeError):
                fields: Any = json.loads(line)
                change = Change(**fields)
                found[change.id] = change
    return found


def all_changes(shadow: Shadow) -> dict[str, Change]:
    """Return the changes of all sessions of the vault by id."""
    files = sorted((shadow.folder / "sessions").glob("*.jsonl"))
    return {id: change for file in files for id, change in changes_in(file).items()}


def of_answers(changes: Mapping[str, Change], nodes: Collection[str]) -> list[Change]:
    """Return those of `changes` that belong to the answers `nodes`, or to sub-agents that these started, in order."""
    wanted, seen = set(nodes), set[str]()
    while wanted - seen:
        fresh, seen = wanted - seen, wanted | seen
        wanted |= {change.node for change in changes.values() if change.above in fresh}
    return sorted((change for change in changes.values() if {change.node, change.above} & wanted), key=lambda one: one.began)


class Span(NamedTuple):
    """The change of one file over several changes.

    :ivar broken: somebody else wrote the file between two of them.
    """

    path: str
    before: Blob | None
    after: Blob | None
    broken: bool = False

    @property
    def unrecorded(self) -> bool:
        """Whether the content on one side is not recorded, so the file cannot be restored in either direction."""
        return any(blob is not None and blob.mode == UNRECORDED for blob in (self.before, self.after))


def spans(shadow: Shadow, changes: Collection[Change]) -> list[Span]:
    """Return the span of each file that differs over `changes`, which are in order."""
    found: dict[str, Span] = {}
    for change in changes:
        if not change.after:
            continue
        for path, before, after in shadow.differences(change.before, change.after):
            earlier = found.get(path, Span(path, before, before))
            found[path] = Span(path, earlier.before, after, earlier.broken or earlier.after != before)
    return [span for _, span in sorted(found.items()) if span.before != span.after]
