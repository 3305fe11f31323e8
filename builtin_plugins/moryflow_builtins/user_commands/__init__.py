"""The user's own commands: Markdown files in ``~/.moryflow/commands``, and in the folders that the configuration names, used as
``/name words`` in ``chat``.

The name of the file is the name of the command. In its body, ``$ARGUMENTS`` stands for all words after the command, and ``$1``
to ``$9`` for one word each. The body becomes the prompt. Nothing in it is run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, cast

from moryflow_sdk import Command, Diagnostic, PluginContext, SlashResult, Turn, hookimpl
from moryflow_sdk.support.markdown_files import (
    MAX_FILE_BYTES,
    MarkdownFile,
    WrongFile,
    parse_markdown,
    read_markdown,
    shown_path,
)
from moryflow_sdk.support.own_files import files_below, is_file, leads_nowhere, own_files
from moryflow_sdk.support.settings import Meta, Settings
from moryflow_sdk.support.texts import did_you_mean

name = "user_commands"
config_path = "agents.runtime.userCommands"


class UserCommandSettings(Settings):
    """Where commands are read from, beside Moryflow's own folder."""

    paths: Annotated[tuple[str, ...], Meta("folders whose commands are read in place, such as ~/.claude/commands")] = ()


config_model = UserCommandSettings
# The command that checks the files again.
CHECK = "moryflow doctor"


@hookimpl
def commands(ctx: PluginContext) -> list[Command | Diagnostic]:
    """Read every command file; a file that is wrong is left out and reported."""
    files, problems = own_files(ctx.home / "commands", ".md", next_step=CHECK)
    others, missing = files_below(ctx.config.paths, ".md", next_step=CHECK)
    return [*(item for path in [*files, *others] for item in command_in(path)), *problems, *missing]


_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
# Fields of other systems that only describe, or that allow what is asked about here.
_ELSEWHERE = frozenset((
    "name", "title", "argument-hint", "allowed-tools", "allowedTools", "tags", "keywords", "category", "version", "author",
    "license", "mode", "globs", "dependencies", "disable-model-invocation", "user-invocable", "hide-from-slash-command-tool",
))  # fmt: skip
_RUNS = re.compile(r"!`([^`\n]+)`")
_PLACE = re.compile(r"\$(ARGUMENTS|[1-9])(?![A-Za-z0-9_])")


def command_in(path: Path) -> list[Command | Diagnostic]:
    """Return the command in a file, and the problems; a file needs no frontmatter."""
    name = path.stem.removesuffix(".prompt")  # Copilot
    if not _NAME.match(name):
        return [_wrong(path, "name", "the name may hold lower-case letters, digits, '-', '_' and '.'")]
    try:
        read = read_markdown(path) if _has_head(path) else _without_head(path)
    except WrongFile as wrong:
        return [_wrong(path, wrong.code, str(wrong), wrong.line, wrong.column)]
    except OSError as error:
        return [_wrong(path, "read", leads_nowhere(path) or f"it cannot be read: {error.strerror}")]
    body = read.body.strip()
    if not body:
        return [_wrong(path, "body", "it has no text: what should the agent be told?")]
    description = read.metadata.get("description")
    shown = description if isinstance(description, str) and description.strip() else _first_line(body)

    async def slash(rest: str, _turn: Turn) -> SlashResult:
        return SlashResult(prompt=fill_in(body, rest))

    return [
        Command(name=name, help=" ".join(shown.split()), slash=slash, source=str(path), revision=body),
        *_odd_fields(path, read),
    ]


def _odd_fields(path: Path, read: MarkdownFile) -> Iterator[Diagnostic]:
    """Report the fields of the frontmatter that have no effect."""
    for field, value in read.metadata.items():
        line = read.line_of(field) if isinstance(cast("object", field), str) else None
        if field in _ELSEWHERE:
            continue
        if field != "description":
            hint = did_you_mean(str(field), ["description"])
            yield _wrong(path, "field", f"the field {field!r:.80} is not known and is ignored{hint}", line)
        elif not isinstance(value, str):
            yield _wrong(path, "field", "description must be text; it is ignored", line)


def _wrong(path: Path, code: str, message: str, line: int | None = None, column: int | None = None) -> Diagnostic:
    said = Diagnostic(file=shown_path(path), code=f"command_{code}", message=message, line=line, column=column)
    return said.replace(next_step=f"change {path.name}, then {CHECK}")


def fill_in(body: str, rest: str) -> str:
    """Return `body` with the words of `rest` in their places; if it has no places, they follow at the end."""
    words = _words(rest)
    # Nothing is run here: the model runs it through its own tool, where every rule holds.
    body = _RUNS.sub(r"(run `\1` first, and use what it prints)", body)

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
    if not is_file(path):
        return True  # read_markdown reports the problem
    with path.open("rb") as file:
        return file.read(7).removeprefix(b"\xef\xbb\xbf").startswith(b"---")


def _without_head(path: Path) -> MarkdownFile:
    """Read a file without frontmatter."""
    head = b"---\n{}\n---\n"
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)  # no more, because the file may be larger than the memory
    try:
        return parse_markdown(head + data)
    except WrongFile as wrong:
        line = wrong.line - head.count(b"\n") if wrong.line else None
        raise WrongFile(wrong.code, str(wrong), line, wrong.column) from wrong


def _first_line(body: str) -> str:
    line = body.splitlines()[0].lstrip("# ")
    return line if len(line) <= 80 else f"{line[:79]}…"
