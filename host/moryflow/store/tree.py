"""Pure functions over nodes: the nested tree, its labels, and what an interrupted turn left undone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from .records import CallRow, Node


@dataclass(frozen=True, slots=True)
class Branch:
    """A node and what follows it."""

    node: Node
    children: list[Branch] = field(default_factory=list["Branch"])


def tree(nodes: Iterable[Node]) -> list[Branch]:
    """Return the nested tree of a session's `nodes`, in their order; more than one root where the first prompt was redone.

    It is built without recursion, for a long session is deep; walk it likewise.
    """
    branches = {node.id: Branch(node) for node in nodes}
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
    """Return label -> node id, in the order in which the labels were given.

    A ``marker {label, node}`` names the node of that id, wherever it stands itself; without ``node`` the one it follows, and
    with ``None`` none any more. The last marker of a label counts.
    """
    named: dict[str, str] = {}
    for node in nodes:
        if node.kind == "marker" and (label := node.payload.get("label")):
            named.pop(str(label), None)
            if called := node.payload.get("node", node.parent):
                named[str(label)] = str(called)
    return named


class Unfinished(NamedTuple):
    """A tool call that a crash or a question left without a result.

    :ivar request: the call as it stands in the assistant node; `node` is that node's id.
    :ivar row: its stored state; ``None`` when it was not even recorded.
    :ivar action: ``interrupted``: it was started, so it gets that result and never runs again unasked;
        ``judge``: it was not started, so it goes through the gates like a new one.
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
