"""Which compaction counts on a path, and which nodes the view needs. Pure functions.

What a compaction stands for is never shown again unless that compaction is undone, so whoever holds a session for long
keeps only the rest in memory: the history grows on the disk alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .records import Node


def effective(path: Sequence[Node]) -> tuple[Node | None, Sequence[Node]]:
    """Return the compaction that counts, if any, and the nodes that stay visible beside its summary (S1.4, S1.5).

    The last valid compaction on the path wins that no later marker voids; ``first_kept_node_id`` is inclusive (D20).
    What a plugin protected stands before the kept tail.
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
                protected = _protected(node)
                before = [item for item in path[:first] if item.id in protected] if protected else []
                return node, [*before, *path[first:index], *path[index + 1 :]]
    return None, path


def needed(upwards: Iterator[Node]) -> list[Node]:
    """Return what the view of a path needs, root first; a view of these nodes is a view of the whole path.

    :param upwards: the path from its end to its root; what is covered is not asked for.
    """
    found: list[Node] = []
    voided: set[str] = set()
    first, protected = "", frozenset[str]()
    for node in upwards:
        found.append(node)
        if first:
            pass
        elif node.kind == "marker":
            voided.add(node.payload.get("void", ""))
        elif node.kind == "compaction" and node.id not in voided and node.payload.get("summary"):
            first, protected = node.payload.get("first_kept_node_id", ""), _protected(node)
        if first and node.id == first:
            return [*reversed([*found, *_of_protected(upwards, protected)])]
    found.reverse()
    return found


def _protected(compaction: Node) -> frozenset[str]:
    return frozenset((compaction.payload.get("details") or {}).get("protected", ()))


def _of_protected(upwards: Iterator[Node], protected: frozenset[str]) -> Iterator[Node]:
    """Yield the protected nodes among those that are covered, and what prunes them."""
    if not protected:
        return
    for node in upwards:
        if node.id in protected or (node.kind == "prune" and not protected.isdisjoint(node.payload.get("nodes", ()))):
            yield node
