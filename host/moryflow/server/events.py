"""The stream of events: it follows the events table, so that what other processes do is seen too, and passes deltas on.

A reader's place is the number of the last event that it saw. It gets exactly what comes after that, also when it comes back
later or to another server of the same home.
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

POLL_SECONDS = 0.1
"""How often the table is asked whether another process wrote to it."""
HEARTBEAT_SECONDS = 10.0
PAGE = 200
"""Events that are read at once."""
BACKLOG = 1 << 20
"""Bytes that wait for one reader at most; one that is slower is told to begin anew."""
_SENT_BESIDE = ("session.compacted", "approval.requested")
"""Other hosts' names under which an event is sent a second time."""


def frame(event: Event) -> bytes:
    """Return an event as clients read it, with its other names behind it."""
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
    """Which events a reader wants.

    :param sessions: of these and of the sub-agents below them, and for an empty name of what belongs to no session; without
        any, all. `types` are types, or other hosts' names.
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
    """What waits for one client that has seen everything up to `place`."""

    def __init__(self, wanted: Filter, place: int) -> None:
        self.wanted, self.place = wanted, place
        self.reset = ""
        """Why the client has to begin anew."""
        self._frames: deque[bytes] = deque()
        self._size = 0
        self._news = asyncio.Event()

    def put(self, data: bytes) -> None:
        """Add a frame, or note that the reader is too slow."""
        if self._size + len(data) > max(BACKLOG, len(data)):
            self.begin_anew("slow")
        elif not self.reset:
            self._frames.append(data)
            self._size += len(data)
        self._news.set()

    def begin_anew(self, reason: str) -> None:
        """Drop what waits, and let the client load everything anew."""
        self.reset = reason
        self._frames.clear()
        self._news.set()

    async def take(self, seconds: float) -> bytes:
        """Return all that waits; nothing after `seconds` in which nothing came."""
        if not self._frames and not self.reset:
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):  # not wait_for, which makes a task for each wait
                    await self._news.wait()
        data, self._size = b"".join(self._frames), 0
        self._frames.clear()
        return data


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
        """By session: the message that is being written in this process."""
        self._stopped = asyncio.Event()

    @property
    def readers(self) -> int:
        """How many clients listen."""
        return len(self._readers)

    async def start(self) -> None:
        """Begin with what is stored from now on."""
        self._file = self._store.identity()
        self.head = (await self._store.event_span())[1]
        self._unsubscribe = self._bus.subscribe(self._heard)
        self._tasks = [asyncio.create_task(self._pass_on()), asyncio.create_task(self._poll())]

    def stop(self) -> None:
        """End all streams."""
        self._unsubscribe()
        self._stopped.set()
        for task in self._tasks:
            task.cancel()
        for reader in self._readers:
            reader.put(b"")

    def _heard(self, event: Event) -> None:
        self._note_partial(event)
        self._work.put_nowait(event)

    def _note_partial(self, event: Event) -> None:
        match event.type:
            case "message.start":
                self.partial[event.session] = {"message_id": str(event.data.get("message_id")), "text": "", "reasoning": ""}
            case "text.delta" | "reasoning.delta" if (message := self.partial.get(event.session)) is not None:
                message["text" if event.type == "text.delta" else "reasoning"] += str(event.data.get("text", ""))
            case "step.finish" | "turn.finish":
                self.partial.pop(event.session, None)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            with suppress(MoryflowError):  # the database is locked or away; the next look may find it
                if self._store.identity() not in (None, self._file):
                    await self._begin_anew()
                if self._work.empty() and (await self._store.event_span())[1] > self.head:
                    self._work.put_nowait(None)

    async def _begin_anew(self) -> None:
        """Follow the database that stands in the place of the one before; numbers of that one mean nothing in it."""
        newest = (await self._store.event_span())[1]
        self._file, self.head = self._store.identity(), newest
        self._parents.clear()
        for reader in self._readers:
            reader.begin_anew("replaced")

    async def _pass_on(self) -> None:
        while True:
            event = await self._work.get()
            if event is None or (event.seq or 0) > self.head + 1:  # another process wrote, also before this event
                with suppress(MoryflowError):
                    await self._read(until=event.seq if event else None)
            elif event.seq is None or event.seq > self.head:
                self._tell(event)

    async def _read(self, *, until: int | None) -> None:
        """Pass on what the table has, in its order, to the end or to the event `until`: deltas that came later follow it."""
        while events := await self._store.events(None, self.head, PAGE):
            for event in events:
                self._tell(event)
                if event.seq == until:
                    return

    def _tell(self, event: Event) -> None:
        self.head = event.seq or self.head
        if event.parent is not None:
            self._parents[event.session] = event.parent
        data: bytes | None = None
        for reader in self._readers:
            if (event.seq is None or event.seq > reader.place) and reader.wanted(event, self._parents):
                data = data or frame(event)
                reader.put(data)

    async def frames(self, after: int | None, wanted: Filter, opening: dict[str, Any]) -> AsyncIterator[bytes]:
        """Yield what a client that has seen everything up to `after` gets; with ``None`` what comes from now on."""
        place = self.head if after is None else after
        yield b"retry: 1000\n\n"
        if reset := await self._reset(after):
            place = self.head
            yield reset
        yield b"id: %d\n" % place + _lines("open", {**opening, "type": "open", "seq": place})
        while place < self.head:  # what is behind is read for this client alone
            events = await self._store.events(None, place, PAGE)
            found: list[bytes] = []
            for event in events:
                if event.parent is not None:
                    self._parents[event.session] = event.parent
                if wanted(event, self._parents):
                    found.append(frame(event))
            place = (events[-1].seq or 0) if events else self.head
            yield b"".join(found)
        self._readers.add(reader := Reader(wanted, place))  # nothing was awaited since `place` was at the head: there is no gap
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

    async def _reset(self, after: int | None) -> bytes:
        """Return the frame that tells a client to load everything anew, where its place is not one of ours."""
        if not after:
            return b""
        oldest, newest = await self._store.event_span()
        if after > newest:
            return self._reset_frame("newer")
        return self._reset_frame("older") if oldest and after + 1 < oldest else b""

    def _reset_frame(self, reason: str) -> bytes:
        document = {"v": 1, "type": "reset", "seq": self.head, "ts": now(), "reason": reason}
        return b"id: %d\n" % self.head + _lines("reset", document)
