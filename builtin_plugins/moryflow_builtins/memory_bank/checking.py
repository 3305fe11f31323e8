"""``memory-bank check``: structure, schema, links, pointers, sizes, secrets."""

from __future__ import annotations

import posixpath
import re
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from moryflow_sdk import ToolError, redact
from moryflow_sdk.sensitive import sensitive

from .bank import FOLDER, MEMORY, PATTERNS, as_text, bank_of
from .findings import Finding
from .settings import MemoryBankSettings
from .snapshot import take
from .structure import Link, Page, read_page

CHECK = "moryflow memory-bank check"
INIT = "moryflow memory-bank init"
BLOCKS = "give the file MACHINE_BLOCK_START and _END, then USER_BLOCK_START and _END, each once, as comments"
LARGEST = 1024 * 1024


def check(turn: Any) -> tuple[list[Finding], int]:
    """Return what is wrong with the bank of the turn's vault, and how many files were looked at."""
    bank = bank_of(turn)
    if bank is None:
        return [Finding("no_bank", FOLDER, "there is no memory bank here", INIT)], 0
    if bank.problem:
        return [Finding("link", FOLDER, bank.problem, f"replace it with a folder, then {INIT}")], 0
    found: list[Finding] = []
    pages: dict[str, Page] = {}
    names = {name: item for name, item in take(str(turn.vault)).items.items() if item.kind != "dir"}
    for name, item in names.items():
        found += _entry(turn, name, item.kind, pages)
    settings: MemoryBankSettings = turn.config
    found += [Finding("missing", name, "the file is missing", INIT) for name in (MEMORY, PATTERNS) if name not in names]
    for page in pages.values():
        found += _page(turn, page, settings)
    return [*found, *_unreached(pages)], len(names)


def _entry(turn: Any, name: str, kind: str, pages: dict[str, Page]) -> Iterator[Finding]:
    """Look at one entry; what is readable Markdown becomes a page."""
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


def _page(turn: Any, page: Page, settings: MemoryBankSettings) -> Iterator[Finding]:
    from .structure_schema import schema_problems

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
        if isinstance(pointer, str) and not _there(turn, re.sub(r":\d+(-\d+)?$", "", pointer)):
            yield Finding("pointer", page.name, f"the source {pointer} is not there", here, 1)


def _size(page: Page, settings: MemoryBankSettings) -> Iterator[Finding]:
    front = page.name == MEMORY
    limit = settings.max_memory_lines if front else settings.max_file_lines
    if page.lines > limit:
        step = "move what is detailed to details/" if front else "split it by topic"
        yield Finding("size", page.name, f"it has {page.lines} lines; the limit is {limit}", step)
    if front and len(page.text) > settings.inject_characters:
        many = f"it has {len(page.text):,} characters and {settings.inject_characters:,} of them are shown to the model"
        yield Finding("size", page.name, many, "move what is detailed to details/")


def _link(turn: Any, page: Page, link: Link) -> Iterator[Finding]:
    """Hold one link or pointer against what is there."""
    goal = unquote(link.goal.partition("#")[0])
    if not goal or re.match(r"[a-z][a-z0-9+.-]*:", link.goal, re.IGNORECASE):
        return
    name = _resolved(page, link)
    if goal.startswith("/") or name.startswith(".."):
        step = f"link to a file of this project, relative to {page.name}"
        yield Finding("link", page.name, f"{link.goal} leads out of the project", step, link.line)
    elif not _there(turn, name):
        yield Finding("link", page.name, f"{link.goal} is not there", f"edit {page.name}", link.line)
    elif link.at and link.at > _line_count(turn, name):
        yield Finding("pointer", page.name, f"{link.goal} has no line {link.at}", f"edit {page.name}", link.line)


def _resolved(page: Page, link: Link) -> str:
    """Return the path in the vault that a link or a pointer means."""
    goal = unquote(link.goal.partition("#")[0])
    if link.pointer:
        return posixpath.normpath(goal if goal.startswith(f"{FOLDER}/") else f"{FOLDER}/{goal}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(page.name), goal))


def _there(turn: Any, name: str) -> bool:
    target = turn.files.resolve(name)
    return not target.error and target.identity is not None and target.text == f"vault:/{name.rstrip('/')}"


def _line_count(turn: Any, name: str) -> int:
    try:
        return len(turn.files.read(turn.files.resolve(name), limit=16 * LARGEST).splitlines())
    except ToolError:
        return 0


def _unreached(pages: Mapping[str, Page]) -> Iterator[Finding]:
    """Every file is reached from the front page, over links to it or to its folder."""
    if MEMORY not in pages:
        return
    seen, todo = {MEMORY}, deque([MEMORY])
    while todo:
        page = pages[todo.popleft()]
        for link in page.links:
            name = _resolved(page, link)
            for goal in pages:
                if goal not in seen and (goal == name or posixpath.dirname(goal) == name != FOLDER):
                    seen.add(goal)
                    todo.append(goal)
    for name in sorted(set(pages) - seen):
        yield Finding("unreached", name, "no routing rule or link of MEMORY.md leads to it", f"add a routing rule to {MEMORY}")
