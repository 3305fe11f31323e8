"""A session as text: its conversation, and its branches and sub-agents as a tree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from moryflow.cli.terminal.text import first_line, plain, told_result

from .session_compact import divider

if TYPE_CHECKING:
    from moryflow.runtime.documents import Kin
    from moryflow.store import Node

SUMMARY = {"en": "summary", "zh": "摘要"}
"""What a person reads before a summary, by interface language."""

CHANGES = ("agent", "mode", "model")
"""What a marker may say that concerns the turns after it."""

_ROLES = {"user": "you", "assistant": "agent", "note": "note"}


def node_texts(path: Iterable[Node], named: Mapping[str, str]) -> Iterator[str]:
    """Yield what a person reads of each node of a `path`.

    :param named: label → node id.
    """
    summary_mark = SUMMARY.get(_language(), SUMMARY["en"])
    labels = labels_of(named)
    for node in path:
        if text := _text(node, summary_mark, f" ({labels[node.id]})" if node.id in labels else ""):
            yield plain(text)


def labels_of(named: Mapping[str, str]) -> dict[str, str]:
    """Return node id → its labels, for people; `named` is label → node id."""
    found: dict[str, list[str]] = {}
    for label, node in named.items():
        found.setdefault(node, []).append(first_line(label, 80))  # an import may bring anything
    return {node: ", ".join(labels) for node, labels in found.items()}


def _language() -> str:
    import os

    from moryflow.base.paths import home_folder
    from moryflow.config import load_config

    return load_config(home_folder(None, os.environ)).get("language") or "en"


def _text(node: Node, summary_mark: str, label: str) -> str:
    payload = node.payload
    if node.kind in ("compaction", "prune"):
        return divider(node, summary_mark)
    if node.kind == "tool":
        return f"[{payload.get('tool')}]{label} {told_result(str(payload.get('status')), payload.get('output', ''))}"
    if node.kind == "marker":
        changes = ", ".join(f"{name} {payload[name]}" for name in CHANGES if payload.get(name))
        return f"──── {changes} ────" if changes else ""
    if node.kind not in _ROLES:
        return ""
    text = payload.get("text") or ""
    calls = [f"→ {call.get('name')} {first_line(str(call.get('arguments', '')), 100)}" for call in payload.get("calls", ())]
    return "\n".join([f"{_ROLES[node.kind]}{label}: {text}".rstrip(), *calls])


def tree_lines(
    nodes: Sequence[Node], active: str | None, kin: Sequence[Kin] = (), named: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    """Return the tree of `nodes` as lines, each behind its node's id, which is empty for that of a sub-agent.

    Built without recursion: a long session is deep.

    :param named: label → node id.
    """
    from moryflow.store import tree

    labels = labels_of(named or {})
    known = {child.copy_of or child.session: child for child in kin}
    told = {_started(node) for node in nodes}
    cut_off: defaultdict[str, list[Kin]] = defaultdict(list)
    for name in [name for name, child in known.items() if child.node and name not in told]:
        cut_off[known[name].node].append(known.pop(name))
    lines: list[tuple[str, str]] = []
    waiting = [(branch, 0) for branch in reversed(tree(nodes))]
    while waiting:
        branch, depth = waiting.pop()
        node = branch.node
        mark = "*" if node.id == active else " "
        label = f" ({labels[node.id]})" if node.id in labels else ""
        lines.append((node.id, plain(f"{mark} {'  ' * depth}{node.id[:8]} {node.kind}{label}: {_gist(node)}".rstrip(": "))))
        if (child := known.pop(_started(node), None)) is not None:
            lines += _kin_lines(child, depth + 1)
        for child in cut_off.pop(node.id, ()):  # its call was interrupted, so that no result names it
            lines += _kin_lines(child, depth + 1)
        deeper = depth + 1 if len(branch.children) > 1 else depth
        waiting += [(child, deeper) for child in reversed(branch.children)]
    rest = [*known.values(), *(child for children in cut_off.values() for child in children)]
    return [*lines, *(line for child in rest if not child.of for line in _kin_lines(child, 0))]


def _started(node: Node) -> str:
    """Return the session that a tool started: ``session`` in the metadata of its result."""
    return str((node.payload.get("metadata") or {}).get("session", "")) if node.kind == "tool" else ""


def _kin_lines(child: Kin, depth: int) -> list[tuple[str, str]]:
    title = f" “{child.title}”" if child.title else ""
    steps = f"{child.steps} step{'s' if child.steps != 1 else ''}"
    of = f" (of {child.of})" if child.of else ""
    line = plain(f"  {'  ' * depth}└ {child.agent} {child.session}{of}{title}: {child.end_reason}, {steps}")
    return [("", line), *(below for lower in child.children for below in _kin_lines(lower, depth + 1))]


def _gist(node: Node) -> str:
    payload = node.payload
    if node.kind == "tool":
        return first_line(f"{payload.get('tool')} {payload.get('status')}", 80)
    text = payload.get("text") or payload.get("summary") or ""
    calls = ", ".join(str(call.get("name")) for call in payload.get("calls", ()))
    if node.kind == "marker" and "label" in payload:
        called = payload.get("node", node.parent)
        return f"label {first_line(str(payload['label']), 80)} {f'names {str(called)[:8]}' if called else 'removed'}"
    if node.kind == "marker":
        return first_line(", ".join(f"{key} {value}" for key, value in payload.items()), 120)
    return first_line(text, 80) or (f"calls {calls}" if calls else "")
