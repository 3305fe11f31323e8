"""``memory-bank check``: structure, schema, links, pointers, sizes, secrets. Each finding has a place and a next step."""

from __future__ import annotations

import os
import posixpath
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import unquote

from moryflow_sdk import ToolError, redact
from moryflow_sdk.support.markdown_files import YAML_VALUE_ERRORS, yaml_problem
from moryflow_sdk.support.protected_files import sensitive

from . import FOLDER, MEMORY, PATTERNS, PROTOCOL_VERSION, SECTIONS, MemoryBankSettings, as_text, bank_of, problem_of
from .change_guard import snapshot_of


@dataclass(frozen=True)
class Finding:
    """One problem.

    :param code: a short stable reason: ``missing``, ``blocks``, ``schema``, ``link``, ``pointer``, ``size``, ``drift`` …
    :param line: 1-based, 0 if the problem has no line.
    """

    code: str
    file: str
    message: str
    next: str
    line: int = 0

    def as_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value != 0}

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.message}. Next: {self.next}"


def document(kind: str, found: Sequence[Finding], **more: Any) -> dict[str, Any]:
    return {"v": 1, "type": kind, "ok": not found, **more, "findings": [finding.as_json() for finding in found]}


_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(\s*<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_POINTER = re.compile(r"`((?:memory-bank/|details/)[\w./-]+\.\w+)(?::(\d+)(?:-\d+)?)?`")
_HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*$")
_ROUTE = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+(.+?)\s*(?:→|->|=>)\s*(.+)$")


@dataclass(frozen=True)
class PageLink:
    """A link, relative to its file, or a pointer, relative to the bank.

    :param line: the line of the link or pointer; `at` is the line that a pointer names, or 0.
    """

    goal: str
    line: int
    pointer: bool = False
    at: int = 0


@dataclass
class BankPage:
    """One file of the bank.

    :param front: the front matter, ``None`` if there is none or it cannot be read; `front_problem` says why.
    :param routes: the rules in the section "Routing Rules": an intention, the links to follow, and the line.
    """

    name: str
    text: str
    lines: int
    front: dict[str, Any] | None = None
    front_problem: str = ""
    blocks_problem: tuple[str, int] | None = None
    headings: list[tuple[int, str, int]] = field(default_factory=list[tuple[int, str, int]])
    links: list[PageLink] = field(default_factory=list[PageLink])
    routes: list[tuple[str, list[str], int]] = field(default_factory=list[tuple[str, list[str], int]])

    @property
    def title(self) -> str:
        return next((text for level, text, _ in self.headings if level == 1), "")


def read_page(name: str, text: str) -> BankPage:
    page = BankPage(name, text, len(text.splitlines()), blocks_problem=problem_of(text))
    body_from = _front(page, text)
    section = ""
    for number, line in _prose(text, body_from):
        heading = _HEADING.match(line)
        if heading:
            section = heading[2]
            page.headings.append((len(heading[1]), heading[2], number))
            continue
        links = [PageLink(match[1], number) for match in _LINK.finditer(line)]
        page.links += links
        page.links += [PageLink(match[1], number, True, int(match[2] or 0)) for match in _POINTER.finditer(line)]
        route = _ROUTE.match(line) if section == "Routing Rules" else None
        if route:
            page.routes.append((route[1], [link.goal for link in links] or re.findall(r"`([^`]+)`", route[2]), number))
    return page


def _front(page: BankPage, text: str) -> int:
    """Read the front matter into `page`, and return the number of its last line."""
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
    except (yaml.YAMLError, *YAML_VALUE_ERRORS) as error:
        page.front_problem = f"the front matter is not YAML: {yaml_problem(error)}"
        return end
    if isinstance(value, dict):
        page.front = {str(key): item for key, item in value.items()}
    else:
        page.front_problem = "the front matter must be a list of named fields"
    return end


def _prose(text: str, after: int) -> Iterator[tuple[int, str]]:
    """Yield the lines after line `after` that are not in code blocks, with their numbers."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence and number > after:
            yield number, line


def schema_problems(page: BankPage, *, front_page: bool) -> Iterator[tuple[str, int]]:
    """Yield the violations of a page's schema, each with its line; the front page must have more than other pages."""
    front = page.front or {}
    pointers = front.get("pointers", [])
    if not isinstance(pointers, list) or not all(isinstance(item, str) and item.strip() for item in pointers):
        yield "front.pointers: it must be a list of texts", 1
    if not page.title.strip():
        yield "title: there is none", 1
    if not front_page:
        return
    if front.get("protocol_version") != PROTOCOL_VERSION:
        yield f"front.protocol_version: it must be {PROTOCOL_VERSION!r}", 1
    template = front.get("template")
    if not isinstance(template, str) or not re.fullmatch(r"7\.\d+", template):
        yield "front.template: it must be '7.' and a number, as text", 1
    sections = [text for level, text, _ in page.headings if level == 2]
    missing = [name for name in SECTIONS if name not in sections]
    if missing:
        yield f"sections: section {missing[0]!r} is missing", 1
    elif [name for name in sections if name in SECTIONS] != list(SECTIONS):
        yield f"sections: the sections must be in the order {', '.join(SECTIONS)}", 1
    if not page.routes:
        yield "routes: there is none", next((number for _, text, number in page.headings if text == "Routing Rules"), 1)
    for number, (intent, files, line) in enumerate(page.routes):
        if not intent.strip() or not files or not all(name.strip() for name in files):
            yield f"routes.{number}: it must say what one wants to do, and which files to read then", line


INIT = "moryflow memory-bank init"
BLOCKS = "give the file MACHINE_BLOCK_START and _END, then USER_BLOCK_START and _END, each once, as comments"
LARGEST = 1024 * 1024


def check_bank(turn: Any) -> tuple[list[Finding], int]:
    """Return the findings for the bank of the turn's vault, and how many files were checked."""
    bank = bank_of(turn)
    if bank is None:
        return [Finding("no_bank", FOLDER, "there is no memory bank here", INIT)], 0
    if bank.problem:
        return [Finding("link", FOLDER, bank.problem, f"replace it with a folder, then {INIT}")], 0
    found: list[Finding] = []
    pages: dict[str, BankPage] = {}
    if not os.access(f"{turn.vault}/{FOLDER}", os.R_OK | os.X_OK):  # else each of its files would be called missing
        return [Finding("unreadable", FOLDER, "the folder cannot be read", f"chmod u+rx {FOLDER}")], 0
    names = {name: item for name, item in snapshot_of(str(turn.vault)).items.items() if item.kind != "dir"}
    for name, item in names.items():
        found += _entry(turn, name, item.kind, pages)
    settings: MemoryBankSettings = turn.config
    found += [Finding("missing", name, "the file is missing", INIT) for name in (MEMORY, PATTERNS) if name not in names]
    for page in pages.values():
        found += _page(turn, page, settings)
    return [*found, *_unreached_pages(pages)], len(names)


def _entry(turn: Any, name: str, kind: str, pages: dict[str, BankPage]) -> Iterator[Finding]:
    """Check one file of the bank; if it is readable Markdown, add it to `pages`."""
    if kind != "file":
        yield Finding("link", name, "it is not a regular file", f"replace it with a file, or remove {name}")
        return
    if sensitive(name):
        yield Finding("secret", name, "a file of that name holds secrets", f"keep it elsewhere: move {name} away")
        return
    if not name.endswith(".md"):
        yield Finding("not_markdown", name, "it is not Markdown", f"move it out of {FOLDER}/")
        return
    try:
        text = as_text(turn.files.read(turn.files.resolve(name), limit=LARGEST))
    except ToolError as error:
        yield Finding("unreadable", name, error.message, f"shorten it or make it readable: {name}")
        return
    if text is None:
        yield Finding("encoding", name, "it is not UTF-8 text", f"save {name} as UTF-8")
        return
    pages[name] = read_page(name, text)


def _page(turn: Any, page: BankPage, settings: MemoryBankSettings) -> Iterator[Finding]:
    here = f"edit {page.name}"
    if page.blocks_problem is not None:
        message, line = page.blocks_problem
        yield Finding("blocks", page.name, message, BLOCKS, line)
    if page.front_problem:
        yield Finding("schema", page.name, page.front_problem, here, 1)
    else:
        for message, line in schema_problems(page, front_page=page.name == MEMORY):
            yield Finding("schema", page.name, message, here, line)
    yield from _size(page, settings)
    for number, line in enumerate(page.text.splitlines(), 1):
        if redact(line) != line:
            yield Finding(
                "secret", page.name, "this line holds what looks like a secret", f"take it out of {page.name}", number
            )
    for link in page.links:
        yield from _link(turn, page, link)
    for pointer in (page.front or {}).get("pointers") or ():
        if isinstance(pointer, str) and not _exists(turn, re.sub(r":\d+(-\d+)?$", "", pointer)):
            yield Finding("pointer", page.name, f"the source {pointer} is not there", here, 1)


def _size(page: BankPage, settings: MemoryBankSettings) -> Iterator[Finding]:
    front = page.name == MEMORY
    limit = settings.max_memory_lines if front else settings.max_file_lines
    if page.lines > limit:
        step = "move what is detailed to details/" if front else "split it by topic"
        yield Finding("size", page.name, f"it has {page.lines} lines; the limit is {limit}", step)
    if front and len(page.text) > settings.inject_characters:
        many = f"it has {len(page.text):,} characters and {settings.inject_characters:,} of them are shown to the model"
        yield Finding("size", page.name, many, "move what is detailed to details/")


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
    seen, todo = {MEMORY}, deque([MEMORY])
    while todo:
        page = pages[todo.popleft()]
        for link in page.links:
            name = _path_meant(page, link)
            for goal in pages:
                if goal not in seen and (goal == name or posixpath.dirname(goal) == name != FOLDER):
                    seen.add(goal)
                    todo.append(goal)
    for name in sorted(set(pages) - seen):
        yield Finding("unreached", name, "no routing rule or link of MEMORY.md leads to it", f"add a routing rule to {MEMORY}")
