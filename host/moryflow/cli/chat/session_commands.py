"""The slash commands about sessions: pick one, branch it, look at what it holds and costs, write it to a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moryflow.cli.commands.session_branches import (
    REMOVE,
    label_data,
    lines_of,
    switch_text,
)
from moryflow.cli.terminal.text import columns, first_line, terminal_width
from moryflow.runtime.documents import fork_session, node_id_of, requested_label, tree_of, with_title

from .picker import PickItem

if TYPE_CHECKING:
    from moryflow.compaction.measure import Report
    from moryflow.kernel.ports import Journal
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
        chosen = talk.chosen
        session = await talk.host.new_session(talk.session.row.vault, agent=chosen.agent, model=chosen.model)
        await talk.exchange(session)
        talk.say(f"new session {session.id}")
        return ""

    async def sessions(self, name: str) -> str:
        """Go on with another session of this folder: the one that is named, or one that is picked."""
        talk = self._talk
        name = name or await self._picked_session()
        if not name:
            return ""
        if (await talk.host.store.session(name)).id == talk.session.id:
            talk.say("that is this session")
            return ""
        session = await talk.host.resume(talk.session.row.vault, name, model=talk.chosen.model)
        await talk.exchange(session)
        talk.say(f"session {session.id}")
        await talk.recall()
        return ""

    async def _picked_session(self) -> str:
        talk, store = self._talk, self._talk.host.store
        rows = [await with_title(store, row) for row in await store.sessions(LISTED, vault=talk.session.row.vault)]
        cells = [(row.updated[5:16].replace("T", " "), first_line(row.title or "-", 60), row.id) for row in rows]
        lines = columns(cells).split("\n") if cells else []

        async def preview(session: str) -> str:
            return "\n".join(f"> {asked}\n{answered}" for asked, answered in exchanges(await store.path(session))[-2:])

        items = [PickItem(row.id, line) for row, line in zip(rows, lines, strict=True)]
        picked = await talk.pick("sessions of this folder", items, preview, talk.session.id)
        if picked is None:
            talk.say("\n".join(lines[:10]))
        return picked or ""

    async def tree(self, _: str) -> str:
        """Show all branches of this session; at a terminal, go on from one of them."""
        talk = self._talk
        found = await tree_of(talk.host.store, talk.session.row)
        lines, known = lines_of(found), {node.id: node for node in found.nodes}

        async def preview(node: str) -> str:
            return str(known[node].payload.get("text") or known[node].payload.get("output") or "")

        items = [PickItem(node, line) for node, line in lines if node]
        picked = await talk.pick("go on from", items, preview, talk.session.row.active or "") if items else None
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
        await self._go_on_from(await node_id_of(self._talk.host.store, self._talk.session.id, name))
        return ""

    async def _go_on_from(self, node: str | None) -> None:
        await self._talk.session.note(lambda journal: journal.switch(node))
        self._talk.say(switch_text(self._talk.session.id, node))

    async def branch(self, name: str) -> str:
        """Copy the path, to a node or as it is, into a new session and go on there."""
        talk, before = self._talk, self._talk.session.id
        copy, remark = await fork_session(talk.host.store, talk.session.row, name or None)
        await talk.exchange(await talk.host.resume(copy.vault, copy.id, model=talk.chosen.model))
        if remark:
            talk.say(remark)
        talk.say(f"{copy.id}\nthis conversation goes on in the copy; /resume {before} leads back")
        return ""

    async def label(self, rest: str) -> str:
        """Name what was said last, take a label away, or list them."""
        talk, session, store = self._talk, self._talk.session, self._talk.host.store
        if not rest:
            named = await store.labels(session.id)
            talk.say(columns((text, node[:8]) for text, node in named.items()) or "no labels yet; /label TEXT gives one")
            return ""
        remove = rest.split()[0] == REMOVE
        label = await requested_label(store, session.row, rest.removeprefix(REMOVE) if remove else rest, None, remove=remove)
        if label.changes:

            def record(journal: Journal) -> None:
                journal.node("marker", label.marker)
                journal.event("session.label", **label_data(label))

            await session.note(record)
        talk.say(label.sentence)
        return ""

    async def compact(self, focus: str) -> str:
        """Replace the older part of the conversation by a summary."""
        from moryflow.cli.commands.session_compact import compaction_text
        from moryflow.runtime.session_commands import compact_now

        with self._talk.typing():
            done = await compact_now(self._talk.host, self._talk.session, focus)
        self._talk.say(compaction_text(done))
        return ""

    async def context(self, _: str) -> str:
        """Show what fills the window of the model, by source."""
        from moryflow.runtime.documents import context_report

        talk = self._talk
        talk.say(context_text(await context_report(talk.host, talk.session, None), terminal_width() or 80))
        return ""

    async def cost(self, _: str) -> str:
        """Show what this session has taken so far: turns, tokens and cost by model."""
        talk = self._talk
        runs = await talk.host.store.runs(talk.session.id)
        models = dict.fromkeys(run.model for run in runs)
        rows = [_spent(model or "-", [run for run in runs if run.model == model]) for model in models]
        talk.say(columns([*rows, *([_spent("in all", runs)] if len(rows) > 1 else [])]) or "nothing was asked of a model yet")
        return ""

    async def plugins(self, _: str) -> str:
        """List the plugins that are loaded, and those that failed."""
        records = self._talk.host.plugin_set.records
        usual = [record.name for record in records if record.tier == "builtin" and record.status == "loaded"]
        rest = [record for record in records if record.name not in usual]
        shown = [(record.name, record.version or "-", record.tier, record.status, record.error or "") for record in rest]
        self._talk.say(
            "\n".join(
                [*([columns(shown)] if shown else []), columns([("built in", ", ".join(usual))], within=terminal_width())]
            )
        )
        return ""

    async def export(self, name: str) -> str:
        """Write this conversation to a file: Markdown to read, or, where it ends with .jsonl, without loss."""
        from moryflow.cli.commands.session_transfer import write_lines, write_whole

        talk = self._talk
        session = talk.session
        file = Path(session.row.vault, Path(name or f"{session.id}.md").expanduser())
        if file.suffix == ".jsonl":
            with write_whole(file) as out:
                await write_lines(talk.host.store.export(session.id), out)
        else:
            row = await with_title(talk.host.store, session.row)
            path = await talk.host.store.path(session.id)
            with write_whole(file) as out:
                out.write(f"# {row.title or session.id}\n\n" + "\n".join(_markdown(path)))
        talk.say(f"written to {file}")
        return ""


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
