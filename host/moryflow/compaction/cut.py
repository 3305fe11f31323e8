"""Where to cut: what stays verbatim, what the summary will stand for (S1.8–S1.11, D15, D20). Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moryflow.sessions import Node

_TURN = "user"


@dataclass(frozen=True)
class Cut:
    """A place in the visible nodes.

    :ivar at: the first node that stays.
    :ivar turn: where the turn that it falls into begins; the same as `at` unless that turn is split.
    """

    at: int
    turn: int


def legal_places(nodes: Sequence[Node]) -> list[int]:
    """Return the places where the nodes may be cut: before a prompt, an answer or a note, with no call open (S1.10)."""
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
    """Return where to cut, or ``None`` when everything stays.

    :param nodes: the visible nodes, oldest first; `sizes` are their tokens.
    :param keep: tokens that should stay (`keep_recent_tokens`).
    :param room: tokens that may stay.
    :param turns: turns that stay where they fit.
    :param start: the first place where a cut is allowed.
    """
    places = [place for place in legal_places(nodes) if place >= start]
    if not places:
        return None
    tail = _suffixes(sizes)
    begins = [place for place in places if nodes[place].kind == _TURN]
    recent = _recent(places, begins, tail, min(keep, room), room)
    protected = begins[-turns] if len(begins) >= turns else start
    cut = recent
    if protected < recent.at and tail[protected] <= room and protected in (start, *places):
        cut = Cut(protected, protected)
    return cut if cut.at > start or (cut.at > 0 and start == 0) else None


def _recent(places: Sequence[int], begins: Sequence[int], tail: Sequence[float], keep: float, room: float) -> Cut:
    """Walk from the end, then to the start of that turn where the longer tail fits (S1.8, S1.9)."""
    at = next((place for place in places if tail[place] <= keep), places[-1])
    turn = max((begin for begin in begins if begin <= at), default=at)
    if turn == at or tail[turn] <= room:
        return Cut(turn, turn)
    later = next((begin for begin in begins if begin > at), None)
    if later is not None and tail[later] >= keep / 2:
        return Cut(later, later)
    return Cut(at, turn)


def _suffixes(sizes: Sequence[float]) -> list[float]:
    """Return for each place the tokens from there to the end."""
    return list(accumulate(reversed(sizes)))[::-1]
