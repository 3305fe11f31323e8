"""``moryflow memory-bank check``: markers, schema, links, reachability, sizes, secrets."""

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

from . import FOLDER, MAX_SHOWN, MEMORY, PATTERNS, PROTOCOL_VERSION, SECTIONS, as_text, bank_of, problem_of

INIT = "moryflow memory-bank init"
BLOCKS = "give the file MACHINE_BLOCK_START and _END, then USER_BLOCK_START and _END, each once, as comments"
LARGEST = 1024 * 1024
MAX_MEMORY_LINES = 200
MAX_FILE_LINES = 300


class Finding(NamedTuple):
    """One problem.

    :ivar code: a short stable reason: ``missing``, ``blocks``, ``schema``, ``link``, ``size``, ``drift`` …
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


_LINK = re.compile(
    r"(?<!!)\[[^\]\n]*\]\(\s*<?([^)>\s]+)>?[^)\n]*\)|`((?:memory-bank/|details/)[\w./-]+\.\w+)(?::\d+(?:-\d+)?)?`"
)
_ROUTE = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+.+?\s*(?:→|->|=>)\s*.+$", re.MULTILINE)


def schema_problems(name: str, text: str) -> Iterator[str]:
    """Yield what is wrong with a page: each needs a title; the front page a version, its sections and a routing rule."""
    front: Mapping[str, Any] = {}
    if text.startswith("---"):
        try:
            found = parse_markdown(text.encode(), json5=False)
        except WrongFile as error:
            yield str(error)
            return
        front = found.metadata
        if found.loose:
            yield str(found.loose)
    if not re.search(r"^# .*\S", text, re.MULTILINE):
        yield "title: there is none"
    if name != MEMORY:
        return
    if (version := front.get("protocol_version", "none")) != PROTOCOL_VERSION:
        yield f"front.protocol_version: it is {version}, and must be {PROTOCOL_VERSION}; the protocol wins"
    sections = [section for section in re.findall(r"^## +(.*?) *$", text, re.MULTILINE) if section in SECTIONS]
    if missing := [section for section in SECTIONS if section not in sections]:
        yield f"sections: section {missing[0]!r} is missing"
    elif sections != list(SECTIONS):
        yield f"sections: the sections must be in the order {', '.join(SECTIONS)}"
    if not _ROUTE.search(text):
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
    pages: dict[str, str] = {}
    for name in names:
        found += _file(turn, name, pages)
    links = {name: list(_links(name, text)) for name, text in pages.items()}
    for name, text in pages.items():
        found += _page(turn, name, text, links[name])
    return [*found, *_unreached_pages(links)], len(names)


def _file(turn: Any, name: str, pages: dict[str, str]) -> Iterator[Finding]:
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
            pages[name] = text


def _page(turn: Any, name: str, text: str, links: Sequence[tuple[str, str, int]]) -> Iterator[Finding]:
    wrong = problem_of(text)
    if wrong is not None:
        yield Finding("blocks", name, wrong[0], BLOCKS, wrong[1])
    for message in schema_problems(name, text):
        yield Finding("schema", name, message, f"edit {name}", 1)
    lines = text.splitlines()
    limit = MAX_MEMORY_LINES if name == MEMORY else MAX_FILE_LINES
    if len(lines) > limit:
        yield Finding("size", name, f"it has {len(lines)} lines; the limit is {limit}", "move what is detailed to details/")
    if name == MEMORY and len(text) > MAX_SHOWN:
        many = f"it has {len(text):,} characters and {MAX_SHOWN:,} of them are shown to the model"
        yield Finding("size", name, many, "move what is detailed to details/")
    for number, line in enumerate(lines, 1):
        if redact(line) != line:
            yield Finding("secret", name, "this line holds what looks like a secret", f"take it out of {name}", number)
    for shown, goal, number in links:
        if goal.startswith(("/", "..")):
            yield Finding("link", name, f"{shown} leads out of the project", "link to a file of this project", number)
        else:
            target = turn.files.resolve(goal)
            if target.error or target.identity is None or target.text != f"vault:/{goal.rstrip('/')}":
                yield Finding("link", name, f"{shown} is not there", f"edit {name}", number)


def _links(name: str, text: str) -> Iterator[tuple[str, str, int]]:
    """Yield the links of a page, which are relative to it, and the pointers, which are relative to the bank.

    Each is yielded as it stands there, as a path in the vault, and with its line.
    """
    for number, line in enumerate(text.splitlines(), 1):
        for link, pointer in _LINK.findall(line):
            if pointer:
                yield pointer, posixpath.normpath(pointer if pointer.startswith(FOLDER) else f"{FOLDER}/{pointer}"), number
            elif (goal := unquote(link.partition("#")[0])) and not re.match(r"[a-z][a-z0-9+.-]*:", link, re.IGNORECASE):
                yield link, posixpath.normpath(posixpath.join(posixpath.dirname(name), goal)), number


def _unreached_pages(links: Mapping[str, Sequence[tuple[str, str, int]]]) -> Iterator[Finding]:
    """Yield the files that no chain of links from the front page reaches; a link to their folder is enough."""
    seen, todo = {MEMORY}, [MEMORY] if MEMORY in links else list(links)
    while todo:
        goals = {goal for _, goal, _ in links[todo.pop()]}
        new = {name for name in links.keys() - seen if name in goals or posixpath.dirname(name) in goals - {FOLDER}}
        seen |= new
        todo += new
    for name in sorted(links.keys() - seen if MEMORY in links else ()):
        yield Finding("unreached", name, "no routing rule or link of MEMORY.md leads to it", f"add a routing rule to {MEMORY}")
