"""The stream of events: it follows the events table, which also has the events of other processes, and passes deltas on.

A reader's place is the `seq` of the last event that it saw. It gets exactly the events after that, even if it reconnects
later or to another server of the same home folder.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from typing import Any

from moryflow_sdk import Event, MoryflowError
from moryflow_sdk.events import OTHER_NAMES

from moryflow.base.events import Bus, now
from moryflow.store import Store

from .replies import encoded

# How often the table is checked for events of other processes.
POLL_SECONDS = 0.1
HEARTBEAT_SECONDS = 10.0
# How many events are read at a time.
PAGE = 200
# About how many bytes are handed to the connection at a time; it keeps them until the client reads.
CHUNK = 1 << 16
# The most bytes that may wait for one reader; a slower reader is told to load everything anew.
BACKLOG = 1 << 20
# Names of other hosts under which some events are sent a second time.
_SENT_BESIDE = ("session.compacted", "approval.requested")


def frame(event: Event) -> bytes:
    """Return the frame of an event, followed by a frame for each of its other names."""
    document = event.as_json()
    head = b"" if event.seq is None else b"id: %d\n" % event.seq
    frames = [head + _lines(event.type, document)]
    for name in _SENT_BESIDE:
        kind, fields = OTHER_NAMES[name]
        if event.type == kind and fields.items() <= event.data.items():
            frames.append(_lines(name, {**document, "type": name}))
    return b"".join(frames)


def _lines(kind: str, document: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), encoded(document))


class Filter:
    """Selects the events that a reader wants.

    :param sessions: events of these sessions and of the sub-agents below them; an empty name stands for events that belong to
        no session. Empty selects all events.
    :param types: only these types, or other hosts' names of them; empty selects all types.
    """

    def __init__(self, sessions: Collection[str] = (), types: Collection[str] = ()) -> None:
        self._sessions, self._types = frozenset(sessions), frozenset(types)

    def __call__(self, event: Event, parents: dict[str, str]) -> bool:
        if self._types and not event.is_one_of(self._types):
            return False
        at: str | None = event.session
        while self._sessions and at is not None and at not in self._sessions:
            at = parents.get(at)
        return at is not None


class Reader:
    """The frames that wait for one client, which has seen every event up to `place`."""

    def __init__(self, wanted: Filter, place: int) -> None:
        self.wanted, self.place = wanted, place
        self.reset = ""
        """Why the client has to load everything anew; empty if it does not."""
        self._frames: deque[bytes] = deque()
        self._size = 0
        self._news = asyncio.Event()

    def put(self, data: bytes) -> None:
        """Add a frame; if too many bytes wait already, the reader is too slow and has to begin anew."""
        if self._size + len(data) > max(BACKLOG, len(data)):
            self.begin_anew("slow")
        elif not self.reset:
            self._frames.append(data)
            self._size += len(data)
        self._news.set()

    def begin_anew(self, reason: str) -> None:
        """Drop the waiting frames, and have the client load everything anew."""
        self.reset = reason
        self._frames.clear()
        self._size = 0
        self._news.set()

    async def take(self, seconds: float) -> bytes:
        """Return the next waiting frames; if none comes within `seconds`, return ``b""``."""
        if not self._frames and not self.reset:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):  # cheaper than wait_for, which creates a task for each wait
                    await self._news.wait()
        found, size = list[bytes](), 0
        while self._frames and size < CHUNK:
            found.append(self._frames.popleft())
            size += len(found[-1])
        self._size -= size
        return b"".join(found)


class EventFollower:
    """Reads the events table as it grows, once for all clients."""

    def __init__(self, store: Store, bus: Bus, heartbeat: float = HEARTBEAT_SECONDS) -> None:
        self._store, self._bus, self._heartbeat = store, bus, heartbeat
        self._file: object = None
        self.head = 0
        self._parents: dict[str, str] = {}
        self._work: asyncio.Queue[Event | None] = asyncio.Queue()
        self._readers: set[Reader] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._unsubscribe = lambda: None
        self.partial: dict[str, dict[str, str]] = {}
        """By session, the message that a turn is writing."""
        self.over: deque[str] = deque(maxlen=1000)
        """The last answers that are whole; what was said while they were written comes too late."""
        self._stopped = asyncio.Event()

    @property
    def readers(self) -> int:
        """How many clients follow the stream."""
        return len(self._readers)

    async def start(self) -> None:
        """Start to follow the table, from its newest event on."""
        self._file = self._store.identity()
        self.head = (await self._store.event_span())[1]
        self._unsubscribe = self._bus.subscribe(self._on_event)
        self._tasks = [asyncio.create_task(self._deliver_events()), asyncio.create_task(self._poll())]

    def stop(self) -> None:
        self._unsubscribe()
        self._stopped.set()
        for task in self._tasks:
            task.cancel()
        for reader in self._readers:
            reader.put(b"")

    def _on_event(self, event: Event) -> None:
        match event.type:
            case "message.start":
                message_id = str(event.data.get("message_id"))
                if self.partial.get(event.session, {}).get("message_id") != message_id:  # each part begins by itself
                    self.partial[event.session] = {"message_id": message_id, "text": "", "reasoning": ""}
            case "text.delta" | "reasoning.delta" if (message := self.partial.get(event.session)) is not None:
                message["text" if event.type == "text.delta" else "reasoning"] += str(event.data.get("text", ""))
            case "step.finish" | "turn.finish":
                self.partial.pop(event.session, None)
        self._work.put_nowait(event)

    async def _poll(self) -> None:
        while True:
            await self._store.wait_for_events(POLL_SECONDS)
            with suppress(MoryflowError):  # the database is locked or unreachable; the next poll may succeed
                if self._store.identity() not in (None, self._file):
                    await self._begin_anew()
                if self._work.empty() and (await self._store.event_span())[1] > self.head:
                    self._work.put_nowait(None)

    async def _begin_anew(self) -> None:
        """Follow a database that replaced the previous one; the numbers of the old one mean nothing in it."""
        newest = (await self._store.event_span())[1]
        self._file, self.head = self._store.identity(), newest
        self._parents.clear()
        for reader in self._readers:
            reader.begin_anew("replaced")

    async def _deliver_events(self) -> None:
        while True:
            event = await self._work.get()
            if event is None or (event.seq or 0) > self.head + 1:  # another process has written, possibly before this event
                with suppress(MoryflowError):
                    await self._read(until=event.seq if event else None)
            elif event.seq is None or event.seq > self.head:
                self._deliver(event)

    async def _read(self, *, until: int | None) -> None:
        """Pass on the events of the table in order, up to `until` or to the end; later deltas must come after `until`."""
        while events := await self._store.events(None, self.head, PAGE):
            for event in events:
                self._deliver(event)
                if event.seq == until:
                    return

    def _deliver(self, event: Event) -> None:
        self.head = event.seq or self.head
        if event.type == "step.finish":
            self.over.append(node := str(event.data.get("node")))
            if self.partial.get(event.session, {}).get("message_id") == node:  # not of the next step
                del self.partial[event.session]
        if event.parent is not None:
            self._parents[event.session] = event.parent
        data: bytes | None = None
        for reader in self._readers:
            if (event.seq is None or event.seq > reader.place) and reader.wanted(event, self._parents):
                data = data or frame(event)
                reader.put(data)

    async def frames(self, after: int | None, wanted: Filter, opening: dict[str, Any]) -> AsyncIterator[bytes]:
        """Yield the frames for a client that has seen every event up to `after`; ``None`` begins with the next event."""
        place = self.head if after is None else after
        yield b"retry: 1000\n\n"
        if reset := await self._reset(after):
            place = self.head
            yield reset
        yield b"id: %d\n" % place + _lines("open", {**opening, "type": "open", "seq": place})
        while place < self.head:
            place, data = await self._missed(place, wanted)
            yield data
            del data  # it may wait long for the client
        self._readers.add(reader := Reader(wanted, place))  # no await since `place` reached the head, so there is no gap
        try:
            while not self._stopped.is_set():
                data = await reader.take(self._heartbeat)
                if reader.reset:
                    yield self._reset_frame(reader.reset)
                    return
                if not self._stopped.is_set():
                    yield data or b": \n\n"
        finally:
            self._readers.discard(reader)

    async def _missed(self, place: int, wanted: Filter) -> tuple[int, bytes]:
        """Return the next frames that a client at `place` has missed, which are read for it alone, and the new place."""
        events, found = await self._store.events(None, place, PAGE), list[bytes]()
        for event in events:
            if event.parent is not None:
                self._parents[event.session] = event.parent
            if wanted(event, self._parents):
                found.append(frame(event))
        return (events[-1].seq or 0) if events else self.head, b"".join(found)

    async def _reset(self, after: int | None) -> bytes:
        """Return the frame that tells a client to load everything anew, or ``b""`` if the table still has its place."""
        if not after:
            return b""
        oldest, newest = await self._store.event_span()
        if after > newest:
            return self._reset_frame("newer")
        return self._reset_frame("older") if oldest and after + 1 < oldest else b""

    def _reset_frame(self, reason: str) -> bytes:
        document = {"v": 1, "type": "reset", "seq": self.head, "ts": now(), "reason": reason}
        return b"id: %d\n" % self.head + _lines("reset", document)
