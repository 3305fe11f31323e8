"""``moryflow dev``: reload and show what changed while you write a tool, an agent or a plugin."""

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
from typing import TYPE_CHECKING

import click

from moryflow.cli.open_host import host_for
from moryflow.cli.options import Flags, document_options
from moryflow.cli.terminal import as_json, at_terminal, plain
from moryflow.cli.terminal.interrupts import ENDING, run_on_loop
from moryflow.cli.terminal.streams import stdout

if TYPE_CHECKING:
    from moryflow.plugins.reload_report import ReloadReport

# Seconds that the start waits for the probe; what the probe finds later is shown when it comes.
_FIRST_WAIT = 1.0


@click.command("dev")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path, exists=True), metavar="[PATH]...")
@click.option(
    "--run", "again", metavar="COMMAND", help="Run this moryflow command after each save, for example 'tool run hello'."
)
@document_options
def command(flags: Flags, paths: tuple[Path, ...], again: str | None) -> int:
    """Watch and reload while you write: each save is shown with what it changed.

    Configuration, agents, tools and plugins of Moryflow's folder are watched, and plugins that are installed from their
    sources. A PATH is a plugin that lies elsewhere: a file, a package, or a project with a pyproject.toml. The command of
    --run asks at this terminal what it has to ask; where there is none, --mode full_access -y lets a tool run unasked.

    \b
    moryflow dev --run 'tool run hello --name you'
    moryflow dev ./my-plugin --run 'hook fire chat.params {}'
    """
    words = _words(again or "")
    folders = tuple(path.absolute() for path in paths)
    loop = _Loop(flags, folders, words)
    return run_on_loop(loop.run)


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        from moryflow_sdk import ConfigError

        message = f"--run is not a command line: {str(error)[:1].lower()}{str(error)[1:]}"
        raise ConfigError(message, next_step="moryflow dev --run 'tool run hello --name you'") from error


class _Loop:
    """Shows each save and runs a command after it, until Ctrl-C.

    :param paths: plugins outside Moryflow's folder.
    :param again: the words of the ``moryflow`` command to run, without ``moryflow``.
    """

    def __init__(self, flags: Flags, paths: tuple[Path, ...], again: list[str]) -> None:
        self._flags = flags
        self._paths = paths
        self._again = again
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None

    async def run(self) -> int:
        from moryflow.plugins.reload import Reloader

        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in ENDING:
            loop.add_signal_handler(number, stopped.set)
        async with await host_for(self._flags, development=self._paths, wait=_FIRST_WAIT) as host:
            self._host = host
            self._reloader = Reloader(host, self._saved)
            self._reloader.start()
            from moryflow.plugins.entry_points import editable_code

            own = [record for record in self._host.plugin_set.records if record.tier != "builtin" and record.status == "loaded"]
            places = [str(self._host.home), *map(str, editable_code(self._host.home, self._paths))]
            names = f" ({', '.join(record.name for record in own)})" if own else ""
            plugins = f"{len(own)} plugin{'' if len(own) == 1 else 's'}{names}"
            self._say(f"watching {', '.join(places)}: {plugins}, {len(self._host.tools)} tools; Ctrl-C ends")
            self._run_again()
            try:
                await stopped.wait()
            finally:
                if self._asking is not None:
                    self._asking.cancel()
                await self._reloader.aclose()
                await self._end_command()
        return 0

    def _saved(self, report: ReloadReport) -> None:
        """Show one reload, and run the command again unless the saved code does not work or only waits for consent."""
        if self._flags.as_json:
            click.echo(as_json({"v": 1, "type": "reload", **report.as_event()}, indent=None), file=stdout())
            stdout().flush()
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
        """Ask for consent to code that appeared meanwhile; without a terminal, say how to give it."""
        from moryflow.cli.terminal.stdin import question
        from moryflow.plugins.consent import consent_command

        while self._reloader.asking:
            item = self._reloader.asking.pop(0)
            if not at_terminal():
                if Path(item).is_absolute():  # for all others the report has said how
                    self._say(f"{item} waits; {consent_command(item)}")
                continue
            if self._process is not None:  # the command may be asking at this terminal
                await self._process.wait()
            if await _answer(question(item)):
                await self._reloader.give(item)

    # ---------------------------------------------------------------- the command

    def _run_again(self) -> None:
        if not self._again:
            return
        self._task = asyncio.create_task(self._run_command(self._task))

    async def _run_command(self, before: asyncio.Task[None] | None) -> None:
        if await self._end_command():
            left_open = "\n" if at_terminal() else ""  # the command may have left a question open
            self._say(f"{left_open}ended: a file was saved")
        if before is not None:
            await asyncio.wait((before,))
        self._say(f"$ moryflow {shlex.join(self._again)}")
        stdout().flush()
        started = time.monotonic()
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # a moryflow.py in the folder is not this program
            "-m",
            "moryflow",
            *self._again,
            env=self._environ(),
            start_new_session=True,
            stdin=self._stdin(),
            stdout=stdout(),
        )
        code = await process.wait()
        self._process = None if self._process is process else self._process
        if code >= 0:
            self._say(f"exit code {code} · {(time.monotonic() - started) * 1000:.0f} ms")

    async def _end_command(self) -> bool:
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
        """Return the command's standard input: this terminal, so that it can ask there, unless we are asking there now."""
        asking = self._asking is not None and not self._asking.done()
        return None if at_terminal() and not asking else asyncio.subprocess.DEVNULL

    def _environ(self) -> Mapping[str, str]:
        """Return the command's environment; it names the plugins outside Moryflow's folder, as the command loads its own."""
        from moryflow.runtime.generation import DEVELOPMENT

        return {**os.environ, DEVELOPMENT: os.pathsep.join(str(path) for path in self._paths)}

    def _say(self, text: str) -> None:
        if not self._flags.quiet:
            click.echo(plain(text), err=True)


async def _answer(text: str) -> bool:
    from moryflow.cli.terminal.stdin import discard_typed, read_line

    discard_typed()
    click.echo(plain(f"{text} [y/N]: "), err=True, nl=False)
    return (await read_line()).strip().lower() in ("y", "yes")
