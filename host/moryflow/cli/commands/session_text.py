"""A conversation as ``session show`` prints it: what was said, what was called, and what was changed on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from moryflow.cli.terminal.text import first_line, plain, told_result

from .session_compact import divider

SUMMARY = {"en": "summary", "zh": "摘要"}
"""What a person reads before a summary, by interface language."""

CHANGES = ("agent", "mode", "model")
"""What a marker may say that concerns the turns after it."""

_ROLES = {"user": "you", "assistant": "agent", "note": "note"}


def shown(path: Iterable[Any], named: Mapping[str, str]) -> Iterator[str]:
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


def _text(node: Any, summary_mark: str, label: str) -> str:
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
