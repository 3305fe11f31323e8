"""The bodies of ``glob``, ``grep`` and ``search_in_file``: search a folder or a file with the best engine available.

That is ``rg`` if it is installed, else google-re2 in this process, else the standard library in a worker process.

``rg`` is started with an argument list, in the judged folder itself, and stopped when it prints too much. A tool's argument is
never an option: patterns are part of ``--regexp=``, and ``--`` comes before operands. A model's pattern may keep the standard
library's engine busy for ever, so that engine never runs in the host's process.

A pattern of ``glob`` is split into a folder, which is judged, and a pattern for the files below it.
"""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
import re
import shutil
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import IO, Any

from moryflow_sdk import Target, ToolContext, ToolError, ToolResult
from moryflow_sdk.support.processes import end_process, marked_environment
from moryflow_sdk.support.texts import HEAD_BYTES, looks_binary, mark_of

from .results import (
    SEARCH_SECONDS,
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
    with_notes,
)
from .worker import find_lines

COMMON = (
    "--no-config", "--no-messages", "--color=never", "--hidden", "--no-require-git", "--no-ignore-global",
    "--no-ignore-exclude", "--glob=!.git", "--glob=!.agent-output", "--glob=!*\n*", "--null",
)  # fmt: skip
"""The user's configuration of ``rg`` is not read. Ignore files count, in a repository or not. Names with a line end are left
out: lines of such a file could look like another file's."""

_LINE = re.compile(rb"([^\0\n]*)\0(\d+)([:-])([^\n]*)")
_ENDED_EARLY = re.compile(rb"([^\0\n]*): WARNING: stopped searching binary file after match")
_UNREADABLE = re.compile(r"^(?:rg: )?(?:\./)?(.+): .* \(os error \d+\)$", re.MULTILINE)
_PLAIN_GLOB = re.compile(r"[\w.*?-]+", re.ASCII)
CHUNK = 256 * 1024


def find_rg(vault: Path) -> str | None:
    """Return the path of ``rg``, from ``PATH`` or beside this Python; never one inside the vault."""
    found = _find_rg()
    return found if found and not Path(found).resolve().is_relative_to(vault) else None


@lru_cache(maxsize=1)
def _find_rg() -> str | None:
    beside = Path(sys.executable).parent
    for found in (shutil.which("rg"), shutil.which("rg", path=str(beside))):
        if found and Path(found).is_absolute():
            return found
    return None


async def list_files(ctx: ToolContext, target: Target, program: str, *options: str) -> list[str] | None:
    """Return the paths of the files below `target`, in any order, or ``None`` if ``rg`` fails or takes too long."""
    with ctx.files.folder(target) as folder:
        try:
            async with _running_rg(ctx, program, (*COMMON, *options, "--files"), folder, target) as process:
                output, _ = await asyncio.wait_for(process.communicate(), SEARCH_SECONDS)
        except (OSError, TimeoutError):
            return None
    return output.decode("utf-8", "replace").split("\0")[:-1]


async def search_folder(
    ctx: ToolContext, target: Target, request: SearchRequest, program: str, reader: FolderReader
) -> SearchResult:
    """Search the files below `target`, and leave out those that `reader` does not show, which are found meanwhile."""
    wants = request.wants
    with ctx.files.folder(target) as folder:
        options = (*COMMON, "--messages", *_options(request))
        async with _running_rg(ctx, program, (*options, "--", "."), folder, target) as process:
            refusing = asyncio.ensure_future(_refused_paths(ctx, target, program, reader, wants))
            try:
                found = await _collect(process)
                refused = await refusing
            finally:
                refusing.cancel()
                await asyncio.wait((refusing,))
    found.lines = [line for line in found.lines if line.path not in refused and (wants is None or wants(line.path))]
    shown = {line.path for line in found.lines}
    found.notes = [f"{path} was searched up to its first NUL; name it to search all" for path in found.notes if path in shown]
    for path in found.unreadable:
        if Path(target.path or "", path).is_dir():
            reader.leave_out(f"{path}/", "unreadable")
        elif path not in refused and (wants is None or wants(path)):
            reader.leave_out(path, "unreadable")
    return found


async def _refused_paths(
    ctx: ToolContext, target: Target, program: str, reader: FolderReader, wants: Callable[[str], object] | None
) -> set[str]:
    """Return the files below `target` that `reader` does not show.

    One thread of ``rg`` is enough: the search that runs beside it is slower.
    """
    files = await list_files(ctx, target, program, "--threads=1")
    if files is None:
        raise ToolError("the files could not be listed", code="io", next_step="call it again, or search a smaller folder")
    return reader.refused_paths(list(filter(wants, files)) if wants else files)


async def search_open_file(ctx: ToolContext, file: IO[Any], name: str, request: SearchRequest, program: str) -> SearchResult:
    """Search one open text file; ``rg`` reads it from standard input."""
    arguments = (*COMMON, *_options(request), "--text", "--", "-")
    process = await asyncio.create_subprocess_exec(
        program, *arguments, env=marked_environment(ctx.mark), stdin=file, stdout=PIPE, stderr=PIPE
    )
    async with _killed_at_exit(process):
        found = await _collect(process)
    found.lines = [SearchLine(name, line.number, line.matches, line.text) for line in found.lines]
    return found


def _options(request: SearchRequest) -> tuple[str, ...]:
    options = ["--line-number", "--with-filename", "--no-heading", "--max-columns=500", "--max-columns-preview"]
    options += [f"--context={request.context}"] if request.context else []
    options += ["--ignore-case"] if request.ignore_case else ["--case-sensitive"]
    options += ["--fixed-strings"] if request.literal else []
    if request.glob and _PLAIN_GLOB.fullmatch(request.glob):
        # A type, not --glob, which would include ignored files.
        options += [f"--type-add=wanted:{request.glob}", "--type=wanted"]
    return (*options, f"--regexp={request.pattern}")


@asynccontextmanager
async def _running_rg(
    ctx: ToolContext, program: str, arguments: tuple[str, ...], folder: int, target: Target
) -> AsyncIterator[Process]:
    """Start ``rg`` in the folder behind the descriptor, wherever its path leads by now."""
    where = f"/proc/self/fd/{folder}" if Path("/proc/self/fd").is_dir() else str(target.path)
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        cwd=where,
        env=marked_environment(ctx.mark),
        pass_fds=(folder,),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )
    async with _killed_at_exit(process):
        yield process


@asynccontextmanager
async def _killed_at_exit(process: Process) -> AsyncIterator[None]:
    """End the process on leaving, also if the call is cancelled."""
    try:
        yield
    finally:
        await end_process(process)


async def _collect(process: Process) -> SearchResult:
    """Collect lines until the end, until the result is full or until time is up; note each file that has a NUL."""
    assert process.stdout is not None and process.stderr is not None
    found, rest = SearchResult(), b""
    complaint = asyncio.ensure_future(_complaint(process.stderr))
    try:
        async with asyncio.timeout(SEARCH_SECONDS):
            while chunk := await process.stdout.read(CHUNK):
                lines, ended, rest = _parse(rest + chunk)
                found.notes += ended
                if not found.take(lines):
                    return found
            text = await complaint
            found.unreadable = _UNREADABLE.findall(text)
            if await process.wait() > 1 and not found.lines:
                _raise_if_pattern_refused(_UNREADABLE.sub("", text))
    except TimeoutError:
        found.stop(f"stopped after {SEARCH_SECONDS:g} s")
    finally:
        complaint.cancel()
    return found


def _parse(data: bytes) -> tuple[list[SearchLine], list[str], bytes]:
    """Return the complete lines of `data`, the files that ``rg`` did not search to their end, and the incomplete last line."""
    complete, newline, rest = data.rpartition(b"\n")
    lines = [
        SearchLine(_name(path), int(number), sign == b":", text.decode("utf-8", "replace").removesuffix("\r"))
        for path, number, sign, text in _LINE.findall(complete + newline)
    ]
    return lines, [_name(path) for path in _ENDED_EARLY.findall(complete)], rest


def _name(path: bytes) -> str:
    return path.decode("utf-8", "replace").removeprefix("./")


async def _complaint(stream: asyncio.StreamReader) -> str:
    """Read the standard error of ``rg`` to its end, and return its beginning."""
    text = b""
    while chunk := await stream.read(CHUNK):
        text = (text + chunk)[:CHUNK]
    return text.decode("utf-8", "replace")


def _raise_if_pattern_refused(complaint: str) -> None:
    """Raise if ``rg`` refused the pattern; an unreadable file is no reason to stop."""
    text = complaint.strip()
    if "regex" in text or "pattern" in text or "glob" in text:
        said = text.partition("\n\n")[0].splitlines()[-1]  # below it, rg advises flags that no caller can set
        raise _unusable(said.removeprefix("rg:").strip().removeprefix("error:").strip())


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
    return await scan(contents, request, lambda: ctx.cancelled, mark=ctx.mark)


async def scan(
    contents: Contents, request: SearchRequest, cancelled: Callable[[], bool] = lambda: False, *, mark: str = ""
) -> SearchResult:
    """Search `contents` with google-re2, or with the worker process if that is not installed.

    :param mark: the mark of the call, by which its processes are found.
    :raises ToolError: ``invalid_pattern``.
    """
    search = _linear(request)
    if search is not None:
        return await asyncio.to_thread(_scan_texts, contents, search, request.context, cancelled)
    return await _in_worker(contents, request, mark)


def _linear(request: SearchRequest) -> Callable[[bytes, int], Any] | None:
    """Return the search function of google-re2, or ``None`` if it is not installed."""
    try:
        import re2
    except ImportError:
        return None
    options = re2.Options()
    options.log_errors, options.never_nl, options.case_sensitive = False, True, not request.ignore_case
    pattern = re2.escape(request.pattern) if request.literal else request.pattern
    try:
        return re2.compile(f"(?m){pattern}".encode(), options).search
    except (re2.error, UnicodeEncodeError) as error:
        raise _unusable(error.args[0] if error.args else error) from error


def _unusable(reason: object) -> ToolError:
    text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    return ToolError(f"the pattern cannot be used: {text}", code="invalid_pattern", next_step="literal=true takes it as text")


def _scan_texts(
    contents: Contents, search: Callable[[bytes, int], Any], context: int, cancelled: Callable[[], bool]
) -> SearchResult:
    found, end = SearchResult(), time.monotonic() + SEARCH_SECONDS
    for path, data in _texts(contents):
        hits = find_lines(data, search, context) if search(data, 0) is not None else ()
        if not found.take(SearchLine(path, *line) for line in hits):
            break
        if time.monotonic() > end or cancelled():
            found.stop(f"stopped after {SEARCH_SECONDS:g} s")
            break
    return found


def _texts(contents: Contents) -> Iterator[tuple[str, bytes]]:
    """Yield the text files, as UTF-8 without a byte-order mark."""
    for path, data in contents:
        mark, encoding = mark_of(data)
        if encoding.startswith(("utf-16", "utf-32")):
            yield path, data[len(mark) :].decode(encoding, "replace").encode()
        elif not looks_binary(data):
            yield path, data.removeprefix(mark)


async def _in_worker(contents: Contents, request: SearchRequest, mark: str) -> SearchResult:
    """Send the files to a process that searches with the standard library, and stop it after :data:`SLOW_SECONDS`."""
    pattern = re.escape(request.pattern) if request.literal else request.pattern
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise _unusable(error) from error
    found = SearchResult()
    program = str(Path(__file__).with_name("worker.py"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", program, env=marked_environment(mark), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=2**26
    )
    feeding = asyncio.ensure_future(_send_files(process, contents, {"pattern": pattern, "ignore_case": request.ignore_case,
                                                              "context": request.context}))  # fmt: skip
    try:
        async with asyncio.timeout(SLOW_SECONDS):
            await _read_answers(process, found)
    except TimeoutError:
        found.stop(f"stopped after {SLOW_SECONDS:g} s; a simpler pattern is faster")
    finally:
        feeding.cancel()
        await end_process(process)
    return found


async def _send_files(process: Process, contents: Contents, request: dict[str, Any]) -> None:
    """Write the request, then the files, which are read in a thread, to the worker's standard input."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    files = _texts(contents)
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
    paths = await list_files(ctx, target, program) if program is not None else None
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


def _walk_files(ctx: ToolContext, target: Target) -> tuple[list[str], bool]:
    """Return the files below `target` by walking, and whether these are all: the walk ends at a limit of files and time."""
    paths: list[str] = []
    end = time.monotonic() + WALK_SECONDS
    for path, _ in ctx.files.walk(target):
        paths.append(path)
        if len(paths) >= MAX_FILES or (len(paths) % 256 == 0 and (time.monotonic() > end or ctx.cancelled)):
            return paths, False
    return paths, True


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
    return await scan([(target.given, ctx.files.read(target, limit=WHOLE_FILE))], request, mark=ctx.mark)
