"""The event bus: who is told, in which order, and with which stamp."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from moryflow_sdk import Event

log = logging.getLogger(__name__)
Subscriber = Callable[[Event], None]


def now() -> str:
    """Return the current time as events carry it: UTC, ISO 8601, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def later(seconds: float) -> str:
    """Return the time in `seconds`, written like :func:`now`."""
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Bus:
    """Hands each event to every subscriber, in order, on the loop.

    Durable events arrive only after they were committed (invariant 6): the journal publishes them.
    """

    def __init__(self) -> None:
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with every event from now on; the returned function ends it."""
        self._subscribers.append(subscriber)

        def unsubscribe() -> None:
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)

        return unsubscribe

    def publish(self, event: Event) -> None:
        """Tell everyone. A subscriber that raises is reported and does not stop the others."""
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(event)
            except Exception:
                log.exception("an event subscriber failed on %s", event.type)
