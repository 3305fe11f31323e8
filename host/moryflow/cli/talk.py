"""A conversation: lines in, turns out, slash commands in between."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import replace
from typing import Any, Protocol

import click
from moryflow_sdk import MoryflowError

from .options import Flags
from .run import RunFlags, explain, on_ask
from .slash import Quit, Slash
from .text import plain


class Source(Protocol):
    """Where lines come from."""

    interactive: bool

    async def line(self, prompt: str) -> str | None:
        """Return the next line, ``None`` at the end."""
        ...


class Conversation:
    """One person, one host, one session at a time."""

    def __init__(self, host: Any, session: Any, flags: Flags, chosen: RunFlags) -> None:
        from .render import TerminalView

        self.host, self.session, self.flags, self.chosen = host, session, flags, chosen
        self._slash = Slash(self)
        self._view = TerminalView(quiet=flags.quiet, verbose=flags.verbose, language=host.config.get("language") or "en")
        self._code = 0
        host.bus.subscribe(self._view)
        if on_ask(chosen) == "prompt":
            from .asking import TerminalAsker

            host.bus.subscribe(TerminalAsker(host))

    @property
    def slash_names(self) -> list[str]:
        """Names that may follow a slash."""
        return self._slash.names

    async def run(self, source: Source) -> int:
        """Talk until the input ends; return the exit code of the last turn when nobody sits at the terminal."""
        if source.interactive and not self.flags.quiet:
            sys.stderr.write(f"{self._who()} · /help, Ctrl-D ends\n")
        while (line := await source.line(self._prompt())) is not None:
            try:
                await self._take(line.strip())
            except Quit:
                break
            except MoryflowError as error:
                self._code = 1
                self.say(str(error))
        if source.interactive and not self.flags.quiet:
            sys.stderr.write(f"moryflow chat -r {self.session.id} goes on from here\n")
        return 0 if source.interactive else self._code

    def _prompt(self) -> str:
        return "[full access] > " if self.session.mode == "full_access" else "> "

    def _who(self) -> str:
        _, model = self.host.choose_model(self.session)
        return plain(f"{self.session.agent.id} · {model.id} · {self.session.mode} · {self.session.row.vault}")

    async def _take(self, line: str) -> None:
        if line.startswith("/"):
            line = await self._slash.take(line)
        if line:
            await self.turn(line)

    async def turn(self, text: str) -> None:
        """Run one turn; Ctrl-C stops it and not the program."""
        from moryflow.kernel.outcome import RunOptions

        chosen = self.chosen
        options = RunOptions(on_ask=on_ask(chosen), max_steps=chosen.max_steps, max_cost=chosen.max_cost)
        with _Stopping(self.session.cancel) as stopping:
            result = await self.session.prompt(text, options=options)
        self._view.finish(result.text)
        self._code = result.exit_code
        if result.end_reason == "stopped":
            self.say("stopped; what was done so far is kept")
        else:
            explain(result, self.flags)
        if stopping.leave:
            raise Quit

    async def exchange(self, session: Any) -> None:
        """Go on with another session."""
        self.session.release()
        self.session = session
        await session.keep()

    def choose(self, **changes: Any) -> None:
        """Change the flags that the next session is opened with."""
        self.chosen = replace(self.chosen, **changes)

    def say(self, text: str) -> None:
        """Tell the person something that is not part of the answer."""
        click.echo(plain(text), err=True)


class _Stopping:
    """Turns signals into a stopped turn for as long as a turn runs; SIGTERM and SIGHUP end the conversation too."""

    def __init__(self, stop: Any) -> None:
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self.leave = False

    def __enter__(self) -> _Stopping:
        self._loop.add_signal_handler(signal.SIGINT, self._stop)
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._loop.add_signal_handler(number, self._end)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._loop.remove_signal_handler(number)

    def _end(self) -> None:
        self.leave = True
        self._stop()
