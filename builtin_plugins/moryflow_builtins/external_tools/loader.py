"""Load the tools from the files in the folder: each file separately, with a time limit, and with a message for each mistake.

A file with dependencies is asked for its tools once per content, and each call runs in a new process. The host exchanges JSON
lines with :mod:`.worker`, which runs with the environment's Python. If a call is cancelled or takes too long, its whole
process group is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from moryflow_sdk import Diagnostic, PluginContext, PluginError, Tool, ToolContext, ToolError, ToolResult
from moryflow_sdk.support.own_files import own_files, own_programs, replace_file
from moryflow_sdk.support.processes import marked_environment, started
from moryflow_sdk.support.threads import on_daemon_thread

from .environment import Environment, Requirements, environment_for, requirements
from .exports import Wrong, exported_tools, has_factory
from .programs import CONTEXT, bounded, end_group, end_marked_with, ending, program_tool

# Seconds for the import of a file and for its factories.
LIMIT = 2.0
# Path and hash of files that took too long. They are not tried again: their threads still run.
_stuck: set[tuple[str, str]] = set()

# The exports of modules, kept because making schemas takes most of the time. An entry is dropped with its module.
_exports_by_module: WeakKeyDictionary[ModuleType, list[Tool | Wrong]] = WeakKeyDictionary()


async def load_all(ctx: PluginContext, folder: Path, *, only_allowed: bool) -> list[Tool | Diagnostic]:
    """Return the tools of the files in `folder`, and the problems.

    :param only_allowed: leave out files that the user has not allowed, and name those that changed since.
    """
    files, problems = own_files(folder, ".py", hidden=(".", "_"))
    paths = [*files, *own_programs(folder)]
    if only_allowed:
        consents = {path: ctx.code_loader.consent(path) for path in paths}
        problems = [item for item in problems if Path(item.file) == folder or ctx.code_loader.consent(Path(item.file))]
        problems += [_changed(path) for path, consent in consents.items() if consent == "changed"]
        paths = [path for path, consent in consents.items() if consent == "allowed"]
    found = await asyncio.gather(*(_load_file(ctx, path) for path in paths))
    taken: dict[str, Tool] = {}
    for item in (item for items in found for item in items):
        if isinstance(item, Diagnostic):
            problems.append(item)
        elif item.name in taken:
            text = f"the name {item.name!r} is taken by {taken[item.name].source}"
            problems.append(
                Diagnostic(file=item.source, code="tool_duplicate", message=text, next_step=_next_step(Path(item.source)))
            )
        else:
            taken[item.name] = item
    return [*taken.values(), *problems]


def _changed(path: Path) -> Diagnostic:
    step = f"read it, then moryflow tool allow {path.name}"
    return Diagnostic(file=str(path), code="consent", message="it has changed since you allowed it", next_step=step)


async def _load_file(ctx: PluginContext, path: Path) -> list[Tool | Diagnostic]:
    """Return the tools of one file, or the reasons why it has none."""
    try:
        if not path.name.isprintable():
            file = os.fsencode(path).decode("utf-8", "backslashreplace")
            message, step = "its name holds characters that cannot be shown", f"rename it: ls -b {path.parent}"
            return [Diagnostic(file=file, code="tool_read", message=message, next_step=step)]
        if path.suffix != ".py":
            return [program_tool(ctx, path)]
        source = ctx.code_loader.read(path)
        revision = sha256(source).hexdigest()[:16]
        needs = requirements(source)
        if needs.dependencies:
            items = await tools_outside(path, source, needs, ctx.data_dir, revision)
        else:
            needs.check_python()
            items = await _load_in_host(ctx, path, revision)
    except PluginError as error:
        return [_diagnostic(path, error)]
    except ToolError as error:
        step = error.next_step or _next_step(path)
        return [Diagnostic(file=str(path), code=error.code, message=error.message, next_step=step)]
    except Exception as error:  # the exports of a file may raise anything when they are inspected; only that file fails
        text = f"what it exports cannot be read: {type(error).__name__}: {error}"
        return [Diagnostic(file=str(path), code="tool_export", message=text, next_step=_next_step(path))]
    return [item if isinstance(item, Tool) else _wrong(path, item) for item in items]


async def _load_in_host(ctx: PluginContext, path: Path, revision: str) -> list[Tool | Wrong]:
    """Import the file into the host, on a thread that is abandoned if it takes too long."""
    key = (str(path), revision)
    if key not in _stuck:
        try:
            running = on_daemon_thread(lambda: _run(ctx, path, revision), "moryflow-external-tool")
            return await asyncio.wait_for(asyncio.wrap_future(running), LIMIT)
        except TimeoutError:
            _stuck.add(key)
    raise ToolError(f"it took longer than {LIMIT:g} s to load", code="tool_timeout", next_step="change it, or move it away")


def _run(ctx: PluginContext, path: Path, revision: str) -> list[Tool | Wrong]:
    """Return the exports of the file; for an unchanged module without factories they are cached."""
    module = ctx.code_loader.load(path)
    if module not in _exports_by_module:
        found = exported_tools(module, ctx, source=str(path), revision=revision)
        if has_factory(module):
            return found
        _exports_by_module[module] = found
    return _exports_by_module[module]


def _wrong(path: Path, item: Wrong) -> Diagnostic:
    return Diagnostic(file=str(path), line=item.line, code="tool_export", message=item.message, next_step=_next_step(path))


def _diagnostic(path: Path, error: PluginError) -> Diagnostic:
    file, _, line = error.where.rpartition(":")
    at = int(line) if file and line.isdigit() else None
    place = file if at is not None else error.where or str(path)
    return Diagnostic(
        file=place, line=at, code="tool_import", message=error.message, next_step=error.next_step or _next_step(path)
    )


def _next_step(path: Path) -> str:
    return f"change {path.name}, then moryflow tool check"


# Seconds in which a file must list its tools; importing its dependencies may take most of that.
LISTING_LIMIT = 20.0
# The longest answer, in bytes.
LINE_LIMIT = 64 * 1024 * 1024
_COMPLAINTS = 4000


@dataclass(frozen=True)
class Outside:
    """A file with dependencies, its content, and the environment that runs it."""

    path: Path
    source: bytes
    environment: Environment
    data_dir: Path


async def tools_outside(path: Path, source: bytes, needs: Requirements, data_dir: Path, revision: str) -> list[Tool | Wrong]:
    """Return the tools of a file that runs in its own environment.

    :raises ToolError: the environment is not installed yet, or the file cannot be run.
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
    """Return the list of the file's tools. It is stored by content, because asking for it starts a process."""
    named = sha256(b"\0".join((place.source, str(place.path).encode(), place.environment.folder.name.encode())))
    kept = place.data_dir / "listings" / f"{named.hexdigest()[:24]}.json"
    with suppress(OSError, ValueError):
        return json.loads(kept.read_bytes())
    try:
        async with asyncio.timeout(LISTING_LIMIT):
            listing = await _run_worker(place, {"do": "list"}, lambda _: None)
    except TimeoutError as error:
        raise ToolError(f"it took longer than {LISTING_LIMIT:g} s to load", code="tool_timeout") from error
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(kept, json.dumps(listing).encode())
    return listing


def _tool(place: Outside, item: Mapping[str, Any], revision: str) -> Tool:
    name = item["name"]

    async def call(**arguments: Any) -> ToolResult:
        context: ToolContext = arguments.pop(CONTEXT)
        given = {"vault": str(context.vault), "home": str(context.home), "data_dir": str(context.data_dir)}
        given |= {"session": context.session, "mode": context.mode, "call": context.call.id}
        request = {"do": "call", "tool": name, "args": arguments, "context": given}
        answer = await _run_worker(place, request, context.progress, context.mark)
        return bounded(ToolResult.model_validate(answer["result"]))

    return Tool(
        name=name,
        description=item["description"],
        function=call,
        domain=item["domain"],
        parallel_safe=item["parallel_safe"],
        timeout=item["timeout"],
        remarks=tuple(item.get("remarks", ())),
        context_parameter=CONTEXT,
        schema=item["parameters"],
        source=str(place.path),
        revision=revision,
    )


async def _run_worker(
    place: Outside, request: Mapping[str, Any], progress: Callable[[str], None], mark: str = ""
) -> dict[str, Any]:
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
            code = await process.wait()
            said = ""
            with suppress(TimeoutError):  # a child process may keep the pipe open
                said = await asyncio.wait_for(asyncio.shield(complaints), 0.5)
            last = said.strip().splitlines()[-1:]
            raise ToolError(f"its process ended with {ending(code)}" + (f": {last[0]}" if last else ""), code="tool_failed")
    finally:
        end_group(process.pid)
        await process.wait()
        if mark:
            await end_marked_with(mark)
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
        starting = asyncio.create_subprocess_exec(
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
        return await started(starting)
    except OSError as error:
        step = f"moryflow tool install {place.path.name}"
        raise ToolError(f"its Python cannot be started: {error.strerror}", code="tool_environment", next_step=step) from error


async def _answer(stdout: asyncio.StreamReader, progress: Callable[[str], None]) -> dict[str, Any] | None:
    """Read lines up to the answer and return it; ``None`` if the process ends without one."""
    while True:
        try:
            line = await stdout.readline()
        except ValueError as error:
            raise ToolError(f"its answer is larger than {LINE_LIMIT // 2**20} MiB", code="too_large") from error
        if not line:
            return None
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ToolError("its process answered something that is not JSON", code="tool_failed") from error
        if "progress" not in message:
            return message
        progress(str(message["progress"]))


async def _last_words(stderr: asyncio.StreamReader) -> str:
    """Read standard error of the process, so that it never blocks, and return the end of it."""
    kept = b""
    while piece := await stderr.read(65536):
        kept = (kept + piece)[-_COMPLAINTS:]
    return kept.decode("utf-8", "replace")
