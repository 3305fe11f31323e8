"""The event bus: subscribers, order and time stamps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from moryflow_sdk import Event

log = logging.getLogger(__name__)
Subscriber = Callable[[Event], None]


def now() -> str:
    """Return the current time as events and nodes carry it: UTC, ISO 8601, milliseconds. Nothing is sorted by it."""
    seconds, milliseconds = divmod(time.time_ns() // 1_000_000, 1000)
    return f"{_second(seconds)}.{milliseconds:03}Z"


@lru_cache(maxsize=1)
def _second(since_epoch: int) -> str:
    # A step asks for the time thirteen times, and ``isoformat`` would be 2 % of what it executes.
    return datetime.fromtimestamp(since_epoch, UTC).isoformat()[:-6]


def written(moment: datetime) -> str:
    """Return `moment`, which is in UTC, in the format of :func:`now`."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def later(seconds: float) -> str:
    """Return the time `seconds` from now, in the format of :func:`now`."""
    return written(datetime.now(UTC) + timedelta(seconds=seconds))


class Bus:
    """Passes each event to every subscriber, in order, on the event loop.

    Durable events are published by the journal, after their commit.
    """

    def __init__(self) -> None:
        self._subscribers: list[Subscriber] = []
        self._parents: dict[str, str] = {}

    def subscribe(self, subscriber: Subscriber, session: str | None = None) -> Callable[[], None]:
        """Call `subscriber` with every event from now on; the returned function ends the subscription.

        :param session: pass only the events of this session and of its sub-agents; ``None`` means all sessions.
        """

        def of_family(event: Event) -> None:
            at: str | None = event.session  # an event names the parent of its session
            while at is not None and at != session:
                at = self._parents.get(at)
            if at is not None:
                subscriber(event)

        entry = subscriber if session is None else of_family
        self._subscribers.append(entry)

        def unsubscribe() -> None:
            if entry in self._subscribers:
                self._subscribers.remove(entry)

        return unsubscribe

    def publish(self, event: Event) -> None:
        """Pass `event` to every subscriber. A subscriber that raises is logged and does not stop the others."""
        if event.parent is not None:
            self._parents[event.session] = event.parent
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(event)
            except Exception:
                log.exception("an event subscriber failed on %s", event.type)
