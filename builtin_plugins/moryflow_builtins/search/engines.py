"""The bodies of ``glob``, ``grep`` and ``search_in_file``: search a folder or a file with the best engine available.

That is ``rg`` if it is installed, else the standard library in a worker process: a model's pattern may keep that engine busy
for ever.

A pattern of ``glob`` is split into a folder, which is judged, and a pattern for the files below it.
"""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
import re
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from moryflow_sdk import Target, ToolContext, ToolError, ToolResult
from moryflow_sdk.support.processes import end_process, marked_environment
from moryflow_sdk.support.texts import HEAD_BYTES, looks_binary, mark_of

from .results import (
    FolderReader,
    SearchLine,
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
from .ripgrep import NAMES_IN_ONE_LINE, find_rg, list_files, options_of, search_folder, search_open_file, unusable

_OWN_FOLDERS = frozenset({".git", ".agent-output"})
"""Folders that no search looks into, whatever is ignored."""
MAX_FILE = 16 * 1024 * 1024
"""Larger files below a folder are not searched, because each file is read whole. A file that is named, and all files with
``rg``, are searched at any size."""

SLOW_SECONDS = 20.0
BATCH = 64
Contents = Iterable[tuple[str, bytes]]


async def scan_folder(ctx: ToolContext, target: Target, request: SearchRequest, reader: FolderReader) -> SearchResult:
    """Search the files below `target` that `reader` shows."""
    wants = request.wants

    def wanted(path: str) -> bool:
        return (wants is None or bool(wants(path))) and reader.shows(path)

    contents = ctx.files.contents(target, wanted, limit=MAX_FILE, left_out=reader.leave_out)
    return await scan(contents, request, ctx.mark)


def _texts(contents: Contents, *, binary: bool) -> Iterator[tuple[str, bytes]]:
    """Yield the text files, as UTF-8 without a byte-order mark; with `binary`, other files too."""
    for path, data in contents:
        mark, encoding = mark_of(data)
        if encoding.startswith(("utf-16", "utf-32")):
            yield path, data[len(mark) :].decode(encoding, "replace").encode()
        elif binary or not looks_binary(data):
            yield path, data.removeprefix(mark)


async def scan(contents: Contents, request: SearchRequest, mark: str, *, binary: bool = False) -> SearchResult:
    """Send the files to a process that searches with the standard library, and stop it after :data:`SLOW_SECONDS`.

    :param mark: the mark of the call, by which its processes are found.
    :param binary: whether to search binary files too.
    :raises ToolError: ``invalid_pattern``.
    """
    pattern = re.escape(request.pattern) if request.literal else request.pattern
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise unusable(error) from error
    found = SearchResult()
    program = str(Path(__file__).with_name("worker.py"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", program, env=marked_environment(mark), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=2**26
    )
    asked = {"pattern": pattern, "ignore_case": request.ignore_case, "context": request.context}
    feeding = asyncio.ensure_future(_send_files(process, _texts(contents, binary=binary), asked))
    try:
        async with asyncio.timeout(SLOW_SECONDS):
            await _read_answers(process, found)
    except TimeoutError:
        found.stop(f"stopped after {SLOW_SECONDS:g} s; a simpler pattern is faster")
    finally:
        feeding.cancel()
        await end_process(process)
    return found


async def _send_files(process: Process, files: Iterator[tuple[str, bytes]], request: dict[str, Any]) -> None:
    """Write the request, then the files, which are read in a thread, to the worker's standard input."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    try:
        while batch := await asyncio.to_thread(lambda: list(islice(files, BATCH))):
            for path, data in batch:
                name = path.encode()
                process.stdin.write(b"%d %d\n" % (len(name), len(data)) + name + data)
                await process.stdin.drain()
        process.stdin.close()
    except ConnectionError:
        return  # the worker was stopped


async def _read_answers(process: Process, found: SearchResult) -> None:
    assert process.stdout is not None
    async for answer in process.stdout:
        path, lines = json.loads(answer)
        if not found.take(SearchLine(path, *line) for line in lines):
            return


WALK_SECONDS = 30.0
MAX_FILES = 1_000_000
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
    matches, program, began = glob_matcher(rest), find_rg(ctx.vault), change_time()
    paths = await list_files(ctx, target, program, "--files") if program is not None else None
    named, complete = sorted(filter(matches, paths or ())), True
    if paths is None or await _may_have_followed_link(ctx, target, named, began):
        paths, complete = await asyncio.to_thread(_walk_files, ctx, target)
        named = sorted(filter(matches, paths))
    reader = FolderReader(ctx, target)
    refused = reader.refused_paths(named)
    found = [path for path in named if path not in refused]
    limit = len(found) if limit is None else limit
    shown = [one_line(posixpath.normpath(posixpath.join(folder, name))) for name in found[:limit]]
    notes = [note.replace("searched", "listed") for note in reader.notes]
    if len(found) > limit:
        notes.insert(0, f"{limit:,} of {len(found):,} files; narrow the pattern")
    if not complete:
        notes.append("not all folders were searched")
    if not found and complete:
        notes += await _left_out(ctx, target, _ignored_names(ctx, target, program, matches), _IGNORED)
    if not found and "/" not in rest and "**" not in rest:
        notes.append(f"no match here; **/{rest} looks in all folders")
    return ToolResult(
        output="\n".join(with_notes(shown or ["no match"], notes)),
        title=f"glob {pattern} ({len(found)} file{'s' * (len(found) != 1)})",
        metadata={"target": target.text, "files": len(found)},
    )


async def _may_have_followed_link(ctx: ToolContext, target: Target, paths: Iterable[str], began: int) -> bool:
    """Whether ``rg`` may have followed a link on the way to `paths`; its result is then not used."""
    with ctx.files.folder(target) as folder:
        return await asyncio.to_thread(changed_since, folder, list(paths), began)


def _walk_files(
    ctx: ToolContext, target: Target, *, ignore: bool = True, seconds: float = WALK_SECONDS
) -> tuple[list[str], bool]:
    """Return the files below `target` by walking, and whether these are all: the walk ends at a limit of files and time."""
    paths: list[str] = []
    end = time.monotonic() + seconds
    for path, _ in ctx.files.walk(target, ignore=ignore):
        paths.append(path)
        if len(paths) >= MAX_FILES or (len(paths) % 256 == 0 and (time.monotonic() > end or ctx.cancelled)):
            return paths, False
    return paths, True


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


async def _ignored_names(
    ctx: ToolContext, target: Target, program: str | None, matches: Callable[[str], object]
) -> list[str] | None:
    """Return the files that `matches`, also those that are ignored."""
    if program is not None:
        paths = await list_files(ctx, target, program, "--no-ignore", "--files")
    else:
        walked = await asyncio.to_thread(_walk_files, ctx, target, ignore=False, seconds=LEFT_OUT_SECONDS)
        paths = walked[0] if walked[1] else None
    return None if paths is None else list(filter(matches, paths))


async def _files_with(ctx: ToolContext, target: Target, request: SearchRequest, program: str | None) -> list[str] | None:
    """Return the files that the pattern is in, also those that are ignored or binary."""
    if program is not None:
        began, how = change_time(), ("--no-ignore", "--binary", "--files-with-matches", NAMES_IN_ONE_LINE)
        options = (*how, *options_of(request), "--", ".")
        listed = await list_files(ctx, target, program, *options)
        paths = [path.removeprefix("./") for path in listed or ()]
        if listed is None or await _may_have_followed_link(ctx, target, paths, began):
            return None
        return list(filter(request.wants, paths)) if request.wants else paths

    def wanted(path: str) -> bool:
        return _OWN_FOLDERS.isdisjoint(path.split("/")) and (request.wants is None or bool(request.wants(path)))

    contents = ctx.files.contents(target, wanted, ignore=False, limit=MAX_FILE)
    return [line.path for line in (await scan(contents, request, ctx.mark, binary=True)).lines]


WHOLE_FILE = 32 * 1024 * 1024


async def grep_target(ctx: ToolContext, request: SearchRequest, limit: int | None, *, files_only: bool) -> ToolResult:
    """Search the call's target: everything below a folder, or one file."""
    target = ctx.call.targets[0]
    _check(request)
    if not _is_folder(ctx, target):
        found = await _search_file(ctx, target, request)
        return result_of(found, request.pattern, limit, files_only=files_only, tool="grep")
    reader, program = FolderReader(ctx, target), find_rg(ctx.vault)
    began = change_time()
    found = await search_folder(ctx, target, request, program, reader) if program is not None else None
    if found is None or await _may_have_followed_link(ctx, target, (line.path for line in found.lines), began):
        reader = FolderReader(ctx, target)
        found = await scan_folder(ctx, target, request, reader)
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
        if looks_binary(head):
            return SearchResult(notes=[f"{target.given} is not text; it was not searched"])
        if program is not None and not mark_of(head)[1].startswith("utf-32"):  # rg would read UTF-32 as UTF-16
            return await search_open_file(ctx, file, target.given, request, program)
    return await scan([(target.given, ctx.files.read(target, limit=WHOLE_FILE))], request, ctx.mark)
