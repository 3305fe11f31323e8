"""Run one command: in its own process group, with a deadline and bounded memory, and with no process left behind.

Output is shown as it comes, kept in memory up to 32 MiB, and spooled to a file beyond that.
"""

from __future__ import annotations

import asyncio
import codecs
import fcntl
import os
import shutil
import signal
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from moryflow_sdk import Target, ToolContext, ToolError, ToolResult
from moryflow_sdk.support.processes import CALL_MARK, end_marked, started, turn_environment
from moryflow_sdk.support.sandbox import confinement, find_sandbox
from moryflow_sdk.support.secrets import variable_holds_secret

from .confine import Confined, run_confined

POLITE_SECONDS = 1.0
_STEP = 0.02


async def end_group(group: int, leader_ended: Callable[[], bool]) -> None:
    """Send SIGTERM to a process group, and SIGKILL a second later to the processes that are left."""
    if not _send(group, signal.SIGTERM):
        return
    waited = 0.0
    while waited < POLITE_SECONDS and (not leader_ended() or _send(group, 0)):
        await asyncio.sleep(_STEP)
        waited += _STEP
    _send(group, signal.SIGKILL)


def _send(group: int, number: int) -> bool:
    """Signal a group; return whether there was one."""
    try:
        os.killpg(group, number)
    except OSError:
        return False
    return True


MEMORY_BYTES = 32 * 1024 * 1024
SPOOL_BYTES = 1024 * 1024 * 1024
SHOWN_TAIL = 64 * 1024


class Output:
    """The output of a command: text up to :data:`MEMORY_BYTES`, a file beyond that."""

    def __init__(self, folder: Path, show: Callable[[str], None]) -> None:
        self.text = ""
        self._folder = folder
        self._show = show
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._size = 0
        self._spool: IO[bytes] | None = None
        self._path = folder
        self._tail = b""

    async def read(self, pipe: Pipe) -> None:
        """Read what the command prints until it closes the pipe; beyond a gibibyte, bytes are counted and dropped."""
        # CPython extends a local string in place: 20 MB cost 20 MB and not 40.
        text = ""
        try:
            while chunk := await pipe.read():
                self._size += len(chunk)
                piece = self._decoder.decode(chunk)
                self._show(piece)
                if self._spool is not None:
                    self._write(chunk)
                    continue
                text += piece
                if self._size > MEMORY_BYTES:
                    self._begin_spool(text)
                    text = ""
        finally:
            self.text = text + self._decoder.decode(b"", True)

    def _begin_spool(self, text: str) -> None:
        import tempfile

        descriptor, name = tempfile.mkstemp(dir=self._folder, prefix="spool-")
        self._spool, self._path = os.fdopen(descriptor, "wb"), Path(name)
        self._write(text.encode())

    def _write(self, chunk: bytes | memoryview) -> None:
        if self._spool is not None and self._size <= SPOOL_BYTES:
            self._spool.write(chunk)
        self._tail = (self._tail + chunk)[-SHOWN_TAIL:]

    def discard(self) -> None:
        """Remove the spooled file; there will be no result."""
        if self._spool is not None:
            self._spool.close()
            self._path.unlink(missing_ok=True)

    def result(self, ended: str, code: int | None, *, stopped: bool, sandboxed: bool) -> ToolResult:
        """Return the result for the model: the output, then how the command ended."""
        shown, self.text = self.text, ""
        if self._spool is not None:
            shown = f"[{self._size} bytes; these are the last {len(self._tail)}]\n{self._tail.decode('utf-8', 'replace')}"
            self._spool.write(_note(ended).encode())
            self._spool.close()
        metadata = {"exit_code": code, "bytes": self._size, "sandboxed": sandboxed}
        note = _note(ended)
        text = f"{shown.rstrip()}{note}".strip() if note else shown
        return ToolResult(
            status="error" if stopped else "ok",
            code="timeout" if stopped else None,
            output=text or f"[no output, {ended}]",
            title=ended,
            metadata=metadata,
            spool=None if self._spool is None else str(self._path),
        )


def _note(ended: str) -> str:
    return "" if ended == "exit code 0" else f"\n[{ended}]"


CHUNK = 128 * 1024
# Size of the pipe in bytes; with the usual 64 KiB, 20 MB of output take twice as long.
PIPE = 1024 * 1024
# How long the pipe is read after the shell has ended, if a process in the background holds it open.
GRACE_SECONDS = 0.5

_CHANGED = "the folder changed after it was judged; nothing was run"
_NO_STAT = "the program stat could not say which folder this is, so nothing was run; it belongs to coreutils"
_NO_PROC = "/proc is not mounted, so nobody could tell which folder this is; nothing was run"
# Runs a program if the current folder is the one behind standard input; only the comparison gets that descriptor.
_IN_ITS_FOLDER = f"""[ -e /dev/fd/0 ] || {{ echo "{_NO_PROC}"; exit 126; }}
[ . -ef /dev/fd/0 ] || {{ echo "{_CHANGED}"; exit 126; }}
exec "$@" </dev/null"""
# Does the same in the sandbox, comparing device and inode. A descriptor would not do: the first process in the sandbox keeps
# it, and the command could leave through the folder in `/proc/1/fd`.
_INSIDE_ITS_FOLDER = f"""case "$("$0" -c %d:%i .)" in
"$1") shift; exec "$@" ;;
"") echo "{_NO_STAT}"; exit 126 ;;
*) echo "{_CHANGED}"; exit 126 ;;
esac"""

_SECRET_WORDS = ("API_KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "PRIVATE_KEY")
# More names of secrets than `moryflow_sdk.support.secrets` knows, which lets names of numbers pass (`MAX_TOKENS`).
_SECRET_ENDS = ("_PAT", "_PASS")


class JudgedFolder(NamedTuple):
    """The judged folder, held open; `path` was its path when it was judged."""

    descriptor: int
    path: Path


async def run(
    ctx: ToolContext, timeout: float | None, opened: Collection[str] = (), output: Output | None = None
) -> ToolResult:
    """Run the judged command in the judged folder, and return its output with the exit code.

    :param opened: files that the user was asked about by name for this call; the sandbox leaves them open.
    :param output: where the output goes; by default all of it to the result.
    :raises ToolError: the folder is missing, has been replaced or is outside the vault, or there is no shell.
    """
    output = output or Output(ctx.data_dir, ctx.progress)
    confined = confinement(ctx.rules.all())
    sandbox = await asyncio.to_thread(find_sandbox) if confined.used else None
    if sandbox is None:
        return await _run(ctx, timeout, None, output)
    vault = f"{ctx.vault}/"
    names = frozenset(path.removeprefix(vault) for path in opened if path.startswith(vault))
    inside = Confined(ctx, sandbox, confined.network, names)
    return await run_confined(inside, lambda: _run(ctx, timeout, inside, output))


async def _run(ctx: ToolContext, timeout: float | None, inside: Confined | None, output: Output) -> ToolResult:
    target = next(target for target in ctx.call.targets if target.kind == "shell")
    try:
        with Pipe() as pipe:
            with _judged_folder(ctx, target) as place:
                process = await _start(target.given, ctx, place, inside, pipe.take_writing_end())
            stopped = not await _ends_in_time(process, pipe, output, ctx.mark, timeout)
    except BaseException:
        output.discard()
        raise
    ended = f"stopped after {timeout:g} s" if stopped else f"exit code {process.returncode}"
    return output.result(ended, process.returncode, stopped=stopped, sandboxed=inside is not None)


async def _ends_in_time(
    process: asyncio.subprocess.Process, pipe: Pipe, output: Output, mark: str, timeout: float | None
) -> bool:
    """Wait for the command, and return whether it ended by itself. No process of it is left afterwards."""
    try:
        async with asyncio.timeout(timeout):
            await _read_until_end(process, pipe, output)
    except TimeoutError:
        return False
    finally:
        await _wait_uncancelled(_end_all(process, mark))
    return True


@contextmanager
def _judged_folder(ctx: ToolContext, target: Target) -> Iterator[JudgedFolder]:
    """Hold the folder of a command open.

    :raises ToolError: the folder is outside the vault, is missing, or is not the one that was judged.
    """
    folder = target.folder
    if folder is None or target.error is not None:
        reason = target.error or "the command has no folder"
        raise ToolError(reason, code="outside", next_step="name a folder inside the working folder, or leave workdir out")
    if folder.identity is None and not ctx.vault.is_dir():
        message, step = f"the working folder no longer exists: {ctx.vault}", "put it back, or work in another folder"
        raise ToolError(message, code="not_found", next_step=step)
    with ctx.files.folder(folder) as descriptor:
        yield JudgedFolder(descriptor, Path(folder.path or ""))


class Pipe:
    """A pipe of our own: with asyncio's, waiting for the shell would wait for every process that holds the pipe.

    It reads into the same memory each time; with new memory for each chunk, 20 MB take twice the time.
    """

    def __enter__(self) -> Pipe:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        with suppress(AttributeError, OSError):  # only Linux can; a user's limit may be reached
            fcntl.fcntl(self._reading, fcntl.F_SETPIPE_SZ, PIPE)
        self._memory = memoryview(bytearray(CHUNK))
        return self

    def take_writing_end(self) -> int:
        """Return the descriptor that the command writes to; the caller closes it."""
        writing, self._writing = self._writing, -1
        return writing

    async def read(self) -> memoryview:
        """Wait for output and return it, valid until the next call; empty when every process has closed the pipe."""
        await asyncio.sleep(0)  # let other tasks run, even if the command prints faster than we read
        while True:
            with suppress(BlockingIOError):
                return self._memory[: os.readv(self._reading, (self._memory,))]
            readable = asyncio.Event()
            asyncio.get_running_loop().add_reader(self._reading, readable.set)
            try:
                await readable.wait()
            finally:
                asyncio.get_running_loop().remove_reader(self._reading)

    def __exit__(self, *_: object) -> None:
        for descriptor in {self._reading, self._writing} - {-1}:
            os.close(descriptor)


async def _start(
    command: str, ctx: ToolContext, place: JudgedFolder, inside: Confined | None, writing: int
) -> asyncio.subprocess.Process:
    """Start the shell in the folder behind the descriptor, wherever its path leads by now."""
    shell = shutil.which("bash")
    argv = [shell, "--noprofile", "--norc", "-c", command] if shell else [shutil.which("sh") or "/bin/sh", "-c", command]
    by_descriptor, stdin = Path(f"/proc/self/fd/{place.descriptor}"), asyncio.subprocess.DEVNULL
    here = by_descriptor if by_descriptor.exists() else place.path
    try:
        if inside is not None:
            about = os.fstat(place.descriptor)
            checked = [shutil.which("stat") or "stat", f"{about.st_dev}:{about.st_ino}", *argv]
            argv = await asyncio.to_thread(inside.argv, [shell or "/bin/sh", "-c", _INSIDE_ITS_FOLDER, *checked], place.path)
        elif here is place.path:  # the system has no /proc, so the folder is entered by its path
            argv, stdin = [shell or "/bin/sh", "-c", _IN_ITS_FOLDER, "bash", *argv], place.descriptor
        starting = asyncio.create_subprocess_exec(
            *argv,
            cwd=here,
            env={**environment(ctx.mark, sandboxed=inside is not None), "PWD": str(place.path)},
            stdin=stdin,
            stdout=writing,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        return await started(starting)
    except OSError as error:
        raise ToolError(f"the shell could not be started: {error.strerror}", code="io", next_step="moryflow doctor") from error
    finally:
        os.close(writing)


_NO_EDITOR = (
    "no editor can be opened here: give the text in the command (git commit -m, --no-edit, crontab FILE, kubectl patch), or "
    "set GIT_EDITOR or GIT_SEQUENCE_EDITOR to a program that edits the file (true leaves it as it is)"
)
# The editor of every command: one that opens would wait for a user who cannot see it.
_FAILS = f"sh -c 'echo \"{_NO_EDITOR}\" >&2; exit 1' editor"


def environment(mark: str, *, sandboxed: bool) -> dict[str, str]:
    """Return the user's environment without Moryflow's own variables, and without those that look like secrets.

    ``CDPATH`` is left out too: with it ``cd sub`` could lead to another folder than the judged one. So are the user's editors
    (``GIT_EDITOR``, ``SUDO_EDITOR`` …). By `mark`, processes that have left the group are found.
    """
    kept = {
        key: value
        for key, value in turn_environment().items()
        if not key.startswith("MORYFLOW_") and key != "CDPATH" and not key.endswith("EDITOR") and not _is_secret(key)
    }
    places = {"XDG_CACHE_HOME": "/tmp/cache", "TMPDIR": "/tmp"} if sandboxed else {}
    shows = {"PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0", "EDITOR": _FAILS, "VISUAL": _FAILS}
    return {**kept, **places, **shows, **_git_editors(kept.get("GIT_CONFIG_COUNT", "")), CALL_MARK: mark}


def _git_editors(count: str) -> dict[str, str]:
    """Return the variables with git's editors, after the `count` settings that the user has there.

    As ``GIT_EDITOR`` they would defeat a command's own ``git -c core.editor=true``; so they defeat only the user's files.
    """
    first = int(count) if count.isdigit() else 0
    found = {"GIT_CONFIG_COUNT": str(first + 2)}
    for number, name in enumerate(("core.editor", "sequence.editor"), first):
        found |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": _FAILS}
    return found


def _is_secret(variable: str) -> bool:
    name = variable.upper()
    return any(word in name for word in _SECRET_WORDS) or name.endswith(_SECRET_ENDS) or variable_holds_secret(variable)


async def _read_until_end(process: asyncio.subprocess.Process, pipe: Pipe, output: Output) -> None:
    """Read until the shell has ended, and then at most :data:`GRACE_SECONDS` until the pipe closes."""
    reading = asyncio.ensure_future(output.read(pipe))
    try:
        await process.wait()
        await asyncio.wait((reading,), timeout=GRACE_SECONDS)
    finally:
        reading.cancel()
        await asyncio.wait((reading,))


async def _wait_uncancelled(work: Coroutine[Any, Any, object]) -> None:
    """Wait for `work`, which ends processes; if the call is cancelled, wait all the same."""
    ending = asyncio.ensure_future(work)
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        await asyncio.wait((ending,))
        raise


async def _end_all(process: asyncio.subprocess.Process, mark: str) -> None:
    """End the process group of a command, and the processes that have left it."""
    await end_group(process.pid, lambda: process.returncode is not None)
    await process.wait()
    await asyncio.to_thread(end_marked, (mark,))
