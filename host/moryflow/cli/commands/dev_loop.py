"""The loop of ``moryflow dev``: a host that reloads, a line for each save, and a command that is run again."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import click

from moryflow.cli.open_host import host_for
from moryflow.cli.options import Flags
from moryflow.cli.terminal.keyboard import question
from moryflow.cli.terminal.text import as_json, plain
from moryflow.plugins.consent import said_yes_with
from moryflow.plugins.reload import Reloader, ReloadReport
from moryflow.runtime.generation import DEVELOPMENT

_FIRST_WAIT = 1.0
"""Seconds that the start waits for the probe; a person sits there and is told of what comes later."""


class Loop:
    """Shows each save and runs a command after it, until Ctrl-C.

    :param paths: plugins that lie elsewhere.
    :param again: the arguments of the ``moryflow`` command to run, as one would type them.
    """

    def __init__(self, flags: Flags, paths: tuple[Path, ...], again: list[str]) -> None:
        self._flags = flags
        self._paths = paths
        self._again = again
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Watch until somebody ends it."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stopped.set)
        async with await host_for(self._flags, development=self._paths, wait=_FIRST_WAIT) as host:
            self._host = host
            self._reloader = Reloader(host, self._saved)
            self._reloader.start()
            self._greet()
            self._run_again()
            try:
                await stopped.wait()
            finally:
                if self._asking is not None:
                    self._asking.cancel()
                await self._reloader.aclose()
                await self._end_command()
        return 0

    def _greet(self) -> None:
        own = [record for record in self._host.plugin_set.records if record.tier != "builtin" and record.status == "loaded"]
        places = [str(self._host.home), *(str(path) for path in self._host.surroundings.watched)]
        names = f" ({', '.join(record.name for record in own)})" if own else ""
        plugins = f"{len(own)} plugin{'' if len(own) == 1 else 's'}{names}"
        self._say(f"watching {', '.join(places)}: {plugins}, {len(self._host.tools)} tools; Ctrl-C ends")

    def _saved(self, report: ReloadReport) -> None:
        """Show one reload; the command is run again unless what was saved does not work."""
        if self._flags.as_json:
            click.echo(as_json({"v": 1, "type": "reload", **report.as_event()}, indent=None))
            sys.stdout.flush()
        else:
            for line in report.lines():
                self._say(line)
        if self._reloader.asking and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._ask())
        if self._host.plugin_set.kept:
            return
        if any(not change.change.startswith("waits") for change in report.changed):
            self._run_again()

    async def _ask(self) -> None:
        """Ask about code that appeared while this runs; without a terminal say what gives the yes."""
        while self._reloader.asking:
            item = self._reloader.asking.pop(0)
            if not _at_terminal():
                if Path(item).is_absolute():  # of all others the report has said so
                    self._say(f"{item} waits; {said_yes_with(item)}")
                continue
            if self._process is not None:  # it may be asking here
                await self._process.wait()
            if await _answer(question(item)):
                await self._reloader.give(item)

    # ---------------------------------------------------------------- the command

    def _run_again(self) -> None:
        if not self._again:
            return
        before, self._task = self._task, None
        self._task = asyncio.create_task(self._run_command(before))

    async def _run_command(self, before: asyncio.Task[None] | None) -> None:
        """Run the command; the run before, if it still runs, is ended first."""
        if await self._end_command():
            self._say(f"{_newline()}ended: something was saved")
        if before is not None:
            await asyncio.wait((before,))
        self._say(f"$ moryflow {shlex.join(self._again)}")
        sys.stdout.flush()
        started = time.monotonic()
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "moryflow",
            *self._again,
            env=self._environ(),
            start_new_session=True,
            stdin=self._stdin(),
            stdout=sys.stdout,
        )
        code = await process.wait()
        self._process = None if self._process is process else self._process
        if code >= 0:
            self._say(f"exit code {code} · {(time.monotonic() - started) * 1000:.0f} ms")

    async def _end_command(self) -> bool:
        """End the command if it runs; return whether it did."""
        process = self._process
        if process is None or process.returncode is not None:
            return False
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), 1.0)
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        return True

    def _stdin(self) -> int | None:
        """Let the command ask at this terminal what it has to ask, unless we are asking there ourselves."""
        asking = self._asking is not None and not self._asking.done()
        return None if _at_terminal() and not asking else asyncio.subprocess.DEVNULL

    def _environ(self) -> Mapping[str, str]:
        """The command is a process of its own: it is told of the plugins that lie elsewhere."""
        return {**os.environ, DEVELOPMENT: os.pathsep.join(str(path) for path in self._paths)}

    def _say(self, text: str) -> None:
        if not self._flags.quiet:
            click.echo(plain(text), err=True)


async def _answer(text: str) -> bool:
    """Ask at the terminal without holding up the loop."""
    from moryflow.cli.terminal.keyboard import discard_typed, read_line

    discard_typed()
    click.echo(plain(f"{text} [y/N]: "), err=True, nl=False)
    return (await read_line()).strip().lower() in ("y", "yes")


def _newline() -> str:
    """At a terminal the command may have left a question open."""
    return "\n" if _at_terminal() else ""


def _at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
