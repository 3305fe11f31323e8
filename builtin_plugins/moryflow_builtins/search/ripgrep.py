"""``rg`` as an engine: started with an argument list, in the judged folder itself, and stopped when it says too much.

A tool's argument is never an option: patterns are part of ``--regexp=``, and ``--`` stands before operands.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from moryflow_sdk import Target, ToolContext, ToolError
from moryflow_sdk.support.processes import end_process, marked_environment

from .results import SEARCH_SECONDS, FileListing, Reader, SearchLine, SearchRequest, SearchResult

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


async def listed(ctx: ToolContext, target: Target, program: str, *options: str) -> FileListing | None:
    """Return the files below `target`, or nothing when ``rg`` cannot say."""
    with ctx.files.folder(target) as folder:
        try:
            async with _started(ctx, program, (*COMMON, *options, "--files"), folder, target) as process:
                output = await asyncio.wait_for(_all(process), SEARCH_SECONDS)
        except (OSError, TimeoutError):
            return None
    paths = output.decode("utf-8", "replace").split("\0")[:-1]
    return FileListing(paths)


async def search_folder(ctx: ToolContext, target: Target, wish: SearchRequest, program: str, reader: Reader) -> SearchResult:
    """Search the files below `target` that `reader` shows; meanwhile it is found out which it does not."""
    wants = wish.wants
    with ctx.files.folder(target) as folder:
        async with _started(ctx, program, (*COMMON, *_options(wish), "--", "."), folder, target) as process:
            looking = asyncio.ensure_future(_refused(ctx, target, program, reader, wants))
            try:
                found = await _collected(process)
                refused = await looking
            finally:
                looking.cancel()
                await asyncio.wait((looking,))
    found.lines = [line for line in found.lines if line.path not in refused and (wants is None or wants(line.path))]
    shown = {line.path for line in found.lines}
    found.notes = [f"{path} was searched up to its first NUL; name it to search all" for path in found.notes if path in shown]
    return found


async def _refused(
    ctx: ToolContext, target: Target, program: str, reader: Reader, wants: Callable[[str], object] | None
) -> set[str]:
    """Return the files below `target` that `reader` does not show. One thread is enough beside a search, which is slower."""
    files = await listed(ctx, target, program, "--threads=1")
    if files is None:
        raise ToolError("the files could not be listed", code="io", next_step="call it again, or search a smaller folder")
    return reader.refused(list(filter(wants, files.paths)) if wants else files.paths)


async def search_open_file(ctx: ToolContext, file: IO[Any], name: str, wish: SearchRequest, program: str) -> SearchResult:
    """Search one file that has been opened and is text; ``rg`` reads it as its standard input."""
    arguments = (*COMMON, *_options(wish), "--text", "--", "-")
    process = await asyncio.create_subprocess_exec(
        program, *arguments, env=marked_environment(ctx.mark), stdin=file, stdout=PIPE, stderr=PIPE
    )
    async with _ended(process):
        found = await _collected(process)
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
async def _started(
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
    async with _ended(process):
        yield process


@asynccontextmanager
async def _ended(process: Process) -> AsyncIterator[None]:
    """Leave no process behind, also when the call is cancelled."""
    try:
        yield
    finally:
        await end_process(process)


async def _all(process: Process) -> bytes:
    return (await process.communicate())[0]


async def _collected(process: Process) -> SearchResult:
    """Take lines until the end, until there is no more room, or until it takes too long; note each file that has a NUL."""
    assert process.stdout is not None and process.stderr is not None
    found, rest = SearchResult(), b""
    complaint = asyncio.ensure_future(_complaint(process.stderr))
    try:
        async with asyncio.timeout(SEARCH_SECONDS):
            while chunk := await process.stdout.read(CHUNK):
                lines, ended, rest = _parsed(rest + chunk)
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


def _parsed(data: bytes) -> tuple[list[SearchLine], list[str], bytes]:
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
    """Return the beginning of what is said until the end; it may come in pieces."""
    text = b""
    while chunk := await stream.read(CHUNK):
        text = (text + chunk)[:CHUNK]
    return text.decode("utf-8", "replace")


def _refuse(complaint: str) -> None:
    """Raise when ``rg`` did not take the pattern; a file that could not be read is nothing to stop for."""
    text = complaint.strip()
    if "regex" in text or "pattern" in text or "glob" in text:
        reason = text.splitlines()[-1].removeprefix("error:").strip()
        raise ToolError(
            f"the pattern cannot be used: {reason}", code="invalid_pattern", next_step="literal=true takes it as text"
        )
