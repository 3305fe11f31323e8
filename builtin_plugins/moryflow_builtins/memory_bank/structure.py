"""Parse a file of the bank: front matter, headings, links, routing rules. It judges nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .blocks import problem_of

_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(\s*<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_POINTER = re.compile(r"`((?:memory-bank/|details/)[\w./-]+\.\w+)(?::(\d+)(?:-\d+)?)?`")
_HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*$")
_ROUTE = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+(.+?)\s*(?:→|->|=>)\s*(.+)$")


@dataclass(frozen=True)
class Link:
    """A link, relative to its file, or a pointer, relative to the bank; `at` is the line number that a pointer may name."""

    goal: str
    line: int
    pointer: bool = False
    at: int = 0


@dataclass
class Page:
    """One file of the bank.

    :param front: the front matter, ``None`` if there is none or it cannot be read; `front_problem` says why.
    :param routes: of the section "Routing Rules": what one wants to do, and the links to follow, with the line.
    """

    name: str
    text: str
    lines: int
    front: dict[str, Any] | None = None
    front_problem: str = ""
    blocks_problem: tuple[str, int] | None = None
    headings: list[tuple[int, str, int]] = field(default_factory=list[tuple[int, str, int]])
    links: list[Link] = field(default_factory=list[Link])
    routes: list[tuple[str, list[str], int]] = field(default_factory=list[tuple[str, list[str], int]])

    @property
    def title(self) -> str:
        return next((text for level, text, _ in self.headings if level == 1), "")


def read_page(name: str, text: str) -> Page:
    """Return what a file holds."""
    page = Page(name, text, len(text.splitlines()), blocks_problem=problem_of(text))
    body_from = _front(page, text)
    section = ""
    for number, line in _prose(text, body_from):
        heading = _HEADING.match(line)
        if heading:
            section = heading[2]
            page.headings.append((len(heading[1]), heading[2], number))
            continue
        links = [Link(match[1], number) for match in _LINK.finditer(line)]
        page.links += links
        page.links += [Link(match[1], number, True, int(match[2] or 0)) for match in _POINTER.finditer(line)]
        route = _ROUTE.match(line) if section == "Routing Rules" else None
        if route:
            page.routes.append((route[1], [link.goal for link in links] or _code(route[2]), number))
    return page


def _code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def _front(page: Page, text: str) -> int:
    """Read the front matter; return the line that the rest begins after."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != "---":
        return 0
    end = next((number for number, line in enumerate(lines[1:], 2) if line.strip() == "---"), 0)
    if not end:
        page.front_problem = "the front matter is not closed with a line ---"
        return 0
    import yaml

    try:
        value: Any = yaml.safe_load("\n".join(lines[1 : end - 1]))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        page.front_problem = f"the front matter is not YAML: {getattr(error, 'problem', None) or error}"
        return end
    if isinstance(value, dict):
        page.front = {str(key): item for key, item in value.items()}
    else:
        page.front_problem = "the front matter must be a list of named fields"
    return end


def _prose(text: str, after: int) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines that are not code."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence and number > after:
            yield number, line
