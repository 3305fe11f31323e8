"""A conversation with a running server: lines in, turns out; slash commands are operations of the server."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moryflow_sdk import MoryflowError, SlashResult
from moryflow_sdk.support.texts import did_you_mean

from moryflow.cli.attached import AttachedSession, session_of, wanted_of
from moryflow.cli.commands.run import confirm_mode, explain, on_ask
from moryflow.cli.options import Flags, RunFlags
from moryflow.cli.terminal.approval_prompt import TerminalAsker
from moryflow.cli.terminal.render import TerminalView
from moryflow.cli.terminal.text import columns, first_line, folded, is_dumb, plain, terminal_width

from .conversation import Stopping, attachments
from .slash import Quit

if TYPE_CHECKING:
    from moryflow.attach.wire import RunningServer

    from .conversation import LineSource

LISTED = 10
"""Sessions that are listed."""


class AttachedConversation:
    """One person, one server, one session at a time."""

    def __init__(self, server: RunningServer, row: dict[str, Any], flags: Flags, chosen: RunFlags) -> None:
        self._server, self._flags, self._chosen = server, flags, chosen
        keys = sys.stdin.isatty() and not is_dumb()
        self._view = TerminalView(quiet=flags.quiet, verbose=flags.verbose, language=server.language, chat=keys)
        self._asker: TerminalAsker | None = None
        self._open(row)
        self._code = 0
        self._agents: dict[str, str] = {}
        self._of_plugins: dict[str, str] = {}
        self._own: dict[str, tuple[str, Callable[[str], Awaitable[str]]]] = {
            "help": ("this list", self._help),
            "mode": ("show the mode, or change it: /mode agent|full_access", self._mode),
            "model": ("show the model, or change it: /model NAME", self._model),
            "agent": ("show the agents, or let another one go on: /agent ID", self._agent),
            "new": ("begin a new session", self._new),
            "sessions": ("list the sessions of this folder, or go on with one: /sessions ID", self._sessions),
            "branch": ("copy this conversation into a new session and go on there: /branch [NODE]", self._branch),
            "switch": ("go on from another node of this session: /switch NODE", self._switch),
            "label": ("name what was said last: /label TEXT", self._label),
            "compact": ("replace the older part of the conversation by a summary: /compact [FOCUS]", self._compact),
            "tools": ("list the tools", self._tools),
            "quit": ("end the conversation", self._quit),
        }

    def _open(self, row: dict[str, Any]) -> None:
        """Go on with a session of the server."""
        self.session = AttachedSession(self._server, row)
        self._view.session = self.session.id
        if on_ask(self._chosen) == "prompt":
            asker = TerminalAsker(self.session, self._view)
            if self._asker is not None:
                asker.read, asker.show_whole = self._asker.read, self._asker.show_whole
            self._asker = asker
        self.session.subscribers.append(self._asker or self._view)

    def commands(self) -> dict[str, str]:
        """Return what may follow a slash, with what it does."""
        agents = {name: f"let this agent go on: {text}" for name, text in self._agents.items()}
        return {**self._of_plugins, **agents, **{name: text for name, (text, _) in self._own.items()}}

    def files(self) -> Iterator[str]:
        """Yield the files of the folder that git does not ignore."""
        from moryflow.services.files import VaultFiles

        files = VaultFiles(Path(self.session.row["vault"]), Path(self._server.home), Path.home())
        yield from (path for path, _ in files.walk(files.resolve(".")))

    async def next_agent(self) -> None:
        """Let the next agent answer; what Tab does at an empty prompt."""
        ids, now = [*self._agents], self.session.row["agent"]
        if ids:
            await self._change(agent=ids[(ids.index(now) + 1) % len(ids)] if now in ids else ids[0])

    async def run(self, source: LineSource) -> int:
        """Talk until the input ends; return the exit code of the last turn when nobody sits at the terminal."""
        self._source = source
        self._agents = {
            one["id"]: one["description"] for one in await self.session.ask("GET", "/agents") if one["mode"] != "subagent"
        }
        self._of_plugins = {one["name"]: one["help"] for one in await self.session.ask("GET", "/commands")}
        if self._asker is not None:
            self._asker.read = source.answer
        if source.interactive and not self._flags.quiet:
            self._say(f"{self._who()} · attached to {self._server.url} · /help, Ctrl-D ends")
        try:
            while await self._answered(source):
                pass
        finally:
            await source.close()
        if unsent := source.unsent():
            self._say(f"not sent, Up brings it back in the next chat: {first_line(unsent)}")
        if source.interactive and not self._flags.quiet:
            self._say(f"moryflow chat -r {self.session.id} goes on from here")
        return 0 if source.interactive else self._code

    async def _answered(self, source: LineSource) -> bool:
        """Do what the next line asks for; return whether the conversation goes on."""
        if source.interactive:
            self._view.rest()
        line = await source.line(self._prompt)
        self._view.idle = False
        if line is None:
            return False
        try:
            text = line.strip()
            said = await self._slash(text) if text.startswith("/") else SlashResult(prompt=text)
            if said.prompt:
                await self._turn(said)
        except Quit:
            return False
        except click.Abort:
            self._say("stopped")
        except MoryflowError as error:
            self._code = 1
            self._say(str(error))
        return True

    async def _turn(self, said: SlashResult) -> None:
        """Run one turn; Ctrl-C stops it and not the program."""
        text, own = said.prompt, self._source.interactive and not said.foreign
        files, images = attachments(text, Path(self.session.row["vault"])) if own else ([], [])
        changed = self._chosen._replace(agent=None, model=None, mode=None)
        wanted = wanted_of(
            self._flags, changed, on_ask(self._chosen), text=text, files=tuple(files), images=tuple(images),
            typed=0 if said.foreign else None,
        )  # fmt: skip
        with Stopping(self.session.cancel) as stopping, self._typing():
            result = await self.session.run(wanted)
        self._view.finish(result.text)
        if self._source.interactive:
            self._view.totals()
        self._code = result.exit_code
        if result.end_reason == "stopped":
            self._source.take_all_back()
            self._say("stopped; what was done so far is kept")
        else:
            explain(result, self._flags)
        if stopping.leave:
            raise Quit

    @contextmanager
    def _typing(self) -> Iterator[None]:
        """Let a person type while the turn runs, and answer its questions."""
        self._view.typing = self._source.interactive
        try:
            with self._source.during(self._view, self.session.cancel):
                yield
        finally:
            self._view.typing = False

    def _prompt(self) -> str:
        place = [self.session.row["agent"]] if self.session.row["agent"] != "build" else []
        place += ["full access"] if self.session.row["mode"] == "full_access" else []
        return f"[{' · '.join(place)}] > " if place else "> "

    def _who(self) -> str:
        row = self.session.row
        return " · ".join(str(row[name]) for name in ("agent", "model", "mode", "vault") if row[name])

    def _say(self, text: str) -> None:
        click.echo(folded(plain(text)), err=True)

    # ------------------------------------------------------------ slash commands

    async def _slash(self, line: str) -> SlashResult:
        """Run a slash command; return what it leaves to be done: a prompt for the agent, or nothing."""
        name, _, rest = line[1:].partition(" ")
        name = {"exit": "quit", "q": "quit", "?": "help", "resume": "sessions"}.get(name, name)
        if name in self._own:
            return SlashResult(prompt=await self._own[name][1](rest.strip()))
        if name in self._of_plugins:
            done = await self.session.ask("POST", "command", {"name": name, "text": rest.strip()})
            if done["text"]:
                self._say(done["text"])
            return SlashResult(prompt=str(done["prompt"]), foreign=bool(done.get("foreign")))
        if name in self._agents:
            await self._change(agent=name)
            return SlashResult(prompt=rest.strip())
        self._say(f"there is no /{name} here{did_you_mean(name, [*self.commands()], '/') or '; /help lists what there is'}")
        return SlashResult()

    async def _change(self, **changes: Any) -> None:
        self.session.row |= await self.session.ask("PATCH", "", changes)

    async def _help(self, _: str) -> str:
        self._say(columns([(f"/{name}", text) for name, text in self.commands().items()], within=terminal_width()))
        return ""

    async def _mode(self, mode: str) -> str:
        if mode and mode != self.session.row["mode"]:
            await confirm_mode(mode, self._flags)
            await self._change(mode=mode, confirm=True)
        self._say(f"mode: {self.session.row['mode']}")
        return ""

    async def _model(self, name: str) -> str:
        if name:
            await self._change(model=name)
        self._say(f"model: {(await self.session.ask('GET', 'init'))['model']}")
        return ""

    async def _agent(self, name: str) -> str:
        if name:
            await self._change(agent=name)
        self._say(f"agent: {self.session.row['agent']}")
        if not name:
            self._say(columns([(f"/{one}", text) for one, text in self._agents.items()], within=terminal_width()))
        return ""

    async def _new(self, _: str) -> str:
        self._open(await session_of(self._server, wanted_of(self._flags, self._chosen._replace(resume=None), "prompt")))
        self._say(f"new session {self.session.id}")
        return ""

    async def _sessions(self, name: str) -> str:
        if name:
            self._open(await self.session.ask("GET", f"/sessions/{name}"))
            self._say(f"session {self.session.id}")
            return ""
        folder = self.session.row["vault"]
        rows = [row for row in await self.session.ask("GET", "/sessions?limit=200") if row["vault"] == folder][:LISTED]
        shown = [(row["updated"][5:16].replace("T", " "), first_line(row["title"] or "-", 60), row["id"]) for row in rows]
        self._say(columns(shown))
        return ""

    async def _branch(self, node: str) -> str:
        before, copy = self.session.id, await self.session.ask("POST", "fork", {"node": node or None})
        self._open(copy)
        if copy["remark"]:
            self._say(copy["remark"])
        self._say(f"{copy['id']}\nthis conversation goes on in the copy; /resume {before} leads back")
        return ""

    async def _switch(self, node: str) -> str:
        if not node:
            self._say("/switch NODE: an id, the beginning of one, or a label")
            return ""
        found = await self.session.ask("POST", "switch", {"node": node})
        self._say(f"{self.session.id} goes on from {found['active']}")
        return ""

    async def _label(self, text: str) -> str:
        if text:
            found = await self.session.ask("POST", "label", {"label": text})
            self._say(f"{found['label']}: {found['node'][:8]}")
        else:
            labels = (await self.session.ask("GET", ""))["labels"]
            self._say(columns((name, node[:8]) for name, node in labels.items()) or "no labels yet; /label TEXT gives one")
        return ""

    async def _compact(self, focus: str) -> str:
        from moryflow.cli.commands.session_compact import compaction_text

        with self._typing():
            done = await self.session.ask("POST", "compact", {"focus": focus})
        self._say(compaction_text(done))
        return ""

    async def _tools(self, _: str) -> str:
        self._say(" ".join(one["name"] for one in await self.session.ask("GET", "/tools")))
        return ""

    async def _quit(self, _: str) -> str:
        raise Quit


async def attached_chat(server: RunningServer, flags: Flags, chosen: RunFlags, source_of: Callable[..., LineSource]) -> int:
    """Talk with a server."""
    await confirm_mode(chosen.mode, flags)
    row = await session_of(server, wanted_of(flags, chosen, "prompt"))
    talk = AttachedConversation(server, row, flags, chosen)
    source = source_of(Path(server.home), str(row["vault"]), talk.files, talk.commands, talk.next_agent)
    return await talk.run(source)
