"""A trace as text that is the same in every run: no ids, times, durations or places on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .trace import Trace


def snapshot(trace: Trace, places: Mapping[str, str], *, tiers: Sequence[str] = ("installed", "user")) -> str:
    """Return what plugins changed, said and failed, one line each, in the order of the calls.

    :param places: text that differs from run to run, and what to write instead: ``{str(vault): "<vault>"}``.
    :param tiers: whose lines; those of plugins that changed nothing are left out.
    """
    wanted = {bill.plugin for bill in trace.plugins if bill.tier in tiers}
    lines = [
        _line(turn["turn"], row)
        for turn in trace.turns
        for row in turn["hooks"]
        if row["plugin"] in wanted and (row["outcome"] != "ok" or row.get("delta"))
    ]
    text = "\n".join(lines)
    for given, name in sorted(places.items(), key=lambda item: -len(item[0])):
        text = text.replace(json.dumps(given)[1:-1], name)
    return text


def _line(turn: int, row: Mapping[str, Any]) -> str:
    about = f" {row['tool']}" if row.get("tool") else ""
    times = f" x{row['count']}" if row["count"] > 1 else ""
    head = f"{turn}.{row['step']} {row['hook']}{about} {row['plugin']}: {row['outcome']}{times}"
    delta = row.get("delta")
    return f"{head} {json.dumps(_plain(delta), ensure_ascii=False, sort_keys=True)}" if delta else head


def _plain(value: Any) -> Any:
    """Return JSON without what is another in every run: ids of nodes, calls and stored outputs."""
    if isinstance(value, dict):
        kept = {key: _plain(item) for key, item in value.items() if key not in ("node", "id", "call_id", "output_id")}
        return "<stored>" if set(value) == {"stored"} else kept
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
