"""Long conversations: when to shorten them, where to cut, who summarises, how the result is applied.

This module stands for a turn's compaction: nothing else here is loaded, and nothing measured, while a session is plainly short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from moryflow.kernel.turn_context import Compaction

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import Requests
    from moryflow.store import Node


_SHARE, _OVERHEAD_SHARE = 8, 2
"""A history of less than this part of the window is far below every limit, where prompt and tools have fewer characters than
that part has tokens: a character is at most about one, and the history is weighed by its characters / 4."""
_SMALLEST_WINDOW, _LARGEST = 32_000, 20_000


class LazyCompaction(Compaction):
    """Stands for a turn's compaction and makes it when it may matter.

    :param window: tokens of the context window; ``None`` where a person has settings of their own, or this host has already
        compacted something.
    """

    def __init__(
        self, path: Callable[[], Sequence[Node]], window: int | None, requests: Requests, make: Callable[[], Compaction]
    ) -> None:
        self._path = path
        self._requests = requests
        self._window = window or 0
        self._make = make
        self._made: Compaction | None = None
        self._weighed = 0
        self._weight = 0.0
        self._last: Node | None = None

    async def before_step(self) -> None:
        """Shorten the view where it is too long."""
        if not (self._plainly_short() and await self._requests.overhead(len) < self._window / _OVERHEAD_SHARE):
            await self._real().before_step()

    async def recover(self) -> bool:
        """Shorten the view because the provider refused it."""
        return await self._real().recover()

    async def after_turn(self) -> None:
        """Prune what the next turn will not need."""
        if not self._plainly_short():
            await self._real().after_turn()

    def _real(self) -> Compaction:
        if self._made is None:
            self._made = self._make()
        return self._made

    def _plainly_short(self) -> bool:
        if self._made is not None or self._window < _SMALLEST_WINDOW:
            return False
        path = self._path()
        if self._last is not None and (len(path) < self._weighed or path[self._weighed - 1] is not self._last):
            self._weighed, self._weight = 0, 0.0
        self._weight += sum(map(_weight, path[self._weighed :]))
        self._weighed, self._last = len(path), path[-1] if path else None
        return self._weight < min(self._window / _SHARE, _LARGEST)


def _weight(node: Node) -> float:
    """Return at least about the tokens of a node; one with images, or that a provider counted as large, is never small."""
    payload = node.payload
    counted = payload["usage"].get("input", 0) / 4 if payload.get("usage") else 0
    return max(node.tokens, counted) if not payload.get("images") else float("inf")
