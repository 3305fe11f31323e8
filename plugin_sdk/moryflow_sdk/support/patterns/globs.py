"""Globs over paths and addresses, as regular expressions that cannot blow up.

``*`` and ``?`` stop at ``/``, ``**`` does not, ``[abc]`` and ``[!abc]`` are one character, ``{a,b}`` either, ``\\`` escapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

MAX_ALTERNATIVES = 512
"""How many patterns one ``{a,b}`` pattern may stand for."""


class TooMany(ValueError):
    """A pattern stands for too many."""


def braces(pattern: str) -> list[str]:
    """Return the patterns that ``{a,b}`` in `pattern` stand for."""
    group = _first_group(pattern)
    if group is None:
        return [pattern]
    start, end, choices = group
    tails = braces(pattern[end + 1 :])
    heads = [f"{pattern[:start]}{inner}" for choice in choices for inner in braces(choice)]
    if len(heads) * len(tails) > MAX_ALTERNATIVES:
        raise TooMany(f"its braces stand for more than {MAX_ALTERNATIVES} patterns")
    return [head + tail for head in heads for tail in tails]


def _first_group(pattern: str) -> tuple[int, int, list[str]] | None:
    """Return where the first ``{…,…}`` begins and ends and what it offers; braces without a comma are literal."""
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
    """Translate a glob. Every star but the last of its kind is atomic, so that matching cannot blow up.

    :param folders: ``x/**`` also matches ``x`` itself: who may not touch a folder's content may not move it either.
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
    """Translate what stands between two ``**``."""
    return "/".join(_segment(part) for part in glob.split("/"))


_TOKEN = re.compile(r"\\(.)|(\*)|(\?)|\[([!^]?)((?:\]|\\.|[^\]\\])(?:\\.|[^\]\\])*)\]", re.DOTALL)


def _segment(glob: str) -> str:
    pieces: list[str] = []
    position = 0
    for token in _TOKEN.finditer(glob):
        pieces.append(re.escape(glob[position : token.start()]))
        position = token.end()
        escaped, star, question, negated, members = token.groups()
        if escaped is not None:
            pieces.append(re.escape(escaped))
        elif star:
            pieces.append("*")
        elif question:
            pieces.append("[^/]")
        else:
            pieces.append(f"(?!/)[{'^' if negated else ''}{_members(members)}]")
    pieces.append(re.escape(glob[position:]))
    return _starred("".join(run) for run in _split(pieces))


def _split(pieces: list[str]) -> Iterator[list[str]]:
    """Yield the runs of `pieces` between stars."""
    run: list[str] = []
    for piece in pieces:
        if piece == "*":
            yield run
            run = []
        else:
            run.append(piece)
    yield run


def _starred(runs: Iterator[str]) -> str:
    first, *rest = runs
    middle = "".join(f"(?>[^/]*?{run})" for run in rest[:-1] if run)
    return first + middle + (f"[^/]*{rest[-1]}" if rest else "")


def _members(members: str) -> str:
    return re.sub(r"([\[\]\\^&~|])", r"\\\1", re.sub(r"\\(.)", r"\1", members))
