"""A compaction that is about to run: what it covers, what stays, what holds if it is to be applied. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from moryflow.kernel.context import ContextBuilder, pruned
from moryflow.sessions.covering import effective

from .cut import find_cut, legal_places
from .facts import Facts
from .measure import Meter
from .policy import Limit
from .settings import CompactionSettings

if TYPE_CHECKING:
    from moryflow.sessions import Node

Trigger = Literal["threshold", "background", "demand", "recovery"]

_TAIL_SHARE, _KEEP_SHARE = 0.55, 0.6
_RECORDS, _RECORDS_SHARE, _RECORDS_MOST = 2000, 0.12, 0.25
"""Tokens for what the host knows; in a small window a larger share of it."""
REFUSED = 0.6
"""The share of a refused view that may be tried again: it was estimated, so nothing near it is."""
_SMALLEST = 200
"""Tokens; less than this cannot shrink by being summarised."""


@dataclass(frozen=True)
class Room:
    """The tokens that a compaction may work with.

    :ivar tail: may stay verbatim.
    :ivar keep: should stay verbatim.
    :ivar records: for the sections that the host writes.
    """

    tail: float
    keep: float
    records: float


def room_for(settings: CompactionSettings, limit: Limit, overhead: float, actual: float | None = None) -> Room:
    """Return the room below `limit`.

    :param actual: the size that a provider refused although it was estimated; nothing near it is tried again.
    """
    most = limit.tokens if actual is None else min(limit.tokens, actual * REFUSED)
    tail = max(most * _TAIL_SHARE - overhead, most * 0.1)
    records = min(most * _RECORDS_MOST, max(most * _RECORDS_SHARE, _RECORDS))
    return Room(tail, min(settings.keep_recent_tokens, tail * _KEEP_SHARE), records)


@dataclass(frozen=True)
class Job:
    """What a summarizer is given, and what must still hold when its result is applied (D21).

    :ivar anchor: the active node when it was planned.
    :ivar base: the compaction that counted then.
    :ivar covered: nodes the summary will stand for; `prefix` of them begin a turn that is split (S1.11).
    :ivar kept: nodes that stay, the first of them is `first_kept`.
    """

    trigger: Trigger
    anchor: str
    base: str | None
    visible: tuple[Node, ...]
    at: int
    turn: int
    sizes: tuple[float, ...]
    placeholders: Mapping[str, str]
    previous: str
    previous_tokens: float
    earlier: Facts
    tokens_before: int
    room: Room
    protected: tuple[str, ...] = ()
    start: int = 0
    reasons: tuple[str, ...] = field(default=())

    @property
    def covered(self) -> tuple[Node, ...]:
        return self.visible[: self.at]

    @property
    def history(self) -> tuple[Node, ...]:
        """What is covered but not part of a split turn; all of it when nothing came before that turn."""
        return self.visible[: self.turn] if self.turn or self.previous else self.covered

    @property
    def prefix(self) -> tuple[Node, ...]:
        return self.visible[self.turn : self.at] if self.turn or self.previous else ()

    @property
    def first_kept(self) -> str:
        return self.visible[self.at].id

    @property
    def replaced(self) -> float:
        """Tokens that the summary stands for, the previous summary included."""
        return sum(self.sizes[: self.at]) + self.previous_tokens

    @property
    def protected_tokens(self) -> float:
        kept = set(self.protected)
        return sum(size for node, size in zip(self.covered, self.sizes, strict=False) if node.id in kept)

    def moved(self, node: str) -> Job | None:
        """Return the job with another first kept node; ``None`` when that is no place to cut (D22)."""
        if node == self.first_kept:
            return self
        places = {self.visible[place].id: place for place in legal_places(self.visible) if place >= max(self.start, 1)}
        if node not in places:
            return None
        at = places[node]
        begins = [i for i in range(at + 1) if self.visible[i].kind == "user"]
        return replace(self, at=at, turn=begins[-1] if begins else at)

    def protecting(self, ids: Collection[str]) -> Job:
        """Return the job with `ids` kept verbatim; a call brings its results, a result its call."""
        wanted = set(ids)
        groups: list[set[str]] = []
        for node in self.covered:
            if node.kind == "tool" and groups:
                groups[-1].add(node.id)
            else:
                groups.append({node.id})
        kept = {node for group in groups if group & wanted for node in group}
        return replace(self, protected=tuple(node.id for node in self.covered if node.id in kept))


def in_view(path: Sequence[Node]) -> tuple[Node | None, tuple[Node, ...], str]:
    """Return the compaction that counts on `path`, the nodes that are seen besides it, and the summary so far."""
    head, shown = effective(path)
    visible = tuple(node for node in shown if node.kind != "compaction")
    details: Mapping[str, Any] = (head.payload.get("details") or {}) if head is not None else {}
    return head, visible, "" if head is None else str(details.get("text") or head.payload["summary"])


def plan_job(
    path: Sequence[Node],
    context: ContextBuilder,
    meter: Meter,
    settings: CompactionSettings,
    room: Room,
    tokens: float,
    trigger: Trigger,
) -> Job | None:
    """Return what to compact on `path`, or ``None`` when there is nothing worth it."""
    if not path:
        return None
    head, visible, previous = in_view(path)
    placeholders = pruned(path)
    sizes = tuple(_size(node, placeholders.get(node.id, ""), context, meter) for node in visible)
    details: Mapping[str, Any] = (head.payload.get("details") or {}) if head is not None else {}
    start = len(set(details.get("protected", ())))
    cut = find_cut(visible, sizes, keep=room.keep, room=room.tail, turns=settings.protected_turns, start=start)
    if cut is None:
        return None
    job = Job(
        trigger=trigger,
        anchor=path[-1].id,
        base=head.id if head is not None else None,
        visible=visible,
        at=cut.at,
        turn=cut.turn,
        sizes=sizes,
        placeholders=placeholders,
        previous=previous,
        previous_tokens=0.0 if head is None else meter.estimate(head.payload["summary"]),
        earlier=Facts.from_json(details.get("facts")),
        tokens_before=max(1, round(tokens)),
        room=room,
        start=start,
    )
    return job if sum(job.sizes[: job.at]) >= _SMALLEST else None


def _size(node: Node, placeholder: str, context: ContextBuilder, meter: Meter) -> float:
    message = context.message(node, placeholder)
    return meter.message(message) if message is not None else 0.0


def still_true(job: Job, path: Sequence[Node]) -> str:
    """Return why `job` may not be applied to `path` any more; empty when it may (S1.30, S1.31, D21)."""
    head, _ = effective(path)
    if (head.id if head is not None else None) != job.base:
        return "another compaction counts now"
    return "" if any(node.id == job.anchor for node in path) else "another branch is active now"


def is_prepared(path: Sequence[Node]) -> bool:
    """Whether the conversation was compacted and nothing but a prompt came after it (S0.27, D59).

    The active node itself says so: no clock, nothing to consume, and it holds across processes.
    """
    for node in reversed(path):
        if node.kind == "compaction":
            return True
        if node.kind in ("assistant", "tool") or (node.kind == "marker" and "void" in node.payload):
            return False
    return False
