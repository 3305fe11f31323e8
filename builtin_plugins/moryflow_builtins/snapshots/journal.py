"""What each session changed, a file per session with one line of JSON for each thing that happened.

A *segment* is a span of a step in which calls that may change files ran. A *link* says that a turn of a child session was
started by an answer of this one. A *gap* is an answer whose changes were not recorded. *Taken* names a deleted session whose
records of shared answers are here. *Begun* says from which answer on this file has what the session changed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Begun:
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


@dataclass(frozen=True)
class Segment:
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


@dataclass(frozen=True)
class SpawnLink:
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


@dataclass(frozen=True)
class Gap:
    """An answer whose changes could not be recorded, and why."""

    node: str
    turn: str
    reason: str


@dataclass(frozen=True)
class Taken:
    """What a deleted session, from which this one was made, had recorded of its answers is here now."""

    session: str


JournalLine = Begun | Segment | SpawnLink | Gap | Taken
_KINDS: Mapping[str, type[JournalLine]] = {"begun": Begun, "segment": Segment, "link": SpawnLink, "gap": Gap, "taken": Taken}


@dataclass(frozen=True)
class Log:
    """What is recorded of one session; of each thing, the line that came last."""

    segments: dict[int, Segment] = field(default_factory=dict[int, Segment])
    links: dict[str, SpawnLink] = field(default_factory=dict[str, SpawnLink])
    gaps: dict[str, Gap] = field(default_factory=dict[str, Gap])
    taken: set[str] = field(default_factory=set[str])
    begun: list[Begun] = field(default_factory=list[Begun])

    def add(self, line: JournalLine) -> None:
        """Take a line in."""
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
        """Forget everything."""
        self._file.unlink(missing_ok=True)

    def add(self, line: JournalLine) -> None:
        """Append a line."""
        kind = next(name for name, shape in _KINDS.items() if isinstance(line, shape))
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"is": kind, **asdict(line)}) + "\n")

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
