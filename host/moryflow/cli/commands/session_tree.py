"""A session as text: its conversation, and its branches and sub-agents as a tree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moryflow.cli.terminal.text import brief, first_line, plain, told_result

from .session_compact import divider

if TYPE_CHECKING:
    from moryflow.runtime.documents import Kin
    from moryflow.store import Branch, Node

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
    waiting = _below(tree(nodes), "")[::-1]
    while waiting:
        branch, first, guide = waiting.pop()
        node = branch.node
        mark = "*" if node.id == active else " "
        label = f" ({labels[node.id]})" if node.id in labels else ""
        lines.append((node.id, plain(f"{mark} {first}{node.id[:8]} {node.kind}{label}: {_gist(node)}".rstrip(": "))))
        if (child := known.pop(_started(node), None)) is not None:
            lines += _kin_lines(child, f"{guide}  ")
        for child in cut_off.pop(node.id, ()):  # its call was interrupted, so that no result names it
            lines += _kin_lines(child, f"{guide}  ")
        waiting += _below(branch.children, guide)[::-1]
    rest = [*known.values(), *(child for children in cut_off.values() for child in children)]
    return [*lines, *(line for child in rest if not child.of for line in _kin_lines(child, ""))]


def _below(children: Sequence[Branch], guide: str) -> list[tuple[Branch, str, str]]:
    """Return branches, each with what stands before its first node and before all below that."""
    if len(children) == 1:
        return [(children[0], guide, guide)]
    more = [(child, f"{guide}├─ ", f"{guide}│  ") for child in children[:-1]]
    return [*more, *((child, f"{guide}└─ ", f"{guide}   ") for child in children[-1:])]


def _started(node: Node) -> str:
    """Return the session that a tool started: ``session`` in the metadata of its result."""
    return str((node.payload.get("metadata") or {}).get("session", "")) if node.kind == "tool" else ""


def _kin_lines(child: Kin, guide: str) -> list[tuple[str, str]]:
    title = f" “{child.title}”" if child.title else ""
    steps = f"{child.steps} step{'s' if child.steps != 1 else ''}"
    of = f" (of {child.of})" if child.of else ""
    line = plain(f"  {guide}└ {child.agent} {child.session}{of}{title}: {child.end_reason}, {steps}")
    return [("", line), *(below for lower in child.children for below in _kin_lines(lower, f"{guide}  "))]


def _gist(node: Node) -> str:
    payload = node.payload
    if node.kind == "tool":
        return first_line(f"{payload.get('tool')} {payload.get('status')}", 80)
    text = payload.get("text") or payload.get("summary") or ""
    names = [str(call.get("name")) for call in payload.get("calls", ())]
    calls = ", ".join(names) if len(names) != 1 else f"{names[0]} {_arguments(payload['calls'][0])}".rstrip()
    if node.kind == "marker" and "label" in payload:
        called = payload.get("node", node.parent)
        return f"label {first_line(str(payload['label']), 80)} {f'names {str(called)[:8]}' if called else 'removed'}"
    if node.kind == "marker":
        return first_line(", ".join(f"{key} {value}" for key, value in payload.items()), 120)
    return first_line(text, 80) or (first_line(f"calls {calls}", 80) if calls else "")


def _arguments(call: Mapping[str, Any]) -> str:
    import json

    try:
        return brief(json.loads(str(call.get("arguments") or "{}")))
    except ValueError:  # a model wrote it
        return ""
