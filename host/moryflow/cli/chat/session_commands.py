"""The slash commands about sessions: pick one, branch it, look at what it holds and costs, write it to a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moryflow_sdk import ConfigError

from moryflow.cli.commands.session_branches import REMOVE, lines_of, switch_text
from moryflow.cli.commands.session_compact import compaction_text
from moryflow.cli.terminal.text import columns, first_line, terminal_width

from .picker import PickItem

if TYPE_CHECKING:
    from moryflow.compaction.measure import Report
    from moryflow.store import Node, RunRow

    from .port import ConversationPort

LISTED = 100
"""Sessions that are offered, last used first."""
BAR, WINDOW_BAR = 30, 60
"""Characters of a bar that stands for all that is used, and of one that stands for the model's window."""
MARKS = {"system": "█", "tools": "▓", "instructions": "▚", "summary": "▒", "turns": "░"}
"""How each source looks in the bar of the window."""
_SAID_BY = {"user": "prompts", "assistant": "answers", "tool": "outputs of tools"}


class SessionCommands:
    """What may be asked about the session of a conversation, and about the others of its folder."""

    def __init__(self, talk: ConversationPort) -> None:
        self._talk = talk

    async def new(self, _: str) -> str:
        """Begin a new session."""
        talk = self._talk
        await talk.host.new(agent=talk.chosen.agent, model=talk.chosen.model)
        talk.say(f"new session {talk.host.row.id}")
        return ""

    async def sessions(self, name: str) -> str:
        """Go on with another session of this folder: the one that is named, or one that is picked."""
        talk = self._talk
        name = name or await self._picked_session()
        if not name:
            return ""
        if (await talk.host.session(name)).id == talk.host.row.id:
            talk.say("that is this session")
            return ""
        await talk.host.open(name, talk.chosen.model)
        talk.say(f"session {talk.host.row.id}")
        await talk.recall()
        return ""

    async def _picked_session(self) -> str:
        talk, host = self._talk, self._talk.host
        rows = await host.sessions(LISTED)
        cells = [(row.updated[5:16].replace("T", " "), first_line(row.title or "-", 60), row.id) for row in rows]
        lines = columns(cells).split("\n") if cells else []

        async def preview(session: str) -> str:
            return "\n".join(f"> {asked}\n{answered}" for asked, answered in exchanges(await host.path(session))[-2:])

        items = [PickItem(row.id, line) for row, line in zip(rows, lines, strict=True)]
        picked = await talk.pick("sessions of this folder", items, preview, host.row.id)
        if picked is None:
            talk.say("\n".join(lines[:10]))
        return picked or ""

    async def tree(self, _: str) -> str:
        """Show all branches of this session; at a terminal, go on from one of them."""
        talk = self._talk
        found = await talk.host.tree()
        lines, known = lines_of(found), {node.id: node for node in found.nodes}

        async def preview(node: str) -> str:
            return str(known[node].payload.get("text") or known[node].payload.get("output") or "")

        items = [PickItem(node, line) for node, line in lines if node]
        picked = await talk.pick("go on from", items, preview, found.row.active or "") if items else None
        if picked is None:
            talk.say("\n".join(line for _, line in lines))
        elif picked and known[picked].kind == "user":
            await self._go_on_from(known[picked].parent)
            talk.propose(str(known[picked].payload.get("text") or ""))
        elif picked:
            await self._go_on_from(picked)
        return ""

    async def switch(self, name: str) -> str:
        """Go on from another node of this session."""
        if not name:
            self._talk.say("/switch NODE: an id, the beginning of one, or a label; /tree shows them")
            return ""
        await self._go_on_from(name)
        return ""

    async def _go_on_from(self, node: str | None) -> None:
        self._talk.say(switch_text(self._talk.host.row.id, await self._talk.host.switch(node)))

    async def branch(self, name: str) -> str:
        """Copy the path, to a node or as it is, into a new session and go on there."""
        talk, before = self._talk, self._talk.host.row.id
        if remark := await talk.host.fork(name or None, talk.chosen.model):
            talk.say(remark)
        talk.say(f"{talk.host.row.id}\nthis conversation goes on in the copy; /resume {before} leads back")
        return ""

    async def label(self, rest: str) -> str:
        """Name what was said last, take a label away, or list them."""
        talk = self._talk
        if not rest:
            named = await talk.host.labels()
            talk.say(columns((text, node[:8]) for text, node in named.items()) or "no labels yet; /label TEXT gives one")
            return ""
        remove = rest.split()[0] == REMOVE
        talk.say((await talk.host.label(rest.removeprefix(REMOVE) if remove else rest, remove=remove)).sentence)
        return ""

    async def compact(self, focus: str) -> str:
        """Replace the older part of the conversation by a summary."""
        with self._talk.typing():
            done = await self._talk.host.compact(focus)
        self._talk.say(compaction_text(done))
        return ""

    async def context(self, _: str) -> str:
        """Show what fills the window of the model, by source."""
        self._talk.say(context_text(await self._talk.host.context(), terminal_width() or 80))
        return ""

    async def cost(self, _: str) -> str:
        """Show what this session has taken so far: turns, tokens and cost by model."""
        talk = self._talk
        runs = await talk.host.runs()
        models = dict.fromkeys(run.model for run in runs)
        rows = [_spent(model or "-", [run for run in runs if run.model == model]) for model in models]
        talk.say(columns([*rows, *([_spent("in all", runs)] if len(rows) > 1 else [])]) or "nothing was asked of a model yet")
        return ""

    async def plugins(self, _: str) -> str:
        """List the plugins that are loaded, and those that failed."""
        plugins = await self._talk.host.plugins()
        usual = [one.name for one in plugins if one.tier == "builtin" and one.status == "loaded"]
        shown = [one._replace(version=one.version or "-") for one in plugins if one.name not in usual]
        self._talk.say(
            "\n".join(
                [*([columns(shown)] if shown else []), columns([("built in", ", ".join(usual))], within=terminal_width())]
            )
        )
        return ""

    async def export(self, name: str) -> str:
        """Write this conversation to a file: Markdown to read, or, where it ends with .jsonl, without loss."""
        host = self._talk.host
        file = Path(host.row.vault, Path(name or f"{host.row.id}.md").expanduser())
        try:
            await self._write(file)
        except OSError as error:  # it must not end the conversation
            raise ConfigError(f"cannot write the file: {error.strerror}", where=str(file), next_step="/export FILE") from error
        self._talk.say(f"written to {file}")
        return ""

    async def _write(self, file: Path) -> None:
        from moryflow.cli.commands.session_transfer import write_lines, write_whole

        host = self._talk.host
        if file.suffix == ".jsonl":
            with write_whole(file) as out:
                await write_lines(host.export(), out)
            return
        title = (await host.session(host.row.id)).title
        path = await host.path(host.row.id)
        with write_whole(file) as out:
            out.write(f"# {title or host.row.id}\n\n" + "\n".join(_markdown(path)))


def exchanges(path: Sequence[Node]) -> list[tuple[str, str]]:
    """Return each prompt of a path with the last words that answered it."""
    found: list[tuple[str, str]] = []
    for node in path:
        text = str(node.payload.get("text") or "").strip()
        if node.kind == "user":
            found.append((text, ""))
        elif node.kind == "assistant" and text and found:
            found[-1] = (found[-1][0], text)
    return found


def context_text(found: Report, width: int) -> str:
    """Return what fills the window: one bar of the whole window, and what each source and each plugin takes of what is used."""
    share = f" of {found.window:,} ({found.tokens / found.window:.0%})" if found.window else ""
    limit = f"; a summary is made above {found.limit:,}" if found.window else ""
    said = {role: sum(row["tokens"] for row in found.messages if row["role"] == role) for role in _SAID_BY}
    rows: list[tuple[str, int]] = []
    for part, tokens in found.parts.items():
        rows += [(f"{MARKS[part]} {part}", tokens)]
        rows += [(f"    {_SAID_BY[role]}", said[role]) for role in _SAID_BY] if part == "turns" else []
    rows += [(f"  by {plugin}", tokens) for plugin, tokens in sorted(found.plugins.items(), key=lambda item: -item[1])]
    rows += [(f"  of {source}", tokens) for source, tokens in sorted(found.sources.items(), key=lambda item: -item[1])]
    rows = [(name, tokens) for name, tokens in rows if tokens]
    used = sum(found.parts.values())
    most = min(BAR, max(1, width - max([len(name) for name, _ in rows], default=0) - len("  123,456,789  ")))
    shown = [(name, f"{tokens:>9,}", "█" * max(1, round(tokens / used * most))) for name, tokens in rows]
    bar = _window_bar(found, min(WINDOW_BAR, width - 1))
    return "\n".join([f"about {found.tokens:,} tokens{share}{limit}", *bar, columns(shown)])


def _window_bar(found: Report, width: int) -> list[str]:
    """Return the window as one bar: a mark for each source, then what is free; ``│`` where a summary is made."""
    if not found.window:
        return []
    parts = {part: tokens for part, tokens in found.parts.items() if tokens}
    bar = "".join(MARKS[part] * max(1, round(tokens / found.window * width)) for part, tokens in parts.items())
    free = list("·" * (width - len(bar)))
    limit = round(found.limit / found.window * width) - len(bar)
    if 0 <= limit < len(free):
        free[limit] = "│"
    return [f"{bar[:width]}{''.join(free)}"]


def _spent(model: str, runs: Sequence[RunRow]) -> tuple[str, ...]:
    used = {kind: sum(run.usage.get(kind, 0) for run in runs) for kind in ("input", "cached", "output")}
    known = [run.cost for run in runs if run.cost is not None]
    cost = f"${sum(known):.4f}" if known else "no price is known"
    turns = sum(not run.is_compaction for run in runs)
    tokens = f"{used['input']:,} tokens in ({used['cached']:,} cached), {used['output']:,} out"
    return model, f"{turns} turn{'s' if turns != 1 else ''}", tokens, cost


def _markdown(path: Sequence[Node]) -> Iterator[str]:
    for node in path:
        text = str(node.payload.get("text") or "").strip()
        if node.kind == "user":
            yield f"## You\n\n{text}\n"
        elif node.kind == "assistant":
            calls = "".join(
                f"- `{call.get('name')}` {first_line(str(call.get('arguments', '')), 200)}\n"
                for call in node.payload.get("calls", ())
            )
            yield "\n".join(part for part in (f"## Agent\n\n{text}\n" if text else "", calls) if part)
        elif node.kind in ("compaction", "prune") and node.payload.get("summary"):
            yield f"## Summary of what was before\n\n{node.payload['summary']}\n"
