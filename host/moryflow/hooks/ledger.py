"""The record of hook calls: who was called, how long it took, what it changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from moryflow_sdk import Frozen
from moryflow_sdk.support.secrets import hidden

from .checks import DELTA_LIMIT

if TYPE_CHECKING:
    from moryflow.store import HookCallRow

    from .plugin_set import Implementation

Place = tuple[str, str, int, str | None]
"""Session, turn, step and call id of the hook calls that follow."""


class Ledger:
    """Keeps hook calls until the journal writes them with their node.

    Calling :meth:`add` costs an append and nothing else; rows are built when they are drained.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Place, Implementation, str, int, Any]] = []
        self._drained: list[tuple[Place, Implementation, str, int, Any]] = []
        self.keep = False
        """Whether :meth:`chain` still knows what was drained (``tool run --json``, ``hook fire``)."""

    def add(self, place: Place, implementation: Implementation, outcome: str, ns: int, delta: Any = None) -> None:
        """Record one call; `delta` is JSON of what changed, or the verdict of a gate."""
        self._entries.append((place, implementation, outcome, ns, delta))

    def drain(self) -> list[HookCallRow]:
        """Return rows for everything since the last drain.

        Calls that changed and said nothing become one row per (step, call, hook, plugin) with their number and total time.
        """
        from moryflow.store import HookCallRow

        entries, self._entries = self._entries, []
        if self.keep:
            self._drained += entries
        quiet: dict[tuple[Place, Implementation], tuple[int, int]] = {}
        rows: list[HookCallRow] = []
        for place, implementation, outcome, ns, delta in entries:
            if outcome != "ok" or delta is not None:
                row = (*place[:3], *implementation.who, outcome, ns // 1000, place[3], hidden(_limited(delta)), 1)
                rows.append(HookCallRow(*row))
                continue
            key = (place, implementation)
            count, total = quiet.get(key, (0, 0))
            quiet[key] = (count + 1, total + ns)
        for ((session, turn, step, call), implementation), (count, ns) in quiet.items():
            rows.append(HookCallRow(session, turn, step, *implementation.who, "ok", ns // 1000, call, None, count))
        return rows

    def chain(self, call_id: str | None = None) -> list[dict[str, Any]]:
        """Return the calls in the order they were made, of one tool call or of the whole turn."""
        return [
            {"hook": implementation.hook, "plugin": implementation.plugin, "outcome": outcome, "us": ns // 1000}
            for place, implementation, outcome, ns, _ in (*self._drained, *self._entries)
            if call_id is None or place[3] == call_id
        ]


def _limited(delta: Any) -> Any:
    """Return `delta` without the sides of it that are very large; in their place stand its fields and their size."""
    if isinstance(delta, Frozen):
        return {"decision": getattr(delta, "decision", ""), **delta.model_dump(mode="json", exclude_defaults=True)}
    if not isinstance(delta, dict):
        return delta
    values = cast("dict[str, Any]", delta)
    was = values.get("was")
    new = {name: value for name, value in values.items() if name != "was"}
    if (size := _size(new)) > DELTA_LIMIT:
        new = {"too_large": size, "fields": sorted(new)}
    if was is None or _size(was) > DELTA_LIMIT:
        return new
    return {**new, "was": was}


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, default=str))
