"""A session's tree, drawn: a straight line of nodes is not indented, a branch is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .text import first_line, plain


def drawn(nodes: Sequence[Any], active: str | None) -> str:
    """Return the tree of `nodes` as text, one line a node. Built without recursion: a long session is deep."""
    from moryflow.sessions import labels, tree

    named = {node: label for label, node in labels(nodes).items()}
    lines: list[str] = []
    waiting = [(branch, 0) for branch in reversed(tree(nodes))]
    while waiting:
        branch, depth = waiting.pop()
        node = branch.node
        mark = "*" if node.id == active else " "
        label = f" ({named[node.id]})" if node.id in named else ""
        lines.append(plain(f"{mark} {'  ' * depth}{node.id[:8]} {node.kind}{label}: {_gist(node)}".rstrip(": ")))
        deeper = depth + 1 if len(branch.children) > 1 else depth
        waiting += [(child, deeper) for child in reversed(branch.children)]
    return "\n".join(lines)


def _gist(node: Any) -> str:
    payload = node.payload
    if node.kind == "tool":
        return first_line(f"{payload.get('tool')} {payload.get('status')}", 80)
    text = payload.get("text") or payload.get("summary") or ""
    calls = ", ".join(str(call.get("name")) for call in payload.get("calls", ()))
    if node.kind == "marker":
        return ", ".join(f"{key} {value}" for key, value in payload.items())
    return first_line(text, 80) or (f"calls {calls}" if calls else "")
