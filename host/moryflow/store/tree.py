"""Pure functions over nodes: the nested tree, its labels, what a compaction leaves visible, what a turn left undone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from .records import CallRow, Node


class Branch(NamedTuple):
    """A node and what follows it."""

    node: Node
    children: list[Branch]


def tree(nodes: Iterable[Node]) -> list[Branch]:
    """Return the nested tree of a session's `nodes`, in their order; more than one root where the first prompt was redone.

    It is built without recursion, for a long session is deep; walk it likewise.
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


def effective(path: Sequence[Node]) -> tuple[Node | None, Sequence[Node]]:
    """Return the compaction that counts, if any, and the nodes that stay visible beside its summary.

    The last valid compaction on the path wins that no later marker voids; ``first_kept_node_id`` is inclusive.
    Before the kept tail stand the prompt of the turn that it begins in, and what a plugin protected.
    """
    voided: set[str] = set()
    for index in range(len(path) - 1, -1, -1):
        node = path[index]
        if node.kind == "marker":
            voided.add(node.payload.get("void", ""))
        elif node.kind == "compaction" and node.id not in voided and node.payload.get("summary"):
            wanted = node.payload.get("first_kept_node_id", "")
            first = next((place for place in range(index, -1, -1) if path[place].id == wanted), None)
            if first is not None:
                before = list(reversed(_kept_of_covered(reversed(path[:first]), node, path[first])))
                shown = [item for item in before if item.kind != "prune"]
                return node, [*shown, *path[first:index], *path[index + 1 :]]
    return None, path


def nodes_for_view(upwards: Iterator[Node]) -> list[Node]:
    """Return what the view of a path needs, root first; a view of these nodes is a view of the whole path.

    :param upwards: the path from its end to its root; what is covered is not asked for.
    """
    found: list[Node] = []
    voided: set[str] = set()
    counts: Node | None = None
    for node in upwards:
        found.append(node)
        if counts is not None:
            pass
        elif node.kind == "marker":
            voided.add(node.payload.get("void", ""))
        elif node.kind == "compaction" and node.id not in voided and node.payload.get("summary"):
            counts = node
        if counts is not None and node.id == counts.payload.get("first_kept_node_id"):
            return [*reversed([*found, *_kept_of_covered(upwards, counts, node)])]
    found.reverse()
    return found


def _kept_of_covered(upwards: Iterator[Node], compaction: Node, first: Node) -> list[Node]:
    """Return what stays of the covered nodes, and what prunes it, from the end to the root.

    :param upwards: the covered nodes, the last one first.
    :param first: the first node of the kept tail; inside a turn, that turn's prompt stays, or nobody would have asked.
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
