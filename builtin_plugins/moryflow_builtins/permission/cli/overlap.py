"""Which rules cover others, tried on examples, and the few of thousands that may match a target, found by how they begin."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from moryflow_sdk import Rule
from moryflow_sdk.patterns import PREFIXES, address_pattern
from moryflow_sdk.patterns.globs import TooMany, braces
from moryflow_sdk.sandbox import COMMANDS, NETWORK

from moryflow_builtins.permission.policy import CompiledRule, RuleHit, compile_rules, text_probe

EVERYTHING = frozenset({"*", "**"})
_PATHS = ("read", "edit", "web_fetch")
_FRESH = "\ue001"
"""A character that stands in no pattern, so that only a wildcard can match it."""

_TEXT_FILLINGS = ("", _FRESH, f"{_FRESH} -x /etc;{_FRESH}")
_PATH_FILLINGS = (("", ""), (_FRESH, ""), (_FRESH, _FRESH), (f".{_FRESH}.x", "/".join([_FRESH * 2] * 9)))
_MEMBERS = re.compile(r"(\\.)|\[([^!^\]\\-][^\]\\-]*)\]", re.DOTALL)
_PATH_TOKEN = re.compile(r"\\(.)|(\*\*+)|(\*)|(\?)|(\[[!^]?(?:\]|\\.|[^\]\\])(?:\\.|[^\]\\])*\])", re.DOTALL)


@dataclass(frozen=True)
class Shape:
    """A rule, its matcher, and examples of what it matches."""

    compiled: CompiledRule

    @property
    def rule(self) -> Rule:
        """The rule."""
        return self.compiled.rule

    @cached_property
    def everything(self) -> bool:
        """Whether it matches every target of its domain."""
        return self.rule.pattern in EVERYTHING

    @cached_property
    def about_the_sandbox(self) -> bool:
        """Whether it speaks of the sandbox, not of commands."""
        return self.rule.domain == "bash" and self.rule.pattern in (COMMANDS, NETWORK)

    @cached_property
    def examples(self) -> tuple[str, ...]:
        """Targets that the rule matches; none where that cannot be told."""
        if self.rule.pattern.startswith("regex:") or self.everything:
            return ()
        if self.rule.domain in _PATHS and not self.rule.pattern.startswith("tool:"):
            made = _paths(self.rule.domain, _whole(self.rule))
        else:
            made = _texts(self.rule.domain, self.rule.pattern)
        return tuple(dict.fromkeys(text for text in made if self.compiled.matches(text)))

    def covers(self, other: Shape) -> bool:
        """Whether everything that `other` matches is matched by this rule too."""
        if self.compiled.pattern.problem or self.about_the_sandbox or other.about_the_sandbox:
            return False
        if self.rule.folder not in (None, other.rule.folder) or self.rule.contents not in ({}, other.rule.contents):
            return False
        if self.everything:
            return True
        if self.rule.pattern == other.rule.pattern:
            narrower = self.rule.decision == "allow" and other.rule.decision != "allow"
            return not (narrower and self.rule.pattern.startswith("regex:"))
        return bool(other.examples) and all(map(self.compiled.matches, other.examples))


def shapes(rules: Sequence[Rule]) -> list[Shape]:
    """Return the shapes of `rules`, in order; rules of unknown domains are left out."""
    compiled = compile_rules(rules)
    by_rule = {one.rule: one for domain in compiled.by_domain for one in compiled.of(domain)}
    return [Shape(by_rule[rule]) for rule in rules if rule in by_rule]


def _whole(rule: Rule) -> str:
    return address_pattern(rule.pattern, allows=rule.decision == "allow") if rule.domain == "web_fetch" else rule.pattern


def _texts(domain: str, pattern: str) -> Iterator[str]:
    prefix = next((p for p in (*PREFIXES[domain], "tool:") if pattern.startswith(p)), PREFIXES[domain][0])
    body = pattern.removeprefix(prefix)
    for filling in _TEXT_FILLINGS:
        yield prefix + re.sub(r"\\([*\\])|(\*)", lambda found, f=filling: found[1] or f, body)


def _paths(domain: str, pattern: str) -> Iterable[str]:
    prefix = next((p for p in PREFIXES[domain] if pattern.startswith(p)), "")
    try:
        alternatives = braces(_MEMBERS.sub(_either, pattern.removeprefix(prefix)))
    except TooMany:
        return ()
    return chain.from_iterable(_filled(domain, prefix, body) for body in alternatives)


def _either(found: re.Match[str]) -> str:
    """Write ``[ab]`` as ``{a,b}``, so that there is an example of each."""
    escaped, members = found.groups()
    plain = members and len(members) > 1 and not set(members) & set("{},*?/[")
    return escaped or ("{" + ",".join(members) + "}" if plain else found[0])


def _filled(domain: str, prefix: str, body: str) -> Iterator[str]:
    """Yield `body` with its wildcards filled in several ways, as targets are written."""
    for place in (prefix,) if prefix else PREFIXES[domain]:
        for name, deep in _PATH_FILLINGS:
            text = _PATH_TOKEN.sub(lambda found, n=name, d=deep: _one(found, n, d), body)
            rooted = text if place == "url:" or text.startswith(("/", "~")) else f"/{text}"
            whole = place + re.sub(r"(?<!:)//+", "/", rooted)
            yield whole
            if whole.endswith("/"):
                yield whole[:-1]  # two stars at the end match the folder itself, which is written without a slash


def _one(found: re.Match[str], name: str, deep: str) -> str:
    escaped, many, star, question, members = found.groups()
    if escaped is not None:
        return escaped
    if many or star:
        return deep if many else name
    return _FRESH if question or members[1] in "!^" else members[1]


MOST = 100
"""Later rules with the same beginning (none at all, for example: ``*x``, ``**/x``, ``regex:``) that a rule is held against.
Without a limit a list of thousands takes minutes, and what is lost is a remark."""


class Nearby:
    """Rules in matching order, found by the text that each of their matches begins with."""

    def __init__(self, first: Iterable[CompiledRule], shapes: Sequence[Shape]) -> None:
        """Take `first`, the rules before the person's, and `shapes`, theirs."""
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

    def deciding(self, domain: str, text: str) -> RuleHit | None:
        """Return what decides about the target `text`: the last rule that matches."""
        places = {place for places in self._beginning(domain, text) for place in places}
        probe = text_probe(text)
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
