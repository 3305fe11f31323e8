"""The history of a session: its branches and labels (``moryflow session tree|switch|fork|label``), the part of it that the
model sees (``context|compact|records|undo-compaction``), and both as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from moryflow_sdk import Event

from moryflow.base.events import now
from moryflow.cli.open_host import own_home, with_host, with_store
from moryflow.cli.options import Flags, document_options, find
from moryflow.cli.terminal import brief, columns, failure_line, first_line, plain, say, show
from moryflow.runtime.documents import (
    SessionTree,
    context_report,
    fork_session,
    node_id_of,
    requested_label,
    session_json,
    tree_of,
)

if TYPE_CHECKING:
    from moryflow.compaction.measure import Report
    from moryflow.runtime.documents import Kin
    from moryflow.runtime.host import Host
    from moryflow.runtime.session_commands import Label
    from moryflow.store import Branch, Node, SessionRow, Store


@click.command("tree")
@click.argument("session", required=False)
@document_options
def tree(flags: Flags, session: str | None) -> None:
    """Show all branches and sub-agents; the active node is marked with *."""

    async def work(store: Store) -> SessionTree:
        return await tree_of(store, await find(store, session, flags))

    found = with_store(work)
    show(flags, found.as_json(), "\n".join(line for _, line in lines_of(found)))


@click.command("switch")
@click.argument("words", nargs=-1, required=True, metavar="[SESSION] NODE")
@document_options
def switch(flags: Flags, words: tuple[str, ...]) -> None:
    """Make NODE of a session (default: the last one) the active one; nothing is lost.

    NODE is an id, the beginning of one, or a label.
    """
    session, node = _behind_session(words, "NODE; moryflow session tree shows them")

    async def work(store: Store) -> tuple[SessionRow, str]:
        row = await find(store, session, flags)
        target = await node_id_of(store, row.id, node)
        hold = await store.hold(row.id)
        try:
            await hold.switch(target)
        finally:
            hold.release()
        return row, target

    row, target = with_store(work)
    show(flags, {"session": row.id, "active": target}, f"{switch_text(row.id, target)}; moryflow run -r {row.id} …")


def _behind_session(words: tuple[str, ...], what: str) -> tuple[str | None, str]:
    *sessions, last = words
    if len(sessions) > 1:
        raise click.UsageError(f"give a SESSION, if any, and one {what}")
    return (sessions[0] if sessions else None), last


def switch_text(session: str, node: str | None) -> str:
    return f"{session} goes on from {node or 'its beginning'}"


@click.command("fork")
@click.argument("session", required=False)
@click.option("--node", help="Copy the path to this node (an id or a label) instead of the active one.")
@click.option("--title", default="", help="Title of the copy.")
@document_options
def fork(flags: Flags, session: str | None, node: str | None, title: str) -> None:
    """Copy the path into a new session; the old one stays as it is.

    The copy has the answers of sub-agents; their sessions stay with the original.
    """

    async def work(store: Store) -> tuple[SessionRow, str]:
        return await fork_session(store, await find(store, session, flags), node, title)

    copy, remark = with_store(work)
    if remark and not flags.quiet:
        click.echo(remark, err=True)
    show(flags, session_json(copy), copy.id)


REMOVE = "--remove"


@click.command("label")
@click.argument("words", nargs=-1, required=True, metavar="[SESSION] LABEL")
@click.option("--node", help="The node: its id, the beginning of one, or a label (default: what was said last).")
@click.option(REMOVE, is_flag=True, help="Take this label away; the node stays.")
@document_options
def label(flags: Flags, words: tuple[str, ...], node: str | None, remove: bool) -> None:
    """Name a node of a session (default: the last one); the name then stands for its id, as in switch and fork --node.

    A label names one node: given to another, it moves there. A node may have several.
    """
    session, text = _behind_session(words, "LABEL; quote a label of several words")
    if remove and node is not None:
        raise click.UsageError("--remove takes the label alone, without --node")

    async def work(store: Store) -> tuple[SessionRow, Label]:
        row = await find(store, session, flags)
        return row, await _label_node(store, row.id, text, node, remove=remove)

    row, new_label = with_store(work)
    show(flags, {"session": row.id, **new_label.event_data}, plain(new_label.sentence))


async def _label_node(store: Store, session: str, text: str, node: str | None, *, remove: bool) -> Label:
    from moryflow.store import Commit, NewNode

    hold = await store.hold(session)
    try:
        new_label = await requested_label(store, hold.session, text, node, remove=remove)
        if new_label.changes:
            event = Event(type="session.label", session=session, ts=now(), data=new_label.event_data)
            await hold.commit(Commit(nodes=[NewNode("marker", new_label.marker)], events=[event]))
        return new_label
    finally:
        hold.release()


# ---------------------------------------------------------------- A session as text


# The word before a summary, by interface language.
SUMMARY = {"en": "summary", "zh": "摘要"}

# The keys of a marker that change the turns after it.
CHANGES = ("agent", "mode", "model")

_ROLES = {"user": "you", "assistant": "agent", "note": "note"}


def node_texts(path: Iterable[Node], named: Mapping[str, str]) -> Iterator[str]:
    """Yield the text of each node of a `path` that has one to show.

    :param named: label → node id.
    """
    from moryflow.config import load_config

    summary_mark = SUMMARY.get(load_config(own_home()).get("language") or "en", SUMMARY["en"])
    labels = labels_of(named)
    for node in path:
        if text := _text(node, summary_mark, f" ({labels[node.id]})" if node.id in labels else ""):
            yield plain(text)


def labels_of(named: Mapping[str, str]) -> dict[str, str]:
    """Return node id → its labels, for people; `named` is label → node id."""
    found: dict[str, list[str]] = {}
    for label, node in named.items():
        found.setdefault(node, []).append(first_line(label, 80))  # an imported label may be any text
    return {node: ", ".join(labels) for node, labels in found.items()}


def _text(node: Node, summary_mark: str, label: str) -> str:
    payload = node.payload
    if node.kind in ("compaction", "prune"):
        return divider(node, summary_mark)
    if node.kind == "tool":
        return f"[{payload.get('tool')}]{label} {failure_line(str(payload.get('status')), payload.get('output', ''))}"
    if node.kind == "marker":
        changes = ", ".join(f"{name} {payload[name]}" for name in CHANGES if payload.get(name))
        return f"──── {changes} ────" if changes else ""
    if node.kind not in _ROLES:
        return ""
    text = payload.get("text") or ""
    calls = [f"→ {call.get('name')} {first_line(str(call.get('arguments', '')), 100)}" for call in payload.get("calls", ())]
    return "\n".join([f"{_ROLES[node.kind]}{label}: {text}".rstrip(), *calls])


def lines_of(found: SessionTree) -> list[tuple[str, str]]:
    """Return a tree as pairs of node id and line; the id is empty for a line about a session.

    Built without recursion: a long session is deep.
    """
    from moryflow.store import tree

    row = found.row
    if not found.nodes:
        return [("", "the session is empty")]
    lines = [("", f"{row.id} is a session of {row.agent}, started by {row.parent}")] if row.parent else []
    labels = labels_of(found.labels)
    known = {child.copy_of or child.session: child for child in found.kin}
    waiting = _below(tree(found.nodes), "")[::-1]
    while waiting:
        branch, first, guide = waiting.pop()
        node = branch.node
        mark = "*" if node.id == row.active else " "
        label = f" ({labels[node.id]})" if node.id in labels else ""
        lines.append((node.id, plain(f"{mark} {first}{node.id[:8]} {node.kind}{label}: {_node_gist(node)}".rstrip(": "))))
        if (child := known.pop(_started(node), None)) is not None:
            lines += _kin_lines(child, f"{guide}  ")
        waiting += _below(branch.children, guide)[::-1]
    # What is left was started by calls that were interrupted: no result names it.
    return [*lines, *(line for child in known.values() for line in _kin_lines(child, ""))]


def _below(children: Sequence[Branch], guide: str) -> list[tuple[Branch, str, str]]:
    """Return each branch with the guide lines before its first node and those before the nodes below it."""
    if len(children) == 1:
        return [(children[0], guide, guide)]
    more = [(child, f"{guide}├─ ", f"{guide}│  ") for child in children[:-1]]
    return [*more, *((child, f"{guide}└─ ", f"{guide}   ") for child in children[-1:])]


def _started(node: Node) -> str:
    return str((node.payload.get("metadata") or {}).get("session", "")) if node.kind == "tool" else ""


def _kin_lines(child: Kin, guide: str) -> list[tuple[str, str]]:
    title = f" “{child.title}”" if child.title else ""
    steps = f"{child.steps} step{'s' if child.steps != 1 else ''}"
    line = plain(f"  {guide}└ {child.agent} {child.session}{title}: {child.end_reason}, {steps}")
    return [("", line), *(below for lower in child.children for below in _kin_lines(lower, f"{guide}  "))]


def _node_gist(node: Node) -> str:
    payload = node.payload
    if node.kind == "tool":
        return first_line(f"{payload.get('tool')} {payload.get('status')}", 80)
    text = payload.get("text") or payload.get("summary") or ""
    names = [str(call.get("name")) for call in payload.get("calls", ())]
    calls = ", ".join(names) if len(names) != 1 else f"{names[0]} {_arguments(payload['calls'][0])}".rstrip()
    if node.kind == "marker" and "label" in payload:
        called = payload.get("node", node.parent)
        return f"label {first_line(str(payload['label']), 80)} {f'names {str(called)[:8]}' if called else 'removed'}"
    if node.kind == "marker":
        return first_line(", ".join(f"{key} {value}" for key, value in payload.items()), 120)
    return first_line(text, 80) or (first_line(f"calls {calls}", 80) if calls else "")


def _arguments(call: Mapping[str, Any]) -> str:
    try:
        return brief(json.loads(str(call.get("arguments") or "{}")))
    except ValueError:  # a model may write broken JSON
        return ""


@click.command("context")
@click.argument("session", required=False)
@click.option("-m", "--model", help="Use this model instead of the session's own.")
@document_options
def show_context(flags: Flags, session: str | None, model: str | None) -> None:
    """Show what the model would be sent for this session, with tokens per part and per plugin."""

    async def work(host: Host) -> tuple[str, Report]:
        row = await find(host.store, session, flags)
        return row.id, await context_report(host, await host.resume(row.vault, row.id, model=model), model)

    name, found = with_host(flags, work, quiet=True)
    lines = columns((item["role"], item["tokens"], first_line(_message_gist(item), 100)) for item in found.messages)
    show(flags, {"session": name, **found.as_json()}, f"{lines}\n\n{context_text(found)}".lstrip())


_SAID_BY = {"user": "prompts", "assistant": "answers", "tool": "outputs of tools"}


def context_text(found: Report) -> str:
    """Return what fills the window: the tokens of each part, and what plugins and sources add."""
    share = f" of {found.window:,} ({found.tokens / found.window:.0%})" if found.window else ""
    limit = f"; a summary is made above {found.limit:,}" if found.window else ""
    by_role = {role: sum(row["tokens"] for row in found.messages if row["role"] == role) for role in _SAID_BY}
    rows = [*found.parts.items(), *((f"  {_SAID_BY[role]}", tokens) for role, tokens in by_role.items())]
    rows += [(f"  by {plugin}", tokens) for plugin, tokens in sorted(found.plugins.items(), key=lambda item: -item[1])]
    rows += [(f"  of {source}", tokens) for source, tokens in sorted(found.sources.items(), key=lambda item: -item[1])]
    return f"about {found.tokens:,} tokens{share}{limit}\n{columns((name, f'{tokens:>9,}') for name, tokens in rows if tokens)}"


def _message_gist(message: Mapping[str, Any]) -> str:
    calls = " ".join(call.get("name", "") for call in message.get("tool_calls", ()))
    return message.get("text") or (f"calls {calls}" if calls else "")


@click.command("compact")
@click.argument("session", required=False)
@click.option("--focus", default="", help="What the summary must keep above all.")
@click.option("-m", "--model", help="The session's model; compaction.model overrides it.")
@document_options
def compact(flags: Flags, session: str | None, focus: str, model: str | None) -> None:
    """Replace the older part of a conversation by a summary, in the model's view only; nothing is deleted."""

    async def work(host: Host) -> dict[str, Any]:
        from moryflow.runtime.session_commands import compact_now

        row = await find(host.store, session, flags)
        opened = await host.resume(row.vault, row.id, model=model)
        return {"session": row.id, **await compact_now(host, opened, focus)}

    done = with_host(flags, work)
    for remark in () if flags.quiet else done["remarks"]:
        say(f"moryflow: {remark}")
    show(flags, done, compaction_text(done))


def compaction_text(done: Mapping[str, object]) -> str:
    return f"compacted: about {done['tokens_before']} tokens before, {done['tokens_after']} now"


@click.command("undo-compaction")
@click.argument("session", required=False)
@document_options
def undo_compaction(flags: Flags, session: str | None) -> None:
    """Let the model see again what the last compaction replaced."""

    async def work(host: Host) -> dict[str, Any]:
        from moryflow.runtime.session_commands import undo

        row = await find(host.store, session, flags)
        return {"session": row.id, "voided": await undo(await host.resume(row.vault, row.id))}

    done = with_host(flags, work, quiet=True)
    show(flags, done, f"undone: {done['session']} shows again what the summary had replaced")


@click.command("records")
@click.argument("session", required=False)
@document_options
def show_records(flags: Flags, session: str | None) -> None:
    """List what the host recorded of the summarised part: files, stored outputs, denied and failed calls, sub-agents, hooks."""

    async def work(store: Store) -> tuple[str, Any]:
        from moryflow.compaction.sections import Facts
        from moryflow.store.records import effective

        row = await find(store, session, flags)
        head, _ = effective(await store.path(row.id))
        details = (head.payload.get("details") or {}) if head is not None else {}
        return row.id, Facts.from_json(details.get("facts"))

    name, facts = with_store(work)
    from moryflow.compaction.sections import listing

    text = plain(listing(facts)) or "nothing is recorded: no part of this session has been summarised; moryflow session show"
    show(flags, {"session": name, **facts.as_json()}, text)


def divider(node: Node, summary_mark: str) -> str:
    """Return the line that a compaction or a prune draws in a conversation."""
    if node.kind == "prune":
        number = len(node.payload.get("nodes", {}))
        return f"──── {number} older tool output{'s' if number != 1 else ''} hidden from the model ────"
    tokens = node.payload.get("tokens_before", "?")
    return f"──── compacted here, about {tokens} tokens ────\n{summary_mark}: {node.payload.get('summary', '')}"


COMMANDS = (show_context, compact, show_records, undo_compaction, fork, label, switch, tree)
