"""The slash commands of ``chat``: the host's own, about agents and about sessions, then those of plugins."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moryflow_sdk import ConfigError, SlashResult
from moryflow_sdk.support.texts import did_you_mean

from moryflow.approvals import OFFERED, answer_of
from moryflow.cli.commands.session_history import REMOVE, compaction_text, context_text, lines_of, switch_text
from moryflow.cli.options import EFFORTS
from moryflow.cli.terminal import columns, first_line, say, terminal_width
from moryflow.runtime.slash_lines import COMMON, with_choices

from . import PickItem

if TYPE_CHECKING:
    from moryflow.runtime.documents import Kin
    from moryflow.store import RunRow

    from .talk import Talk


class Quit(Exception):
    """The user wants to end the conversation."""


_SHORT = {"exit": "quit", "q": "quit", "?": "help"}
# The commands of the shell that a next step may name, and the slash command that does the same here.
_SAME = {
    "session list": "/sessions", "session tree": "/tree", "session context": "/context", "session compact": "/compact",
    "session fork": "/branch", "model list": "/model", "agent list": "/agent",
    "tool list": "/tools", "plugin list": "/plugins", "approval list": "/show", "approval reply": "/reply",
    "run -r": "/resume", "run --resume": "/resume", "run without -c, which": "/new, which", "run -c": "a new prompt",
}  # fmt: skip
_SHELL = re.compile(rf"moryflow ({'|'.join(_SAME)})\b(?: ([0-9a-f]{{16}}\b))?(?! -)")


def in_chat(text: str, session: str) -> str:
    """Return a next step with slash commands in place of those of the shell; `session` is the one that is open."""

    def same(found: re.Match[str]) -> str:
        slash, named = _SAME[found[1]], found[2] or ""
        if slash == "/resume":
            return f"{slash} {named}" if named not in ("", session) else found[0]
        return slash if named in ("", session) else found[0]

    return _SHELL.sub(same, text).replace(" with -m", " with /model")


_MODES = {"agent": "asks before what no rule allows", "full_access": "asks nothing; explicit denies stay"}


class Slash:
    """Runs the lines that begin with a slash."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._agents = agents = AgentCommands(talk)
        session = SessionCommands(talk)
        self._own: dict[str, tuple[str, Callable[[str], Awaitable[None]]]] = {
            "help": ("this list", self._help),
            "mode": (COMMON["mode"][0], self._mode),
            "model": ("pick the model that goes on, or name it: /model NAME", self._model),
            "effort": ("show how long the model reasons, or change it: /effort none|low|medium|high|default", self._effort),
            "agent": ("show the agents, or let another one go on: /agent ID; Tab at an empty prompt does too", agents.agent),
            "children": ("list the sub-agents of this session, or look in on one: /children ID", agents.children),
            "parent": ("go back to the session that started this one", agents.parent),
            "stop": ("stop the sub-agents that work in the background", agents.stop),
            "reply": (
                "answer a sub-agent in the background: /reply [QUESTION] once|always|reject|stop, or why not",
                agents.reply,
            ),
            "show": ("show all of a question that is open, or list them: /show QUESTION", agents.show),
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
            "compact": (COMMON["compact"][0], session.compact),
            "export": ("write this conversation to a file: /export [FILE.md, FILE.html or FILE.jsonl]", session.export),
            "share": ("write this conversation as one page to send to others: /share [FILE.html]", session.share),
            "queue": ("while a turn runs: take back all lines that wait for its end, to edit them", self._queue),
            "quit": ("end the conversation", self._quit),
        }

    def known(self) -> set[str]:
        """Return every word that is a command behind a slash."""
        return {*_SHORT, *self.commands()}

    async def take(self, name: str, rest: str) -> SlashResult:
        """Run a slash command; its result may hold a prompt that is to be sent to the agent."""
        name = _SHORT.get(name, name)
        if name in self._own:
            await self._own[name][1](rest)
            return SlashResult()
        if name in self._talk.host.commands:
            return await self._of_plugin(name, rest)
        if name in self._agents.agents():
            return SlashResult(prompt=await self._agents.switch(name, rest))
        hint = did_you_mean(name, self.commands(), "/") or "; /help lists them"
        say(f"there is no /{name}{hint}")
        return SlashResult()

    async def _of_plugin(self, name: str, rest: str) -> SlashResult:
        result = await self._talk.host.command(name, rest)
        while result.choices and self._talk.interactive:
            self._talk.show_change(result.text)
            key = (await self._talk.answer(f"  {' '.join(result.choices)} [n]o > ")).strip().lower()
            chosen = next((text for label, text in result.choices.items() if key and f"[{key}]" in label), None)
            if chosen is None:
                say("nothing was done")
                return SlashResult()
            result = await self._talk.host.command(name, chosen)
        if shown := with_choices(name, result):
            say(shown)
        return result

    def commands(self) -> dict[str, str]:
        """Return each command that may follow a slash, with what it does; the host's own come first and win."""
        agents = {name: f"let this agent go on: {text}" for name, text in self._agents.agents().items()}
        own = {name: text for name, (text, _) in self._own.items()}
        return {**own, **{name: text for name, text in {**self._talk.host.commands, **agents}.items() if name not in own}}

    async def _help(self, _: str) -> None:
        say(columns([(f"/{name}", text) for name, text in self.commands().items()], within=terminal_width()))

    async def _mode(self, mode: str) -> None:
        from moryflow.cli.commands.run import FULL_ACCESS, confirm_mode

        talk = self._talk
        mode = mode or await talk.pick("mode", [PickItem(name, f"{name}  {text}") for name, text in _MODES.items()]) or ""
        if mode == "full_access" != talk.host.mode and not talk.flags.yes:
            if not talk.interactive:
                confirm_mode(mode, talk.flags)
            elif not await talk.confirmed(FULL_ACCESS):
                raise ConfigError("full_access was not confirmed", next_step="/mode full_access, then y")
        if mode:
            await talk.host.change(mode=mode)
        say(f"mode: {talk.host.mode}")

    async def _model(self, name: str) -> None:
        talk = self._talk
        if name := name or await self._picked_model():
            await talk.host.change(model=name)
            talk.choose(model=name)
        say(f"model: {(await talk.host.model())[0]}")

    async def _effort(self, word: str) -> None:
        talk = self._talk
        if word and word not in EFFORTS:
            raise ConfigError(f"unknown effort {word!r}", next_step=f"use {', '.join(EFFORTS)}")
        if word:
            talk.choose(effort=word)
        say(f"effort: {talk.chosen.effort or 'not changed in this conversation'}")

    async def _picked_model(self) -> str:
        from moryflow.cli.commands.model import model_lines

        rows = await self._talk.host.models()
        items = [PickItem(row["id"], line) for row, line in zip(rows, model_lines(rows), strict=True)]
        return (await self._talk.pick("models", items) if items else "") or ""

    async def _tools(self, _: str) -> None:
        say(" ".join(await self._talk.host.tools()))

    async def _queue(self, _: str) -> None:
        say("no line waits")

    async def _quit(self, _: str) -> None:
        raise Quit


# ---------------------------------------------------------------- Agents


# The most sub-agents that are listed, the newest first.
LISTED = 50
PLANNER, BUILDER = "plan", "build"
HAND_OVER = "The plan above is agreed. Carry it out step by step, and check each step."


class AgentCommands:
    """The slash commands about agents."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    def agents(self) -> dict[str, str]:
        """Return what each agent with a command of its own is for, by name."""
        return {name: agent.text for name, agent in self._talk.host.agents.items()}

    async def agent(self, name: str) -> None:
        talk = self._talk
        picked = name or await talk.pick("agent", [PickItem(one, f"{one}  {text}") for one, text in self.agents().items()])
        if picked:
            await talk.host.change(agent=picked)
            talk.choose(agent=picked)
        say(f"agent: {talk.host.agent}")
        if picked is None:
            say(columns([(f"/{one}", text) for one, text in self.agents().items()], within=terminal_width()))

    async def switch(self, name: str, rest: str) -> str:
        """Change to the agent `name`, and return the prompt for it: `rest`, or from planner to builder :data:`HAND_OVER`."""
        before = self._talk.host.agent
        hands_over = not rest and (before, name) == (PLANNER, BUILDER)
        await self.agent(name)
        return HAND_OVER if hands_over else rest

    async def children(self, name: str) -> None:
        talk = self._talk
        if name:
            await self._go(name)
            return
        tree = await talk.host.tree()
        own = list(reversed(tree.kin))[:LISTED]
        named = zip(own, columns([_child_row(child)[1:] for child in own], within=0).split("\n"), strict=False)
        picked = await talk.pick("sub-agents", [PickItem(child.session, line) for child, line in named]) if own else None
        if picked is not None:
            await self._go(picked) if picked else None
            return
        say(columns([_child_row(child) for child in own]) if own else "no sub-agents yet; @general … starts one")

    async def parent(self, _: str) -> None:
        above = self._talk.host.row.parent
        if above is None:
            say("this session has no parent")
        else:
            await self._go(above)

    async def stop(self, _: str) -> None:
        number = await self._talk.host.stop_children()
        say(f"{number} stopped; their work so far is kept")

    async def reply(self, rest: str) -> None:
        host = self._talk.host
        approval, _, words = rest.partition(" ")
        approval = self._talk.question_called(approval)
        if not approval.startswith("ap_"):
            waiting = self._talk.waiting
            approval, words = waiting[0] if len(waiting) == 1 else "", rest
        answer = answer_of(words)
        if answer is None or not approval:
            say(f"/reply QUESTION {OFFERED}, or why not: nothing was answered; /show lists the open questions")
            return
        row = await host.reply(approval, answer.reply, message=answer.message)
        if row.state == "expired":
            from moryflow.cli.commands.approval import too_late_error

            raise too_late_error(row)
        say(row.reply or row.state)

    async def show(self, approval: str) -> None:
        from moryflow.cli.commands.approval import open_questions, whole_question

        host, waiting = self._talk.host, self._talk.waiting
        approval = self._talk.question_called(approval) or (waiting[0] if len(waiting) == 1 else "")
        if approval:
            say(whole_question(await host.approval(approval)))
        else:
            say(open_questions(await host.approvals()))

    async def _go(self, name: str) -> None:
        talk = self._talk
        await talk.host.open(name, talk.chosen.model)
        row = talk.host.row
        which = "" if talk.interactive else f"session {row.id} · "
        say(f"{which}{talk.host.agent}{' · /parent leads back' if row.parent else ''}")


def _child_row(child: Kin) -> tuple[str, ...]:
    steps = f", {child.steps} step{'s' if child.steps != 1 else ''}" if child.end_reason not in ("at work", "not begun") else ""
    return child.session, child.agent, f"{child.end_reason}{steps}", child.title


# ---------------------------------------------------------------- Sessions


# The most sessions that are offered, last used first.
SESSIONS_LISTED = 100


class SessionCommands:
    """The slash commands about the open session, and about the others of its folder."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk

    async def new(self, _: str) -> None:
        talk = self._talk
        await talk.host.new(agent=talk.chosen.agent, model=talk.chosen.model)
        say("new session" if talk.interactive else f"new session {talk.host.row.id}")

    async def sessions(self, name: str) -> None:
        talk = self._talk
        name = name or await self._picked_session()
        if not name:
            return
        if (await talk.host.session(name)).id == talk.host.row.id:
            say("that is this session")
            return
        await talk.host.open(name, talk.chosen.model)
        if not talk.interactive:
            say(f"session {talk.host.row.id}")
        await talk.recall()

    async def _picked_session(self) -> str:
        talk, host = self._talk, self._talk.host
        rows = await host.sessions(SESSIONS_LISTED)
        cells = [(row.updated[5:16].replace("T", " "), first_line(row.title or "-", 60), row.id) for row in rows]
        lines = columns(cells, within=0).split("\n") if cells else []
        items = [PickItem(row.id, line) for row, line in zip(rows, lines, strict=True)]
        picked = await talk.pick("sessions of this folder", items)
        if picked is None:
            say("\n".join(lines[:10]))
        return picked or ""

    async def tree(self, _: str) -> None:
        talk = self._talk
        found = await talk.host.tree()
        lines, known = lines_of(found), {node.id: node for node in found.nodes}
        items = [PickItem(node, line.replace(f"{node[:8]} ", "", 1)) for node, line in lines if node]
        picked = await talk.pick("go on from", items) if items else None
        if picked is None:
            say("\n".join(line for _, line in lines))
        elif picked and known[picked].kind == "user":
            await self._go_on_from(known[picked].parent)
            talk.propose(str(known[picked].payload.get("text") or ""))
        elif picked:
            await self._go_on_from(picked)

    async def switch(self, name: str) -> None:
        if name:
            await self._go_on_from(name)
        else:
            say("/switch NODE: an id, the beginning of one, or a label; /tree shows them")

    async def _go_on_from(self, node: str | None) -> None:
        say(switch_text(self._talk.host.row.id, await self._talk.host.switch(node)))

    async def branch(self, name: str) -> None:
        talk, before = self._talk, self._talk.host.row.id
        if remark := await talk.host.fork(name or None, talk.chosen.model):
            say(remark)
        if talk.interactive:
            say("this conversation goes on in a copy; /sessions leads back")
        else:
            say(f"{talk.host.row.id}\nthis conversation goes on in the copy; /resume {before} leads back")

    async def label(self, rest: str) -> None:
        talk = self._talk
        if not rest:
            named = await talk.host.labels()
            say(columns((text, node[:8]) for text, node in named.items()) or "no labels yet; /label TEXT gives one")
            return
        remove = rest.split()[0] == REMOVE
        say((await talk.host.label(rest.removeprefix(REMOVE) if remove else rest, remove=remove)).sentence)

    async def compact(self, focus: str) -> None:
        with self._talk.typing():
            done = await self._talk.host.compact(focus)
        say(compaction_text(done))

    async def context(self, _: str) -> None:
        say(context_text(await self._talk.host.context()))

    async def cost(self, _: str) -> None:
        talk = self._talk
        runs = await talk.host.runs()
        models = dict.fromkeys(run.model for run in runs)
        rows = [_cost_row(model or "-", [run for run in runs if run.model == model]) for model in models]
        say(columns([*rows, *([_cost_row("in all", runs)] if len(rows) > 1 else [])]) or "no model was asked yet")

    async def plugins(self, _: str) -> None:
        plugins = await self._talk.host.plugins()
        usual = [one.name for one in plugins if one.tier == "builtin" and one.status == "loaded"]
        shown = [one._replace(version=one.version or "-") for one in plugins if one.name not in usual]
        say(
            "\n".join(
                [*([columns(shown)] if shown else []), columns([("built in", ", ".join(usual))], within=terminal_width())]
            )
        )

    async def export(self, name: str) -> None:
        """Write this conversation to a file: as Markdown to read, or without loss if the name ends with .jsonl."""
        host = self._talk.host
        file = Path(host.row.vault, Path(name or f"{host.row.id}.md").expanduser())
        try:
            await self._write(file)
        except OSError as error:  # a failed export must not end the conversation
            raise ConfigError(f"cannot write the file: {error.strerror}", where=str(file), next_step="/export FILE") from error
        say(f"written to {file}")

    async def _write(self, file: Path) -> None:
        from moryflow.cli.commands.session import write_lines, write_whole
        from moryflow.runtime.readable import ENDINGS, readable

        host = self._talk.host
        if file.suffix == ".jsonl":
            with write_whole(file) as out:
                await write_lines(host.export(), out)
            return
        title = (await host.session(host.row.id)).title
        path = await host.path(host.row.id)
        with write_whole(file) as out:
            out.write(readable(file.suffix if file.suffix in ENDINGS else ".md", title or host.row.id, path))

    async def share(self, name: str) -> None:
        """Write this conversation as one page that can be sent to others."""
        await self.export(name or f"{self._talk.host.row.id}.html")


def _cost_row(model: str, runs: Sequence[RunRow]) -> tuple[str, ...]:
    used = {kind: sum(run.usage.get(kind, 0) for run in runs) for kind in ("input", "cached", "output")}
    known = [run.cost for run in runs if run.cost is not None]
    cost = f"${sum(known):.4f}" if known else "no price is known"
    turns = sum(not run.is_compaction for run in runs)
    tokens = f"{used['input']:,} tokens in ({used['cached']:,} cached), {used['output']:,} out"
    return model, f"{turns} turn{'s' if turns != 1 else ''}", tokens, cost
