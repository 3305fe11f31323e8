"""What a rule reaches: nothing, where no target is written like its pattern, and what later rules leave of it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from moryflow_sdk import Rule
from moryflow_sdk.support.patterns import PREFIXES, Pattern, address_pattern
from moryflow_sdk.support.patterns.globs import TooMany, braces
from moryflow_sdk.support.sandbox import COMMANDS, NETWORK
from moryflow_sdk.support.urls import RefusedUrl, parse_url

from moryflow_builtins.permission.policy import CompiledRule, compile_rules

# ------------------------------------------------------------------------------------------------
# Patterns that no target is written like
# ------------------------------------------------------------------------------------------------

_JOINED = re.compile(r"(?:^|\s)(?:&&|\|\||\||&)(?:\s|$)|;(?:\s|$)")
_REDIRECTED = re.compile(r"(?:^|\s)\d?(?:>>?|<)\s*\S")


def mistake(rule: Rule, pattern: Pattern) -> str:
    """Return why `rule` can never match; empty when it can, or when that cannot be told."""
    text = rule.pattern
    if text in ("*", "**") or text.startswith(("regex:", "tool:")):
        return ""
    match rule.domain:
        case "read" | "edit":
            return _path(text.partition(":")[2] if text.startswith(("vault:", "fs:")) else text)
        case "bash":
            return _command(text.removeprefix("shell:"), allows=rule.decision == "allow")
        case "web_fetch":
            full = address_pattern(text.removeprefix("url:"), allows=rule.decision == "allow")
            return _url(full, exact=pattern.exact)
        case "mcp":
            body = text.removeprefix("mcp:")
            return "" if "/" in body or "*" in body else "tools of a server are written SERVER/TOOL; a star stands for all"
        case _:
            return ""


def _path(body: str) -> str:
    if re.search(r"(?:^|/)\.{1,2}(?:/|$)", body):
        return "targets are resolved, so none has . or .. in it"
    if "//" in body:
        return "targets are resolved, so none has // in it"
    if body.endswith("/") and body != "/":
        return f"targets do not end with a slash; write {body}** for what is in the folder"
    return ""


def _command(body: str, *, allows: bool) -> str:
    if body != body.strip(" "):
        return "commands are matched without blanks around them"
    if re.search(r"['\"\\]", body):
        return ""
    if _JOINED.search(body):
        return "every command of a line is judged alone; write a rule for each"
    if "  " in body:
        return "words are matched with one blank between them"
    if allows and _REDIRECTED.search(body):
        return "redirections are judged as reading and editing, not as part of the command"
    if allows and ("$(" in body or "`" in body):
        return "an allow never covers what is known only when it runs"
    return ""


def _url(body: str, *, exact: bool) -> str:
    if exact:
        return _exact_url(body)
    if re.search(r"[\[{]", body):
        return ""
    literal = body[: body.index("*")] if "*" in body else body
    if not any(literal.startswith(start) or start.startswith(literal) for start in ("http://", "https://")):
        return "addresses begin with http:// or https://; write docs.python.org or https://docs.python.org/** for a whole site"
    if "://" in literal and "**" not in body and "/" not in body.partition("://")[2]:
        return f"an address has a path after its host, and * stops at a slash; write {body.rstrip('*')}/**"
    return ""


def wider_address(rule: Rule) -> str:
    """Return the pattern that was probably meant where the last star of one for addresses stops at a slash; else nothing."""
    pattern = rule.pattern
    if rule.domain != "web_fetch" or pattern == "*" or pattern.startswith(("regex:", "tool:")):
        return ""
    full = address_pattern(pattern, allows=rule.decision == "allow")
    return f"{pattern}*" if full.endswith("*") and not full.endswith(("**", "\\*")) else ""


def _exact_url(body: str) -> str:
    try:
        canonical = str(parse_url(body))
    except RefusedUrl as error:
        if error.service is None:
            return f"no such address is fetched: {error}"
        canonical = str(error.service)
    return "" if canonical == body else f"addresses are matched in one form; this one is {canonical}"


# ------------------------------------------------------------------------------------------------
# Rules that cover others
# ------------------------------------------------------------------------------------------------

_FRESH = "\ue001"
"""A character that stands in no pattern, so that only a wildcard can match it."""
_TEXT_FILLINGS = ("", _FRESH, f"{_FRESH} -x /etc;{_FRESH}")
_PATH_FILLINGS = (("", ""), (_FRESH, ""), (_FRESH, _FRESH), (f".{_FRESH}.x", "/".join([_FRESH * 2] * 9)))
_MEMBERS = re.compile(r"(\\.)|\[([^!^\]\\-][^\]\\-]*)\]", re.DOTALL)
_PATH_TOKEN = re.compile(r"\\(.)|(\*\*+)|(\*)|(\?)|(\[[!^]?(?:\]|\\.|[^\]\\])(?:\\.|[^\]\\])*\])", re.DOTALL)


@dataclass(frozen=True)
class Reach:
    """A rule, its matcher, and examples of what it matches."""

    compiled: CompiledRule

    @property
    def rule(self) -> Rule:
        """The rule."""
        return self.compiled.rule

    @property
    def everything(self) -> bool:
        """Whether it matches every target of its domain."""
        return self.rule.pattern in ("*", "**")

    @cached_property
    def examples(self) -> tuple[str, ...]:
        """Targets that the rule matches; none where that cannot be told."""
        rule = self.rule
        if rule.pattern.startswith("regex:") or self.everything:
            return ()
        if rule.domain in ("read", "edit", "web_fetch") and not rule.pattern.startswith("tool:"):
            made = _paths(rule)
        else:
            made = _texts(rule)
        return tuple(dict.fromkeys(text for text in made if self.compiled.matches(text)))

    def covers(self, other: Reach) -> bool:
        """Whether everything that `other` matches is matched by this rule too."""
        rule, theirs = self.rule, other.rule
        bound = rule.folder not in (None, theirs.folder) or rule.contents not in ({}, theirs.contents)
        if bound or self.compiled.pattern.problem:
            return False
        if self.everything:
            return True
        if rule.pattern == theirs.pattern:
            narrower = rule.decision == "allow" and theirs.decision != "allow"
            return not (narrower and rule.pattern.startswith("regex:"))
        return bool(other.examples) and all(map(self.compiled.matches, other.examples))


def _texts(rule: Rule) -> Iterator[str]:
    prefix = next((p for p in (*PREFIXES[rule.domain], "tool:") if rule.pattern.startswith(p)), PREFIXES[rule.domain][0])
    body = rule.pattern.removeprefix(prefix)
    for filling in _TEXT_FILLINGS:
        yield prefix + re.sub(r"\\([*\\])|(\*)", lambda found, f=filling: found[1] or f, body)


def _paths(rule: Rule) -> Iterable[str]:
    pattern, allows = rule.pattern, rule.decision == "allow"
    pattern = address_pattern(pattern, allows=allows) if rule.domain == "web_fetch" else pattern
    prefix = next((p for p in PREFIXES[rule.domain] if pattern.startswith(p)), "")
    try:
        alternatives = braces(_MEMBERS.sub(_either, pattern.removeprefix(prefix)))
    except TooMany:
        return ()
    return chain.from_iterable(_filled(rule.domain, prefix, body) for body in alternatives)


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


_WILD = ""
MOST = 100
"""Later rules with a wildcard that a rule is held against. Without a limit a list of thousands takes minutes, and what is
lost is a remark."""


class LaterRules:
    """Rules in matching order, to find what the later ones leave of an earlier one.

    Those that speak of the sandbox are left out: they match no command.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        compiled = compile_rules(rules)
        by_rule = {one.rule: one for domain in compiled.by_domain for one in compiled.of(domain)}
        sandbox = {("bash", COMMANDS), ("bash", NETWORK)}
        known = [rule for rule in rules if rule in by_rule and (rule.domain, rule.pattern) not in sandbox]
        self.reaches = [Reach(by_rule[rule]) for rule in known]
        self._places: dict[tuple[str, str], list[int]] = {}
        for place, reach in enumerate(self.reaches):
            for key in _keys(reach):
                self._places.setdefault((reach.rule.domain, key), []).append(place)

    def covering(self, place: int) -> Reach | None:
        """Return the first later rule that covers the one at `place`."""
        reach = self.reaches[place]
        later = self._after(place, reach.rule.pattern, *reach.examples[:1])
        return next((other for other in later if other.covers(reach)), None)

    def decides(self, place: int, target: str) -> bool:
        """Whether the rule at `place` matches `target` and no later one does."""
        if not self.reaches[place].compiled.matches(target):
            return False
        return not any(other.compiled.matches(target) for other in self._after(place, target))

    def _after(self, place: int, *keys: str) -> list[Reach]:
        """Return the later rules for everything, those with a wildcard, and those under `keys`."""
        found: set[int] = set()
        for key in ("*", _WILD, *keys):
            places = self._places.get((self.reaches[place].rule.domain, key), ())
            start = bisect_right(places, place)
            found.update(places[start : start + MOST])
        return [self.reaches[other] for other in sorted(found)]


def _keys(reach: Reach) -> set[str]:
    """Return how a rule is found: by its pattern, and as one with a wildcard or by the only target that it matches."""
    if reach.everything:
        return {"*"}
    exact = reach.examples[:1] if reach.compiled.pattern.exact else ()
    return {reach.rule.pattern, *(exact or (_WILD,))}
