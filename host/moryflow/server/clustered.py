"""The service over a store in PostgreSQL: prompts are stored for workers, and their results read from there.

Any number of servers may stand before one store; each sees the events of all workers, because it follows the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from moryflow_sdk import Event, MoryflowError

from moryflow.base.events import now
from moryflow.cluster.live import publish_live
from moryflow.runtime.session import Session, new_turn_id
from moryflow.store import SessionBusy
from moryflow.store.postgres.inbox import Inbox

from .metrics import Family, gauge
from .owners import Owners
from .replies import RequestError
from .service import PromptRequest, Service

POLL = 0.1

End = tuple[str, Mapping[str, Any]]


class ClusterService(Service):
    """A :class:`Service` whose turns run in workers."""

    def __init__(self, inbox: Inbox, *given: Any) -> None:
        super().__init__(*given)
        self._inbox = inbox
        self.owners = Owners(self.host.store, inbox)
        self.host.elsewhere = True
        inbox.wakes.heard = lambda message: publish_live(message, self.host.bus, self.events.over)
        self._awaited: dict[str, asyncio.Future[End]] = {}
        self._watching: asyncio.Task[None] | None = None

    @property
    def turns(self) -> int:
        return len(self._awaited)

    async def more_metrics(self) -> Sequence[Family]:
        depth, workers = await self._inbox.depth(), await self._inbox.workers()
        oldest = max((age for _, age in depth.values()), default=0.0)
        lost = sum(worker.lost for worker in workers)
        waiting = [("", (("queue", queue),), float(count)) for queue, (count, _) in sorted(depth.items())]
        return (
            Family("moryflow_queue_depth", "gauge", "Prompts that wait for a worker.", waiting),
            gauge("moryflow_queue_oldest_seconds", "How long the oldest has.", oldest),
            gauge("moryflow_workers", "Workers that reported within a minute.", len(workers)),
            gauge("moryflow_lease_losses", "Sessions taken over from the workers that are there.", lost),
        )

    async def begin(self, session: Session, wanted: PromptRequest, environment: Mapping[str, str] | None = None) -> str:
        if self.stopping:
            raise RequestError(503, "stopping", "the server is being stopped", "try again when it is back")
        self.check(session, wanted)  # `environment` stays here: the tools run on the worker's machine, with the worker's own
        options = wanted.options._asdict()
        body = {
            "prompt": wanted.prompt, "options": {**options, "key": "", "turn": ""}, "schema": wanted.options.schema,
            "leave": wanted.leave, "agent": wanted.agent, "model": wanted.model,
        }  # fmt: skip
        owner = (await self._inbox.owners([session.id])).get(session.id, "")
        key, line_up = wanted.options.key, wanted.queue
        there = self.host.config.queue_of(session.row.vault)
        turn = await self._inbox.add(session.id, new_turn_id(), body, key=key, owner=owner, line_up=line_up, queue=there)
        self.let_go(session)
        if not turn:
            message = f"session {session.id} is working on another prompt"
            raise SessionBusy(message, next_step="wait, or send it with queue: true")
        self._await(turn).add_done_callback(lambda done: self._announce(session, turn, done))
        return turn

    async def result_document(self, session: str, turn: str) -> Mapping[str, Any]:
        if turn not in self._awaited and not await self._inbox.known(turn):
            return await super().result_document(session, turn)
        state, document = await asyncio.shield(self._await(turn))
        if state == "failed":
            raise RequestError(422, str(document.get("code")), str(document.get("message")), str(document.get("next") or ""))
        return document

    async def cancel(self, session: Session) -> tuple[bool, int]:
        return await self._inbox.ask_to_stop(session.id), 0

    def _await(self, turn: str) -> asyncio.Future[End]:
        if turn not in self._awaited:
            self._awaited[turn] = asyncio.get_running_loop().create_future()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        return self._awaited[turn]

    async def _watch(self) -> None:
        while self._awaited:
            with suppress(MoryflowError):  # the database is unreachable; the next look may succeed
                for turn, end in (await self._inbox.ends(self._awaited)).items():
                    self._awaited.pop(turn).set_result(end)
            await asyncio.sleep(POLL)

    def _announce(self, session: Session, turn: str, done: asyncio.Future[End]) -> None:
        """Publish how a turn ended, for clients that follow the event stream instead of requesting the result."""
        if done.cancelled():
            return
        state, document = done.result()
        kind = "result" if state == "done" else "turn.failed"
        data = {name: value for name, value in document.items() if name not in ("v", "type", "ts", "session")}
        row = session.row
        self.host.bus.publish(Event(type=kind, session=row.id, parent=row.parent, turn=turn, ts=now(), data=data))

    async def drain(self) -> None:
        self.stopping = True
        if self._watching is not None:
            self._watching.cancel()
