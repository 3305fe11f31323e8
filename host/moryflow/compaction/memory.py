"""What compaction remembers between turns of one host: meters, cool-downs, forks that work beside a turn."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from moryflow_sdk import MoryflowError

from moryflow.config.schema import COMPACTION_PATH, CompactionSettings

from .measure import FRAME, Meter, careful, chars, estimator

if TYPE_CHECKING:
    from moryflow.config import Config
    from moryflow.hooks.plugin_set import PluginSet
    from moryflow.store.messages import ContextBuilder

    from .summary import Payload, Record

FIRST_PAUSE, LONGEST_PAUSE = 8, 256
"""Nodes that must come before a failed compaction is tried again; doubled with each failure."""


class Memory:
    """One per host; owns the background forks and ends them with it."""

    def __init__(self) -> None:
        self._meters: WeakKeyDictionary[ContextBuilder, tuple[str, Meter, Meter]] = WeakKeyDictionary()
        self._again: dict[str, tuple[int, int]] = {}
        self._forks: dict[str, tuple[Record, asyncio.Task[Payload | MoryflowError]]] = {}
        self._settings: tuple[Config, CompactionSettings] | None = None

    def settings(self, config: Config) -> CompactionSettings:
        """Return the settings; validating them once costs a millisecond."""
        if self._settings is None or self._settings[0] is not config:
            section = config.section(COMPACTION_PATH)
            self._settings = (config, CompactionSettings.model_validate(dict(section)))
        return self._settings[1]

    def meters(self, context: ContextBuilder, name: str, plugin_set: PluginSet) -> tuple[Meter, Meter]:
        """Return the session's meter with the chosen estimator, and the one for what must not be exceeded."""
        key = f"{name}@{plugin_set.id}"
        found = self._meters.get(context)
        if found is None or found[0] != key:
            chosen = estimator(name, plugin_set)
            strict = Meter(careful if chosen is chars else chosen, FRAME)
            found = self._meters[context] = (key, Meter(chosen), strict)
        return found[1:]

    # ---------------------------------------------------------------- cool-down

    def is_paused(self, session: str, nodes: int) -> bool:
        """Whether a failure is so recent that another try would only cost."""
        return session in self._again and nodes < self._again[session][0]

    def failed(self, session: str, nodes: int) -> None:
        """Begin or lengthen the pause."""
        pause = min(2 * self._again[session][1], LONGEST_PAUSE) if session in self._again else FIRST_PAUSE
        self._again[session] = (nodes + pause, pause)

    def succeeded(self, session: str) -> None:
        """End the pause."""
        self._again.pop(session, None)

    # ---------------------------------------------------------------- beside the turn

    def is_writing(self, session: str) -> bool:
        """Whether a fork writes a summary of `session`, or has written one that waits."""
        return session in self._forks

    def start(self, session: str, record: Record) -> None:
        """Let a fork write beside the turn."""
        self._forks[session] = (record, asyncio.get_running_loop().create_task(_result(record)))

    async def finished(self, session: str, *, wait: bool = False) -> tuple[Record, Payload | MoryflowError | None] | None:
        """Return what the fork of `session` has written, once; ``None`` while it writes.

        It has written ``None`` where it was cancelled while it was waited for.
        """
        found = self._forks.get(session)
        if found is None or not (wait or found[1].done()):
            return None
        await asyncio.wait((found[1],))
        self._forks.pop(session, None)
        return found[0], None if found[1].cancelled() else found[1].result()

    def cancel(self, session: str) -> Record | None:
        """End the fork of `session` and return its record; what it would have written is not needed any more."""
        found = self._forks.pop(session, None)
        if found is None:
            return None
        found[1].cancel()
        return found[0]

    async def aclose(self) -> None:
        """End every fork and record that it is over; where the session is held no more, its next turn records it."""
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
