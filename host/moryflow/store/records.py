"""The values of the store: immutable rows for reading, and :class:`Commit`, the only change.

Below them are pure functions over nodes: the nested tree, its labels, the nodes that a compaction leaves visible, and the
calls that a turn left unfinished.

Rows are named tuples: they are made in a third of the time that frozen dataclasses take, and need no code generated at every
start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from moryflow_sdk import Artifact, Event, FrozenDict

KINDS: frozenset[str] = frozenset({"user", "assistant", "tool", "compaction", "prune", "note", "marker"})

# Stands for the place before the first node, where an id is expected.
ROOT = ""

CALL_STATES: tuple[str, ...] = ("pending", "waiting", "running", "completed", "error", "interrupted")

REPLIES: frozenset[str] = frozenset({"once", "always", "exact", "preset", "reject", "stop"})

_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def is_session_id(text: str) -> bool:
    """Return whether `text` can be the id of a session; the id is also used in file names."""
    return _SESSION_ID.fullmatch(text) is not None


class Node(NamedTuple):
    """An immutable entry of a session's tree. Only `seq` gives the order, never the clock.

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

    @property
    def voids(self) -> bool:
        """Whether the node is a marker that undoes a compaction."""
        return self.kind == "marker" and "void" in self.payload


@dataclass(slots=True)
class NewNode:
    """A node to append. An empty `id` gets a random one; without `tokens`, a quarter of the text's length is the estimate."""

    kind: str
    payload: Mapping[str, Any]
    id: str = ""
    tokens: int | None = None


class SessionRow(NamedTuple):
    """A session.

    :ivar active: the node that the next node follows.
    :ivar origin: for a fork its ``session`` and ``node``; for a child ``spawn``, with the plugin that started it and its
        narrowed agent.
    :ivar grants: the rules that the user granted for this session.
    :ivar epoch: how often the session has been held.
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
    """A tool call with its arguments (`args` is canonical JSON, `hash` the hash of its bytes) and the decision on it."""

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
    """A question to the user. `state` is ``pending``, ``replied`` or ``expired``."""

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


# The purpose of a run that writes a summary.
COMPACTION = "compact"


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
        """Whether the run writes a summary; such a run is not a turn."""
        return self.purpose == COMPACTION


class HookCallRow(NamedTuple):
    """One line of the ledger: which implementation ran, how it ended, how long it took and what it changed.

    The hook calls of a step that changed nothing share one row, whose `hook` is empty: a step has twenty of them, and a row
    for each would cost 15 % of the step's instructions.
    """

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
    input: Any = None  # the hook's arguments as JSON, if they are kept for `replay`

    @classmethod
    def quiet(cls, session: str, turn: str, step: int, calls: Sequence[Sequence[Any]]) -> HookCallRow:
        """Return one shared row for hook calls that changed nothing.

        :param calls: for each: hook, plugin, the plugin's hash, position, microseconds, call id, and how often it ran.
        """
        return cls(session, turn, step, "", "", "", 0, "ok", 0, None, calls, len(calls))

    def each(self) -> list[HookCallRow]:
        """Return a row for each hook call that this row stands for.

        :raises ValueError, TypeError: `delta` does not have the shape that :meth:`quiet` gives it.
        """
        if self.hook:
            return [self]
        place = self[:3]
        return [
            HookCallRow(*place, hook, plugin, hash, position, "ok", us, call, None, count)
            for hook, plugin, hash, position, us, call, count in self.delta
        ]


@dataclass(eq=False)
class Commit:
    """Everything that one transaction stores.

    :ivar nodes: appended in order, the first below the active node.
    :ivar active: the node that is active afterwards; ``None`` means the last new one, :data:`ROOT` means no node.
    :ivar after: the node that must be active before, or else nothing is stored; ``None`` means any.
    :ivar events: without `seq`; the store numbers them.
    :ivar plugin_state: ``(plugin, "session" or "turn:<id>")`` to JSON; a value of ``None`` removes the entry.
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
        """Return this commit and a `later` one merged into one, which is stored in place of this one."""
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
    """What a commit stored: its nodes, and its events with their `seq`."""

    nodes: list[Node]
    events: list[Event]


class Hit(NamedTuple):
    """A node that a search found."""

    session: str
    node: str
    kind: str
    snippet: str


class Branch(NamedTuple):
    """A node and the branches below it."""

    node: Node
    children: list[Branch]


def tree(nodes: Iterable[Node]) -> list[Branch]:
    """Return the nested tree of a session's `nodes`, in their order; it has several roots if the first prompt was redone.

    It is built without recursion, because a long session is a deep tree; walk it without recursion too.
    """
    branches = {node.id: Branch(node, []) for node in nodes}
    roots: list[Branch] = []
    for branch in branches.values():
        above = branches.get(branch.node.parent or "")
        (above.children if above else roots).append(branch)
    return roots


def path_to(nodes: Mapping[str, Node], node: str | None) -> list[Node]:
    """Return the path from the root to `node`, root first, from nodes by id."""
    path: list[Node] = []
    while node is not None and node in nodes and (not path or nodes[node].seq < path[-1].seq):
        path.append(nodes[node])
        node = nodes[node].parent
    path.reverse()
    return path


def labels(nodes: Iterable[Node]) -> dict[str, str]:
    """Return label → node id, in the order in which the labels were set.

    A ``marker {label, node}`` labels the node of that id, wherever the marker itself is. Without ``node`` it labels the node
    that it follows; with ``None`` it removes the label. The last marker of a label counts.
    """
    named: dict[str, str] = {}
    for node in nodes:
        if node.kind == "marker" and (label := node.payload.get("label")):
            named.pop(str(label), None)
            if called := node.payload.get("node", node.parent):
                named[str(label)] = str(called)
    return named


def effective(path: Sequence[Node]) -> tuple[Node | None, Sequence[Node]]:
    """Return the compaction in force, if any, and the nodes that stay visible beside its summary.

    The last valid compaction on the path is in force unless a later marker voids it; ``first_kept_node_id`` is inclusive.
    The kept tail is preceded by the prompt of the turn that it begins in, and by nodes that a plugin protected.
    """
    voided: set[str] = set()
    for index in range(len(path) - 1, -1, -1):
        node = path[index]
        if _in_force(node, voided):
            wanted = node.payload.get("first_kept_node_id", "")
            first = next((place for place in range(index, -1, -1) if path[place].id == wanted), None)
            if first is not None:
                before = list(reversed(_visible_of_covered(reversed(path[:first]), node, path[first])))
                shown = [item for item in before if item.kind != "prune"]
                return node, [*shown, *path[first:index], *path[index + 1 :]]
    return None, path


def nodes_for_view(upwards: Iterator[Node]) -> list[Node]:
    """Return the nodes that the view of a path needs, root first; their view equals the view of the whole path.

    :param upwards: the path from its end to its root; covered nodes are read only if some of them may stay visible.
    """
    found: list[Node] = []
    voided: set[str] = set()
    counts: Node | None = None
    for node in upwards:
        found.append(node)
        if counts is None and _in_force(node, voided):
            counts = node
        if counts is not None and node.id == counts.payload.get("first_kept_node_id"):
            return [*reversed([*found, *_visible_of_covered(upwards, counts, node)])]
    found.reverse()
    return found


def _in_force(node: Node, voided: set[str]) -> bool:
    """Return whether `node` is a compaction in force, on a walk from the end of a path to its root.

    If `node` is a marker that voids a compaction, the id of that compaction is added to `voided`.
    """
    if node.voids:
        voided.add(node.payload["void"])
    return node.kind == "compaction" and node.id not in voided and bool(node.payload.get("summary"))


def _visible_of_covered(upwards: Iterator[Node], compaction: Node, first: Node) -> list[Node]:
    """Return the covered nodes that stay visible, and the prune nodes that concern them, from the end to the root.

    :param upwards: the covered nodes, the last one first.
    :param first: the first node of the kept tail. If it is not a prompt, the prompt of its turn stays, so that the answers
        follow a question.
    """
    protected = frozenset((compaction.payload.get("details") or {}).get("protected", ()))
    unasked = first.kind != "user"
    kept: list[Node] = []
    ids: set[str] = set()
    for node in upwards if unasked or protected else ():
        if node.id in protected or (unasked and node.kind == "user"):
            ids.add(node.id)
            kept.append(node)
            unasked = unasked and node.kind != "user"
        elif node.kind == "prune":
            kept.append(node)
        if not unasked and not protected:
            break
    return [node for node in kept if node.id in ids or not ids.isdisjoint(node.payload.get("nodes", ()))]


class Unfinished(NamedTuple):
    """A tool call that a crash or a question left without a result.

    :ivar request: the call as the assistant node contains it; `node` is that node's id.
    :ivar row: the stored record of the call; ``None`` if it was never recorded.
    :ivar action: ``interrupted``: the call was started, so it gets that result and never runs again unless the user asks;
        ``judge``: it was not started, so it goes through the gates like a new call.
    """

    request: Mapping[str, Any]
    node: str
    row: CallRow | None
    action: Literal["interrupted", "judge"]


def unfinished(path: Sequence[Node], calls: Iterable[CallRow]) -> list[Unfinished]:
    """Return the calls of the last assistant node on `path` that have no result node, in their order."""
    at = next((index for index in reversed(range(len(path))) if path[index].kind == "assistant"), None)
    if at is None:
        return []
    answered = {node.payload.get("call_id") for node in path[at + 1 :] if node.kind == "tool"}
    rows = {row.id: row for row in calls if row.node == path[at].id}
    requests = [request for request in path[at].payload.get("calls") or () if request.get("id") not in answered]
    return [_unfinished(request, path[at].id, rows.get(str(request.get("id")))) for request in requests]


def _unfinished(request: Mapping[str, Any], node: str, row: CallRow | None) -> Unfinished:
    started = row is not None and row.state not in ("pending", "waiting")
    return Unfinished(request, node, row, "interrupted" if started else "judge")
