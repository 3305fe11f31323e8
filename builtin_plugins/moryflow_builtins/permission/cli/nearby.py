"""Find the few rules of thousands that may match a target, by how their matches begin."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from moryflow_sdk.patterns import PREFIXES

from moryflow_builtins.permission.rules import CompiledRule, Hit, simple

from .covering import Shape

MOST = 100
"""Later rules with the same beginning (none at all, for example: ``*x``, ``**/x``, ``regex:``) that a rule is held against.
Without a limit a list of thousands takes minutes, and what is lost is a remark."""


class Nearby:
    """Rules in matching order, found by the text that each of their matches begins with."""

    def __init__(self, first: Iterable[CompiledRule], shapes: Sequence[Shape]) -> None:
        """Take `first`, the rules before the person's, and `shapes`, the person's rules."""
        self._shapes = [*map(Shape, first), *shapes]
        self._offset = len(self._shapes) - len(shapes)
        self._starts: dict[str, dict[str, list[int]]] = {}
        self._same: dict[tuple[str, str], list[int]] = {}
        for place, shape in enumerate(self._shapes):
            rule = shape.rule
            self._starts.setdefault(rule.domain, {}).setdefault(_start(shape), []).append(place)
            self._same.setdefault((rule.domain, "*" if shape.everything else rule.pattern), []).append(place)
        self._lengths = {domain: sorted({*map(len, starts)}) for domain, starts in self._starts.items()}

    def covering(self, index: int) -> Shape | None:
        """Return the first later rule that covers the rule `index` of the person's."""
        place = index + self._offset
        shape = self._shapes[place]
        domain, pattern = shape.rule.domain, shape.rule.pattern
        later = {found for key in (pattern, "*") for found in _after(place, self._same.get((domain, key), ()))}
        for example in shape.examples[:1]:
            for places in self._beginning(domain, example):
                later.update(_after(place, places))
        return next((other for found in sorted(later) if (other := self._shapes[found]).covers(shape)), None)

    def deciding(self, domain: str, text: str) -> Hit | None:
        """Return what decides about the target `text`: the last rule that matches."""
        places = {place for places in self._beginning(domain, text) for place in places}
        probe = simple(text)
        return next((hit for place in sorted(places, reverse=True) if (hit := probe(self._shapes[place].compiled))), None)

    def _beginning(self, domain: str, text: str) -> Iterator[list[int]]:
        """Yield the rules whose matches begin as `text` does, those that begin with the same words together."""
        starts, body = self._starts[domain], _body(domain, text)
        for length in self._lengths[domain]:
            if length <= len(body):
                yield starts.get(body[:length], [])


def _after(place: int, places: Sequence[int]) -> Sequence[int]:
    start = bisect_right(places, place)
    return places[start : start + MOST]


def _start(shape: Shape) -> str:
    """Return how the targets that the rule matches begin, as :func:`_body` writes them; empty where they may begin anyhow."""
    rule, compiled = shape.rule, shape.compiled
    literal = compiled.pattern.literal
    if compiled.plain or rule.pattern.startswith(("regex:", "tool:", "~", "fs:~")):
        return ""
    if rule.domain in ("read", "edit", "web_fetch"):
        return _body(rule.domain, literal).rstrip("/")  # x/** matches x too
    return literal


def _body(domain: str, text: str) -> str:
    """Return `text` without the prefix of a target and the root of a path."""
    prefix = next((prefix for prefix in PREFIXES[domain] if text.startswith(prefix)), "")
    return text[len(prefix) :].lstrip("/") if domain in ("read", "edit", "web_fetch") else text[len(prefix) :]
