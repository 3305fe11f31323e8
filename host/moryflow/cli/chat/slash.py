"""The slash commands of ``chat``: the host's own, then those of plugins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from moryflow_sdk import SlashResult
from moryflow_sdk.support.texts import did_you_mean

from moryflow.cli.terminal.text import columns, terminal_width

from .agent_commands import FamilyCommands
from .picker import PickItem
from .session_commands import SessionCommands

if TYPE_CHECKING:
    from .port import ConversationPort


class Quit(Exception):
    """The person wants to end the conversation."""


class Slash:
    """Takes a line that begins with a slash; what it returns is sent to the agent."""

    def __init__(self, talk: ConversationPort) -> None:
        self._talk = talk
        self._family = family = FamilyCommands(talk)
        session = SessionCommands(talk)
        self._own: dict[str, tuple[str, Callable[[str], Awaitable[str]]]] = {
            "help": ("this list", self._help),
            "mode": ("show the mode, or change it: /mode agent|full_access", self._mode),
            "model": ("pick the model that goes on, or name it: /model NAME", self._model),
            "agent": ("show the agents, or let another one go on: /agent ID; Tab at an empty prompt does too", family.agent),
            "children": ("list the sub-agents of this session, or look in on one: /children ID", family.children),
            "parent": ("go back to the session that started this one", family.parent),
            "stop": ("stop the sub-agents that work in the background", family.stop),
            "reply": (
                "answer a sub-agent in the background: /reply QUESTION once|always|reject|stop, or why not",
                family.reply,
            ),
            "show": ("show all of a question that is open, or list them: /show QUESTION", family.show),
            "label": ("name what was said last, or list the names: /label TEXT, /label --remove TEXT", session.label),
            "tree": ("show all branches of this session, and go on from one", session.tree),
            "switch": ("go on from another node of this session: /switch NODE", session.switch),
            "branch": ("copy this conversation into a new session and go on there: /branch [NODE]", session.branch),
            "new": ("begin a new session", session.new),
            "sessions": ("go on with another session: pick one, or /sessions ID", session.sessions),
            "resume": ("the same as /sessions", session.sessions),
            "tools": ("list the tools", self._tools),
            "plugins": ("list the plugins, with what failed", session.plugins),
            "context": ("show what fills the window of the model, by source", session.context),
            "cost": ("show what this session has taken: turns, tokens, cost", session.cost),
            "compact": ("replace the older part of the conversation by a summary: /compact [FOCUS]", session.compact),
            "export": ("write this conversation to a file: /export [FILE.md or FILE.jsonl]", session.export),
            "quit": ("end the conversation", self._quit),
        }

    @property
    def names(self) -> list[str]:
        """Every name, those of plugins and agents too."""
        return list(self.commands())

    async def take(self, line: str) -> SlashResult:
        """Run a slash command; return what it leaves to be done: a prompt for the agent, or nothing."""
        name, _, rest = line[1:].partition(" ")
        name = {"exit": "quit", "q": "quit", "?": "help"}.get(name, name)
        if name in self._own:
            return SlashResult(prompt=await self._own[name][1](rest.strip()))
        if name in self._talk.host.commands:
            return await self._of_plugin(name, rest.strip())
        if name in self._family.agents():
            return SlashResult(prompt=await self._family.switch(name, rest.strip()))
        hint = did_you_mean(name, self.names, "/") or "; /help lists them"
        self._talk.say(f"there is no /{name}{hint}")
        return SlashResult()

    async def _of_plugin(self, name: str, rest: str) -> SlashResult:
        result = await self._talk.host.command(name, rest)
        if result.text:
            self._talk.say(result.text)
        return result

    def commands(self) -> dict[str, str]:
        """Return what may follow a slash, with what it does; the host's own come first and win."""
        agents = {name: f"let this agent go on: {text}" for name, text in self._family.agents().items()}
        own = {name: text for name, (text, _) in self._own.items()}
        return {**own, **{name: text for name, text in {**agents, **self._talk.host.commands}.items() if name not in own}}

    async def _help(self, _: str) -> str:
        self._talk.say(columns([(f"/{name}", text) for name, text in self.commands().items()], within=terminal_width()))
        return ""

    async def _mode(self, mode: str) -> str:
        from moryflow.cli.commands.run import confirm_mode

        talk = self._talk
        if mode:
            if mode == "full_access" and talk.host.mode != mode:
                await confirm_mode(mode, talk.flags)
            await talk.host.change(mode=mode)
        talk.say(f"mode: {talk.host.mode}")
        return ""

    async def _model(self, name: str) -> str:
        talk = self._talk
        if name := name or await self._picked_model():
            await talk.host.change(model=name)
            talk.choose(model=name)
        talk.say(f"model: {await talk.host.model()}")
        return ""

    async def _picked_model(self) -> str:
        """Return the model that a person picks, nothing where nobody can or wants to."""
        from moryflow.cli.commands.model import model_lines

        rows = await self._talk.host.models()
        items = [PickItem(row["id"], line) for row, line in zip(rows, model_lines(rows), strict=True)]
        return (await self._talk.pick("models", items, None, await self._talk.host.model()) if items else "") or ""

    async def _tools(self, _: str) -> str:
        self._talk.say(" ".join(await self._talk.host.tools()))
        return ""

    async def _quit(self, _: str) -> str:
        raise Quit
