"""What ``glob``, ``grep`` and ``search_in_file`` do: one search over a folder or a file, with the best engine there is.

A pattern of ``glob`` is a folder and what is looked for below it; the folder is what is judged.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import re
import time
from dataclasses import replace

from moryflow_sdk import Target, ToolContext, ToolError, ToolResult
from moryflow_sdk.support.texts import HEAD_BYTES, looks_binary, mark_of

from .engines import find_rg, list_files, scan, scan_folder, search_folder, search_open_file
from .results import (
    FolderReader,
    SearchRequest,
    SearchResult,
    alternatives,
    glob_matcher,
    one_line,
    result_of,
    with_notes,
)

WALK_SECONDS = 30.0
MAX_FILES = 1_000_000
_MAGIC = frozenset("*?[{\\")


def split(pattern: str, path: str) -> tuple[str, str]:
    """Return the folder that `pattern` (relative to `path`) reaches, and the rest of it.

    ``..`` is taken out first, also behind a wildcard, so that no part of the rest can leave the folder.

    :raises ToolError: one of the alternatives in its braces leads elsewhere, which is not one folder.
    """
    _check_alternatives(pattern)
    plain = posixpath.normpath(posixpath.join(path, pattern)) if pattern else path
    names = plain.split("/")
    if names[-1] in ("", ".", ".."):
        return plain, "*"
    magic = next((index for index, name in enumerate(names) if not _MAGIC.isdisjoint(name)), len(names) - 1)
    folder = "/".join(names[:magic]) or ("/" if plain.startswith("/") else ".")
    return folder, "/".join(names[magic:])


_UP = re.compile(r"(?<![^/{,])\.\.(?![^/},])")


def _check_alternatives(pattern: str) -> None:
    """Refuse ``{../a,b}`` and ``{/a,b}``: taken as names, which no file has, half of the answer would be missing."""
    places = [found.start() for found in _UP.finditer(pattern)]
    inside = any(pattern.count("{", 0, place) > pattern.count("}", 0, place) for place in places)
    if inside or (pattern.startswith("{") and any(one.startswith(("/", "~/")) for one in alternatives(pattern))):
        raise ToolError(
            f"an alternative in the braces of {pattern[:80]!r} leads out of its folder",
            code="invalid_pattern",
            next_step="call glob once for each folder",
        )


async def glob_target(ctx: ToolContext, pattern: str, path: str, limit: int | None) -> ToolResult:
    """List the files below the call's target that `pattern` names."""
    target = ctx.call.targets[0]
    folder, rest = split(pattern, path)
    paths, complete = await _list_files(ctx, target)
    reader = FolderReader(ctx, target)
    named = sorted(filter(glob_matcher(rest), paths))
    refused = reader.not_shown(named)
    found = [path for path in named if path not in refused]
    limit = len(found) if limit is None else limit
    shown = [one_line(posixpath.normpath(posixpath.join(folder, name))) for name in found[:limit]]
    notes = [note.replace("searched", "listed") for note in reader.notes]
    if len(found) > limit:
        notes.insert(0, f"{limit:,} of {len(found):,} files; narrow the pattern")
    if not complete:
        notes.append("not all folders were looked at")
    if not found and "/" not in rest and "**" not in rest:
        notes.append(f"no match here; **/{rest} looks in all folders")
    return ToolResult(
        output="\n".join(with_notes(shown or ["no match"], notes)),
        title=f"glob {pattern} ({len(found)} file{'s' * (len(found) != 1)})",
        metadata={"target": target.text, "files": len(found)},
    )


async def _list_files(ctx: ToolContext, target: Target) -> tuple[list[str], bool]:
    """Return the files below `target`, by ``rg`` where there is one, else by walking; and whether these are all."""
    program = find_rg(ctx.vault)
    found = await list_files(ctx, target, program) if program is not None else None
    return (found, True) if found is not None else await asyncio.to_thread(_walk_files, ctx, target)


def _walk_files(ctx: ToolContext, target: Target) -> tuple[list[str], bool]:
    """List by walking, for as long as is reasonable."""
    paths: list[str] = []
    end = time.monotonic() + WALK_SECONDS
    for path, _ in ctx.files.walk(target):
        paths.append(path)
        if len(paths) >= MAX_FILES or (len(paths) % 256 == 0 and (time.monotonic() > end or ctx.cancelled)):
            return paths, False
    return paths, True


WHOLE_FILE = 32 * 1024 * 1024


async def grep_target(ctx: ToolContext, wish: SearchRequest, limit: int | None, *, files_only: bool) -> ToolResult:
    """Search the call's target: everything below a folder, or one file."""
    target = ctx.call.targets[0]
    _check(wish)
    if not _is_folder(ctx, target):
        found = await _search_file(ctx, target, wish)
        return result_of(found, wish.pattern, limit, files_only=files_only, tool="grep")
    reader, program = FolderReader(ctx, target), find_rg(ctx.vault)
    if program is not None:
        found = await search_folder(ctx, target, wish, program, reader)
    else:
        found = await scan_folder(ctx, target, wish, reader)
    found.lines = [replace(line, path=posixpath.normpath(posixpath.join(target.given, line.path))) for line in found.lines]
    found.notes += reader.notes
    return result_of(found, wish.pattern, limit, files_only=files_only, tool="grep")


async def search_file_target(ctx: ToolContext, wish: SearchRequest, limit: int | None) -> ToolResult:
    """Search the call's target, which must be a file."""
    _check(wish)
    found = await _search_file(ctx, ctx.call.targets[0], wish)
    return result_of(found, wish.pattern, limit, files_only=False, tool="search_in_file")


def _check(wish: SearchRequest) -> None:
    if not wish.pattern or "\0" in wish.pattern or "\n" in wish.pattern:
        raise ToolError("the pattern is empty or goes over a line end", code="invalid_pattern", next_step="search for one line")


def _is_folder(ctx: ToolContext, target: Target) -> bool:
    try:
        with ctx.files.folder(target):
            return True
    except ToolError as error:
        if error.code != "not_a_directory":
            raise
        return False


async def _search_file(ctx: ToolContext, target: Target, wish: SearchRequest) -> SearchResult:
    program = find_rg(ctx.vault)
    with ctx.files.open(target) as file:
        head = os.pread(file.fileno(), HEAD_BYTES, 0)
        if looks_binary(head):
            return SearchResult(notes=[f"{target.given} is not text; it was not searched"])
        if program is not None and not mark_of(head)[1].startswith("utf-32"):  # which rg takes for UTF-16
            return await search_open_file(ctx, file, target.given, wish, program)
    return await scan([(target.given, ctx.files.read(target, limit=WHOLE_FILE))], wish, mark=ctx.mark)
