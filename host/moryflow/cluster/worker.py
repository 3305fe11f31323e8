"""A worker: goes on with sessions in which something is to be done, one turn after another, until they are idle or ask.

It holds a session's lease while it works. A turn that another worker began and did not end goes on here under its own id: what
is stored is kept, and a call that had started without a result is ``interrupted``, never run again by itself. A question ends
the work; the answer brings the session back to whichever worker is free.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from moryflow_sdk import Event, MoryflowError

from moryflow.base.paths import repository_of
from moryflow.kernel.outcome import RunOptions, error_json
from moryflow.runtime.host import Host
from moryflow.runtime.session import Session
from moryflow.runtime.subagents import whole_answer
from moryflow.runtime.turn_result import AnswerSchema, TurnResult, stored_result
from moryflow.runtime.worktrees import create
from moryflow.store.postgres.inbox import Inbox, WaitingPrompt, WorkerRow
from moryflow.store.protocol import SessionBusy, StaleEpoch, StoreError
from moryflow.store.records import RunRow

from .live import LiveSender
from .queue import WorkQueue
from .schedules import begin_due

TICK = 1.0
# Seconds that running steps have to end when the worker is told to; then they are interrupted.
HAND_OVER = 8.0
FORGET_EVERY = 3600.0
_UNFINISHED = ("interrupted", "approval_required", None)

Outcome = Literal["ended", "waiting", "handed_over"]
Tell = Callable[[str], None]


class _Work(NamedTuple):
    session: Session
    task: asyncio.Task[TurnResult]


class TurnWorker:
    """Takes turns from a store in PostgreSQL.

    :param queues: the names of the queues whose sessions it takes: those whose folders it has.
    :param concurrency: in how many sessions it works at once.
    :param tell: prints a sentence for whoever runs the worker.
    """

    def __init__(
        self, host: Host, inbox: Inbox, queue: WorkQueue, name: str, queues: Sequence[str], concurrency: int, tell: Tell
    ) -> None:
        self._host, self._inbox, self._queue = host, inbox, queue
        self._name, self._queues, self._concurrency, self._tell = name, list(queues), concurrency, tell
        self._running: dict[str, _Work] = {}
        self._at_work: set[str] = set()
        self._draining = False
        self._lost = 0
        self.turns = 0

    async def run(self, stopping: asyncio.Event) -> None:
        """Work until `stopping` is set; then hand over what runs, between two steps if they end in time."""
        await self._queue.install()
        await self._inbox.wake_all()
        self._host.throttle = self._inbox
        LiveSender(self._host.bus, self._inbox.wakes.tell)
        ticking = asyncio.create_task(self._tick(stopping))
        handing_over = asyncio.create_task(self._hand_over(stopping))
        try:
            await self._queue.work(self._go_on, self._queues, self._concurrency, stopping)
        finally:
            ticking.cancel()
            handing_over.cancel()
            with suppress(StoreError):
                await self._inbox.leave(self._name)

    async def _go_on(self, session_id: str) -> None:
        """Go on with a session until it is idle or asks; do nothing if somebody else works in it."""
        if self._draining or session_id in self._at_work:
            return
        self._at_work.add(session_id)
        try:
            row = await self._host.store.session(session_id)
            needed, _ = repository_of(row.vault)
            if not self._host.config.place(needed).is_dir():
                self._tell(f"session {row.id}: {needed} is not here; start a worker that has it, with --queue")
                return
            session = await self._host.resume(row.vault, row.id)
            try:
                await session.keep()
                await self._until_idle(session)
            finally:
                session.release()
                self._host.forget(session)
        except SessionBusy:
            pass  # whoever has it sees what was asked, or loses its lease, and then a worker is woken
        except StaleEpoch:
            self._lost += 1
            self._tell(f"session {session_id}: another worker has taken it over")
        except StoreError as error:
            if error.code != "not_found":
                self._tell(f"session {session_id}: {error}")
        finally:
            self._at_work.discard(session_id)

    async def _until_idle(self, session: Session) -> None:
        epoch = session.epoch
        while True:
            asked, prompt = await self._inbox.next(session.id)
            if prompt is None:
                if await self._inbox.settle(session.id, epoch, asked, "idle"):
                    return
                if not await self._inbox.holds(session.id, epoch):
                    raise StaleEpoch(f"session {session.id} was taken over")
                continue
            try:
                moved = await self._begin_worktree(session)
            except MoryflowError as error:
                await self._inbox.end(session.id, prompt.turn, "failed", error_json(error))
                continue
            outcome = "handed_over" if moved else await self._take(session, prompt)
            self.turns += outcome == "ended"
            if outcome == "handed_over" or (outcome == "ended" and self._draining):
                await self._inbox.hand_over(session.id, epoch)
                return
            if outcome == "waiting" and await self._inbox.settle(session.id, epoch, asked, "waiting"):
                return

    async def _begin_worktree(self, session: Session) -> bool:
        """Make the git worktree of a session that is to have one; return whether it was made, so that the work begins anew."""
        repository, ref = repository_of(session.row.vault)
        if not ref:
            return False
        here = self._host.config.place(repository)
        made = await asyncio.to_thread(create, self._host.home, here, session.id, ref, repository)
        await session.note(lambda journal: journal.session(vault=made.vault))
        return True

    async def _take(self, session: Session, prompt: WaitingPrompt) -> Outcome:
        """Run a prompt, or go on with its turn, and record how it ended."""
        body = prompt.body
        try:
            schema = None if body.get("schema") is None else AnswerSchema(body["schema"])
            options = RunOptions(**{**body["options"], "turn": prompt.turn})
            asks = options.on_ask == "prompt"
            if asks:  # nobody holds a worker while the user thinks
                options = options._replace(on_ask="fail")
            task = asyncio.create_task(self._turn(session, prompt, options))
            self._running[session.id] = _Work(session, task)
            if prompt.stop:  # it waited for an answer, or for a worker, when the user stopped it
                session.subscribe(lambda event: session.cancel() if event.type == "turn.start" else None)
            try:
                result = await task
            except asyncio.CancelledError:
                if task.cancelled() and self._draining:
                    return "handed_over"
                raise
            if result.end_reason == "approval_required" and asks:
                return "waiting"
            if schema is not None or not body.get("leave"):
                result = await whole_answer(session, result, options._replace(key="", turn=""), schema)
            await self._inbox.end(session.id, prompt.turn, "done", result.as_json())
        except (StaleEpoch, StoreError):
            raise
        except MoryflowError as error:
            await self._inbox.end(session.id, prompt.turn, "failed", error_json(error))
        finally:
            self._running.pop(session.id, None)
        return "ended"

    async def _turn(self, session: Session, prompt: WaitingPrompt, options: RunOptions) -> TurnResult:
        body: Mapping[str, Any] = prompt.body
        begun = next((run for run in await self._host.store.runs(session.id) if run.id == prompt.turn), None)
        if begun is not None:
            if begun.end_reason not in _UNFINISHED:  # the worker was ended between the turn's end and saying so
                return await stored_result(self._host.store, begun)
            await self._name_other_plugins(session, begun)
            return await session.resume(options)
        await self._inbox.begun(prompt.turn)
        if body.get("agent"):
            await session.set_agent(body["agent"])
        if body.get("model"):
            await session.set_model(body["model"])
        if body.get("prompt") is None:
            return await session.resume(options)
        return await session.prompt(**body["prompt"], options=options)

    async def _name_other_plugins(self, session: Session, begun: RunRow) -> None:
        """Say in the session that the rest of its turn runs with other plugins, as during a rolling upgrade."""
        await self._host.refresh_if_changed()
        if begun.plugin_set == self._host.plugin_set.id:
            return
        text = f"the turn goes on with other plugins: it began with {begun.plugin_set}, and {self._host.plugin_set.id} is here"
        await session.note(lambda journal: journal.event("session.notice", text=text))

    async def _tick(self, stopping: asyncio.Event) -> None:
        """Once a second: say that this worker lives, stop what is to be stopped, wake workers for leases that ran out."""
        forget_at = time.monotonic()
        while True:
            try:
                row = WorkerRow(
                    self._name, self._queues, self._concurrency, len(self._running), self._host.plugin_set.id, self._lost
                )
                if await self._inbox.report(row):
                    stopping.set()
                for session in await self._inbox.to_stop([*self._running]) if self._running else ():
                    if work := self._running.get(session):
                        work.session.cancel()
                await self._inbox.wake_expired()
                await begin_due(self._inbox, self._host)
                if time.monotonic() >= forget_at:
                    forget_at += FORGET_EVERY
                    await self._queue.forget_leftovers(FORGET_EVERY)
            except MoryflowError as error:
                self._tell(str(error))
            await asyncio.sleep(TICK)

    async def _hand_over(self, stopping: asyncio.Event) -> None:
        """When told to end: let each turn reach the end of its step, and interrupt those that take longer."""
        await stopping.wait()
        self._draining = True

        def between_steps(event: Event) -> None:
            if event.type == "step.finish" and (work := self._running.get(event.session)) is not None:
                work.task.cancel()

        self._host.bus.subscribe(between_steps)
        await asyncio.sleep(HAND_OVER)
        for work in [*self._running.values()]:
            work.task.cancel()
