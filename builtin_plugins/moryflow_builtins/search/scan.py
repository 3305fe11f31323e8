"""The engines that need no ``rg``: google-re2 in this process, or the standard library in one that can be stopped.

A pattern of a model may take the standard library's engine for ever, so it never runs where the host runs.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from moryflow_sdk import Target, ToolContext, ToolError
from moryflow_sdk.support.processes import end_process, marked_environment
from moryflow_sdk.support.texts import looks_binary, mark_of

from .results import SEARCH_SECONDS, Reader, SearchLine, SearchRequest, SearchResult
from .worker import find_lines

MAX_FILE = 16 * 1024 * 1024
"""Larger files below a folder are not searched, for each is read as a whole; one that is named is, and ``rg`` searches all."""

SLOW_SECONDS = 20.0
BATCH = 64
Contents = Iterable[tuple[str, bytes]]


async def scan_folder(ctx: ToolContext, target: Target, wish: SearchRequest, reader: Reader) -> SearchResult:
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
        return await asyncio.to_thread(_scanned, contents, search, wish.context, cancelled)
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


def _scanned(
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
    import re

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
