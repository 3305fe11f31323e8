"""What the user does to a session between turns: compact it, undo that, run a slash command, delete it, label a node."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from moryflow_sdk import ConfigError, Event, SlashResult
from moryflow_sdk.support.texts import nearest

from moryflow.base.events import now
from moryflow.compaction.plan import scope_can_be_shortened
from moryflow.kernel.model_request import RequestBuilder
from moryflow.kernel.turn_context import Journal
from moryflow.store import Node, path_to
from moryflow.store.records import effective

from .session_lease import read_only_scope

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import TurnContext
    from moryflow.store import SessionRow

    from .host import Host
    from .session import Session


async def compact_now(host: Host, session: Session, focus: str = "") -> Mapping[str, Any]:
    """Compact `session`; `focus` says what the summary must keep above all. The next turn uses the summary.

    :raises ConfigError: there is nothing to compact, a turn runs, or no summary could be made.
    :raises SessionBusy: another process holds the session.
    """
    from moryflow.compaction.manager import TurnCompaction

    provider, model = host.choose_model(session)
    _require_idle(session)

    async def work(scope: TurnContext) -> Mapping[str, Any]:
        _require_closed(scope)
        scope.model, scope.purpose = model, "main"
        requests = RequestBuilder(scope, session.context, model)
        return await TurnCompaction(host.compaction, scope, Journal(scope), provider, requests).on_demand(focus)

    return (await session.scoped(work))[0]


async def run_slash(host: Host, session: Session, name: str, text: str) -> SlashResult:
    """Run a plugin's slash command with the `text` that follows its name.

    :raises ConfigError: there is no such command, or a turn runs.
    """
    plugin_set = host.plugin_set
    found = plugin_set.commands.get(name)
    run = found.slash if found is not None else None
    if run is None:
        raise ConfigError(f"there is no command /{name}", next_step="moryflow chat, then /help, lists them")
    return (await session.scoped(lambda scope: run(text, scope.view(plugin_set.command_owners[name]))))[0]


async def undo(session: Session) -> str:
    """Void the compaction in force and return its node. No node is deleted, and the nodes after the compaction stay.

    :raises ConfigError: no compaction is in force, or a turn runs.
    """
    _require_idle(session)

    async def work(scope: TurnContext) -> str:
        head, _ = effective(scope.live.hold.path)
        if head is None:
            raise ConfigError(
                "there is no compaction to undo", where=f"session {session.id}", next_step="moryflow session context"
            )
        _require_closed(scope)
        journal = Journal(scope)
        journal.node("marker", {"void": head.id})
        await journal.commit()
        return head.id

    return (await session.scoped(work))[0]


def _require_idle(session: Session) -> None:
    if session.running:
        raise ConfigError("a turn is running", where=f"session {session.id}", next_step="wait for it, or stop it")


def _require_closed(scope: TurnContext) -> None:
    """Refuse while a call has no result, because nothing may come between the two."""
    if not scope_can_be_shortened(scope):
        raise ConfigError(
            "the last turn has calls without a result",
            where=f"session {scope.session}",
            next_step=f"moryflow run -r {scope.session}",
        )


async def delete_session(host: Host, row: SessionRow) -> Sequence[str]:
    """Delete a session and the sessions of its sub-agents for good; return their ids.

    Observers get the event ``session.deleted``, which is not stored, with a turn that writes nothing. The event names the
    deleted sessions and the `heirs`: forks and copies that remain, each with the nodes that were copied into it.

    :raises SessionBusy: one of the sessions is held; nothing is deleted then.
    """
    gone = await host.store.family(row.id)
    outputs = [output for id in gone for output in await host.store.artifacts(id, state="stored", limit=1_000_000)]
    heirs = {heir.id: await _copied_nodes(host, heir) for heir in await host.store.heirs(gone)}
    scope = read_only_scope(host, row, None)
    await host.store.delete(row.id)
    if not heirs:  # a fork's answers refer to the files of its original, so with heirs the files stay until they expire
        from moryflow.services.artifacts import remove_files

        await asyncio.to_thread(remove_files, outputs)
    deleted = Event(type="session.deleted", session=row.id, ts=now(), data={"sessions": gone, "heirs": heirs})
    host.bus.publish(deleted)
    await host.surroundings.dispatcher.observe(scope, deleted)
    for notice in scope.notices:
        host.bus.publish(notice)
    return gone


async def _copied_nodes(host: Host, heir: SessionRow) -> Sequence[str]:
    """Return the ids of the nodes that a fork was made with; for an import, of all its nodes."""
    node = (heir.origin or {}).get("node")
    nodes = await (host.store.path(heir.id, node) if node else host.store.nodes(heir.id))
    return [node.id for node in nodes]


LONGEST = 80
# Kinds of nodes that a label names when no node is given: messages and results, not markers, prunes and compactions.
SPOKEN = frozenset({"user", "assistant", "tool", "note"})
# Joiners of many scripts and emoji: the only invisible characters that a label may contain.
_JOINERS = "\u200c\u200d"


class Label(NamedTuple):
    """A label as it should be from now on; `node` is ``None`` if the label is removed.

    :ivar was: the node that the label named before.
    """

    label: str
    node: str | None
    was: str | None = None

    @property
    def marker(self) -> dict[str, Any]:
        """The payload of the marker node that records the label."""
        return {"label": self.label, "node": self.node}

    @property
    def event_data(self) -> dict[str, Any]:
        """The data of the event ``session.label``."""
        return {**self.marker, "was": self.was}

    @property
    def changes(self) -> bool:
        """Whether there is anything to record."""
        return self.node != self.was

    @property
    def sentence(self) -> str:
        """The sentence that tells the user what changed."""
        if self.node is None:
            return f"'{self.label}' names nothing any more; it was {(self.was or '')[:8]}"
        if not self.changes:
            return f"{self.node[:8]} is called '{self.label}' already"
        taken = f"; {self.was[:8]} no longer has this label" if self.was else ""
        return f"{self.node[:8]} is called '{self.label}' now{taken}"


async def record_label(session: Session, label: Label) -> None:
    """Record a label in an open session, if that changes anything."""

    def record(journal: Journal) -> None:
        journal.node("marker", label.marker)
        journal.event("session.label", **label.event_data)

    if label.changes:
        await session.note(record)


def new_label(text: str, node: str | None, nodes: Sequence[Node], named: Mapping[str, str], active: str | None) -> Label:
    """Return `text` as the label of `node`, or of the last message on the path. A label that names another node moves.

    :param nodes: all nodes of the session; `named` are its labels, `active` its active node.
    :raises ConfigError: `text` cannot be a label, or there is no node to label.
    """
    label = valid_label(text)
    known = {each.id: each for each in nodes}
    if label in known:
        raise ConfigError(f"'{label}' is the id of a node, so it cannot name one", next_step="choose another label")
    spoken = [each.id for each in path_to(known, active) if each.kind in SPOKEN]
    called = node or (spoken[-1] if spoken else None)
    if called is None:
        raise ConfigError("there is nothing to label yet", next_step='moryflow run "your question"')
    return Label(label, called, named.get(label))


def removal(text: str, named: Mapping[str, str]) -> Label:
    """Return the removal of the label `text`.

    :raises ConfigError: there is no such label.
    """
    label = unicodedata.normalize("NFC", text.strip())
    if label not in named:
        there = ", ".join(f"'{each}'" for each in named) or "none"
        near = nearest(label, named)
        hint = f"; did you mean '{near}'?" if near else f"; there are {there}"
        raise ConfigError(f"there is no label '{label[:LONGEST]}'{hint}", next_step="moryflow session tree")
    return Label(label, None, named[label])


def valid_label(text: str) -> str:
    """Return `text` as a label is stored: stripped and in Unicode form NFC.

    :raises ConfigError: it cannot be a label.
    """
    label = unicodedata.normalize("NFC", text.strip())
    if not label:
        problem = "a label needs a text"
    elif len(label) > LONGEST:
        problem = f"a label has at most {LONGEST} characters, not {len(label)}"
    elif any(unicodedata.category(each) in _UNSEEN and each not in _JOINERS for each in label):
        problem = "a label is one line of visible characters"
    else:
        return label
    raise ConfigError(problem, next_step="choose another label")


_UNSEEN = frozenset({"Cc", "Cf", "Cn", "Cs", "Zl", "Zp"})
