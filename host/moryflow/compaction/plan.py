"""Plans a compaction: where to cut, which nodes the summary replaces, when it may still be applied. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from moryflow.config.schema import CompactionSettings
from moryflow.store.messages import ContextBuilder, placeholders
from moryflow.store.records import effective

from .measure import Limit, Meter

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import TurnContext
    from moryflow.store import Node

    from .sections import Facts

Trigger = Literal["threshold", "background", "demand", "recovery"]

# The share of the limit reserved for the model's part of a summary, but no more than half of its maximum output.
_SUMMARY_SHARE = 0.1
# Room for the host's sections: 2,000 tokens or 12 % of the limit, whichever is more, but at most 25 % of it.
_RECORDS, _RECORDS_SHARE, _RECORDS_MOST = 2000, 0.12, 0.25
# The share of a refused view's estimated size that is tried next; sizes are only estimates, so it is well below 1.
REFUSED = 0.6
# Tokens that a summary must replace at least; fewer would not shrink.
_SMALLEST = 200


class Room(NamedTuple):
    """The tokens that a compaction may work with.

    :ivar tail: tokens that may stay verbatim.
    :ivar keep: tokens that should stay verbatim; 0 if `keep_recent_tokens` do not fit.
    :ivar records: tokens for the sections that the host writes.
    :ivar whole: tokens for the summary and the kept nodes together.
    """

    tail: float
    keep: float
    records: float
    whole: float


def room_for(settings: CompactionSettings, limit: Limit, overhead: float, refused: float | None = None) -> Room:
    """Return the room below `limit`.

    :param refused: the estimated size of the view that a provider refused.
    """
    limited = limit.tokens if refused is None else min(limit.tokens, refused * REFUSED)
    whole = max((limit.most if refused is None else limited) - overhead, limited * 0.1)
    records = min(limited * _RECORDS_MOST, max(limited * _RECORDS_SHARE, _RECORDS))
    summary = min(settings.max_output_tokens / 2, limited * _SUMMARY_SHARE) + records / 2
    tail = max(whole - summary, whole / 4)
    keep = settings.keep_recent_tokens
    return Room(tail, keep if keep <= min(tail, limited - overhead - summary) else 0.0, records, whole)


class Job(NamedTuple):
    """The plan of one compaction: the summarizer's input, and the state that must still hold when the summary is applied.

    :ivar meter: the meter that measured `sizes`.
    :ivar anchor: the active node when the job was planned.
    :ivar base: the compaction in force at that time.
    :ivar visible: the nodes in the view; `sizes` are their tokens.
    :ivar at: the index of the first kept node; the summary replaces the nodes before it.
    :ivar turn: the index where the turn of that node begins; less than `at` if the turn is split.
    """

    meter: Meter
    trigger: Trigger
    anchor: str
    base: str | None
    visible: tuple[Node, ...]
    at: int
    turn: int
    sizes: tuple[float, ...]
    previous: str
    previous_tokens: float
    earlier: Facts
    tokens_before: int
    room: Room
    protected: tuple[str, ...] = ()
    start: int = 0

    @property
    def covered(self) -> tuple[Node, ...]:
        return self.visible[: self.at]

    @property
    def history(self) -> tuple[Node, ...]:
        """The covered nodes that are not part of a split turn; all covered nodes if nothing came before that turn."""
        return self.visible[: self.turn] if self.turn or self.previous else self.covered

    @property
    def prefix(self) -> tuple[Node, ...]:
        return self.visible[self.turn : self.at] if self.turn or self.previous else ()

    @property
    def first_kept(self) -> str:
        return self.visible[self.at].id

    @property
    def replaced(self) -> float:
        """Tokens of the covered nodes and of the previous summary."""
        return sum(self.sizes[: self.at]) + self.previous_tokens

    @property
    def prompt(self) -> str:
        """The id of the prompt that stays because its turn is split, or ``""``."""
        if self.visible[self.at].kind == "user":
            return ""
        return next((node.id for node in reversed(self.covered) if node.kind == "user"), "")

    @property
    def kept(self) -> float:
        """Tokens of everything that stays verbatim."""
        return sum(self.sizes[self.at :]) + self.protected_tokens

    @property
    def protected_tokens(self) -> float:
        kept = {*self.protected, self.prompt}
        return sum(size for node, size in zip(self.covered, self.sizes, strict=False) if node.id in kept)

    def with_first_kept(self, node: str) -> Job | None:
        """Return the job with another first kept node, or ``None`` if the path must not be cut there."""
        if node == self.first_kept:
            return self
        places = {self.visible[place].id: place for place in legal_places(self.visible) if place >= max(self.start, 1)}
        if node not in places:
            return None
        at = places[node]
        return self._replace(at=at, turn=turn_of(self.visible, at))

    def with_protected(self, ids: Collection[str]) -> Job:
        """Return the job with the nodes `ids` kept verbatim; an answer and the results of its calls stay together."""
        wanted = set(ids)
        groups: list[set[str]] = []
        for node in self.covered:
            if node.kind == "tool" and groups:
                groups[-1].add(node.id)
            else:
                groups.append({node.id})
        kept = {node for group in groups if group & wanted for node in group}
        return self._replace(protected=tuple(node.id for node in self.covered if node.id in kept))


def in_view(path: Sequence[Node]) -> tuple[Node | None, tuple[Node, ...], str]:
    """Return the compaction in force on `path`, the other visible nodes, and the text of the summary so far."""
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
    """Return what to compact on `path`, or ``None`` if nothing is worth it."""
    if not path:
        return None
    head, visible, previous = in_view(path)
    lines = placeholders(path)
    sizes = tuple(_size(node, lines.get(node.id, ""), context, meter) for node in visible)
    details: Mapping[str, Any] = (head.payload.get("details") or {}) if head is not None else {}
    first = "" if head is None else head.payload.get("first_kept_node_id", "")
    start = next((place for place, node in enumerate(visible) if node.id == first), 0)
    cut = find_cut(visible, sizes, keep=room.keep, room=room.tail, turns=settings.protected_turns, start=start)
    if cut is None:
        return None
    from .sections import Facts  # imported late: a large output often leads here, but seldom to a cut

    job = Job(
        meter=meter,
        trigger=trigger,
        anchor=path[-1].id,
        base=head.id if head is not None else None,
        visible=visible,
        at=cut.at,
        turn=cut.turn,
        sizes=sizes,
        previous=previous,
        previous_tokens=0.0 if head is None else meter.estimate(head.payload["summary"]),
        earlier=Facts.from_json(details.get("facts")),
        tokens_before=max(1, round(tokens)),
        room=room,
        start=start,
    )
    return job if sum(job.sizes[: job.at]) - job.protected_tokens >= _SMALLEST else None


def _size(node: Node, placeholder: str, context: ContextBuilder, meter: Meter) -> float:
    message = context.message(node, placeholder)
    return meter.message(message) if message is not None else 0.0


def why_stale(job: Job, path: Sequence[Node]) -> str:
    """Return why `job` may no longer be applied to `path`, or ``""`` if it may."""
    head, _ = effective(path)
    if (head.id if head is not None else None) != job.base:
        return "another compaction counts now"
    return "" if any(node.id == job.anchor for node in path) else "another branch is active now"


def is_prepared(path: Sequence[Node]) -> bool:
    """Whether the conversation was compacted and only a prompt has come since.

    The path itself shows it: no clock and no flag is needed, and every process sees the same.
    """
    for node in reversed(path):
        if node.kind == "compaction":
            return True
        if node.kind in ("assistant", "tool") or node.voids:
            return False
    return False


def answers_since(path: Sequence[Node]) -> float:
    """Return how many answers came after the compaction in force; infinitely many if there is none."""
    head, _ = effective(path)
    if head is None:
        return float("inf")
    place = next(place for place in range(len(path) - 1, -1, -1) if path[place] is head)
    return sum(node.kind == "assistant" for node in path[place:])


_TURN = "user"


class Cut(NamedTuple):
    """A place in the visible nodes.

    :ivar at: the index of the first node that stays.
    :ivar turn: the index where the turn of that node begins; the same as `at` unless the turn is split.
    """

    at: int
    turn: int


def legal_places(nodes: Sequence[Node]) -> list[int]:
    """Return the indices where the nodes may be cut: before a prompt, an answer or a note, and never inside a call."""
    answered = {node.payload.get("call_id") for node in nodes if node.kind == "tool"}
    open_calls: set[str] = set()
    places: list[int] = []
    for index, node in enumerate(nodes):
        if node.kind in ("user", "assistant", "note") and not open_calls:
            places.append(index)
        if node.kind == "assistant":
            open_calls |= {call["id"] for call in node.payload.get("calls", ()) if call["id"] in answered}
        elif node.kind == "tool":
            open_calls.discard(node.payload.get("call_id", ""))
    return places


def find_cut(
    nodes: Sequence[Node], sizes: Sequence[float], *, keep: float, room: float, turns: int, start: int = 0
) -> Cut | None:
    """Return where to cut, or ``None`` if everything stays.

    The cut keeps the last `turns` finished turns, or more if `keep` asks for more and it fits `room`; otherwise as many of them
    as fit. Only if not even one fits, it falls inside a turn, whose prompt stays too.

    :param nodes: the visible nodes, oldest first; `sizes` are their tokens.
    :param keep: tokens that should stay (`keep_recent_tokens`).
    :param room: tokens that may stay.
    :param turns: how many finished turns stay if they fit.
    :param start: the first index where a cut is allowed.
    """
    places = [place for place in legal_places(nodes) if place >= start]
    if not places:
        return None
    stays = _tokens_kept_at(nodes, sizes)
    begins = [place for place in places if nodes[place].kind == _TURN]
    newest, left = finished_turns(nodes, 1), finished_turns(nodes, turns)
    protected = max(left.start, start) if len(left) else start
    tail = list(accumulate(reversed(sizes)))[::-1]
    recent = max((begin for begin in begins if tail[begin] >= keep), default=start) if keep else protected
    fewer = [begin for begin in begins if protected < begin <= newest.start] if len(newest) else []
    fitting = (at for at in (min(protected, recent), protected, *fewer, *places) if stays[at] <= room)
    at = next(fitting, places[-1])
    return Cut(at, turn_of(nodes, at)) if at > start else None


def turn_of(nodes: Sequence[Node], at: int) -> int:
    """Return the index where the turn of the node `at` begins; `at` itself if no prompt comes before it.

    An earlier compaction may have left only the prompt of the nodes before `at`.
    """
    return next((place for place in range(at, -1, -1) if nodes[place].kind == _TURN), at)


def finished_turns(nodes: Sequence[Node], turns: int) -> range:
    """Return the range of indices of the last `turns` turns that have an answer.

    A turn that still waits for its answer is not counted and comes after the range.
    """
    begins = [place for place, node in enumerate(nodes) if node.kind == _TURN]
    end = last = len(nodes)
    for begin in reversed(begins):
        if _has_answer(nodes[begin:end], newest=end == len(nodes)):
            turns -= 1
        elif end == last:
            last = begin
        if turns <= 0:
            return range(begin, last)
        end = begin
    return range(last)


def _has_answer(turn: Sequence[Node], *, newest: bool) -> bool:
    spoken = [node for node in turn if node.kind in ("assistant", "tool", "note")]
    if not newest or not spoken:
        return bool(spoken)
    return spoken[-1].kind == "assistant" and not spoken[-1].payload.get("calls")


def _tokens_kept_at(nodes: Sequence[Node], sizes: Sequence[float]) -> list[float]:
    """Return for each index the tokens that stay after a cut there: the nodes from it on, and the prompt of a split turn."""
    tail = [*list(accumulate(reversed(sizes)))[::-1], 0.0]
    prompt = 0.0
    for place, node in enumerate(nodes):
        if node.kind == _TURN:
            prompt = sizes[place]
        else:
            tail[place] += prompt
    return tail


def scope_can_be_shortened(scope: TurnContext) -> bool:
    """Whether every call at the end of the path has its result; only then may a prune or a compaction be appended."""
    path = scope.live.hold.path
    answered: set[str] = set()
    for node in reversed(path):
        if node.kind == "tool":
            answered.add(node.payload["call_id"])
        elif node.kind == "assistant":
            return all(call["id"] in answered for call in node.payload.get("calls", ()))
        elif node.kind == "user":
            return True
    return True
