"""What an answer says while it is written, from workers to servers: messages of the database, of which nothing is stored.

A message may come late or not at all: the answer itself is in the store. What a server hears of an answer that it has already
read whole is dropped.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Container
from typing import Any

from moryflow_sdk import Event

from moryflow.base.events import Bus

SENT = frozenset({"message.start", "text.delta", "reasoning.delta", "message.end"})
# Seconds in which the pieces of all sessions of a worker share one message: with 40 workers, 400 messages a second.
GATHER = 0.1
# PostgreSQL allows 8,000 bytes; a character takes up to 12 as JSON.
MAX_BYTES, MAX_TEXT = 7000, 500


class LiveSender:
    """Gathers the pieces of answers that a worker's bus publishes, and sends them."""

    def __init__(self, bus: Bus, send: Callable[[str], None]) -> None:
        self._send = send
        self._waiting: list[dict[str, Any]] = []
        self._last: dict[str, dict[str, Any]] = {}
        self._timer: asyncio.TimerHandle | None = None
        bus.subscribe(self._on_event)

    def _on_event(self, event: Event) -> None:
        if event.type not in SENT:
            return
        item = event.model_dump(mode="json", exclude_defaults=True)
        text = item["data"].get("text", "")
        for start in range(0, len(text) or 1, MAX_TEXT):
            piece = {"text": text[start : start + MAX_TEXT]} if text else {}
            self._add({**item, "data": {**item["data"], **piece}})
        if event.type == "message.end":
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER, self.flush)

    def _add(self, item: dict[str, Any]) -> None:
        last, text = self._last.get(item["session"]), item["data"].get("text", "")
        same = last and (last["type"], last["data"]["message_id"]) == (item["type"], item["data"]["message_id"])
        if last and same and text and len(last["data"]["text"]) + len(text) <= MAX_TEXT:
            last["data"]["text"] += text
            return
        self._last[item["session"]] = item
        self._waiting.append(item)

    def flush(self) -> None:
        """Send what waits."""
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting, self._last, self._timer = self._waiting, [], {}, None
        batch, size = list[str](), 0
        for written in map(json.dumps, waiting):
            if batch and size + len(written) > MAX_BYTES:
                self._send(f"[{','.join(batch)}]")
                batch, size = [], 0
            batch.append(written)
            size += len(written) + 1
        if batch:
            self._send(f"[{','.join(batch)}]")


def publish_live(message: str, bus: Bus, over: Container[str]) -> None:
    """Publish what a worker sent, without the pieces of answers whose ids are in `over`."""
    for item in json.loads(message):
        event = Event(**item)
        if str(event.data.get("message_id")) not in over:
            bus.publish(event)
