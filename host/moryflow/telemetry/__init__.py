"""Traces for OpenTelemetry: spans made from a stored session, as OTLP/HTTP JSON, to a collector or into a file.

Everything is read through the store's protocol after a turn has ended; nothing happens while a step runs. So a session from
before telemetry was on can be exported as well, and an export made twice is the same. A turn is sent beside the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from moryflow_sdk import MoryflowError

if TYPE_CHECKING:
    from moryflow_sdk import Event

    from moryflow.store import Store


__all__ = ["BackgroundExport"]


log = logging.getLogger(__name__)
# Seconds that the end of a process waits for traces that are under way; those that are late can be exported later.
CLOSING = 1.0
# The most turns that wait for a slow collector. The oldest are left out: they can be exported later.
MAX_WAITING = 1000


class BackgroundExport:
    """A subscriber of the bus that sends the turns that end, one after another. Without the setting it does nothing.

    Whatever fails here costs no turn anything. It is said once, because each later turn would fail in the same way.

    :param settings: returns the section ``telemetry`` as it is now.
    """

    def __init__(
        self, store: Callable[[], Store], settings: Callable[[], Mapping[str, Any]], environ: Mapping[str, str]
    ) -> None:
        self._store, self._settings, self._environ = store, settings, environ
        self._waiting: deque[tuple[str, str]] = deque(maxlen=MAX_WAITING)
        self._task: asyncio.Task[None] | None = None
        self._has_complained = False

    def __call__(self, event: Event) -> None:
        """Note a turn that has ended."""
        if event.type != "turn.finish" or not self._settings().get("otlp"):
            return
        self._waiting.append((event.session, event.turn or ""))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while self._waiting:
            session, turn = self._waiting.popleft()
            try:
                await self._send(session, turn)
            except MoryflowError as error:
                self._complain(f"the trace of a turn was not sent: {error.message} ({error.where})", session)
            except Exception as error:  # the boundary between telemetry and the host's work
                self._complain(f"the trace of a turn was not made: {type(error).__name__}: {error}", session)

    async def _send(self, session: str, turn: str) -> None:
        from .collector import collector_of, trace_parent
        from .spans import SpanOptions, spans

        settings = self._settings()
        collector = collector_of(self._environ, settings.get("otlp"))
        if collector is None:
            return
        options = SpanOptions(content=bool(settings.get("content")), parent=trace_parent(self._environ))
        found = spans(self._store(), session, options, turn)
        await collector.send([span async for part in found for span in part], self._environ)

    def _complain(self, what: str, session: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            log.warning("%s; moryflow trace export %s --otlp URL sends it later", what, session)

    async def aclose(self) -> None:
        """Wait a moment for what is under way, then leave it."""
        if self._task is None or self._task.done():
            return
        await asyncio.wait((self._task,), timeout=CLOSING)
        if not self._task.done():
            self._complain("the trace of a turn was not sent: the collector is slow", "SESSION")
            self._task.cancel()
            await asyncio.wait((self._task,))
