"""Run one checker, for at most five seconds, in the sandbox where there is one, and read what it found."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
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


# `a.py:3:5: text` of most, `a.py:3:5 - text` of pyright, `a.ts(3,5): text` of tsc.
_LINE = re.compile(r"\s*(?P<file>[^\s:(][^:(]*?)[:(](?P<line>\d+)(?:[:,]\d+)?\)?(?: -|:)?\s+(?P<text>\S.*)")
# `  3:5  error  text` of eslint, below a line with the file alone.
_BELOW = re.compile(r"\s+(?P<line>\d+):\d+\s+(?P<text>\S.*)")
_MOVES = re.compile(r"\bline \d+|:\d+")


class PrintedProblem(NamedTuple):
    """A problem: the file (relative to the vault, if it is in there), its line, and what the checker says."""

    file: str
    line: int
    text: str
    source: str

    @property
    def keys(self) -> tuple[str, str]:
        """What it is, wherever its line has moved, and the same with the content of its line."""
        loose = f"{self.file}\0{_MOVES.sub('', self.text)}"
        return _digest(loose), _digest(f"{loose}\0{self.source}")


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def read_problems(output: str, vault: Path) -> list[PrintedProblem]:
    """Return the problems in the output of a checker: lines that name a file that is there, and a line of it."""
    found: list[PrintedProblem] = []
    sources: dict[str, list[str] | None] = {}
    heading = ""
    for row in output.splitlines():
        match = _BELOW.fullmatch(row)
        file = heading
        if match is None:
            match = _LINE.fullmatch(row)
            file = match["file"] if match else ""
            heading = heading if match or not row.strip() else row.strip()
        if match is None or not file:
            continue
        if file not in sources:
            sources[file] = _lines(vault / file)
        if (lines := sources[file]) is None:
            continue
        number, text = int(match["line"]), re.sub(r"\s{2,}", " ", match["text"]).strip()
        path = vault / file
        known = str(path.relative_to(vault)) if path.is_relative_to(vault) else file
        found.append(PrintedProblem(known, number, text, lines[number - 1].strip() if 0 < number <= len(lines) else ""))
    return found


def _lines(file: Path) -> list[str] | None:
    try:
        return file.read_text("utf-8", "replace").splitlines() if file.is_file() else None
    except (OSError, ValueError):
        return None


def new_problems(before: Iterable[Sequence[str]], now: Sequence[PrintedProblem]) -> list[PrintedProblem]:
    """Return the problems that were not there `before` (their keys). One that has only moved is not new."""
    keys = [tuple(key) for key in before]
    loose, exact = Counter(key[0] for key in keys), Counter(key[1] for key in keys)
    others: list[PrintedProblem] = []
    for problem in now:  # first those whose line is the same, so that of two alike the changed one is the new one
        if exact[problem.keys[1]] > 0:
            exact[problem.keys[1]] -= 1
            loose[problem.keys[0]] -= 1
        else:
            others.append(problem)
    new: list[PrintedProblem] = []
    for problem in others:
        if loose[problem.keys[0]] > 0:
            loose[problem.keys[0]] -= 1
        else:
            new.append(problem)
    return new
