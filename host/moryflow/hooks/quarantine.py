"""Which implementations are skipped for the rest of a session, because they failed too often."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moryflow_sdk import HOOKS

if TYPE_CHECKING:
    from .plugin_set import Implementation

LIMIT = 3
_Key = tuple[str, str, str, int]


class Quarantine:
    """Counts failures and overruns of one session. Gates and withholding transforms are never quarantined.

    A new version of a plugin, told by its hash, starts afresh.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[_Key, str], int] = {}
        self._out: dict[_Key, str] = {}

    def holds(self, implementation: Implementation) -> bool:
        """Whether `implementation` is to be skipped."""
        return bool(self._out) and _key(implementation) in self._out

    def count(self, implementation: Implementation, outcome: str) -> int:
        """Count a failure; return how many of its kind there are."""
        key = (_key(implementation), outcome)
        self._counts[key] = self._counts.get(key, 0) + 1
        return self._counts[key]

    def admit(self, implementation: Implementation, outcome: str, number: int) -> bool:
        """Quarantine `implementation` if `number` failures are enough; return whether it just happened."""
        if number < LIMIT or HOOKS[implementation.hook].kind == "gate" or implementation.withholds:
            return False
        self._out[_key(implementation)] = outcome
        return True

    def names(self) -> list[tuple[str, str]]:
        """Return (plugin, hook) of all that are skipped."""
        return [(plugin, hook) for plugin, hook, _, _ in self._out]

    def release(self, plugin: str) -> bool:
        """Bring the implementations of `plugin` back; return whether there were any."""
        found = [key for key in self._out if key[0] == plugin]
        for key in found:
            del self._out[key]
        self._counts = {key: number for key, number in self._counts.items() if key[0][0] != plugin}
        return bool(found)


def _key(implementation: Implementation) -> _Key:
    return (implementation.plugin, implementation.hook, implementation.plugin_hash, implementation.position)
