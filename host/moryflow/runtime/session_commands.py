"""What a person does to a session between two turns: compact it, undo that, delete it, label a node."""

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
    """Compact `session`; `focus` says what to keep above all. The next turn finds it prepared.

    :raises ConfigError: there is nothing to compact, a turn runs, or no summary could be had.
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
    """Run the slash command of a plugin, with the `text` behind its name.

    :raises ConfigError: there is none of that name, or a turn runs.
    """
    plugin_set = host.plugin_set
    found = plugin_set.commands.get(name)
    run = found.slash if found is not None else None
    if run is None:
        raise ConfigError(f"there is no command /{name}", next_step="moryflow chat, then /help, lists them")
    return (await session.scoped(lambda scope: run(text, scope.view(plugin_set.command_owners[name]))))[0]


async def undo(session: Session) -> str:
    """Void the compaction that counts, and return its node; nothing was deleted, and nothing after it is lost.

    :raises ConfigError: no compaction counts, or a turn runs.
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
    """Nothing may come between a call and its result."""
    if not scope_can_be_shortened(scope):
        raise ConfigError(
            "the last turn has calls without a result",
            where=f"session {scope.session}",
            next_step=f"moryflow run -r {scope.session}",
        )


async def delete_session(host: Host, row: SessionRow) -> Sequence[str]:
    """Purge a session and those of its sub-agents; return their ids.

    Observers are told by ``session.deleted``, which no store keeps, with a turn that only looks. It names what is gone, and the
    `heirs`: forks and copies that go on, each with the nodes that they were given.

    :raises SessionBusy: someone holds one of them; nothing is deleted then.
    """
    gone = await host.store.family(row.id)
    outputs = [output for id in gone for output in await host.store.artifacts(id, state="stored", limit=1_000_000)]
    heirs = {heir.id: await _inherited(host, heir) for heir in await host.store.heirs(gone)}
    scope = read_only_scope(host, row, None)
    await host.store.delete(row.id)
    if not heirs:  # a fork's answers lead to the files of its original; they go when their time has come
        from moryflow.services.artifacts import remove_files

        await asyncio.to_thread(remove_files, outputs)
    told = Event(type="session.deleted", session=row.id, ts=now(), data={"sessions": gone, "heirs": heirs})
    host.bus.publish(told)
    await host.surroundings.dispatcher.observe(scope, told)
    for notice in scope.notices:
        host.bus.publish(notice)
    return gone


async def _inherited(host: Host, heir: SessionRow) -> Sequence[str]:
    """Return the nodes that a fork was made with; of an import, all."""
    node = (heir.origin or {}).get("node")
    nodes = await (host.store.path(heir.id, node) if node else host.store.nodes(heir.id))
    return [node.id for node in nodes]


LONGEST = 80
SPOKEN = frozenset({"user", "assistant", "tool", "note"})
"""Kinds that a label names where none is said: what stands in the tree for a person to see, not what changes its view."""
_JOINERS = "\u200c\u200d"
"""What many scripts and emoji join characters with; else nothing unseen may be in a label."""


class Label(NamedTuple):
    """A label as it is to be from now on; with `node` as ``None`` it names nothing any more.

    :ivar was: the node that it named before.
    """

    label: str
    node: str | None
    was: str | None = None

    @property
    def marker(self) -> dict[str, Any]:
        """The payload of the node that says so."""
        return {"label": self.label, "node": self.node}

    @property
    def changes(self) -> bool:
        """Whether there is anything to record."""
        return self.node != self.was

    @property
    def sentence(self) -> str:
        """What a person is told."""
        if self.node is None:
            return f"'{self.label}' names nothing any more; it was {(self.was or '')[:8]}"
        if not self.changes:
            return f"{self.node[:8]} is called '{self.label}' already"
        taken = f"; {self.was[:8]} is not any more" if self.was else ""
        return f"{self.node[:8]} is called '{self.label}' now{taken}"


def new_label(text: str, node: str | None, nodes: Sequence[Node], named: Mapping[str, str], active: str | None) -> Label:
    """Return `text` as the label of `node`, or of what was said last. A label that names another node moves.

    :param nodes: all of the session; `named` are its labels, `active` its active node.
    :raises ConfigError: it cannot be a label, or there is nothing to name.
    """
    label = checked(text)
    known = {each.id: each for each in nodes}
    if label in known:
        raise ConfigError(f"'{label}' is the id of a node, so it cannot name one", next_step="choose another label")
    said = [each.id for each in path_to(known, active) if each.kind in SPOKEN]
    called = node or (said[-1] if said else None)
    if called is None:
        raise ConfigError("there is nothing to label yet", next_step='moryflow run "your question"')
    return Label(label, called, named.get(label))


def removal(text: str, named: Mapping[str, str]) -> Label:
    """Return that `text` is a label no longer.

    :raises ConfigError: it is none.
    """
    label = unicodedata.normalize("NFC", text.strip())
    if label not in named:
        there = ", ".join(f"'{each}'" for each in named) or "none"
        near = nearest(label, named)
        hint = f"; did you mean '{near}'?" if near else f"; there are {there}"
        raise ConfigError(f"there is no label '{label[:LONGEST]}'{hint}", next_step="moryflow session tree")
    return Label(label, None, named[label])


def checked(text: str) -> str:
    """Return `text` as it is stored: without space around it, its accents composed.

    :raises ConfigError: it cannot be a label.
    """
    label = unicodedata.normalize("NFC", text.strip())
    if not label:
        problem = "a label needs a text"
    elif len(label) > LONGEST:
        problem = f"a label has at most {LONGEST} characters, not {len(label)}"
    elif any(unicodedata.category(each) in _UNSEEN and each not in _JOINERS for each in label):
        problem = "a label is one line of characters that can be seen"
    else:
        return label
    raise ConfigError(problem, next_step="choose another label")


_UNSEEN = frozenset({"Cc", "Cf", "Cn", "Cs", "Zl", "Zp"})
