"""The engines: ``rg`` where it is installed, else google-re2 in this process, else the standard library in a worker process.

``rg`` is started with an argument list, in the judged folder itself, and stopped when it says too much. A tool's argument is
never an option: patterns are part of ``--regexp=``, and ``--`` stands before operands. A pattern of a model may keep the
standard library's engine busy for ever, so that engine never runs where the host runs.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import IO, Any

from moryflow_sdk import Target, ToolContext, ToolError
from moryflow_sdk.support.processes import end_process, marked_environment
from moryflow_sdk.support.texts import looks_binary, mark_of

from .results import SEARCH_SECONDS, FolderReader, SearchLine, SearchRequest, SearchResult
from .worker import find_lines

COMMON = (
    "--no-config", "--no-messages", "--color=never", "--hidden", "--no-require-git", "--no-ignore-global",
    "--no-ignore-exclude", "--glob=!.git", "--glob=!.agent-output", "--glob=!*\n*", "--null",
)  # fmt: skip
"""The person's configuration does not count; ignore files do, in a repository or not. A line end in a name
could pass the file's lines off as another's."""

_LINE = re.compile(rb"([^\0\n]*)\0(\d+)([:-])([^\n]*)")
_ENDED_EARLY = re.compile(rb"([^\0\n]*): WARNING: stopped searching binary file after match")
_PLAIN_GLOB = re.compile(r"[\w.*?-]+", re.ASCII)
CHUNK = 256 * 1024


def find_rg(vault: Path) -> str | None:
    """Return the program: from ``PATH``, or beside this Python; never one that the vault brings along."""
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
    """Return the paths of the files below `target`, in any order, or nothing when ``rg`` cannot say."""
    with ctx.files.folder(target) as folder:
        try:
            async with _running_rg(ctx, program, (*COMMON, *options, "--files"), folder, target) as process:
                output, _ = await asyncio.wait_for(process.communicate(), SEARCH_SECONDS)
        except (OSError, TimeoutError):
            return None
    return output.decode("utf-8", "replace").split("\0")[:-1]


async def search_folder(
    ctx: ToolContext, target: Target, wish: SearchRequest, program: str, reader: FolderReader
) -> SearchResult:
    """Search the files below `target` that `reader` shows; meanwhile it is found out which it does not."""
    wants = wish.wants
    with ctx.files.folder(target) as folder:
        async with _running_rg(ctx, program, (*COMMON, *_options(wish), "--", "."), folder, target) as process:
            looking = asyncio.ensure_future(_not_shown(ctx, target, program, reader, wants))
            try:
                found = await _collect(process)
                refused = await looking
            finally:
                looking.cancel()
                await asyncio.wait((looking,))
    found.lines = [line for line in found.lines if line.path not in refused and (wants is None or wants(line.path))]
    shown = {line.path for line in found.lines}
    found.notes = [f"{path} was searched up to its first NUL; name it to search all" for path in found.notes if path in shown]
    return found


async def _not_shown(
    ctx: ToolContext, target: Target, program: str, reader: FolderReader, wants: Callable[[str], object] | None
) -> set[str]:
    """Return the files below `target` that `reader` does not show. One thread is enough beside a search, which is slower."""
    files = await list_files(ctx, target, program, "--threads=1")
    if files is None:
        raise ToolError("the files could not be listed", code="io", next_step="call it again, or search a smaller folder")
    return reader.not_shown(list(filter(wants, files)) if wants else files)


async def search_open_file(ctx: ToolContext, file: IO[Any], name: str, wish: SearchRequest, program: str) -> SearchResult:
    """Search one file that has been opened and is text; ``rg`` reads it as its standard input."""
    arguments = (*COMMON, *_options(wish), "--text", "--", "-")
    process = await asyncio.create_subprocess_exec(
        program, *arguments, env=marked_environment(ctx.mark), stdin=file, stdout=PIPE, stderr=PIPE
    )
    async with _killed_at_exit(process):
        found = await _collect(process)
    found.lines = [SearchLine(name, line.number, line.matches, line.text) for line in found.lines]
    return found


def _options(wish: SearchRequest) -> tuple[str, ...]:
    options = ["--line-number", "--with-filename", "--no-heading", "--max-columns=500", "--max-columns-preview"]
    options += [f"--context={wish.context}"] if wish.context else []
    options += ["--ignore-case"] if wish.ignore_case else ["--case-sensitive"]
    options += ["--fixed-strings"] if wish.literal else []
    if wish.glob and _PLAIN_GLOB.fullmatch(wish.glob):
        # A type, not --glob: that would bring back files which are ignored.
        options += [f"--type-add=wanted:{wish.glob}", "--type=wanted"]
    return (*options, f"--regexp={wish.pattern}")


@asynccontextmanager
async def _running_rg(
    ctx: ToolContext, program: str, arguments: tuple[str, ...], folder: int, target: Target
) -> AsyncIterator[Process]:
    """Start ``rg`` in the folder behind the descriptor, whatever its name leads to by now."""
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
    """Leave no process behind, also when the call is cancelled."""
    try:
        yield
    finally:
        await end_process(process)


async def _collect(process: Process) -> SearchResult:
    """Take lines until the end, until there is no more room, or until it takes too long; note each file that has a NUL."""
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
            if await process.wait() > 1 and not found.lines:
                _refuse(await complaint)
    except TimeoutError:
        found.stop(f"stopped after {SEARCH_SECONDS:g} s")
    finally:
        complaint.cancel()
    return found


def _parse(data: bytes) -> tuple[list[SearchLine], list[str], bytes]:
    """Return the complete lines of `data`, the files that ``rg`` did not search to their end, and what is left of it."""
    complete, newline, rest = data.rpartition(b"\n")
    lines = [
        SearchLine(
            _name(path),
            int(number),
            sign == b":",
            text.decode("utf-8", "replace").removesuffix("\r"),
        )
        for path, number, sign, text in _LINE.findall(complete + newline)
    ]
    return lines, [_name(path) for path in _ENDED_EARLY.findall(complete)], rest


def _name(path: bytes) -> str:
    return path.decode("utf-8", "replace").removeprefix("./")


async def _complaint(stream: asyncio.StreamReader) -> str:
    """Return the beginning of what ``rg`` writes to standard error, read to its end."""
    text = b""
    while chunk := await stream.read(CHUNK):
        text = (text + chunk)[:CHUNK]
    return text.decode("utf-8", "replace")


def _refuse(complaint: str) -> None:
    """Raise when ``rg`` did not take the pattern; a file that could not be read is nothing to stop for."""
    text = complaint.strip()
    if "regex" in text or "pattern" in text or "glob" in text:
        raise _unusable(text.splitlines()[-1].removeprefix("error:").strip())


MAX_FILE = 16 * 1024 * 1024
"""Larger files below a folder are not searched, for each is read as a whole; one that is named is, and ``rg`` searches all."""

SLOW_SECONDS = 20.0
BATCH = 64
Contents = Iterable[tuple[str, bytes]]


async def scan_folder(ctx: ToolContext, target: Target, wish: SearchRequest, reader: FolderReader) -> SearchResult:
    """Search the files below `target` that `reader` shows."""
    wants = wish.wants

    def wanted(path: str) -> bool:
        return (wants is None or bool(wants(path))) and reader.shows(path)

    return await scan(ctx.files.contents(target, wanted, limit=MAX_FILE), wish, lambda: ctx.cancelled, mark=ctx.mark)


async def scan(
    contents: Contents, wish: SearchRequest, cancelled: Callable[[], bool] = lambda: False, *, mark: str = ""
) -> SearchResult:
    """Search `contents` with the best engine there is.

    :param mark: that of the call, for a process that it may take.
    :raises ToolError: ``invalid_pattern``.
    """
    search = _linear(wish)
    if search is not None:
        return await asyncio.to_thread(_scan_texts, contents, search, wish.context, cancelled)
    return await _in_worker(contents, wish, mark)


def _linear(wish: SearchRequest) -> Callable[[bytes, int], Any] | None:
    """Return the search of google-re2, or nothing where it is not installed."""
    try:
        import re2
    except ImportError:
        return None
    options = re2.Options()
    options.log_errors, options.never_nl, options.case_sensitive = False, True, not wish.ignore_case
    pattern = re2.escape(wish.pattern) if wish.literal else wish.pattern
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
    """Yield those files that are text, as UTF-8; a byte-order mark is no part of the first line."""
    for path, data in contents:
        mark, encoding = mark_of(data)
        if encoding.startswith(("utf-16", "utf-32")):
            yield path, data[len(mark) :].decode(encoding, "replace").encode()
        elif not looks_binary(data):
            yield path, data.removeprefix(mark)


async def _in_worker(contents: Contents, wish: SearchRequest, mark: str) -> SearchResult:
    """Send the files to a process that uses the standard library, and stop it when it takes too long."""
    pattern = re.escape(wish.pattern) if wish.literal else wish.pattern
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise _unusable(error) from error
    found = SearchResult()
    program = str(Path(__file__).with_name("worker.py"))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        program,
        env=marked_environment(mark),
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        limit=2**26,
    )
    feeding = asyncio.ensure_future(_feed(process, contents, {"pattern": pattern, "ignore_case": wish.ignore_case,
                                                              "context": wish.context}))  # fmt: skip
    try:
        async with asyncio.timeout(SLOW_SECONDS):
            await _take(process, found)
    except TimeoutError:
        found.stop(f"stopped after {SLOW_SECONDS:g} s; a simpler pattern is faster")
    finally:
        feeding.cancel()
        await end_process(process)
    return found


async def _feed(process: Process, contents: Contents, wish: dict[str, Any]) -> None:
    """Write the wish and then the files; they are read in a thread."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(wish).encode() + b"\n")
    files = _texts(contents)
    try:
        while batch := await asyncio.to_thread(lambda: list(islice(files, BATCH))):
            for path, data in batch:
                name = path.encode()
                process.stdin.write(b"%d %d\n" % (len(name), len(data)) + name + data)
                await process.stdin.drain()
        process.stdin.close()
    except ConnectionError:
        return  # it was stopped


async def _take(process: Process, found: SearchResult) -> None:
    assert process.stdout is not None
    async for answer in process.stdout:
        path, lines = json.loads(answer)
        if not found.take(SearchLine(path, *line) for line in lines):
            return
