"""The patterns of rules.

* ``*`` alone matches every target of its domain.
* ``regex:…``, in the syntax of Rust, must match a whole target to allow it; to ask or deny, a match anywhere in it is enough.
* Anything else is a glob over the whole target. In ``shell:``, ``query:``, ``mcp:``, ``task:`` and ``tool:`` targets
  ``*`` matches any text; in ``vault:``, ``fs:`` and ``url:`` targets it stops at ``/`` and ``**`` does not.

A pattern that asks or denies matches a file's name however its accents are composed (NFC, NFD).

An address needs no scheme, and a host alone stands for all its pages: ``docs.python.org``, ``*.github.com``.

The prefix of a target may be left out if it is clear: ``git status*`` is ``shell:git status*``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path

from moryflow_sdk.support.texts import composed
from moryflow_sdk.verdicts import Rule

MAX_ALTERNATIVES = 512
"""The most patterns that one pattern with ``{a,b}`` may stand for."""


class TooMany(ValueError):
    """The braces of a pattern stand for too many patterns."""


def braces(pattern: str) -> list[str]:
    """Return the patterns that `pattern` stands for, with each ``{a,b}`` replaced by one of its alternatives.

    :raises TooMany: there are more than :data:`MAX_ALTERNATIVES`.
    """
    group = _first_group(pattern) if "{" in pattern else None
    if group is None:
        return [pattern]
    start, end, choices = group
    tails = braces(pattern[end + 1 :])
    heads = [f"{pattern[:start]}{inner}" for choice in choices for inner in (braces(choice) if "{" in choice else (choice,))]
    if len(heads) * len(tails) > MAX_ALTERNATIVES:
        raise TooMany(f"its braces stand for more than {MAX_ALTERNATIVES} patterns")
    return [head + tail for head in heads for tail in tails]


def _first_group(pattern: str) -> tuple[int, int, list[str]] | None:
    """Return the start, the end and the alternatives of the first ``{…,…}``; braces without a comma are literal."""
    opened: list[tuple[int, list[int]]] = []
    position = 0
    while position < len(pattern):
        char = pattern[position]
        if char == "\\":
            position += 1
        elif char == "{":
            opened.append((position, []))
        elif char == "," and opened:
            opened[-1][1].append(position)
        elif char == "}" and opened:
            start, commas = opened.pop()
            if commas and not any(outer_commas for _, outer_commas in opened):
                cuts = [start, *commas, position]
                return start, position, [pattern[a + 1 : b] for a, b in pairwise(cuts)]
        position += 1
    return None


def path_regex(prefix: str, body: str, *, folders: bool) -> str:
    """Translate a glob into a regular expression. Every star but the last of its kind is atomic, so that matching stays fast.

    :param folders: ``x/**`` also matches ``x`` itself: if the content of a folder is protected, the folder cannot be moved.
    """
    chunks = [_chunk(part) for part in re.split(r"(?<!\\)(?:\*\*+)", body)]
    if folders and len(chunks) > 1 and chunks[-1] == "" and chunks[-2].endswith("/"):
        chunks[-2:] = [chunks[-2][:-1] + "(?:/.*)?"]
    source = re.escape(prefix) + chunks[0]
    at_slash = chunks[0] == "" or chunks[0].endswith("/")
    for index, chunk in enumerate(chunks[1:], 2):
        last = index == len(chunks)
        many, one = ("(?:[^/]*/)*", ".*") if last else ("(?:[^/]*/)*?", ".*?")
        step = many + chunk[1:] if at_slash and chunk.startswith("/") else one + chunk
        source += step if last else f"(?>{step})"
        at_slash = chunk.endswith("/")
    return source


def _chunk(glob: str) -> str:
    return "/".join(_segment(part) for part in glob.split("/"))


_TOKEN = re.compile(r"\\(.)|(\*)|(\?)|\[([!^]?)((?:\]|\\.|[^\]\\])(?:\\.|[^\]\\])*)\]", re.DOTALL)


def _segment(glob: str) -> str:
    runs, position = [""], 0  # the parts between stars
    for token in _TOKEN.finditer(glob):
        runs[-1] += re.escape(glob[position : token.start()])
        position = token.end()
        escaped, star, question, negated, members = token.groups()
        if star:
            runs.append("")
        elif escaped is not None:
            runs[-1] += re.escape(escaped)
        else:
            runs[-1] += "[^/]" if question else f"(?!/)[{'^' if negated else ''}{_members(members)}]"
    runs[-1] += re.escape(glob[position:])
    first, *rest = runs
    middle = "".join(f"(?>[^/]*?{run})" for run in rest[:-1] if run)
    return first + middle + (f"[^/]*{rest[-1]}" if rest else "")


def _members(members: str) -> str:
    return re.sub(r"([\[\]\\^&~|])", r"\\\1", re.sub(r"\\(.)", r"\1", members))


MAX_PATTERN = 4096
TOOL = "tool:"

PREFIXES: dict[str, tuple[str, ...]] = {
    "read": ("vault:", "fs:"),
    "edit": ("vault:", "fs:"),
    "bash": ("shell:",),
    "web_fetch": ("url:",),
    "web_search": ("query:",),
    "mcp": ("mcp:",),
    "task": ("task:",),
    "tool": ("tool:",),
}
"""The prefixes of the targets of each domain."""

KINDS = tuple(dict.fromkeys(prefix for prefixes in PREFIXES.values() for prefix in prefixes))
_PATH_DOMAINS = ("read", "edit", "web_fetch")
Matcher = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled pattern.

    :param matches: returns whether the pattern matches a target's text.
    :param literal: the text with which every match begins, without the prefix of the target.
    :param exact: whether the pattern matches `literal` and nothing else.
    :param problem: why the pattern cannot be used and matches nothing; else empty.
    """

    matches: Matcher
    literal: str = ""
    exact: bool = False
    problem: str = ""


def compile_rule(rule: Rule) -> Pattern:
    """Return the compiled pattern of `rule`; a pattern that cannot be used matches nothing, and its `problem` says why."""
    return _nothing(rule.problem) if rule.problem else _compile(rule.domain, rule.pattern, rule.decision == "allow")


@lru_cache(maxsize=1 << 15)  # read once with the configuration, and again by the gate
def _compile(domain: str, pattern: str, allows: bool) -> Pattern:
    if domain not in PREFIXES:
        return _nothing(f"{domain!r} is not a domain")
    if not pattern or len(pattern) > MAX_PATTERN:
        return _nothing(f"a pattern has 1 to {MAX_PATTERN} characters")
    if pattern in ("*", "**"):
        return Pattern(lambda _: True)
    if pattern.startswith("regex:"):
        return _regex(domain, pattern.removeprefix("regex:"), allows)
    if pattern.startswith(TOOL):
        return _tools(pattern)
    foreign = next((kind for kind in KINDS if pattern.startswith(kind) and kind not in PREFIXES[domain]), "")
    if foreign and domain != "bash":
        return _nothing(f"targets of {domain} begin with {' or '.join(PREFIXES[domain])}, never with {foreign}")
    if domain in _PATH_DOMAINS:
        return _paths(domain, pattern, allows)
    return _text(PREFIXES[domain][0], pattern)


def _tools(pattern: str) -> Pattern:
    """Match tools by name, in any domain: a tool that declares a domain but no targets is its own target."""
    inner = _text(TOOL, pattern)
    return Pattern(lambda text: text.startswith(TOOL) and inner.matches(text), inner.literal, inner.exact)


def _nothing(problem: str) -> Pattern:
    return Pattern(lambda _: False, problem=problem)


# ---------------------------------------------------------------- text: commands, queries, names


def _text(prefix: str, pattern: str) -> Pattern:
    segments = _segments(pattern.removeprefix(prefix))
    body = len(prefix)
    if len(segments) == 1:
        wanted = segments[0]
        return Pattern(lambda text: text[body:] == wanted, wanted, exact=True)
    return Pattern(lambda text: _in_order(segments, text[body:]), segments[0])


def _segments(pattern: str) -> tuple[str, ...]:
    """Split `pattern` at its unescaped stars; ``\\*`` and ``\\\\`` are a literal star and backslash."""
    segments = [""]
    for escaped, star, char in re.findall(r"\\([*\\])|(\*)|([\s\S])", pattern):
        if star:
            segments.append("")
        else:
            segments[-1] += escaped or char
    return tuple(segments)


def _in_order(segments: tuple[str, ...], text: str) -> bool:
    """Whether `text` is `segments` with anything between them; linear, because the leftmost place for each is the best."""
    first, *middle, last = segments
    end = len(text) - len(last)
    if end < len(first) or not text.startswith(first) or not text.endswith(last):
        return False
    position = len(first)
    for segment in middle:
        found = text.find(segment, position, end)
        if found < 0:
            return False
        position = found + len(segment)
    return True


def escape(text: str) -> str:
    """Return a pattern that matches exactly `text`, in a domain whose targets are not paths."""
    escaped = text.replace("\\", "\\\\").replace("*", "\\*")
    return f"shell:{escaped}" if escaped.startswith("regex:") else escaped


# ---------------------------------------------------------------- paths and addresses


def _paths(domain: str, pattern: str, allows: bool) -> Pattern:
    guards = _guards_files(domain, allows)
    pattern = composed(pattern) if guards else pattern
    pattern = address_pattern(pattern, allows=allows) if domain == "web_fetch" else pattern
    pairs = list(_with_prefixes(domain, pattern, allows))

    @cache
    def regex() -> re.Pattern[str]:
        parts = (path_regex(start, one, folders=not allows) for start, body in pairs for one in braces(body))
        return re.compile("|".join(parts), re.DOTALL)

    wild = re.search(r"[*?\[{\\]", pattern)
    literal = pattern[: wild.start()] if wild else pattern
    if allows and re.search(r"[\[{\\]", pattern) is None:  # it can be compiled, and of 20,000 such rules few ever have to be
        heads = tuple(start + re.split("[*?]", body, maxsplit=1)[0].rstrip("/") for start, body in pairs)
        return Pattern(lambda text: text.startswith(heads) and bool(regex().fullmatch(text)), literal, exact=wild is None)
    try:
        regex()
    except (re.error, TooMany, RecursionError, OverflowError) as error:
        return _nothing(f"the pattern cannot be used: {error}")
    return Pattern(lambda text: regex().fullmatch(composed(text) if guards else text) is not None, literal, exact=wild is None)


def _guards_files(domain: str, allows: bool) -> bool:
    """Whether names are compared in one composed form: a rule that asks or denies must match every spelling of a file."""
    return domain in ("read", "edit") and not allows


def _with_prefixes(domain: str, pattern: str, allows: bool) -> Iterator[tuple[str, str]]:
    """Yield pairs of a prefix and the pattern of the rest; a pattern without a prefix gets the prefix that fits it."""
    prefixes = PREFIXES[domain]
    given = next((prefix for prefix in prefixes if pattern.startswith(prefix)), None)
    if given is not None:
        yield given, _absolute(given, pattern.removeprefix(given))
    elif domain == "web_fetch":
        yield "url:", pattern
    elif pattern.startswith(("/", "~")):
        yield "fs:", _absolute("fs:", pattern)
    else:
        yield "vault:", _absolute("vault:", pattern)
        if not allows and pattern.startswith("**"):
            yield "fs:", pattern


_HOST = re.compile(r"[\w*?,{}\[\]-]+(?:\.[\w*?,{}\[\]-]+)+(?::\d+)?(?=/|\Z)")


def address_pattern(pattern: str, *, allows: bool) -> str:
    """Return a pattern for addresses with the parts added that the user may leave out.

    A host alone, ``docs.python.org`` or ``https://docs.python.org``, stands for all of its pages; without a scheme it stands
    for http and https, and in a rule that asks or denies also for every port.
    """
    kind = "url:" if pattern.startswith("url:") else ""
    scheme, separator, rest = pattern.removeprefix(kind).partition("://")
    if not separator:
        scheme, rest = "{http,https}", scheme
        if not _HOST.match(rest):
            return pattern
    host, slash, path = rest.partition("/")
    if "**" in host or "\\" in host or not host or (not slash and host.endswith("*")):
        return pattern  # example.com* would be example.com.evil.test, too
    any_port = "" if separator or allows or ":" in host else "{,:*}"
    return f"{kind}{scheme}://{host.lower()}{any_port}/{path if slash else '**'}"


def _absolute(prefix: str, body: str) -> str:
    if prefix == "url:" or body.startswith(("/", "**")):
        return body
    if prefix == "fs:" and (body == "~" or body.startswith("~/")):
        return str(Path.home()) + body[1:]
    return f"/{body}"


# ---------------------------------------------------------------- regular expressions


def _regex(domain: str, pattern: str, allows: bool) -> Pattern:
    guards = _guards_files(domain, allows)
    pattern = composed(pattern) if guards else pattern
    try:
        match = _linear(pattern, whole=allows)
    except ValueError as error:
        return _nothing(str(error))
    with_body = not allows or domain not in ("read", "edit")

    def matches(text: str) -> bool:
        text = composed(text) if guards else text
        return match(text) or (with_body and match(text.partition(":")[2]))

    literal, exact = _literal_run(pattern, allows)
    return Pattern(matches, literal, exact)


def _linear(pattern: str, *, whole: bool) -> Matcher:
    """Return a matcher for a regular expression that runs in linear time; a backtracking engine could be busy for hours.

    :param whole: whether the text must match from beginning to end.
    """
    from pydantic_core import SchemaError, SchemaValidator

    def compiled(expression: str) -> SchemaValidator:
        return SchemaValidator({"type": "str", "pattern": expression, "regex_engine": "rust-regex"})

    try:
        validator = compiled(pattern)
        if whole:  # only now: ``a)|(b`` does not compile alone, but would in a group
            validator = compiled(rf"\A(?:{pattern})\z")
    except (SchemaError, UnicodeEncodeError) as error:
        why = str(error).partition("SchemaError:")[2].rpartition("error:")[2].strip() or str(error)
        raise ValueError(f"the expression does not compile for an engine that matches in linear time: {why}") from error
    # The name of a file may contain bytes that are not text.
    return lambda text: validator.isinstance_python(_NO_TEXT.sub("\ufffd", text))


_NO_TEXT = re.compile("[\ud800-\udfff]")
_GROUPED = r"(?s)\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\\.|[^()\[\]\\])*\)"
"""An escape, a class, or a group without an inner group: a ``|`` inside it does not divide the whole expression."""


def _literal_run(pattern: str, allows: bool) -> tuple[str, bool]:
    """Return the text with which every match surely begins, and whether it is surely the whole match.

    An expression that asks or denies may match anywhere: only ``^`` fixes the beginning of a text, and only ``$`` its end.
    """
    if not allows and not pattern.startswith("^"):
        return "", False
    rest = pattern.removeprefix("^").removeprefix("shell:")
    if "|" in re.sub(_GROUPED, "", rest):
        return "", False
    run = re.match(r"(?:[\w \-./:=@%,<>;&!\"'#~]|\\[^\w\s<>])*", rest, re.ASCII)  # ``\<`` is the beginning of a word
    text = run.group() if run else ""
    after = rest[len(text) :]
    if after[:1] in ("*", "?", "{", "+"):
        text = re.sub(r"\\?.\Z", "", text, flags=re.DOTALL)
    return re.sub(r"\\(.)", r"\1", text), after == "$" or (allows and not after)
