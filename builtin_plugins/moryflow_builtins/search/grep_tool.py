"""``grep`` and ``search_in_file``: one search over a folder or a file, with the best engine there is."""

from __future__ import annotations

import os
import posixpath
from dataclasses import replace

from moryflow_sdk import Target, ToolContext, ToolError, ToolResult
from moryflow_sdk.texts import HEAD_BYTES, looks_binary, mark_of

from .allowed import Reader
from .found import SearchRequest, SearchResult, result_of
from .ripgrep import find_rg, search_folder, search_open_file
from .scan import scan, scan_folder

WHOLE_FILE = 32 * 1024 * 1024


async def grep_target(ctx: ToolContext, wish: SearchRequest, limit: int | None, *, files_only: bool) -> ToolResult:
    """Search the call's target: everything below a folder, or one file."""
    target = ctx.call.targets[0]
    _check(wish)
    if not _is_folder(ctx, target):
        found = await _search_file(ctx, target, wish)
        return result_of(found, wish.pattern, limit, files_only=files_only, tool="grep")
    reader, program = Reader(ctx, target), find_rg(ctx.vault)
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
