"""Paths made by hand: nodes as (kind, payload), and what they show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from moryflow.store.messages import ContextBuilder
from moryflow.store.records import Node
from moryflow_sdk import freeze
from moryflow_sdk.support.scripted import ScriptedTurn

SUMMARY = "## Goal\nMend the parser.\n## Progress\nHalf of it is done.\n## Next Steps\nTest it."


def compact(text: str = SUMMARY, **more: Any) -> ScriptedTurn:
    """Return a scripted answer of the summarizer."""
    return ScriptedTurn(text=text, purpose="compact", **more)


ANSWERED = compact()


def filled(text: str, size: int) -> str:
    """Return `text` with words behind it, `size` characters in all."""
    return (text + " and so on" * (size // 10))[: max(size, len(text))]


def user(text: str = "please", size: int = 0, **more: Any):
    return ("user", {"text": filled(text, size), **more})


def says(text: str = "done", size: int = 0, **more: Any):
    return ("assistant", {"text": filled(text, size), "calls": [], **more})


def calls(*ids: str, tool: str = "read", **arguments: Any):
    listed = [{"id": one, "name": tool, "arguments": json.dumps(arguments)} for one in ids]
    return ("assistant", {"text": "", "calls": listed})


def result(call_id: str, output: str = "out", size: int = 0, *, tool: str = "read", status: str = "ok", **more: Any):
    return ("tool", {"call_id": call_id, "tool": tool, "status": status, "output": filled(output, size), **more})


def compaction(first: str, summary: str = "S", **details: Any):
    return ("compaction", {"summary": summary, "first_kept_node_id": first, "tokens_before": 9, "details": details})


def talk(turns: int, size: int = 1000):
    """Return `turns` turns of a prompt and an answer, each of `size` characters."""
    return [item for turn in range(turns) for item in (user(f"prompt {turn}", size), says(f"answer {turn}", size))]


def path_of(*items: tuple[str, Mapping[str, Any]]) -> list[Node]:
    """Return nodes n0, n1, … from (kind, payload)."""
    return [
        Node(f"n{i}", "s", i, f"n{i - 1}" if i else None, kind, freeze(payload), 1, "", "")
        for i, (kind, payload) in zip(count(), items, strict=False)
    ]


def texts(path: Sequence[Node]) -> list[str]:
    return [message.text for message in ContextBuilder().build(path)]


def kinds(path: Sequence[Node]) -> list[str]:
    return [node.kind for node in path]
