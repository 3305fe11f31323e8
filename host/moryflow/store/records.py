"""The values of the store: immutable rows that come out, and the one change that goes in.

Rows are named tuples, as a database gives them: made in a third of the time that frozen dataclasses take, for which also
code would have to be generated at every start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from moryflow_sdk import Artifact, Event, FrozenDict

KINDS: frozenset[str] = frozenset({"user", "assistant", "tool", "compaction", "prune", "note", "marker"})

ROOT = ""
"""The place before the first node, where an id is expected."""

CALL_STATES: tuple[str, ...] = ("pending", "waiting", "running", "completed", "error", "interrupted")

REPLIES: frozenset[str] = frozenset({"once", "always", "reject", "stop"})

_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def is_session_id(text: str) -> bool:
    """Tell whether `text` can be the id of a session: it also names files."""
    return _SESSION_ID.fullmatch(text) is not None


class Node(NamedTuple):
    """An immutable entry of a session's tree. Order is `seq` and nothing else, never the clock.

    :ivar payload: a :class:`~moryflow_sdk.FrozenDict`, frozen all the way down.
    :ivar hash: SHA-256 over the parent's hash, the kind and the stored payload, made once at append.
    """

    id: str
    session: str
    seq: int
    parent: str | None
    kind: str
    payload: Mapping[str, Any]
    tokens: int
    hash: str
    created: str


@dataclass(slots=True)
class NewNode:
    """A node to append. An empty `id` gets a random one; without `tokens` a quarter of the text's length is taken."""

    kind: str
    payload: Mapping[str, Any]
    id: str = ""
    tokens: int | None = None


class SessionRow(NamedTuple):
    """A session. `active` is the node that the next one follows; `origin` says where it comes from: of a fork ``session`` and
    ``node``, of a child ``spawn`` with the plugin that started it and the agent as it was narrowed then.

    `grants` are the rules a person granted for this session; `epoch` counts its holders.
    """

    id: str
    title: str
    vault: str
    agent: str
    model: str
    mode: str
    parent: str | None
    purpose: str
    active: str | None
    created: str
    updated: str
    origin: Mapping[str, Any] | None = None
    grants: tuple[Mapping[str, Any], ...] = ()
    epoch: int = 0


class CallRow(NamedTuple):
    """A tool call: what was asked (`args` is canonical JSON, `hash` is of its bytes) and how it was decided."""

    id: str
    session: str
    turn: str
    node: str
    step: int
    tool: str
    args: str
    hash: str
    state: str
    decision: str | None = None
    cause: str | None = None
    ruling: Mapping[str, Any] | None = None
    created: str = ""
    updated: str = ""


class ApprovalRow(NamedTuple):
    """A question to a person. `state` is ``pending``, ``replied`` or ``expired``."""

    id: str
    session: str
    call_id: str
    turn: str
    kind: str
    request: Mapping[str, Any]
    state: str = "pending"
    reply: str | None = None
    message: str = ""
    by: str | None = None
    created: str = ""
    replied_at: str | None = None


COMPACTION = "compact"
"""The purpose of a run that wrote a summary."""


class RunRow(NamedTuple):
    """A turn; `id` is the turn's. `state` is ``running`` or ``ended``."""

    id: str
    session: str
    purpose: str
    agent: str
    model: str
    plugin_set: str
    state: str = "running"
    end_reason: str | None = None
    usage: Mapping[str, Any] = FrozenDict()
    cost: float | None = None
    steps: int = 0
    started: str = ""
    ended: str | None = None

    @property
    def is_compaction(self) -> bool:
        """Whether it wrote a summary, which is no turn."""
        return self.purpose == COMPACTION


class HookCallRow(NamedTuple):
    """One line of the ledger: which implementation ran, how it ended, how long it took and what it changed."""

    session: str
    turn: str
    step: int
    hook: str
    plugin: str
    plugin_hash: str
    position: int
    outcome: str
    us: int
    call_id: str | None = None
    delta: Any = None
    count: int = 1  # pyright: ignore[reportIncompatibleMethodOverride]  # the method of tuples, which nobody calls


@dataclass(eq=False)
class Commit:
    """Everything that becomes true in one transaction.

    :ivar nodes: appended in order, the first below the active node.
    :ivar active: the node that is active afterwards; the last new one when ``None``, none at all when :data:`ROOT`.
    :ivar after: the node that must be active before, else nothing is stored; any when ``None``.
    :ivar events: without `seq`; the store numbers them.
    :ivar plugin_state: ``(plugin, "session" or "turn:<id>")`` to JSON; ``None`` removes it.
    :ivar session: fields of the session to set: ``title``, ``mode``, ``agent``, ``model``, ``vault``, ``grants``.
    """

    nodes: list[NewNode] = field(default_factory=list[NewNode])
    active: str | None = None
    after: str | None = None
    calls: list[CallRow] = field(default_factory=list[CallRow])
    approvals: list[ApprovalRow] = field(default_factory=list[ApprovalRow])
    runs: list[RunRow] = field(default_factory=list[RunRow])
    events: list[Event] = field(default_factory=list[Event])
    hook_calls: list[HookCallRow] = field(default_factory=list[HookCallRow])
    plugin_state: dict[tuple[str, str], Any] = field(default_factory=dict[tuple[str, str], Any])
    session: dict[str, Any] = field(default_factory=dict[str, Any])
    artifacts: list[Artifact] = field(default_factory=list[Artifact])

    def joined(self, later: Commit) -> Commit:
        """Return what this and a `later` one hold as one, to be stored where this one would have been."""
        joined = Commit(active=self.active if later.active is None else later.active, after=self.after)
        for commit in (self, later):
            for held in fields(commit):
                value, into = getattr(commit, held.name), getattr(joined, held.name)
                if isinstance(value, list):
                    into += value
                elif isinstance(value, dict):
                    into |= value
        return joined


class Committed(NamedTuple):
    """What a commit made: its nodes, and its events with their `seq`."""

    nodes: list[Node]
    events: list[Event]


class Hit(NamedTuple):
    """A node that a search found."""

    session: str
    node: str
    kind: str
    snippet: str
