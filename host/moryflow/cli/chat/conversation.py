"""A conversation: lines in, turns out, slash commands in between, and the user's own commands behind a ``!``."""

from __future__ import annotations

import asyncio
import codecs
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from moryflow_sdk import ConfigError, MoryflowError, SlashResult
from moryflow_sdk.support.own_files import is_file

from moryflow.cli.commands.run import explain, on_ask
from moryflow.cli.terminal import ending, first_line, is_dumb, plain, say, terminal_width
from moryflow.cli.terminal.approval_prompt import TerminalAsker
from moryflow.cli.terminal.interrupts import ENDING, catch_signals
from moryflow.cli.terminal.stdin import attachment, question
from moryflow.cli.terminal.streams import stderr
from moryflow.plugins.consent import consent_command
from moryflow.runtime.slash_lines import slash_line

from . import LineSource, TurnPrompt, mentioned
from .slash import BUILDER, PLANNER, Quit, Slash, in_chat
from .talk import Talk

if TYPE_CHECKING:
    from moryflow_sdk import Event

    from moryflow.cli.options import Flags, RunFlags

    from .talk import ChatHost


T = TypeVar("T")
# Seconds after which the end of a turn, or a question in it, rings.
NOTIFY_AFTER = 20.0
# Seconds that the input waits for what its status line shows: a server may be silent.
STATUS_WAIT = 0.5
KEYS = """\
  Enter sends            Alt-Enter new line      Ctrl-X Ctrl-E editor
  / commands             @ files                 ! runs your own command
  Up earlier lines       Ctrl-R searches them    Ctrl-V pastes an image
  Tab next agent         Shift-Tab mode          Ctrl-O shows what was folded
  Esc stops the turn     Ctrl-D ends             Up, in a turn: what waits"""


class Conversation(Talk):
    """Reads lines, runs what they ask for, and asks the questions of turns."""

    def __init__(self, host: ChatHost, flags: Flags, chosen: RunFlags) -> None:
        super().__init__(host, flags, chosen)
        self._slash = Slash(self)
        self._code = 0
        self._ran: list[dict[str, str]] = []
        """What the user's own commands printed, until the next prompt takes it along."""
        self._model, self._window, self._used = "", 0, 0
        self._view.in_place = self._in_chat
        self._asker = TerminalAsker(host, self._view) if on_ask(chosen) == "prompt" else None
        self._began = time.monotonic()
        host.subscribe(self._asker or self._view)
        host.subscribe(self._note_question)

    @property
    def waiting(self) -> list[str]:
        return self._asker.waiting if self._asker is not None else []

    def question_called(self, name: str) -> str:
        numbers = self._asker.numbers if self._asker is not None else {}
        return next((approval for approval, number in numbers.items() if name == str(number)), name)

    def commands(self) -> dict[str, str]:
        return self._slash.commands()

    def files(self) -> Iterator[str]:
        """Yield the vault's files that git does not ignore, by path relative to the vault."""
        from moryflow.services.files import VaultFiles

        files = VaultFiles(Path(self.host.row.vault), self.host.home, Path.home())
        yield from (path for path, _ in files.walk(files.resolve(".")))

    async def run(self, source: LineSource) -> int:
        """Talk until the input ends. Return the exit code of the last turn that went wrong; 0 if none did, or for the user at
        the terminal.
        """
        self._source = source
        host, at_terminal = self.host, source.interactive
        told = at_terminal and not self.flags.quiet
        if self._asker is not None:
            self._asker.read = source.answer
            if at_terminal:
                self._asker.pause_asking()
        if told:
            say(f"{' · '.join(filter(None, (short_path(host.row.vault), host.place)))} · /help, ? for keys, Ctrl-D ends")
        await self.recall()
        await host.start(self._reloaded)
        if at_terminal:  # input of a closed terminal may end before SIGHUP comes; SIGHUP must not kill us then
            catch_signals((signal.SIGHUP,), lambda _: None, leave_at=2)
        try:
            await self._talk()
        finally:
            await source.close()
            await host.aclose()
        unsent = source.unsent()
        with suppress(OSError):  # the terminal may be gone
            if unsent:
                say(f"not sent, Up brings it back in the next chat: {first_line(unsent)}")
            if told:
                here = Path(host.row.vault) == (self.flags.vault or Path.cwd()).resolve() and not host.row.parent
                which = "-c" if here else f"-r {host.row.id}"
                say(f"moryflow chat{' --attach' if host.place else ''} {which} goes on from here")
        return 0 if at_terminal else self._code

    async def _talk(self) -> None:
        going = True
        while going:
            # The prompt and a turn handle Ctrl-C themselves; between the two it must not end the program either.
            with Stopping(self._cancel_work, ENDING if self._source.interactive else ()) as self._stopping:
                line = await self._line()
                going = line is not None and await self._handle_line(line.strip()) and not self._stopping.leave

    async def _handle_line(self, line: str) -> bool:
        """Do what a line asks for; return whether the conversation goes on."""
        try:
            await self._stoppable(self.host.settled())
            # Code that appeared while this conversation runs: an agent may have written it.
            waiting = self.host.waiting()
            for item in waiting if self._source.interactive else ():
                if await self.confirmed(question(item)):
                    await self.host.give(item)
                else:
                    say(f"{item} waits; {consent_command(item)}")
            await self._stoppable(self._run_line(line))
        except Quit:
            return False
        except click.Abort:
            say("stopped")
        except MoryflowError as error:
            self._code = 1
            say(self._in_chat(str(error)))
        return True

    async def _stoppable(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` and return its result."""
        self._work = asyncio.create_task(work)
        try:
            await asyncio.wait((self._work,))
            if self._work.cancelled():
                raise click.Abort
            return self._work.result()
        finally:
            self._work.cancel()

    def _cancel_work(self) -> None:
        """Cancel what the last line began, or the wait for the next line if the conversation ends; not a turn, see `_stop`."""
        if self._work is not None and (self._stopping.leave or not self._view.idle) and not self.host.busy:
            self._work.cancel()

    def _reloaded(self, lines: list[str]) -> None:
        for line in lines:
            self._asker.tell(partial(say, line)) if self._asker is not None else say(line)

    async def _line(self) -> str | None:
        if not self._source.interactive:
            return await self._source.line(self._prompt)
        self._view.rest()
        self._asking = asyncio.create_task(self._ask_model())
        await asyncio.wait((self._asking,), timeout=STATUS_WAIT)
        try:
            return await self._stoppable(self._source.line(self._prompt))
        except click.Abort:
            return None
        finally:
            self._view.idle = False
            self._asking.cancel()

    async def _ask_model(self) -> None:
        with suppress(MoryflowError):
            self._model, self._window = await self.host.model()

    def _prompt(self) -> str:
        host = self.host
        place = [host.agent] if host.agent != BUILDER or host.row.parent else []
        place += ["full access"] if host.mode == "full_access" else []
        return f"[{' · '.join(place)}] > " if place else "> "

    async def next_agent(self) -> None:
        """Let the next agent answer, as Tab at an empty prompt does."""
        ids = [name for name, agent in self.host.agents.items() if agent.takes_turns]
        now = self.host.agent
        following = ids[(ids.index(now) + 1) % len(ids)] if now in ids else BUILDER
        await self.host.change(agent=following)
        self.choose(agent=following)

    def _in_chat(self, step: str) -> str:
        return in_chat(step, self.host.row.id)

    async def _run_line(self, line: str) -> None:
        if line.lower() == BUILDER and self.host.agent == PLANNER:  # this one word hands a plan over
            line = f"/{BUILDER}"
        if self._source.interactive and line.startswith("!"):
            await self._own_command(line[1:].strip())
            return
        if self._source.interactive and line == "?":
            self.show_keys()
            return
        known = self._slash.known()
        slash = ("help", "") if line == "/" else slash_line(line, known)
        if slash is not None and slash[0] not in known:
            self.propose(line)
        result = await self._slash.take(*slash) if slash is not None else SlashResult(prompt=line)
        self._view.session = self.host.row.id
        if result.prompt:
            await self.turn(result.prompt, foreign=result.foreign)

    def show_keys(self) -> None:
        say(KEYS)

    async def _own_command(self, command: str) -> None:
        """Run a command of the user's; what it prints goes with the next prompt, and ``!`` alone takes that back."""

        if not command:
            say("what your commands printed does not go with the next prompt" if self._ran else "!COMMAND runs it here")
            self._ran = []
            return
        self._ran.append(await run_own(command, Path(self.host.row.vault)))
        self._view.note("goes with your next prompt; ! alone leaves it out")

    def notify(self, what: str) -> None:
        """Ring, and show a notice of the terminal's, if the turn has run so long that the user may look elsewhere."""
        if self.host.notifies and self._source.interactive and time.monotonic() - self._began > NOTIFY_AFTER and not is_dumb():
            sys.stderr.write(f"\x07\x1b]9;Moryflow: {what}\x07")
            sys.stderr.flush()

    def _note_question(self, event: Event) -> None:
        if event.type == "permission.asked":
            self.notify("a question waits for you")

    def status(self) -> str:
        """Return the line below the input: who answers, how, and what it has taken."""
        host, used = self.host, self._view.totals_so_far
        share = f"{used.context * 100 // self._window}% of {self._window // 1000}k" if self._window and used.context else ""
        cost = f"${used.cost:.4f}" if used.cost else ""
        stops = "Esc stops" if self._view.typing else "? keys"
        mode = "full access" if host.mode == "full_access" else "asks first"
        around = [*filter(None, (host.agent, mode, share, cost, stops))]
        room = (terminal_width() or 80) - 8 - len(" · ".join(around))  # of a long name the end is kept
        return " · ".join([*around[:2], ending(self._model, max(room, 8)), *around[2:]])

    async def turn(self, text: str | None, *, foreign: bool = False) -> None:
        """Run one turn, or continue without a new prompt. Ctrl-C stops the turn, not the program.

        :param foreign: the text was not typed by the user.
        """
        at_terminal, self._began = self._source.interactive, time.monotonic()
        with Stopping(self.host.cancel) as stopping, self.typing(), self._questions():
            own = text if at_terminal and not foreign else None
            files, images = attachments(own, Path(self.host.row.vault)) if own else ([], [])
            ran, self._ran = (self._ran, []) if own else ([], self._ran)
            prompt = TurnPrompt(text, [*ran, *files], images, 0 if foreign else None, on_ask(self.chosen), stays=at_terminal)
            result = await self.host.turn(prompt, self.chosen)
        self._view.finish(result.text)
        if at_terminal:
            self._view.totals()
            self.notify("the answer is there" if result.end_reason == "completed" else "the turn has ended")
        self._code = result.exit_code or self._code  # a later turn must not hide that an earlier one went wrong
        if result.end_reason == "stopped":
            self._source.take_all_back()
            say("stopped; what was done so far is kept")
        else:
            explain(result, self.flags, self._in_chat)
        if stopping.leave:
            raise Quit

    @contextmanager
    def _questions(self) -> Iterator[None]:
        """Ask questions while a turn runs; a question of a sub-agent between two turns waits for ``/reply``."""
        if self._asker is None or not self._source.interactive:
            yield
            return
        self._asker.resume_asking()
        try:
            yield
        finally:
            self._asker.pause_asking()


def short_path(path: str) -> str:
    """Return a path with ``~`` in place of the user's home."""
    home = str(Path.home())
    return f"~{path[len(home) :]}" if path == home or path.startswith(f"{home}/") else path


def attachments(text: str, vault: Path) -> tuple[list[Any], list[Any]]:
    """Return the files and the images of a vault that a line at a terminal names behind an @."""
    attached: dict[str, list[Any]] = {"files": [], "images": []}
    for path in (vault / name for name in mentioned(text)):
        if is_file(path):
            kind, item = attachment(path)
            attached[kind].append(item)
    return attached["files"], attached["images"]


class Stopping:
    """Calls `stop` at each signal while the context lasts; after SIGTERM or SIGHUP, `leave` says to end the conversation.

    A plugin that blocks the loop keeps `stop` from running, so the third signal ends the program.
    """

    def __init__(self, stop: Callable[[], None], signals: Sequence[int] = ENDING) -> None:
        self._stop = stop
        self._signals = signals
        self.leave = False

    def __enter__(self) -> Stopping:
        self._restore = catch_signals(self._signals, self._received, leave_at=3)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _received(self, number: int) -> None:
        self.leave = self.leave or number != signal.SIGINT
        self._stop()


# How many characters of the end of an output go with the next prompt.
KEPT = 16_000


async def run_own(command: str, vault: Path) -> dict[str, str]:
    """Run `command` as the user's shell would, show what it prints, and return that as an attachment.

    :raises ConfigError: the folder is not on this machine.
    """
    if not vault.is_dir():
        raise ConfigError("the folder of this session is not on this machine", where=str(vault), next_step="run it there")
    process = await asyncio.create_subprocess_shell(
        command, cwd=vault, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert process.stdout is not None
    decode, text = codecs.getincrementaldecoder("utf-8")("replace").decode, ""
    try:
        while data := await process.stdout.read(65536):
            piece = decode(data)
            stderr().write(plain(piece))
            stderr().flush()
            text = (text + piece)[-2 * KEPT :]
        code = await process.wait()
    finally:
        if process.returncode is None:  # Ctrl-C; the terminal has told the command too
            process.terminate()
    ended = "" if not text or text.endswith("\n") else "\n"
    end = f"[exit code {code}]" if code else ""
    stderr().write(f"{ended}{end}\n" if end else ended)
    cut = "" if len(text) <= KEPT else "[the beginning is left out]\n"
    return {"path": f"! {command}", "text": f"{cut}{text[-KEPT:]}{ended}{end}"}
