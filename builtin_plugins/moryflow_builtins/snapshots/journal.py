"""The journal of a session's changes to files: one file for each session, one line of JSON for each record.

A *segment* is a part of a step in which calls that may change files ran. A *link* says that an answer of this session started
a turn of a child session. A *gap* is an answer whose changes were not recorded. *Taken* names a deleted session whose records
of shared answers were copied here. *Begun* says from which answer on this file records the session's changes. A *span* joins
the changes of one file in the segments of some answers, and of the children they started. All are named tuples: as
dataclasses they would cost the first change of a process 4 ms.
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
    """The first line: the answer for which this file was created, and when; and where earlier answers are recorded.

    :ivar at: ISO 8601, as in nodes.
    :ivar before: the sessions that a fork or an import was made from; the session itself if it was imported again.
    """

    node: str
    at: str
    before: tuple[str, ...] = ()

    def covers(self, nodes: Collection[str], since: str) -> bool:
        """Whether this file covers `nodes`, which are a turn or a part of one; `since`: when the first of them was made."""
        return self.node in nodes or since >= self.at


class Segment(NamedTuple):
    """The files of the vault before and after calls of one answer.

    :ivar node: the model's answer with the calls.
    :ivar before: the tree before the first call ran; `began` is its number in the order of all snapshots.
    :ivar after: the tree after the last call; empty while calls run, and for ever if the host was killed.
    :ivar named: the files that the calls declared to write, relative to the vault; absolute if outside.
    :ivar commands: the tools that may write any file, such as ``bash``.
    :ivar mixed: those of `named` that someone else wrote too before the segment ended.
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
    """The turn `by` of a child `session`, which the answer `node` in this session's `turn` started.

    :ivar pid: the process that runs the child's turn; `over`: the turn has ended.
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
        """Whether the child's turn is running: it has not ended, and its process lives."""
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
    """The records of a deleted session, about answers that this session shares, have been copied here."""

    session: str


JournalLine = Begun | Segment | SpawnLink | Gap | Taken
_KINDS: Mapping[str, type[JournalLine]] = {"begun": Begun, "segment": Segment, "link": SpawnLink, "gap": Gap, "taken": Taken}


class Log:
    """The records of one session; a later line about the same thing replaces an earlier one."""

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
        """Return the answers that have a record."""
        lines: Iterable[Segment | SpawnLink | Gap] = (*self.segments.values(), *self.links.values(), *self.gaps.values())
        return {line.node for line in lines}


class JournalFiles:
    """The file with the records of one session."""

    def __init__(self, folder: Path, session: str) -> None:
        self._file = folder / "sessions" / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', session)}.jsonl"

    @property
    def exist(self) -> bool:
        return self._file.exists()

    @property
    def changed(self) -> float:
        """The time of the last record, in seconds since the epoch."""
        return self._file.stat().st_mtime

    def clear(self) -> None:
        self._file.unlink(missing_ok=True)

    def add(self, line: JournalLine) -> None:
        kind = next(name for name, shape in _KINDS.items() if isinstance(line, shape))
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"is": kind, **line._asdict()}) + "\n")

    def log(self) -> Log:
        """Return the records; an incomplete line is skipped."""
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
    """The records of some answers.

    :ivar segments: the segments of these answers and of their children, in order.
    :ivar cut_off: the numbers (`began`) of segments that a killed host left open.
    :ivar running: children that are still running.
    """

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.cut_off: set[int] = set()
        self.running: list[SpawnLink] = []
        self.gaps: list[Gap] = []


class Span(NamedTuple):
    """The change of one file over all segments.

    :ivar broken: someone else wrote the file too, between two segments or during one.
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


def find_segments(shadow: Shadow, sessions: Sequence[str], nodes: Collection[str]) -> FoundSegments:
    """Return the records of `nodes` and of the children they started.

    :param sessions: the session itself, and those it was forked or imported from, which recorded the shared answers.
    """
    found = FoundSegments()
    for session in sessions:
        _gather(shadow, found, JournalFiles(shadow.folder, session).log(), nodes=nodes)
    once = {segment.began: segment for segment in found.segments}  # forks of a deleted session have copies of the same records
    found.segments = [once[began] for began in sorted(once)]
    return found


def recorded_elsewhere(shadow: Shadow, session: str, sessions: Sequence[str], nodes: Collection[str], since: str) -> list[str]:
    """Return which of `sessions` may have recorded `nodes` of `session` elsewhere: an import brought their answers alone.

    :param sessions: the sessions that the session's state lists as having records (``recorded_as``).
    :param since: when the first of `nodes` was made.
    """
    logs = {name: records.log() for name in (*sessions, session) if (records := JournalFiles(shadow.folder, name)).exist}
    if session in logs and any(begun.covers(nodes, since) for begun in logs[session].begun):
        return []
    known = {name for log in logs.values() for name in log.taken}
    known |= {name for name, log in logs.items() if not _was_imported_again(name, log, nodes, since)}
    return [name for name in sessions if name not in known]


def _was_imported_again(session: str, log: Log, nodes: Collection[str], since: str) -> bool:
    """Whether `session` was imported again after `nodes` were made, which began a new file for it."""
    return any(session in begun.before and not begun.covers(nodes, since) for begun in log.begun)


def _gather(shadow: Shadow, found: FoundSegments, log: Log, *, nodes: Collection[str] = (), turn: str = "") -> None:
    """Add the records in `log` that belong to `nodes` or to `turn` to `found`, with those of their children."""
    ordered = sorted(log.segments.values(), key=lambda segment: segment.began)
    found.gaps += [gap for gap in log.gaps.values() if gap.node in nodes or gap.turn == turn]
    for place, segment in enumerate(ordered):
        if segment.node not in nodes and segment.turn != turn:
            continue
        if not segment.after:
            found.cut_off.add(segment.began)
            segment = _with_end(segment, ordered[place + 1] if place + 1 < len(ordered) else None, shadow)
        found.segments.append(segment)
    for link in log.links.values():
        if link.node in nodes or link.turn == turn:
            found.running += [link] if link.running else []
            _gather(shadow, found, JournalFiles(shadow.folder, link.session).log(), turn=link.by)


def _with_end(segment: Segment, following: Segment | None, shadow: Shadow) -> Segment:
    """Return a segment that was cut off with an end: where the next segment of its session began, or now."""
    if following is not None:
        after, ended = following.before, following.began
    else:
        taken = shadow.snapshot()
        after, ended = taken.tree, taken.number
    return Segment(segment.node, segment.turn, segment.before, segment.began, after, ended, commands=("a call cut off",))


def spans(shadow: Shadow, found: FoundSegments) -> tuple[list[Span], list[str]]:
    """Return the span of each file that the calls changed, and the files that someone else changed meanwhile."""
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
    """Return the files that calls during `segment` declared to write: its own calls and those of children."""
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
    """Whether a file changed between two moments although none of the calls ran then."""
    if first[1] == second[1]:
        return False
    return not any(segment.began <= first[0] and second[0] <= segment.ended for segment, _ in changes)


def unrecorded_files(shadow: Shadow, found: FoundSegments, seen: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the files that calls wrote but that no snapshot holds, each with the reason."""
    names = {name for segment in found.segments for name in segment.named if not _is_above(name, seen)}
    if not names:
        return
    recorded = shadow.paths(found.segments[-1].after) | shadow.paths(found.segments[0].before)
    for name in sorted(names):
        if name not in recorded and (reason := shadow.why_unrecorded(name)):
            yield name, reason


def _is_above(name: str, paths: Collection[str]) -> bool:
    return name in paths or any(path.startswith(f"{name}/") for path in paths)
