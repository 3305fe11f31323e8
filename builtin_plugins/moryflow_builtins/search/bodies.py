"""The bodies of ``glob``, ``grep`` and ``search_in_file``: search a folder or a file with ``rg``.

A pattern of ``glob`` is split into a folder, which is judged, and a pattern for the files below it.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from moryflow_sdk import Target, ToolContext, ToolError, ToolResult
from moryflow_sdk.support.texts import HEAD_BYTES, looks_binary, mark_of

from .results import (
    FolderReader,
    SearchRequest,
    SearchResult,
    alternatives,
    change_time,
    changed_since,
    glob_matcher,
    one_line,
    result_of,
    some,
    with_notes,
)
from .ripgrep import NAMES_IN_ONE_LINE, find_rg, list_files, options_of, search_folder, search_open_file

_OWN_FOLDERS = frozenset({".git", ".agent-output"})
"""Folders that no search looks into, whatever is ignored."""
T = TypeVar("T")
_MAGIC = frozenset("*?[{\\")


def split(pattern: str, path: str) -> tuple[str, str]:
    """Return the folder that `pattern` (relative to `path`) starts from, and the rest of the pattern.

    ``..`` is resolved first, also after a wildcard, so no part of the rest can leave the folder.

    :raises ToolError: an alternative in the braces leads out of the folder.
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
    """Refuse ``{../a,b}`` and ``{/a,b}``: no file has such a name, so half of the matches would silently be missing."""
    places = [found.start() for found in _UP.finditer(pattern)]
    inside = any(pattern.count("{", 0, place) > pattern.count("}", 0, place) for place in places)
    if inside or (pattern.startswith("{") and any(one.startswith(("/", "~/")) for one in alternatives(pattern))):
        raise ToolError(
            f"an alternative in the braces of {pattern[:80]!r} leads out of its folder",
            code="invalid_pattern",
            next_step="call glob once for each folder",
        )


async def glob_target(ctx: ToolContext, pattern: str, path: str, limit: int | None) -> ToolResult:
    """List the files below the call's target that `pattern` matches."""
    target = ctx.call.targets[0]
    folder, rest = split(pattern, path)
    matches, program = glob_matcher(rest), find_rg(ctx.vault)

    async def listed() -> tuple[list[str], list[str]]:
        named = sorted(filter(matches, await list_files(ctx, target, program, "--files")))
        return named, named

    named, changing = await _unchanged(ctx, target, listed)
    reader = FolderReader(ctx, target)
    _leave_out_changing(reader, changing)
    refused = reader.refused_paths(named)
    found = [path for path in named if path not in refused and posixpath.dirname(path) not in changing]
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


async def _unchanged(
    ctx: ToolContext, target: Target, search: Callable[[], Awaitable[tuple[T, Sequence[str]]]]
) -> tuple[T, set[str]]:
    """Search until no folder on the way to a result changed meanwhile, three times at most.

    ``rg`` lists files and then opens them by name: where a folder changed, it may have followed a link to another place.

    :param search: returns the result, and the paths in it.
    :returns: the last result, and the folders in it that still changed; what is in them is not to be shown.
    """
    for pause in (0.03, 0.3, 0.0):
        began = change_time()
        found, paths = await search()
        with ctx.files.folder(target) as folder:
            changing = await asyncio.to_thread(changed_since, folder, paths, began)
        if not changing:
            break
        await asyncio.sleep(pause)
    return found, changing


def _leave_out_changing(reader: FolderReader, changing: set[str]) -> None:
    for folder in sorted(changing):
        reader.leave_out(f"{folder or '.'}/", "changing")


LEFT_OUT_SECONDS = 5.0
"""How long a search that found nothing looks through the files that it left out."""
_WITH_IT = "files that were left out, as ignored or binary, have the pattern in them"
_IGNORED = "ignored files, which were left out, match"


async def _left_out(ctx: ToolContext, target: Target, looking: Awaitable[list[str] | None], what: str) -> list[str]:
    """Return the remark of a search without a result on the files that it left out: "no match" must not look like absence.

    Files that may not be shown are not mentioned: the remark would tell what is in them.
    """
    try:
        async with asyncio.timeout(LEFT_OUT_SECONDS):
            paths = await looking
    except (OSError, TimeoutError, ToolError):
        paths = None
    if paths is None:
        return ["files that are ignored or binary were left out"]
    paths = sorted({path for path in paths if _OWN_FOLDERS.isdisjoint(path.split("/"))})
    refused = FolderReader(ctx, target).refused_paths(paths)
    shown = [one_line(posixpath.normpath(posixpath.join(target.given, path))) for path in paths if path not in refused]
    return [f"{what}: {some(shown)}"] if shown else []


async def _ignored_names(ctx: ToolContext, target: Target, program: str, matches: Callable[[str], object]) -> list[str]:
    """Return the files that `matches`, also those that are ignored."""
    return list(filter(matches, await list_files(ctx, target, program, "--no-ignore", "--files")))


async def _files_with(ctx: ToolContext, target: Target, request: SearchRequest, program: str) -> list[str] | None:
    """Return the files that the pattern is in, also those that are ignored or binary."""
    how = ("--no-ignore", "--binary", "--files-with-matches", NAMES_IN_ONE_LINE, *options_of(request), "--", ".")

    async def listed() -> tuple[list[str], list[str]]:
        paths = [path.removeprefix("./") for path in await list_files(ctx, target, program, *how)]
        return paths, paths

    paths, changing = await _unchanged(ctx, target, listed)
    return None if changing else list(filter(request.wants, paths))


async def grep_target(ctx: ToolContext, request: SearchRequest, limit: int | None, *, files_only: bool) -> ToolResult:
    """Search the call's target: everything below a folder, or one file."""
    target = ctx.call.targets[0]
    _check(request)
    if not _is_folder(ctx, target):
        found = await _search_file(ctx, target, request)
        return result_of(found, request.pattern, limit, files_only=files_only, tool="grep")
    program = find_rg(ctx.vault)

    async def searched() -> tuple[tuple[SearchResult, FolderReader], list[str]]:
        reader = FolderReader(ctx, target)
        found = await search_folder(ctx, target, request, program, reader)
        return (found, reader), [line.path for line in found.lines]

    (found, reader), changing = await _unchanged(ctx, target, searched)
    _leave_out_changing(reader, changing)
    found.lines = [line for line in found.lines if posixpath.dirname(line.path) not in changing]
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
