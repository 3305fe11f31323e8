"""Run one command: its own process group, a deadline, bounded memory, nothing left behind."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from pathlib import Path

from moryflow_sdk import ToolContext, ToolError, ToolResult
from moryflow_sdk.sandbox import Sandbox, confinement, find_sandbox

from .output import Output
from .processes import MARK, end_group, end_marked

CHUNK = 65536
GRACE_SECONDS = 0.5
"""How long a pipe may stay open after the shell has ended, because something in the background holds it."""

_SECRET_WORDS = ("API_KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "PRIVATE_KEY")


async def run(ctx: ToolContext, command: str, timeout: float) -> ToolResult:
    """Run `command` and return its output, errors included, with the exit code.

    :raises ToolError: ``workdir`` is not inside the vault, or there is no shell.
    """
    workdir = _workdir(ctx)
    mark = f"{ctx.call.id}-{secrets.token_hex(4)}"
    confined = confinement(ctx.rules.all())
    sandbox = find_sandbox() if confined.used else None
    output = Output(ctx.data_dir, ctx.progress)
    inside = None if sandbox is None else (sandbox, confined.network)
    try:
        async with Pipe() as pipe:
            process = await _start(command, ctx, workdir, mark, inside, pipe.take_writing_end())
            stopped = not await _ends_in_time(process, pipe, output, mark, timeout)
    except BaseException:
        output.discard()
        raise
    ended = f"stopped after {timeout:g} s" if stopped else f"exit code {process.returncode}"
    return output.result(ended, process.returncode, stopped=stopped, sandboxed=sandbox is not None)


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


def _workdir(ctx: ToolContext) -> Path:
    """Return the folder to run in: a judged one inside the vault, or the vault (R20)."""
    asked = [target for target in ctx.call.targets if target.kind == "file"]
    if not asked:
        return ctx.vault
    path = Path(asked[0].path or "")
    if asked[0].error or not path.is_relative_to(ctx.vault):
        raise ToolError("workdir must be a folder inside the working folder", code="outside", next_step="leave workdir out")
    if not path.is_dir():
        raise ToolError(f"there is no folder {asked[0].given!r}", code="not_found", next_step="use ls to see the folders")
    return path


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
    command: str, ctx: ToolContext, workdir: Path, mark: str, inside: tuple[Sandbox, bool] | None, writing: int
) -> asyncio.subprocess.Process:
    shell = shutil.which("bash")
    argv = [shell, "--noprofile", "--norc", "-c", command] if shell else [shutil.which("sh") or "/bin/sh", "-c", command]
    if inside is not None:
        sandbox, network = inside
        limits = {"hidden": [ctx.home], "read_only": ctx.watched}
        argv = sandbox.command(argv, vault=ctx.vault, **limits, network=network, workdir=workdir)
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            cwd=workdir,
            env=environment(mark, sandboxed=inside is not None),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=writing,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        if not workdir.is_dir():
            message, step = f"the working folder is not there any more: {workdir}", "put it back, or work in another folder"
            raise ToolError(message, code="not_found", next_step=step) from error
        raise ToolError(f"the shell could not be started: {error.strerror}", code="io", next_step="moryflow doctor") from error
    finally:
        os.close(writing)


def environment(mark: str, *, sandboxed: bool) -> dict[str, str]:
    """Return the person's environment without Moryflow's own variables and without what looks like a secret.

    `mark` is how processes that left the group are found again.
    """
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("MORYFLOW_") and not any(word in key.upper() for word in _SECRET_WORDS)
    }
    places = {"XDG_CACHE_HOME": "/tmp/cache", "TMPDIR": "/tmp"} if sandboxed else {}
    return {**kept, **places, MARK: mark, "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}


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
    await asyncio.to_thread(end_marked, mark)
