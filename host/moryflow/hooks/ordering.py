"""The order in which implementations are called. It never depends on registration order."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

from .plugin_set import TIERS, Implementation


class OrderCycle(Exception):
    """Plugins ask to stand before each other."""

    def __init__(self, hook: str, plugins: Sequence[str]) -> None:
        super().__init__(f"{hook}: {' and '.join(plugins)} each ask to come before the other (before=, after=)")
        self.plugins = tuple(plugins)


def call_order(
    implementations: Iterable[Implementation], final: str = "", among_user: Container[str] = ()
) -> tuple[Implementation, ...]:
    """Return `implementations` of one hook, ordered: by tier, then ``before=``/``after=`` within it, then by name.

    :param final: the built-in plugin that has the final phase to itself; it comes last.
    :param among_user: built-in plugins that bring what the user wrote; they are ordered with the user's.
    :raises Cycle: the wishes of one tier contradict each other.
    """
    tiers: dict[str, list[Implementation]] = {tier: [] for tier in TIERS}
    last: list[Implementation] = []
    for implementation in implementations:
        if final and implementation.plugin == final and implementation.tier == "builtin":
            last.append(implementation)
        else:
            tiers["user" if implementation.plugin in among_user else implementation.tier].append(implementation)
    result = [item for tier in TIERS for item in _within_tier(tiers[tier])]
    return tuple(replace(item, position=place) for place, item in enumerate(result + last))


def _within_tier(implementations: list[Implementation]) -> list[Implementation]:
    by_name: dict[str, list[Implementation]] = {}
    for implementation in sorted(implementations, key=lambda item: (item.plugin, item.function.__name__)):
        by_name.setdefault(implementation.plugin, []).append(implementation)
    followers: dict[str, set[str]] = {name: set() for name in by_name}
    for implementation in implementations:
        for name in implementation.options.before:
            if name in by_name:
                followers[implementation.plugin].add(name)
        for name in implementation.options.after:
            if name in by_name:
                followers[name].add(implementation.plugin)
    names = _sorted(followers, implementations[0].hook if implementations else "")
    return [item for name in names for item in by_name[name]]


def _sorted(followers: dict[str, set[str]], hook: str) -> list[str]:
    """Sort topologically, taking the first by name wherever there is a choice."""
    waiting = dict.fromkeys(followers, 0)
    for names in followers.values():
        for name in names:
            waiting[name] += 1
    ready = [name for name, count in waiting.items() if not count]
    heapq.heapify(ready)
    result: list[str] = []
    while ready:
        name = heapq.heappop(ready)
        result.append(name)
        for follower in followers[name]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, follower)
    if len(result) < len(followers):
        raise OrderCycle(hook, _members(followers, set(followers) - set(result)))
    return result


def _members(followers: dict[str, set[str]], left: set[str]) -> list[str]:
    """Return one cycle among the plugins in `left`, starting with its first name."""
    path: list[str] = []
    name = min(left)
    # Every plugin in `left` waits for another one in it, so walking backwards must come round.
    while name not in path:
        path.append(name)
        name = min(other for other in left if name in followers[other])
    cycle = path[path.index(name) :]
    return sorted(cycle)
