"""The journal of a vault's changes: one file for each session, one line of JSON for each change.

A *change* is a part of a step in which calls that may change files ran: the answer with the calls, the tree before, the tree
after. Forks and imports share answers, so the changes of an answer are sought in all files. A *span* joins the changes of one
file in some answers, and in the turns of the sub-agents they started.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from .shadow import UNRECORDED, Blob, BlobChange, Shadow


class Change(NamedTuple):
    """The files of the vault before and after calls of one answer. A dataclass would cost the first change of a process 4 ms.

    A sub-agent's turn begins with a change without files, which ends with the turn.

    :ivar id: later lines with the same id replace earlier ones.
    :ivar node: the model's answer with the calls; `above`: the answer of the parent session that started its turn.
    :ivar before: the tree before the first call ran; `began` is its number in the order of all snapshots.
    :ivar after: the tree after the last call; empty while calls run, and for ever if the host was killed.
    :ivar named: the files that the calls declared to write, relative to the vault; absolute if outside.
    :ivar commands: the tools that may write any file, such as ``bash``.
    :ivar mixed: those of `named` that someone else wrote too before the change ended.
    :ivar agent: the sub-agent, with its session; `pid` is the process that runs it, 0 when it has ended.
    :ivar reason: why the changes could not be recorded.
    """

    id: str
    node: str
    above: str = ""
    before: str = ""
    began: int = 0
    after: str = ""
    ended: int = 0
    named: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()
    agent: str = ""
    pid: int = 0
    reason: str = ""

    @property
    def running(self) -> bool:
        """Whether this is the turn of a sub-agent that has not ended, and whose process lives."""
        if not self.pid:
            return False
        try:
            os.kill(self.pid, 0)
        except OSError as error:
            return not isinstance(error, ProcessLookupError)
        return True


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
            with suppress(ValueError, TypeError, AttributeError):
                fields: Any = json.loads(line)
                lists: Any = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
                change = Change(**(fields | lists))
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
        wanted |= {change.node for change in changes.values() if change.above in fresh and change.node}
    return sorted((change for change in changes.values() if {change.node, change.above} & wanted), key=lambda one: one.began)


class FoundChanges:
    """The changes of some answers and of the sub-agents they started.

    :ivar changes: those with files, in order; `cut_off`: the numbers (`began`) of those that a killed host left open.
    :ivar running: sub-agents that are still running.
    :ivar reasons: why changes could not be recorded.
    :ivar nodes: the answers that have any.
    """

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.cut_off: set[int] = set()
        self.running: list[str] = []
        self.reasons: list[str] = []
        self.nodes: set[str] = set()


def find_changes(shadow: Shadow, nodes: Collection[str]) -> FoundChanges:
    """Return the changes of the answers `nodes`."""
    known, found = all_changes(shadow), FoundChanges()
    for change in of_answers(known, nodes):
        found.nodes |= {change.node, change.above}
        if change.running:
            found.running.append(change.agent)
        elif change.reason:
            found.reasons.append(change.reason)
        elif change.before and not change.after:
            found.cut_off.add(change.began)
            found.changes.append(_with_end(change, known, shadow))
        elif change.before:
            found.changes.append(change)
    return found


def _with_end(change: Change, known: Mapping[str, Change], shadow: Shadow) -> Change:
    """Return a change that was cut off with an end: where the next one of the vault began, or now."""
    later = [one for one in known.values() if one.before and one.began > change.began]
    if later:
        following = min(later, key=lambda one: one.began)
        return change._replace(after=following.before, ended=following.began, commands=("a call cut off",))
    taken = shadow.snapshot()
    return change._replace(after=taken.tree, ended=taken.number, commands=("a call cut off",))


class Span(NamedTuple):
    """The change of one file over all changes.

    :ivar broken: someone else wrote the file too, between two changes or during one.
    :ivar commands: if no call named the file, the tools that may have changed it; the user may have too.
    """

    path: str
    before: Blob | None
    after: Blob | None
    broken: bool = False
    commands: tuple[str, ...] = ()

    @property
    def unrecorded(self) -> bool:
        """Whether the content on one side is not recorded, so the file cannot be restored in either direction."""
        return UNRECORDED in {blob.mode for blob in (self.before, self.after) if blob is not None}


def spans(shadow: Shadow, found: FoundChanges) -> tuple[list[Span], list[str]]:
    """Return the span of each file that the calls changed, and the files that someone else changed meanwhile."""
    named = {name for change in found.changes for name in change.named}
    own: dict[str, list[tuple[Change, BlobChange]]] = {}
    others: set[str] = set()
    for change in found.changes:
        for difference in shadow.differences(change.before, change.after):
            if change.commands or _is_named(difference.path, _names_during(change, found)):
                own.setdefault(difference.path, []).append((change, difference))
            else:
                others.add(difference.path)
    joined = [_join(path, changes, found, path in named) for path, changes in sorted(own.items())]
    return joined, sorted(others - own.keys())


def _names_during(change: Change, found: FoundChanges) -> set[str]:
    """Return the files that calls during `change` declared to write: its own calls and those of children."""
    at_once = (other for other in found.changes if other.began < change.ended and change.began < other.ended)
    return {name for other in at_once for name in other.named}


def _is_named(path: str, names: Collection[str]) -> bool:
    """Whether `path` or a folder above it is one of `names`."""
    return path in names or any(path[:place] in names for place, letter in enumerate(path) if letter == "/")


def _join(path: str, changes: Sequence[tuple[Change, BlobChange]], found: FoundChanges, named: bool) -> Span:
    moments: list[tuple[int, Blob | None]] = []
    for change, difference in changes:
        moments += [(change.began, difference.before), (change.ended, difference.after)]
    moments.sort(key=lambda moment: moment[0])
    broken = any(path in change.mixed or change.began in found.cut_off for change, _ in changes)
    broken = broken or any(_changed_between(*pair, changes) for pair in pairwise(moments))
    commands = sorted({tool for change, _ in changes for tool in change.commands})
    return Span(path, moments[0][1], moments[-1][1], broken, () if named else tuple(commands))


def _changed_between(
    first: tuple[int, Blob | None], second: tuple[int, Blob | None], changes: Sequence[tuple[Change, BlobChange]]
) -> bool:
    """Whether a file changed between two moments although none of the calls ran then."""
    if first[1] == second[1]:
        return False
    return not any(change.began <= first[0] and second[0] <= change.ended for change, _ in changes)


def unrecorded_files(shadow: Shadow, found: FoundChanges, seen: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the files that calls wrote but that no snapshot holds, each with the reason."""
    names = {name for change in found.changes for name in change.named if not _is_above(name, seen)}
    if not names:
        return
    recorded = shadow.paths(found.changes[-1].after) | shadow.paths(found.changes[0].before)
    for name in sorted(names):
        if name not in recorded and (reason := shadow.why_unrecorded(name)):
            yield name, reason


def _is_above(name: str, paths: Collection[str]) -> bool:
    return name in paths or any(path.startswith(f"{name}/") for path in paths)
