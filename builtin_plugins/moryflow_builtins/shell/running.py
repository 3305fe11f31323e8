"""Run one command: its own process group, a deadline, bounded memory, nothing left behind."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moryflow_sdk import Target, ToolContext, ToolError, ToolResult
from moryflow_sdk.inside_tool import CALL_MARK
from moryflow_sdk.processes import end_marked
from moryflow_sdk.sandbox import confinement, find_sandbox

from .confine import Confined, run_confined
from .output import Output
from .processes import end_group

CHUNK = 65536
GRACE_SECONDS = 0.5
"""How long a pipe may stay open after the shell has ended, because something in the background holds it."""

_IN_ITS_FOLDER = """[ . -ef /dev/fd/0 ] || { echo "the folder changed after it was judged; nothing was run"; exit 126; }
exec "$@" </dev/null"""
"""Runs a program where the current folder is the one behind standard input. Only the comparison sees that descriptor: it
would lead out of a sandbox."""

_SECRET_WORDS = ("API_KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "PRIVATE_KEY")


@dataclass(frozen=True)
class Place:
    """The folder that was judged, held open: `descriptor` is of the object, `path` was its name then."""

    descriptor: int
    path: Path


async def run(ctx: ToolContext, timeout: float, opened: Collection[str] = ()) -> ToolResult:
    """Run the command that was judged, in the folder that was judged, and return its output with the exit code.

    :param opened: files that a person was asked about by name, for this call; the sandbox leaves them open.
    :raises ToolError: the folder is not there, is another one by now or is outside the vault, or there is no shell.
    """
    confined = confinement(ctx.rules.all())
    sandbox = await asyncio.to_thread(find_sandbox) if confined.used else None
    if sandbox is None:
        return await _run(ctx, timeout, None)
    vault = f"{ctx.vault}/"
    names = frozenset(path.removeprefix(vault) for path in opened if path.startswith(vault))
    inside = Confined(ctx, sandbox, confined.network, names)
    return await run_confined(inside, lambda: _run(ctx, timeout, inside))


async def _run(ctx: ToolContext, timeout: float, inside: Confined | None) -> ToolResult:
    target = next(target for target in ctx.call.targets if target.kind == "shell")
    output = Output(ctx.data_dir, ctx.progress)
    try:
        async with Pipe() as pipe:
            with _judged_folder(ctx, target) as place:
                process = await _start(target.given, ctx, place, inside, pipe.take_writing_end())
            stopped = not await _ends_in_time(process, pipe, output, ctx.mark, timeout)
    except BaseException:
        output.discard()
        raise
    ended = f"stopped after {timeout:g} s" if stopped else f"exit code {process.returncode}"
    return output.result(ended, process.returncode, stopped=stopped, sandboxed=inside is not None)


async def _ends_in_time(process: asyncio.subprocess.Process, pipe: Pipe, output: Output, mark: str, timeout: float) -> bool:
    """Wait for the command; return whether it ended by itself. Afterwards nothing of it is left."""
    try:
        async with asyncio.timeout(timeout):
            await _follow(process, pipe, output)
    except TimeoutError:
        return False
    finally:
        await _end(process, mark)
    return True


@contextmanager
def _judged_folder(ctx: ToolContext, target: Target) -> Iterator[Place]:
    """Hold the folder of a command open; it is inside the vault and is the object that was judged."""
    folder = target.folder
    if folder is None or target.error is not None:
        reason = target.error or "the command has no folder"
        raise ToolError(reason, code="outside", next_step="name a folder inside the working folder, or leave workdir out")
    if folder.identity is None and not ctx.vault.is_dir():
        message, step = f"the working folder is not there any more: {ctx.vault}", "put it back, or work in another folder"
        raise ToolError(message, code="not_found", next_step=step)
    with ctx.files.folder(folder) as descriptor:
        yield Place(descriptor, Path(folder.path or ""))


class Pipe:
    """A pipe of our own: asyncio's would make the wait for the shell wait for everyone who holds the pipe."""

    async def __aenter__(self) -> Pipe:
        reading, self._writing = os.pipe()
        self.stream = asyncio.StreamReader(limit=CHUNK)
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self.stream), os.fdopen(reading, "rb", buffering=0)
        )
        return self

    def take_writing_end(self) -> int:
        """Return the descriptor that the command writes to; the caller closes it."""
        writing, self._writing = self._writing, -1
        return writing

    async def __aexit__(self, *_: object) -> None:
        if self._writing >= 0:
            os.close(self._writing)
        self._transport.close()


async def _start(
    command: str, ctx: ToolContext, place: Place, inside: Confined | None, writing: int
) -> asyncio.subprocess.Process:
    """Start the shell in the folder behind the descriptor, whatever its name leads to by now."""
    shell = shutil.which("bash")
    argv = [shell, "--noprofile", "--norc", "-c", command] if shell else [shutil.which("sh") or "/bin/sh", "-c", command]
    by_descriptor, stdin = Path(f"/proc/self/fd/{place.descriptor}"), asyncio.subprocess.DEVNULL
    here = by_descriptor if by_descriptor.exists() else place.path
    if inside is not None or here is place.path:  # where the folder is entered by its name
        argv, stdin = [shell or "/bin/sh", "-c", _IN_ITS_FOLDER, "bash", *argv], place.descriptor
    try:
        if inside is not None:
            argv = await asyncio.to_thread(inside.argv, argv, place.path)
        return await asyncio.create_subprocess_exec(
            *argv,
            cwd=here,
            env={**environment(ctx.mark, sandboxed=inside is not None), "PWD": str(place.path)},
            stdin=stdin,
            stdout=writing,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise ToolError(f"the shell could not be started: {error.strerror}", code="io", next_step="moryflow doctor") from error
    finally:
        os.close(writing)


def environment(mark: str, *, sandboxed: bool) -> dict[str, str]:
    """Return the person's environment without Moryflow's own variables and without what looks like a secret.

    ``CDPATH`` is left out too: with it ``cd sub`` may lead to another folder than the one that was judged. `mark` is how
    processes that left the group are found again.
    """
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("MORYFLOW_") and key != "CDPATH" and not any(word in key.upper() for word in _SECRET_WORDS)
    }
    places = {"XDG_CACHE_HOME": "/tmp/cache", "TMPDIR": "/tmp"} if sandboxed else {}
    return {**kept, **places, CALL_MARK: mark, "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}


async def _follow(process: asyncio.subprocess.Process, pipe: Pipe, output: Output) -> None:
    """Read until the pipe closes, or until shortly after the shell has ended."""
    reading = asyncio.ensure_future(_read(pipe.stream, output))
    try:
        await process.wait()
        await asyncio.wait((reading,), timeout=GRACE_SECONDS)
    finally:
        reading.cancel()


async def _read(stream: asyncio.StreamReader, output: Output) -> None:
    while chunk := await stream.read(CHUNK):
        output.add(chunk)


async def _end(process: asyncio.subprocess.Process, mark: str) -> None:
    """End the whole group and whatever escaped it; a cancelled call waits for that too."""
    ending = asyncio.ensure_future(_end_all(process, mark))
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        await asyncio.wait((ending,))
        raise


async def _end_all(process: asyncio.subprocess.Process, mark: str) -> None:
    await end_group(process.pid, lambda: process.returncode is not None)
    await process.wait()
    await asyncio.to_thread(end_marked, (mark,))
