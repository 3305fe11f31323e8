"""Make a command of a Markdown file."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from moryflow_sdk import Command, Diagnostic, SlashResult, Turn
from moryflow_sdk.markdown_files import WrongFile, parse_markdown, read_markdown, shown_path
from moryflow_sdk.own_files import leads_nowhere

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
_PLACE = re.compile(r"\$(ARGUMENTS|[1-9])(?![A-Za-z0-9_])")


def command_in(path: Path) -> list[Command | Diagnostic]:
    """Return the command in a file and what is wrong with it; a file needs no frontmatter."""
    source = shown_path(path)
    if not _NAME.match(path.stem):
        return [Diagnostic(file=source, code="command_name", message="the name may hold small letters, digits, '-' and '_'")]
    try:
        read = read_markdown(path) if _has_head(path) else parse_markdown(b"---\n{}\n---\n" + path.read_bytes())
    except WrongFile as wrong:
        return [Diagnostic(file=source, code=f"command_{wrong.code}", message=str(wrong), line=wrong.line, column=wrong.column)]
    except OSError as error:
        message = leads_nowhere(path) or f"it cannot be read: {error.strerror}"
        return [Diagnostic(file=source, code="command_read", message=message)]
    body = read.body.strip()
    if not body:
        return [Diagnostic(file=source, code="command_body", message="it has no text: what should the agent be told?")]
    description = read.metadata.get("description")
    shown = description if isinstance(description, str) and description.strip() else _first_line(body)

    async def slash(rest: str, _turn: Turn) -> SlashResult:
        return SlashResult(prompt=filled(body, rest))

    return [Command(name=path.stem, help=" ".join(shown.split()), slash=slash, source=str(path))]


def filled(body: str, rest: str) -> str:
    """Return `body` with the words of `rest` in their places; without a place they follow at the end."""
    words = _words(rest)

    def word(match: re.Match[str]) -> str:
        if match[1] == "ARGUMENTS":
            return rest
        place = int(match[1])
        return words[place - 1] if place <= len(words) else ""

    if _PLACE.search(body):
        return _PLACE.sub(word, body)
    return f"{body}\n\n{rest}" if rest else body


def _words(rest: str) -> list[str]:
    try:
        return shlex.split(rest)
    except ValueError:
        return rest.split()


def _has_head(path: Path) -> bool:
    if not path.is_file():
        return True  # read_markdown says what is wrong with it
    with path.open("rb") as file:
        return file.read(7).removeprefix(b"\xef\xbb\xbf").startswith(b"---")


def _first_line(body: str) -> str:
    line = body.splitlines()[0].lstrip("# ")
    return line if len(line) <= 80 else f"{line[:79]}…"
