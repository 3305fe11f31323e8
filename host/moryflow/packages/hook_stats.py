"""What a plugin has done, from the ledger of the session store: how long its hooks took, how often they failed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from moryflow.plugins.last_seen import released_at
from moryflow.store import HookCallRow, Store, existing_store

RECENT = 5000
"""Rows of the ledger that are looked at, the newest ones."""
LOOKED_THROUGH = 50_000
"""The same where only quarantines are looked for."""
_GOOD = ("ok", "changed")


@dataclass(frozen=True)
class HookStats:
    """One hook of one plugin.

    :param p95_us: 95 of 100 calls were faster; quiet calls of one step count with their mean.
    :param failures: calls that ended neither well nor with a change, by outcome.
    """

    hook: str
    calls: int
    p95_us: int
    failures: dict[str, int]


async def hook_stats_of(store: Store, plugin: str) -> list[HookStats]:
    """Return the figures of a plugin over all sessions, its newest calls first."""
    return hook_stats(await store.hook_calls(None, plugin=plugin, newest=RECENT))


async def quarantined_of(store: Store, home: Path, plugin: str) -> list[str]:
    """Return the hooks that are in quarantine in a session."""
    from datetime import datetime

    since = released_at(home, plugin)
    last: dict[tuple[str, str], str] = {}
    for row in await store.hook_calls(None, plugin=plugin, newest=RECENT):  # the newest first
        last.setdefault((row.session, row.hook), row.outcome)
    found: set[str] = set()
    for (session, hook), outcome in last.items():
        if outcome == "quarantined":
            updated = datetime.fromisoformat((await store.session(session)).updated)
            found |= {hook} if updated.timestamp() > since else set()
    return sorted(found)


def all_quarantined(home: Path) -> dict[str, list[str]]:
    """Return, by plugin, the hooks that are in quarantine in a session."""
    store = store_of(home)
    if store is None:
        return {}

    async def read() -> dict[str, list[str]]:
        plugins = await store.quarantined_plugins(LOOKED_THROUGH)
        return {plugin: hooks for plugin in plugins if (hooks := await quarantined_of(store, home, plugin))}

    try:
        return asyncio.run(read())
    finally:
        store.close()


def quarantined_now(home: Path, plugin: str) -> list[str]:
    """Do as :func:`quarantined_of`, with a store of its own."""
    store = store_of(home)
    if store is None:
        return []
    try:
        return asyncio.run(quarantined_of(store, home, plugin))
    finally:
        store.close()


def hook_stats(rows: Iterable[HookCallRow]) -> list[HookStats]:
    """Return the figures of some rows of the ledger, by hook."""
    by_hook: dict[str, list[HookCallRow]] = {}
    for row in rows:
        by_hook.setdefault(row.hook, []).append(row)
    return [_of(hook, found) for hook, found in sorted(by_hook.items())]


def _of(hook: str, rows: list[HookCallRow]) -> HookStats:
    ran = sorted((row.us // max(row.count, 1), row.count) for row in rows if row.outcome in _GOOD)
    failures: dict[str, int] = {}
    for row in rows:
        if row.outcome not in _GOOD:
            failures[row.outcome] = failures.get(row.outcome, 0) + row.count
    return HookStats(hook, sum(row.count for row in rows), _percentile(ran, 0.95), failures)


def _percentile(ran: list[tuple[int, int]], share: float) -> int:
    """Return the time that `share` of the calls stay within; `ran` is (time, number of calls), sorted."""
    total, seen = sum(count for _, count in ran), 0
    for us, count in ran:
        seen += count
        if seen >= total * share:
            return us
    return 0


def store_of(home: Path) -> Store | None:
    """Open the session store, ``None`` when there is none yet."""
    return existing_store(home)
