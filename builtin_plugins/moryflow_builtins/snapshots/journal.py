"""What each session changed, a file per session with one line of JSON for each thing that happened.

A *segment* is a span of a step in which calls that may change files ran. A *link* says that a turn of a child session was
started by an answer of this one. A *gap* is an answer whose changes were not recorded. *Taken* names a deleted session whose
records of shared answers are here. *Begun* says from which answer on this file has what the session changed. A *span* joins
what the segments of some answers, and of the children they started, did to one file. They are named tuples: as dataclasses
they cost the first change of a process 4 ms.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from .shadow import UNRECORDED, Blob, BlobChange, Shadow


class Begun(NamedTuple):
    """The first line: when this file was begun, by which answer, and what recorded the turns before that.

    :ivar at: ISO 8601, as nodes have it.
    :ivar before: the sessions a fork or an import was made from; the session itself where an import brought it back.
    """

    node: str
    at: str
    before: tuple[str, ...] = ()

    def covers(self, nodes: Collection[str], since: str) -> bool:
        """Whether `nodes`, a part of a turn or all of it, came not before this; `since` is when the first of them did."""
        return self.node in nodes or since >= self.at


class Segment(NamedTuple):
    """The files of the vault before and after calls of one answer.

    :ivar node: the model's answer whose calls changed them.
    :ivar before: the tree when the first of them was about to run; `began` is its place in the order of all snapshots.
    :ivar after: the tree when the last one had ended; empty while they run, and for ever when the host was killed.
    :ivar named: the files that they said they would write, relative to the vault, or absolute where they lie outside.
    :ivar commands: the tools that may write what they like, such as ``bash``.
    :ivar mixed: those of `named` that somebody else wrote too before the segment ended.
    """

    node: str
    turn: str
    before: str
    began: int
    after: str = ""
    ended: int = 0
    named: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()


class SpawnLink(NamedTuple):
    """A turn of a child session, `by`, which `node` of this session's `turn` started.

    :ivar pid: the process that runs it; `over` once it has ended.
    """

    node: str
    turn: str
    session: str
    by: str
    agent: str
    pid: int
    over: bool = False

    @property
    def running(self) -> bool:
        """Whether it still works: one that was killed with its process does not."""
        if self.over:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return True


class Gap(NamedTuple):
    """An answer whose changes could not be recorded, and why."""

    node: str
    turn: str
    reason: str


class Taken(NamedTuple):
    """What a deleted session, from which this one was made, had recorded of its answers is here now."""

    session: str


JournalLine = Begun | Segment | SpawnLink | Gap | Taken
_KINDS: Mapping[str, type[JournalLine]] = {"begun": Begun, "segment": Segment, "link": SpawnLink, "gap": Gap, "taken": Taken}


class Log:
    """What is recorded of one session; of each thing, the line that came last."""

    def __init__(self) -> None:
        self.segments: dict[int, Segment] = {}
        self.links: dict[str, SpawnLink] = {}
        self.gaps: dict[str, Gap] = {}
        self.taken: set[str] = set()
        self.begun: list[Begun] = []

    def add(self, line: JournalLine) -> None:
        match line:
            case Begun():
                self.begun.append(line)
            case Segment():
                self.segments[line.began] = line
            case SpawnLink():
                self.links[line.by] = line
            case Gap():
                self.gaps[line.node] = line
            case Taken():
                self.taken.add(line.session)

    def nodes(self) -> set[str]:
        """Return the answers of which anything is recorded."""
        lines: Iterable[Segment | SpawnLink | Gap] = (*self.segments.values(), *self.links.values(), *self.gaps.values())
        return {line.node for line in lines}


class JournalFiles:
    """The records of one session."""

    def __init__(self, folder: Path, session: str) -> None:
        self._file = folder / "sessions" / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', session)}.jsonl"

    @property
    def exist(self) -> bool:
        """Whether anything was recorded here."""
        return self._file.exists()

    @property
    def changed(self) -> float:
        """When something was last recorded here."""
        return self._file.stat().st_mtime

    def clear(self) -> None:
        self._file.unlink(missing_ok=True)

    def add(self, line: JournalLine) -> None:
        kind = next(name for name, shape in _KINDS.items() if isinstance(line, shape))
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"is": kind, **line._asdict()}) + "\n")

    def log(self) -> Log:
        """Return what is recorded; a line that was cut off is left out."""
        log = Log()
        for line in self._lines():
            log.add(line)
        return log

    def _lines(self) -> Iterator[JournalLine]:
        try:
            lines = self._file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return
        for text in lines:
            try:
                fields: dict[str, Any] = json.loads(text)
                lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
                yield _KINDS[fields.pop("is")](**{**fields, **lists})
            except (ValueError, TypeError, KeyError, AttributeError):
                continue


class FoundSegments:
    """What is recorded of some answers.

    :ivar segments: the calls that may have changed files, of children too, in their order.
    :ivar cut_off: those of `segments` that a killed host left open.
    :ivar running: children that still work.
    """

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.cut_off: set[int] = set()
        self.running: list[SpawnLink] = []
        self.gaps: list[Gap] = []


class Span(NamedTuple):
    """One file over all segments.

    :ivar broken: somebody else wrote it too between two of them, or in one.
    :ivar commands: the tools that may have changed it, where no call named it; a person may have as well.
    """

    path: str
    before: Blob | None
    after: Blob | None
    broken: bool = False
    commands: tuple[str, ...] = ()

    @property
    def unrecorded(self) -> bool:
        """Whether the content on one side is not recorded, so that it can be brought back in no direction."""
        return UNRECORDED in {blob.mode for blob in (self.before, self.after) if blob is not None}


def found_for(shadow: Shadow, sessions: Sequence[str], nodes: Collection[str]) -> FoundSegments:
    """Return what is recorded of `nodes` and of the children they started.

    :param sessions: the session itself and those it was forked or imported from, which recorded what it inherited.
    """
    found = FoundSegments()
    for session in sessions:
        _gather(shadow, found, JournalFiles(shadow.folder, session).log(), nodes=nodes)
    once = {segment.began: segment for segment in found.segments}  # a fork whose original was deleted has what others have, too
    found.segments = [once[began] for began in sorted(once)]
    return found


def not_here(shadow: Shadow, session: str, sessions: Sequence[str], nodes: Collection[str], since: str) -> list[str]:
    """Return which of `sessions` may have recorded `nodes` of `session`, but not here: an import brought their answers.

    :param sessions: those that say that they recorded something.
    :param since: when the first of `nodes` was made.
    """
    logs = {name: records.log() for name in (*sessions, session) if (records := JournalFiles(shadow.folder, name)).exist}
    if session in logs and any(begun.covers(nodes, since) for begun in logs[session].begun):
        return []
    known = {name for log in logs.values() for name in log.taken}
    known |= {name for name, log in logs.items() if not _came_back(name, log, nodes, since)}
    return [name for name in sessions if name not in known]


def _came_back(session: str, log: Log, nodes: Collection[str], since: str) -> bool:
    """Whether an import brought `session` back after `nodes` were made: what is recorded of it was begun anew."""
    return any(session in begun.before and not begun.covers(nodes, since) for begun in log.begun)


def _gather(shadow: Shadow, found: FoundSegments, log: Log, *, nodes: Collection[str] = (), turn: str = "") -> None:
    """Take from `log` what belongs to `nodes` or to `turn`, including their children."""
    ordered = sorted(log.segments.values(), key=lambda segment: segment.began)
    found.gaps += [gap for gap in log.gaps.values() if gap.node in nodes or gap.turn == turn]
    for place, segment in enumerate(ordered):
        if segment.node not in nodes and segment.turn != turn:
            continue
        if not segment.after:
            found.cut_off.add(segment.began)
            segment = _until(segment, ordered[place + 1] if place + 1 < len(ordered) else None, shadow)
        found.segments.append(segment)
    for link in log.links.values():
        if link.node in nodes or link.turn == turn:
            found.running += [link] if link.running else []
            _gather(shadow, found, JournalFiles(shadow.folder, link.session).log(), turn=link.by)


def _until(segment: Segment, following: Segment | None, shadow: Shadow) -> Segment:
    """End a segment that was cut off where the next one of its session began, or now."""
    if following is not None:
        after, ended = following.before, following.began
    else:
        taken = shadow.snapshot()
        after, ended = taken.tree, taken.number
    return Segment(segment.node, segment.turn, segment.before, segment.began, after, ended, commands=("a call cut off",))


def spans(shadow: Shadow, found: FoundSegments) -> tuple[list[Span], list[str]]:
    """Return what became of each file that the calls changed, and the files that somebody else changed meanwhile."""
    named = {name for segment in found.segments for name in segment.named}
    own: dict[str, list[tuple[Segment, BlobChange]]] = {}
    others: set[str] = set()
    for segment in found.segments:
        for difference in shadow.differences(segment.before, segment.after):
            if segment.commands or _is_named(difference.path, _names_during(segment, found)):
                own.setdefault(difference.path, []).append((segment, difference))
            else:
                others.add(difference.path)
    joined = [_join(path, changes, found, path in named) for path, changes in sorted(own.items())]
    return joined, sorted(others - own.keys())


def _names_during(segment: Segment, found: FoundSegments) -> set[str]:
    """Return what calls that ran while `segment` lasted said they would write: its own and those of children."""
    at_once = (other for other in found.segments if other.began < segment.ended and segment.began < other.ended)
    return {name for other in at_once for name in other.named}


def _is_named(path: str, names: Collection[str]) -> bool:
    """Whether `path` or a folder above it is one of `names`."""
    return path in names or any(path[:place] in names for place, letter in enumerate(path) if letter == "/")


def _join(path: str, changes: Sequence[tuple[Segment, BlobChange]], found: FoundSegments, named: bool) -> Span:
    moments: list[tuple[int, Blob | None]] = []
    for segment, difference in changes:
        moments += [(segment.began, difference.before), (segment.ended, difference.after)]
    moments.sort(key=lambda moment: moment[0])
    broken = any(path in segment.mixed or segment.began in found.cut_off for segment, _ in changes)
    broken = broken or any(_changed_between(*pair, changes) for pair in pairwise(moments))
    commands = sorted({tool for segment, _ in changes for tool in segment.commands})
    return Span(path, moments[0][1], moments[-1][1], broken, () if named else tuple(commands))


def _changed_between(
    first: tuple[int, Blob | None], second: tuple[int, Blob | None], changes: Sequence[tuple[Segment, BlobChange]]
) -> bool:
    """Whether a file changed between two moments in which none of the calls ran."""
    if first[1] == second[1]:
        return False
    return not any(segment.began <= first[0] and second[0] <= segment.ended for segment, _ in changes)


def unseen(shadow: Shadow, found: FoundSegments, seen: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the files that calls wrote but no snapshot has, each with the reason."""
    names = {name for segment in found.segments for name in segment.named if not _above(name, seen)}
    if not names:
        return
    recorded = shadow.paths(found.segments[-1].after) | shadow.paths(found.segments[0].before)
    for name in sorted(names):
        if name not in recorded and (reason := shadow.why_unrecorded(name)):
            yield name, reason


def _above(name: str, paths: Collection[str]) -> bool:
    return name in paths or any(path.startswith(f"{name}/") for path in paths)
