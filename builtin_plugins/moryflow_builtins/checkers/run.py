"""Run one checker, for at most five seconds, in the sandbox where there is one."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from moryflow_sdk import Turn
from moryflow_sdk.support.processes import end_marked, marked_environment, started
from moryflow_sdk.support.sandbox import confinement, find_sandbox
from moryflow_sdk.support.secrets import variable_holds_secret

SECONDS = 5.0
MAX_OUTPUT = 1024 * 1024


class Ran(NamedTuple):
    """How a command ended; `failed` says why it did not run to its end, and `hung` whether it was stopped."""

    code: int | None = None
    output: str = ""
    failed: str = ""
    hung: bool = False


async def run(turn: Turn, words: Sequence[str], files: Sequence[str]) -> Ran:
    """Run `words` in the vault, with `files` in place of ``{files}``; keys and passwords are not passed on."""
    named = [file if not file.startswith("-") else f"./{file}" for file in files]
    argv = [word for each in words for word in (named if each == "{files}" else [each])]
    mark = uuid4().hex
    environ = {key: value for key, value in marked_environment(mark).items() if not variable_holds_secret(key)}
    environ |= {"NO_COLOR": "1", "PWD": str(turn.vault)}
    place = str(turn.vault / Path(argv[0]).expanduser()) if "/" in argv[0] else argv[0]
    program = shutil.which(place, path=environ.get("PATH"))
    if program is None:
        return Ran(failed=f"the program {argv[0]!r} is not found")
    argv = [program, *argv[1:]]
    confined = confinement(turn.rules.all())
    sandbox = await asyncio.to_thread(find_sandbox) if confined.used else None
    if sandbox is not None:
        environ |= {"XDG_CACHE_HOME": "/tmp/cache", "TMPDIR": "/tmp"}
        closed = [path for path in turn.watched if path.is_relative_to(turn.vault) or turn.vault.is_relative_to(path)]
        argv = await asyncio.to_thread(
            lambda: sandbox.command(argv, vault=turn.vault, hidden=[turn.home], read_only=closed, network=confined.network)
        )
    return await _run(argv, environ, turn.vault, mark)


async def _run(argv: Sequence[str], environ: dict[str, str], folder: Path, mark: str) -> Ran:
    try:
        process = await started(
            asyncio.create_subprocess_exec(
                *argv,
                cwd=folder,
                env=environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        )
    except OSError as error:
        return Ran(failed=f"it cannot be started: {error.strerror}")
    output = bytearray()
    assert process.stdout is not None
    try:
        async with asyncio.timeout(SECONDS):
            while len(output) < MAX_OUTPUT and (chunk := await process.stdout.read(65536)):
                output += chunk
            if len(output) >= MAX_OUTPUT:
                return Ran(failed="it printed more than a megabyte", hung=True)
            await process.wait()
    except TimeoutError:
        return Ran(failed=f"it was stopped after {SECONDS:g} s, and is not run again in this session", hung=True)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.to_thread(end_marked, (mark,))  # also what has left the group
    return Ran(process.returncode, output.decode("utf-8", "replace"))
