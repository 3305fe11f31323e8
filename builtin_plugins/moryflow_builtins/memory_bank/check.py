"""``moryflow memory-bank check``: markers, schema, links and pointers, reachability, sizes, secrets."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from moryflow_sdk import ToolError, redact
from moryflow_sdk.support.markdown_files import WrongFile, parse_markdown
from moryflow_sdk.support.protected_files import sensitive

from . import FOLDER, MEMORY, PATTERNS, PROTOCOL_VERSION, SECTIONS, as_text, bank_of, problem_of

INIT = "moryflow memory-bank init"
BLOCKS = "give the file MACHINE_BLOCK_START and _END, then USER_BLOCK_START and _END, each once, as comments"
LARGEST = 1024 * 1024
MAX_MEMORY_LINES = 200
MAX_FILE_LINES = 300


class Finding(NamedTuple):
    """One problem.

    :ivar code: a short stable reason: ``missing``, ``blocks``, ``schema``, ``link``, ``pointer``, ``size``, ``drift`` …
    :ivar line: 1-based, 0 if the problem has no line.
    """

    code: str
    file: str
    message: str
    next: str
    line: int = 0

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in self._asdict().items() if value != 0}

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.message}. Next: {self.next}"


def document(kind: str, found: Sequence[Finding], **more: Any) -> dict[str, Any]:
    return {"v": 1, "type": kind, "ok": not found, **more, "findings": [finding.as_json() for finding in found]}


_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(\s*<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_POINTER = re.compile(r"`((?:memory-bank/|details/)[\w./-]+\.\w+)(?::(\d+)(?:-\d+)?)?`")
_HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*$")
_ROUTE = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+(.+?)\s*(?:→|->|=>)\s*(.+)$")


class PageLink(NamedTuple):
    """A link, relative to its file, or a pointer, relative to the bank; `at` is the line that a pointer names, or 0."""

    goal: str
    line: int
    pointer: bool = False
    at: int = 0


class BankPage:
    """One file of the bank: its front matter, headings (level, text, line), links and routing rules (intention, line)."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.front: dict[str, Any] = {}
        self.front_problem = ""
        self.headings: list[tuple[int, str, int]] = []
        self.links: list[PageLink] = []
        self.routes: list[int] = []
        start = self._read_front(text)
        for number, line in _prose(text, start):
            heading = _HEADING.match(line)
            if heading:
                self.headings.append((len(heading[1]), heading[2], number))
                continue
            self.links += [PageLink(match[1], number) for match in _LINK.finditer(line)]
            self.links += [PageLink(match[1], number, True, int(match[2] or 0)) for match in _POINTER.finditer(line)]
            if self.headings and self.headings[-1][1] == "Routing Rules" and _ROUTE.match(line):
                self.routes.append(number)

    def _read_front(self, text: str) -> int:
        """Read the front matter, and return the number of its last line."""
        if not text.startswith("---"):
            return 0
        try:
            found = parse_markdown(text.encode(), json5=False)
        except WrongFile as error:
            self.front_problem = str(error)
            return 0
        self.front = dict(found.metadata)
        self.front_problem = str(found.loose or "")
        return found.head.count("\n") + 1


def _prose(text: str, after: int) -> Iterator[tuple[int, str]]:
    """Yield the lines after line `after` that are not in code blocks, with their numbers."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence and number > after:
            yield number, line


def schema_problems(page: BankPage) -> Iterator[str]:
    """Yield what is wrong with a page: each needs a title; the front page a version, its sections and a routing rule."""
    pointers = page.front.get("pointers", [])
    if not isinstance(pointers, list) or not all(isinstance(item, str) and item.strip() for item in pointers):
        yield "front.pointers: it must be a list of texts"
    if not any(level == 1 for level, _, _ in page.headings):
        yield "title: there is none"
    if page.name != MEMORY:
        return
    if page.front.get("protocol_version") != PROTOCOL_VERSION:
        yield f"front.protocol_version: it must be {PROTOCOL_VERSION!r}"
    sections = [text for level, text, _ in page.headings if level == 2 and text in SECTIONS]
    if sections != list(SECTIONS):
        missing = [name for name in SECTIONS if name not in sections]
        order = f"the sections must be in the order {', '.join(SECTIONS)}"
        yield f"sections: section {missing[0]!r} is missing" if missing else f"sections: {order}"
    if not page.routes:
        yield "routes: there is none"


def check_bank(turn: Any) -> tuple[list[Finding], int]:
    """Return the findings for the bank of the turn's vault, and how many files were checked."""
    bank = bank_of(turn)
    if bank is None:
        return [Finding("no_bank", FOLDER, "there is no memory bank here", INIT)], 0
    if bank.problem:
        return [Finding("link", FOLDER, bank.problem, f"replace it with a folder, then {INIT}")], 0
    root = f"{turn.vault}/{FOLDER}"
    if not os.access(root, os.R_OK | os.X_OK):  # else each of its files would be called missing
        return [Finding("unreadable", FOLDER, "the folder cannot be read", f"chmod u+rx {FOLDER}")], 0
    names = sorted(
        os.path.relpath(f"{folder}/{name}", turn.vault)
        for folder, folders, files in os.walk(root)
        for name in (*files, *(one for one in folders if Path(folder, one).is_symlink()))
    )
    found = [Finding("missing", name, "the file is missing", INIT) for name in (MEMORY, PATTERNS) if name not in names]
    pages: dict[str, BankPage] = {}
    for name in names:
        found += _file(turn, name, pages)
    for page in pages.values():
        found += _page(turn, page)
    return [*found, *_unreached_pages(pages)], len(names)


def _file(turn: Any, name: str, pages: dict[str, BankPage]) -> Iterator[Finding]:
    """Check one file of the bank; if it is readable Markdown, add it to `pages`."""
    place = Path(turn.vault, name)
    if place.is_symlink() or not place.is_file():
        yield Finding("link", name, "it is not a regular file", f"replace it with a file, or remove {name}")
    elif sensitive(name):
        yield Finding("secret", name, "a file of that name holds secrets", f"keep it elsewhere: move {name} away")
    elif not name.endswith(".md"):
        yield Finding("not_markdown", name, "it is not Markdown", f"move it out of {FOLDER}/")
    else:
        try:
            text = as_text(turn.files.read(turn.files.resolve(name), limit=LARGEST))
        except ToolError as error:
            yield Finding("unreadable", name, error.message, f"shorten it or make it readable: {name}")
            return
        if text is None:
            yield Finding("encoding", name, "it is not UTF-8 text", f"save {name} as UTF-8")
        else:
            pages[name] = BankPage(name, text)


def _page(turn: Any, page: BankPage) -> Iterator[Finding]:
    name, here = page.name, f"edit {page.name}"
    wrong = problem_of(page.text)
    if wrong is not None:
        yield Finding("blocks", name, wrong[0], BLOCKS, wrong[1])
    for message in (page.front_problem,) if page.front_problem else schema_problems(page):
        yield Finding("schema", name, message, here, 1)
    lines = page.text.splitlines()
    limit, step = (
        (MAX_MEMORY_LINES, "move what is detailed to details/") if name == MEMORY else (MAX_FILE_LINES, "split it by topic")
    )
    if len(lines) > limit:
        yield Finding("size", name, f"it has {len(lines)} lines; the limit is {limit}", step)
    if name == MEMORY and len(page.text) > turn.config.inject_characters:
        many = f"it has {len(page.text):,} characters and {turn.config.inject_characters:,} of them are shown to the model"
        yield Finding("size", name, many, step)
    for number, line in enumerate(lines, 1):
        if redact(line) != line:
            yield Finding("secret", name, "this line holds what looks like a secret", f"take it out of {name}", number)
    for link in page.links:
        yield from _link(turn, page, link)
    for pointer in page.front.get("pointers") or ():
        if isinstance(pointer, str) and not _exists(turn, re.sub(r":\d+(-\d+)?$", "", pointer)):
            yield Finding("pointer", name, f"the source {pointer} is not there", here, 1)


def _link(turn: Any, page: BankPage, link: PageLink) -> Iterator[Finding]:
    """Check that a link or pointer leads to an existing file (and line) in the project."""
    goal = unquote(link.goal.partition("#")[0])
    if not goal or re.match(r"[a-z][a-z0-9+.-]*:", link.goal, re.IGNORECASE):
        return
    name = _path_meant(page, link)
    if goal.startswith("/") or name.startswith(".."):
        step = f"link to a file of this project, relative to {page.name}"
        yield Finding("link", page.name, f"{link.goal} leads out of the project", step, link.line)
    elif not _exists(turn, name):
        yield Finding("link", page.name, f"{link.goal} is not there", f"edit {page.name}", link.line)
    elif link.at and link.at > _line_count(turn, name):
        yield Finding("pointer", page.name, f"{link.goal} has no line {link.at}", f"edit {page.name}", link.line)


def _path_meant(page: BankPage, link: PageLink) -> str:
    """Return the path in the vault that a link or pointer leads to."""
    goal = unquote(link.goal.partition("#")[0])
    if link.pointer:
        return posixpath.normpath(goal if goal.startswith(f"{FOLDER}/") else f"{FOLDER}/{goal}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(page.name), goal))


def _exists(turn: Any, name: str) -> bool:
    target = turn.files.resolve(name)
    return not target.error and target.identity is not None and target.text == f"vault:/{name.rstrip('/')}"


def _line_count(turn: Any, name: str) -> int:
    try:
        return len(turn.files.read(turn.files.resolve(name), limit=16 * LARGEST).splitlines())
    except ToolError:
        return 0


def _unreached_pages(pages: Mapping[str, BankPage]) -> Iterator[Finding]:
    """Yield the files that no chain of links from the front page reaches; a link to their folder is enough."""
    if MEMORY not in pages:
        return
    seen, todo = {MEMORY}, [MEMORY]
    while todo:
        page = pages[todo.pop()]
        names = {_path_meant(page, link) for link in page.links}
        new = {goal for goal in pages.keys() - seen if goal in names or posixpath.dirname(goal) in names - {FOLDER}}
        seen |= new
        todo += new
    for name in sorted(set(pages) - seen):
        yield Finding("unreached", name, "no routing rule or link of MEMORY.md leads to it", f"add a routing rule to {MEMORY}")
