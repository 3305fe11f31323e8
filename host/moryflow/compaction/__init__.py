"""Compaction of long conversations: when to shorten them, where to cut, who summarises, how the result is applied.

This module holds the host's state and a stand-in for a turn's compaction. While a session is plainly short, no other module
here is loaded and nothing is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from moryflow_sdk import ModelProvider, MoryflowError

from moryflow.kernel.turn_context import Compaction

if TYPE_CHECKING:
    from moryflow.config import Config
    from moryflow.config.schema import CompactionSettings
    from moryflow.hooks.plugin_set import PluginSet
    from moryflow.kernel.turn_context import Journal, Requests, TurnContext
    from moryflow.store import Node
    from moryflow.store.messages import ContextBuilder

    from .measure import Meter
    from .summary import Payload, Record

# A session is plainly short if its history (characters / 4) is below 1/8 of the window's tokens, and system prompt and tools
# have fewer characters than half of the window has tokens: a character is at most about one token.
_SHARE, _OVERHEAD_SHARE = 8, 2
_SMALLEST_WINDOW, _LARGEST = 32_000, 20_000


class LazyCompaction(Compaction):
    """Stands in for a turn's compaction, and creates the real one only when the session may be too long.

    :param window: tokens of the context window; ``None`` creates it at once: if compaction is configured, or if this host has
        already compacted something.
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
        """Shorten the view if it is too long."""
        if not (self._plainly_short() and await self._requests.overhead(len) < self._window / _OVERHEAD_SHARE):
            await self._real().before_step()

    async def recover(self) -> bool:
        """Shorten the view because the provider refused it."""
        return await self._real().recover()

    async def after_turn(self) -> None:
        """Prune outputs that the next turn will not need."""
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
    """Return an estimate of a node's tokens that is not too low: infinite with images, and not far below a provider's count."""
    payload = node.payload
    counted = payload["usage"].get("input", 0) / 4 if payload.get("usage") else 0
    return max(node.tokens, counted) if not payload.get("images") else float("inf")


# How many new nodes a failed compaction waits for before the next try; doubled with each failure.
FIRST_PAUSE, LONGEST_PAUSE = 8, 256


class Memory:
    """What compaction remembers between turns; one per host. It owns the background forks and ends them with the host."""

    def __init__(self) -> None:
        self._meters: WeakKeyDictionary[ContextBuilder, tuple[str, Meter, Meter]] = WeakKeyDictionary()
        self._again: dict[str, tuple[int, int]] = {}
        self._forks: dict[str, tuple[Record, asyncio.Task[Payload | MoryflowError]]] = {}
        self._settings: tuple[Config, CompactionSettings] | None = None

    def of_turn(
        self, scope: TurnContext, journal: Journal, provider: ModelProvider | None, requests: Requests | None
    ) -> Compaction:
        """Return the compaction of a turn; for a turn without a model, one that does nothing."""
        model = scope.model
        if provider is None or requests is None or model is None:
            return Compaction()
        from moryflow.config.schema import COMPACTION_PATH, UNKNOWN_WINDOW

        def make() -> Compaction:
            from .manager import TurnCompaction

            return TurnCompaction(self, scope, journal, provider, requests)

        usual = not scope.around.config.section(COMPACTION_PATH) and self._settings is None
        window = (model.context_window or UNKNOWN_WINDOW) if usual else None
        return LazyCompaction(lambda: scope.live.hold.path, window, requests, make)

    def settings(self, config: Config) -> CompactionSettings:
        """Return the settings, cached for each configuration: validating them takes a millisecond."""
        from moryflow.config.schema import COMPACTION_PATH, CompactionSettings

        if self._settings is None or self._settings[0] is not config:
            section = config.section(COMPACTION_PATH)
            self._settings = (config, CompactionSettings.model_validate(dict(section)))
        return self._settings[1]

    def meters(self, context: ContextBuilder, name: str, plugin_set: PluginSet) -> tuple[Meter, Meter]:
        """Return the session's meter with the configured estimator, and a careful one for limits that must not be exceeded."""
        from .measure import FRAME, Meter, careful, chars, estimator

        key = f"{name}@{plugin_set.id}"
        found = self._meters.get(context)
        if found is None or found[0] != key:
            chosen = estimator(name, plugin_set)
            strict = Meter(careful if chosen is chars else chosen, FRAME)
            found = self._meters[context] = (key, Meter(chosen), strict)
        return found[1:]

    # ---------------------------------------------------------------- cool-down

    def is_paused(self, session: str, nodes: int) -> bool:
        """Whether a summary failed so recently that another try would probably be wasted."""
        return session in self._again and nodes < self._again[session][0]

    def failed(self, session: str, nodes: int) -> None:
        """Begin or lengthen the pause."""
        pause = min(2 * self._again[session][1], LONGEST_PAUSE) if session in self._again else FIRST_PAUSE
        self._again[session] = (nodes + pause, pause)

    def succeeded(self, session: str) -> None:
        """End the pause."""
        self._again.pop(session, None)

    # ---------------------------------------------------------------- background forks

    def is_writing(self, session: str) -> bool:
        """Whether a fork is writing a summary of `session`, or has written one that is not applied yet."""
        return session in self._forks

    def start(self, session: str, record: Record) -> None:
        """Start a fork that writes a summary beside the turn."""
        self._forks[session] = (record, asyncio.get_running_loop().create_task(_result(record)))

    async def finished(self, session: str, *, wait: bool = False) -> tuple[Record, Payload | MoryflowError | None] | None:
        """Return the record and the result of the fork of `session`, once; ``None`` while it is still writing.

        The result is ``None`` if the fork was cancelled during the wait.
        """
        found = self._forks.get(session)
        if found is None or not (wait or found[1].done()):
            return None
        await asyncio.wait((found[1],))
        self._forks.pop(session, None)
        return found[0], None if found[1].cancelled() else found[1].result()

    def cancel(self, session: str) -> Record | None:
        """Cancel the fork of `session` and return its record, or ``None`` if there is none."""
        found = self._forks.pop(session, None)
        if found is None:
            return None
        found[1].cancel()
        return found[0]

    async def aclose(self) -> None:
        """Cancel every fork and record that; if the session is no longer held, its next turn records it."""
        forks = list(self._forks.values())
        self._forks.clear()
        for _, task in forks:
            task.cancel()
        await asyncio.gather(*(task for _, task in forks), return_exceptions=True)
        for record, _ in forks:
            with contextlib.suppress(MoryflowError):
                await record.abandoned("the host closed before the summary was there")


async def _result(record: Record) -> Payload | MoryflowError:
    try:
        return await record.writing.payload()
    except MoryflowError as error:
        return error
