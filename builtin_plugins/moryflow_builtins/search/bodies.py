"""The bodies of ``glob``, ``grep`` and ``search_in_file``: search a folder or a file with ``rg``.

A pattern of ``glob`` is split into a folder, which is judged, and a pattern for the files below it.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

from moryflow_sdk import Target, ToolContext, ToolError, ToolResult
from moryflow_sdk.support.texts import HEAD_BYTES, looks_binary, mark_of

from .results import (
    FolderReader,
    SearchRequest,
    SearchResult,
    alternatives,
    glob_matcher,
    one_line,
    result_of,
    some,
    with_notes,
)
from .ripgrep import NAMES_IN_ONE_LINE, find_rg, list_files, options_of, search_folder, search_open_file

# Folders that no search looks into, whatever is ignored.
_OWN_FOLDERS = frozenset({".git", ".agent-output"})
_MAGIC = frozenset("*?[{\\")


def split(pattern: str, path: str) -> tuple[str, str]:
    """Return the folder that `pattern` (relative to `path`) starts from, and the rest of the pattern.

    ``..`` is resolved first, also after a wildcard, so no part of the rest can leave the folder.

    :raises ToolError: an alternative in the braces leads out of the folder.
    """
    # `{../a,b}` and `{/a,b}`: no file has such a name, so half of the matches would silently be missing.
    places = [found.start() for found in _UP.finditer(pattern)]
    inside = any(pattern.count("{", 0, place) > pattern.count("}", 0, place) for place in places)
    if inside or (pattern.startswith("{") and any(one.startswith(("/", "~/")) for one in alternatives(pattern))):
        raise ToolError(
            f"an alternative in the braces of {pattern[:80]!r} leads out of its folder",
            code="invalid_pattern",
            next_step="call glob once for each folder",
        )
    plain = posixpath.normpath(posixpath.join(path, pattern)) if pattern else path
    names = plain.split("/")
    if names[-1] in ("", ".", ".."):
        return plain, "*"
    magic = next((index for index, name in enumerate(names) if not _MAGIC.isdisjoint(name)), len(names) - 1)
    folder = "/".join(names[:magic]) or ("/" if plain.startswith("/") else ".")
    return folder, "/".join(names[magic:])


_UP = re.compile(r"(?<![^/{,])\.\.(?![^/},])")


async def glob_target(ctx: ToolContext, pattern: str, path: str, limit: int | None) -> ToolResult:
    """List the files below the call's target that `pattern` matches."""
    target = ctx.call.targets[0]
    folder, rest = split(pattern, path)
    matches, program = glob_matcher(rest), find_rg(ctx.vault)
    named = sorted(filter(matches, await list_files(ctx, target, program, "--files")))
    reader = FolderReader(ctx, target)
    refused = reader.refused_paths(named)
    found = [path for path in named if path not in refused]
    limit = len(found) if limit is None else limit
    shown = [one_line(posixpath.normpath(posixpath.join(folder, name))) for name in found[:limit]]
    notes = [note.replace("searched", "listed") for note in reader.notes]
    if len(found) > limit:
        notes.insert(0, f"{limit:,} of {len(found):,} files; narrow the pattern")
    if not found:
        notes += await _left_out(ctx, target, _ignored_names(ctx, target, program, matches), _IGNORED)
    if not found and "/" not in rest and "**" not in rest:
        notes.append(f"no match here; **/{rest} looks in all folders")
    return ToolResult(
        output="\n".join(with_notes(shown or ["no match"], notes)),
        title=f"glob {pattern} ({len(found)} file{'s' * (len(found) != 1)})",
        metadata={"target": target.text, "files": len(found)},
    )


# How long a search that found nothing looks through the files that it left out.
LEFT_OUT_SECONDS = 5.0
_WITH_IT = "files that were left out, as ignored or binary, have the pattern in them"
_IGNORED = "ignored files, which were left out, match"


async def _left_out(ctx: ToolContext, target: Target, looking: Awaitable[list[str]], what: str) -> list[str]:
    """Return the remark of a search without a result on the files that it left out: "no match" must not look like absence.

    Files that may not be shown are not mentioned: the remark would tell what is in them.
    """
    try:
        async with asyncio.timeout(LEFT_OUT_SECONDS):
            found = await looking
    except (OSError, TimeoutError, ToolError):
        return ["files that are ignored or binary were left out"]
    paths = sorted({path for path in found if _OWN_FOLDERS.isdisjoint(path.split("/"))})
    refused = FolderReader(ctx, target).refused_paths(paths)
    shown = [one_line(posixpath.normpath(posixpath.join(target.given, path))) for path in paths if path not in refused]
    return [f"{what}: {some(shown)}"] if shown else []


async def _ignored_names(ctx: ToolContext, target: Target, program: str, matches: Callable[[str], object]) -> list[str]:
    """Return the files that `matches`, also those that are ignored."""
    return list(filter(matches, await list_files(ctx, target, program, "--no-ignore", "--files")))


async def _files_with(ctx: ToolContext, target: Target, request: SearchRequest, program: str) -> list[str]:
    """Return the files that the pattern is in, also those that are ignored or binary."""
    how = ("--no-ignore", "--binary", "--files-with-matches", NAMES_IN_ONE_LINE, *options_of(request), "--", ".")
    paths = (path.removeprefix("./") for path in await list_files(ctx, target, program, *how))
    return list(filter(request.wants, paths))


async def grep_target(ctx: ToolContext, request: SearchRequest, limit: int | None, *, files_only: bool) -> ToolResult:
    """Search the call's target: everything below a folder, or one file."""
    target = ctx.call.targets[0]
    _check(request)
    if not _is_folder(ctx, target):
        found = await _search_file(ctx, target, request)
        return result_of(found, request.pattern, limit, files_only=files_only, tool="grep")
    program, reader = find_rg(ctx.vault), FolderReader(ctx, target)
    found = await search_folder(ctx, target, request, program, reader)
    found.lines = [replace(line, path=posixpath.normpath(posixpath.join(target.given, line.path))) for line in found.lines]
    found.notes += reader.notes
    if not found.lines and not found.more:
        looking = _files_with(ctx, target, replace(request, context=0), program)
        found.notes += await _left_out(ctx, target, looking, _WITH_IT)
    return result_of(found, request.pattern, limit, files_only=files_only, tool="grep")


async def search_file_target(ctx: ToolContext, request: SearchRequest, limit: int | None) -> ToolResult:
    _check(request)
    found = await _search_file(ctx, ctx.call.targets[0], request)
    return result_of(found, request.pattern, limit, files_only=False, tool="search_in_file")


def _check(request: SearchRequest) -> None:
    if not request.pattern or "\0" in request.pattern or "\n" in request.pattern:
        raise ToolError(
            "the pattern is empty or contains a line break", code="invalid_pattern", next_step="search for one line"
        )


def _is_folder(ctx: ToolContext, target: Target) -> bool:
    try:
        with ctx.files.folder(target):
            return True
    except ToolError as error:
        if error.code != "not_a_directory":
            raise
        return False


async def _search_file(ctx: ToolContext, target: Target, request: SearchRequest) -> SearchResult:
    program = find_rg(ctx.vault)
    with ctx.files.open(target) as file:
        head = os.pread(file.fileno(), HEAD_BYTES, 0)
        if looks_binary(head) or mark_of(head)[1].startswith("utf-32"):  # rg would read UTF-32 as UTF-16
            return SearchResult(notes=[f"{target.given} is not text that can be searched"])
        return await search_open_file(ctx, file, target.given, request, program)
