"""Where to cut: what stays verbatim, what the summary will stand for. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moryflow.store import Node

_TURN = "user"
_FAR = 2


@dataclass(frozen=True)
class Cut:
    """A place in the visible nodes.

    :ivar at: the first node that stays.
    :ivar turn: where the turn that it falls into begins; the same as `at` unless that turn is split.
    """

    at: int
    turn: int


def legal_places(nodes: Sequence[Node]) -> list[int]:
    """Return the places where the nodes may be cut: before a prompt, an answer or a note, with no call open."""
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
    nodes: Sequence[Node], sizes: Sequence[float], *, keep: float, room: float, turns: int, start: int = 0, calm: float = 0.0
) -> Cut | None:
    """Return where to cut, or ``None`` when everything stays: the earlier of `turns` finished turns before the prompt and
    `keep`, where that fits `room`; else as many turns as fit; else inside a turn, of which the prompt stays too.

    :param nodes: the visible nodes, oldest first; `sizes` are their tokens.
    :param keep: tokens that should stay (`keep_recent_tokens`).
    :param room: tokens that may stay.
    :param turns: finished turns that stay where they fit.
    :param start: the first place where a cut is allowed.
    :param calm: tokens that should stay where the turns do not fit, so that the next request needs no other summary.
    """
    places = [place for place in legal_places(nodes) if place >= start]
    if not places:
        return None
    stays = _staying(nodes, sizes)
    begins = [place for place in places if nodes[place].kind == _TURN]
    left = finished_turns(nodes, turns)
    protected = max(left.start, start) if len(left) else start
    recent = _recent(places, begins, list(accumulate(reversed(sizes)))[::-1], keep, start) if keep else len(nodes)
    fitting = [place for place in (min(protected, recent), protected) if stays[place] <= room]
    at = fitting[0] if fitting else _smaller(places, begins, stays, min(calm, room) if calm else room, room)
    return Cut(at, turn_of(nodes, at)) if at > start else None


def turn_of(nodes: Sequence[Node], at: int) -> int:
    """Return where the turn begins that `at` falls into; `at` itself where no prompt stands before it.

    The prompt may be all that an earlier compaction left of what came before `at`.
    """
    return next((place for place in range(at, -1, -1) if nodes[place].kind == _TURN), at)


def _recent(places: Sequence[int], begins: Sequence[int], tail: Sequence[float], keep: float, start: int) -> int:
    """Walk from the end, then to the start of that turn, or of the next one where that would be far more."""
    at = next((place for place in places if tail[place] <= keep), len(tail))
    begin = max((begin for begin in begins if begin <= at), default=start)
    if tail[begin] <= _FAR * keep:
        return begin
    return next((begin for begin in begins if begin >= at), len(tail))


def _smaller(places: Sequence[int], begins: Sequence[int], stays: Sequence[float], calm: float, room: float) -> int:
    """Cut where not all of the turns fit that should stay: before one of them if much is left then, else inside one."""
    at = next((place for place in places if stays[place] <= calm), None)
    if at is None:
        at = next((place for place in places if stays[place] <= room), places[-1])
    begin = next((begin for begin in begins if begin >= at), None)
    if begin is not None and stays[begin] >= calm / 2:
        return begin
    return at


def finished_turns(nodes: Sequence[Node], turns: int) -> range:
    """Return the places of the last `turns` turns that have an answer, from the first of them on.

    A prompt that still waits for its answer, and what was done for it, is not counted and stands behind them.
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


def _staying(nodes: Sequence[Node], sizes: Sequence[float]) -> list[float]:
    """Return for each place the tokens that stay when it is cut there: those behind it, and the prompt of a split turn."""
    tail = [*list(accumulate(reversed(sizes)))[::-1], 0.0]
    prompt = 0.0
    for place, node in enumerate(nodes):
        if node.kind == _TURN:
            prompt = sizes[place]
        else:
            tail[place] += prompt
    return tail
