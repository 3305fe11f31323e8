"""The ledger of hook calls, and the quarantine of implementations that are skipped because they failed too often."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from moryflow_sdk import HOOKS, Frozen
from moryflow_sdk.support.secrets import hidden

from .checks import DELTA_LIMIT

# Characters of JSON that the kept input of one hook call may take.
MAX_INPUT = 4 * DELTA_LIMIT

if TYPE_CHECKING:
    from moryflow.store import HookCallRow

    from .plugin_set import Implementation, LedgerKey

# Session, turn, step and call id of a hook call.
Place = tuple[str, str, int, str | None]


class Ledger:
    """Keeps hook calls until the journal writes them with their node.

    :meth:`add` costs one append; the rows are built by :meth:`drain`.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Place, Implementation, str, int, Any, Any]] = []
        self._drained: list[tuple[Place, Implementation, str, int, Any, Any]] = []
        self.keep = False
        """Whether :meth:`chain` also returns calls that were drained (for ``tool run`` and ``hook fire``)."""
        self.keeps_inputs = False
        """Whether what plugins are given is recorded too (for ``replay``)."""

    def add(
        self, place: Place, implementation: Implementation, outcome: str, ns: int, delta: Any = None, given: Any = None
    ) -> None:
        """Record one call; `delta` is the change as JSON, or the verdict of a gate, and `given` its kept input."""
        self._entries.append((place, implementation, outcome, ns, delta, given))

    def drain(self) -> list[HookCallRow]:
        """Return rows for all calls since the last drain.

        Calls without a change or a verdict become one count per step, tool call, hook and plugin, with their total time.
        """
        from moryflow.store import HookCallRow

        entries, self._entries = self._entries, []
        if self.keep:
            self._drained += entries
        quiet: dict[tuple[Place, Implementation], tuple[int, int]] = {}
        rows: list[HookCallRow] = []
        for place, implementation, outcome, ns, delta, given in entries:
            if outcome != "ok" or delta is not None or given is not None:
                row = (*place[:3], *implementation.ledger_key, outcome, ns // 1000, place[3], hidden(_shorten(delta)), 1)
                rows.append(HookCallRow(*row, hidden(given)))
                continue
            key = (place, implementation)
            count, total = quiet.get(key, (0, 0))
            quiet[key] = (count + 1, total + ns)
        steps: dict[tuple[str, str, int], list[tuple[Any, ...]]] = {}
        for (place, implementation), (count, ns) in quiet.items():
            steps.setdefault(place[:3], []).append((*implementation.ledger_key, ns // 1000, place[3], count))
        return rows + [HookCallRow.quiet(*step, calls) for step, calls in steps.items()]

    def chain(self, call_id: str | None = None) -> list[dict[str, Any]]:
        """Return the hook calls of one tool call, or of the whole turn, in the order they were made."""
        return [
            {"hook": implementation.hook, "plugin": implementation.plugin, "outcome": outcome, "us": ns // 1000}
            for place, implementation, outcome, ns, *_ in (*self._drained, *self._entries)
            if call_id is None or place[3] == call_id
        ]


def kept_input(chain: Sequence[Implementation], context: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a hook as JSON; ``None`` if a redactor has yet to see them, or they are too large.

    :param chain: the implementation that was given them, and those that are called after it.
    """
    event = context.get("event")
    if any(item.withholds for item in chain) or (event is not None and event.seq is None):
        return None
    given = {name: _plain(value) for name, value in context.items() if name != "turn"}
    try:
        return given if _size(given) <= MAX_INPUT else None
    except (ValueError, TypeError, RecursionError):  # an integer of thousands of digits is not JSON
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, Frozen):
        return value.model_dump(mode="json", exclude_defaults=True)
    return [_plain(item) for item in cast("Sequence[Any]", value)] if isinstance(value, list | tuple) else value


def _shorten(delta: Any) -> Any:
    """Return `delta` without very large values: new values are replaced by their size and field names, old ones left out."""
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


# Failures or overruns in a session after which an implementation is skipped.
MAX_FAILURES = 3


class Quarantine:
    """Counts failures and overruns in one session. Gates and withholding transforms are never quarantined.

    A new version of a plugin, recognised by its hash, starts at zero.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[LedgerKey, str], int] = {}
        self._skipped: dict[LedgerKey, str] = {}

    def holds(self, implementation: Implementation) -> bool:
        """Whether `implementation` is to be skipped."""
        return bool(self._skipped) and implementation.ledger_key in self._skipped

    def count(self, implementation: Implementation, outcome: str) -> tuple[int, bool]:
        """Count a failure; return how many of this kind there are now, and whether `implementation` is skipped from here on."""
        key = (implementation.ledger_key, outcome)
        number = self._counts[key] = self._counts.get(key, 0) + 1
        enough = number >= MAX_FAILURES and HOOKS[implementation.hook].kind != "gate" and not implementation.withholds
        if enough:
            self._skipped[implementation.ledger_key] = outcome
        return number, enough

    def names(self) -> list[tuple[str, str]]:
        """Return (plugin, hook) of every implementation that is skipped."""
        return [(plugin, hook) for hook, plugin, _, _ in self._skipped]
