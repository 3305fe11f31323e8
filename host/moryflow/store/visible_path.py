"""Which compaction counts on a path, and which nodes the view needs. Pure functions.

What a compaction stands for is never shown again unless that compaction is undone, so whoever holds a session for long
keeps only the rest in memory: the history grows on the disk alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .records import Node


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


def needed(upwards: Iterator[Node]) -> list[Node]:
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
