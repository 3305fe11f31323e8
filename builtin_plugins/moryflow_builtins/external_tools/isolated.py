"""Tools of a file with dependencies: what they are is asked once per content, and each call is a process of its own.

The host speaks JSON lines with :mod:`.worker`, which runs under the environment's Python. A call that is cancelled, or
takes too long, ends with its whole process group.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from moryflow_sdk import Tool, ToolContext, ToolError, ToolResult
from moryflow_sdk.support.processes import marked_environment

from .environment import Environment, Requirements, environment_for
from .exports import Wrong

LISTING_LIMIT = 20.0
"""Seconds in which a file must say what tools it has; importing what it depends on may take some."""
LINE_LIMIT = 64 * 1024 * 1024
"""Bytes of one answer."""
_COMPLAINTS = 4000
_CONTEXT = "moryflow_context"
"""The keyword under which a call is given its context; no argument of a tool is called that."""


@dataclass(frozen=True)
class Outside:
    """A file, its content, and the Python that runs it."""

    path: Path
    source: bytes
    environment: Environment
    data_dir: Path


async def tools_outside(path: Path, source: bytes, needs: Requirements, data_dir: Path, revision: str) -> list[Tool | Wrong]:
    """Return the tools of a file that runs in an environment of its own.

    :raises ToolError: the environment is not there yet, or the file cannot be run.
    """
    needs.check_python()
    environment = environment_for(needs, data_dir)
    if not environment.installed():
        packages = ", ".join(needs.dependencies)
        step = f"moryflow tool install {path.name}"
        raise ToolError(f"it needs packages that are not installed yet: {packages}", code="tool_environment", next_step=step)
    place = Outside(path, source, environment, data_dir)
    listing = await _listing(place)
    wrong = [Wrong(item["message"], item.get("line")) for item in listing["wrong"]]
    return [*(_tool(place, item, revision) for item in listing["tools"]), *wrong]


async def _listing(place: Outside) -> dict[str, Any]:
    """Return what the file says of its tools; remembered by content, for asking costs a process."""
    named = sha256(b"\0".join((place.source, str(place.path).encode(), place.environment.folder.name.encode())))
    kept = place.data_dir / "listings" / f"{named.hexdigest()[:24]}.json"
    with suppress(OSError, ValueError):
        return json.loads(kept.read_bytes())
    try:
        async with asyncio.timeout(LISTING_LIMIT):
            listing = await _ask(place, {"do": "list"}, lambda _: None)
    except TimeoutError as error:
        raise ToolError(f"it took longer than {LISTING_LIMIT:g} s to load", code="tool_timeout") from error
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = kept.with_name(f"{kept.name}.{os.getpid()}")
        fresh.write_text(json.dumps(listing), encoding="utf-8")
        fresh.replace(kept)
    return listing


def _tool(place: Outside, item: Mapping[str, Any], revision: str) -> Tool:
    name = item["name"]

    async def call(**arguments: Any) -> ToolResult:
        context: ToolContext = arguments.pop(_CONTEXT)
        given = {"vault": str(context.vault), "home": str(context.home), "data_dir": str(context.data_dir)}
        given |= {"session": context.session, "mode": context.mode, "call": context.call.id}
        request = {"do": "call", "tool": name, "args": arguments, "context": given}
        answer = await _ask(place, request, context.progress, context.mark)
        return ToolResult.model_validate(answer["result"])

    return Tool(
        name=name,
        description=item["description"],
        function=call,
        domain=item["domain"],
        parallel_safe=item["parallel_safe"],
        timeout=item["timeout"],
        remarks=tuple(item.get("remarks", ())),
        context_parameter=_CONTEXT,
        schema=item["parameters"],
        source=str(place.path),
        revision=revision,
    )


async def _ask(place: Outside, request: Mapping[str, Any], progress: Callable[[str], None], mark: str = "") -> dict[str, Any]:
    """Run the worker for one request and return its answer.

    :raises ToolError: the file raised, or the process ended without an answer.
    """
    process = await _start_worker(place, mark)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    complaints = asyncio.ensure_future(_last_words(process.stderr))
    try:
        line = json.dumps({**request, "file": str(place.path), "source": place.source.decode("utf-8", "replace")})
        with suppress(ConnectionError):
            process.stdin.write(line.encode() + b"\n")
            await process.stdin.drain()
        answer = await _answer(process.stdout, progress)
        if answer is None:
            raise await _death(process, complaints)
    finally:
        _end(process)
        await process.wait()
        complaints.cancel()
    if "error" in answer:
        raise ToolError(answer["error"]["message"], code=answer["error"]["code"])
    return answer


async def _start_worker(place: Outside, mark: str) -> asyncio.subprocess.Process:
    import moryflow_sdk
    import pydantic

    roots = [Path(module.__file__ or "").parent.parent for module in (moryflow_sdk, pydantic)]
    shared = json.dumps(list(dict.fromkeys(map(str, (*roots, Path(__file__).parents[2])))))
    try:
        return await asyncio.create_subprocess_exec(
            str(place.environment.python),
            "-I",
            str(Path(__file__).with_name("worker.py")),
            shared,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_LIMIT,
            start_new_session=True,
            env=marked_environment(mark) if mark else None,
        )
    except OSError as error:
        step = f"moryflow tool install {place.path.name}"
        raise ToolError(f"its Python cannot be started: {error.strerror}", code="tool_environment", next_step=step) from error


async def _answer(stdout: asyncio.StreamReader, progress: Callable[[str], None]) -> dict[str, Any] | None:
    """Read lines until the one that is the answer, ``None`` when there is none."""
    while True:
        try:
            line = await stdout.readline()
        except ValueError as error:
            raise ToolError(f"its answer is larger than {LINE_LIMIT // 2**20} MiB", code="too_large") from error
        if not line:
            return None
        try:
            message = json.loads(line)
        except ValueError as error:
            raise ToolError("its process answered something that is not JSON", code="tool_failed") from error
        if "progress" not in message:
            return message
        progress(str(message["progress"]))


async def _last_words(stderr: asyncio.StreamReader) -> str:
    """Keep the end of what the process says on standard error, and let it never wait for a reader."""
    kept = b""
    while piece := await stderr.read(65536):
        kept = (kept + piece)[-_COMPLAINTS:]
    return kept.decode("utf-8", "replace")


async def _death(process: asyncio.subprocess.Process, complaints: asyncio.Future[str]) -> ToolError:
    code = await process.wait()
    said = ""
    with suppress(TimeoutError):  # a child that it left behind may hold the pipe
        said = await asyncio.wait_for(asyncio.shield(complaints), 0.5)
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    last = said.strip().splitlines()[-1:]
    return ToolError(f"its process ended with {how}" + (f": {last[0]}" if last else ""), code="tool_failed")


def _end(process: asyncio.subprocess.Process) -> None:
    """End the process and everything it started and left in its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
