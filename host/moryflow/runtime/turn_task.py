"""The running turn as a task: start and cancel it, queue for it, stream its events, keep its generation, watch for blocking."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any, NamedTuple

from moryflow_sdk import Event, ModelError, MoryflowError, Ruling, ToolResult

from moryflow.approvals.questions import ApprovalRequired
from moryflow.base.foreign_errors import root_of, within
from moryflow.hooks.plugin_set import HookFailure, PluginSet
from moryflow.hooks.threads import deadlines_lifted
from moryflow.kernel.outcome import EndReason
from moryflow.kernel.turn import TurnLoop
from moryflow.kernel.turn_context import SessionHandle, TurnContext
from moryflow.store import SessionBusy

from .turn_result import TurnResult

Work = Coroutine[Any, Any, EndReason]
log = logging.getLogger(__name__)
# Seconds that the event loop may stand still before the watchdog reports it.
BLOCKED_SECONDS = 1.0


class DirectResult(NamedTuple):
    """The outcome of one tool call without a model.

    :ivar result: what a model would read; a call that did not run has the status ``denied``.
    :ivar ruling: the decision and who made it; ``None`` if the call reached no gate.
    :ivar chain: every hook call on the way: ``hook``, ``plugin``, ``outcome``, ``us`` (microseconds).
    :ivar session: id of the hidden session that holds the call.
    :ivar exit_code: the exit code of ``moryflow tool run``.
    """

    result: ToolResult
    ruling: Ruling | None
    chain: Sequence[dict[str, Any]]
    session: str
    call_id: str
    exit_code: int


class TurnTask:
    """The task of the turn that runs now, if there is one."""

    def __init__(self) -> None:
        self._task: asyncio.Task[EndReason] | None = None
        self._starting = self._stopped = False

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Mark that a turn is about to begin: :meth:`cancel` inside this block stops it before its first step."""
        self._starting, self._stopped = True, False
        try:
            yield
        finally:
            self._starting = self._stopped = False

    def cancel(self) -> None:
        """Stop the turn, even before its first step; what it has so far is kept."""
        if self._task is not None and self.running:
            self._task.cancel()
        else:
            self._stopped = self._starting

    async def run(self, scope: TurnContext, turn: TurnLoop, work: Work) -> TurnResult:
        """Run `work` until it returns, raises or is cancelled, and record how the turn ended."""
        scope.live.cancelled = self._stopped
        self._task = asyncio.create_task(work)
        if self._stopped:
            self._task.cancel()
        self._starting = False
        with _watch_for_blocking(scope):
            try:
                await asyncio.wait((self._task,))
            except asyncio.CancelledError:
                self._task.cancel()
                await asyncio.wait((self._task,))
                await turn.end("interrupted")
                raise
            reason, error = _outcome(self._task, scope.live)
            try:
                return _result_of(scope, await turn.end(reason, error), error)
            except MoryflowError as failure:
                scope.live.held_back.append(scope.event("session.status", status="idle"))
                return _result_of(scope, "host_error", error or failure)


def _result_of(scope: TurnContext, reason: EndReason, error: MoryflowError | None) -> TurnResult:
    used = scope.usage
    return TurnResult(
        session=scope.session,
        end_reason=reason,
        text=used.text,
        usage=used.usage,
        cost=used.cost,
        steps=scope.step + used.child_steps,
        denied=tuple(used.denied),
        unasked=used.unasked,
        error=error,
        finish=used.finish,
    )


@contextmanager
def _watch_for_blocking(scope: TurnContext) -> Iterator[None]:
    """Report third-party plugins that block the event loop during this turn; built-in plugins alone are not watched."""
    if all(plugin.tier == "builtin" for plugin in scope.plugin_set.plugins.values()):
        yield
        return
    watchdog = Watchdog(lambda: scope.plugin_set, scope.report)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()


def last_result(live: SessionHandle, call_id: str) -> ToolResult | None:
    """Return the result of a call on the path, or ``None`` if it has none."""
    for node in reversed(live.hold.path):
        if node.kind == "tool" and node.payload["call_id"] == call_id:
            return ToolResult(**{key: value for key, value in node.payload.items() if key in ToolResult.model_fields})
    return None


def ends_with_calls(live: SessionHandle) -> bool:
    """Whether the path's last answer has calls; only then can a call be without a result."""
    last = next((node for node in reversed(live.hold.path) if node.kind == "assistant"), None)
    return last is not None and bool(last.payload.get("calls"))


def can_continue(live: SessionHandle) -> bool:
    """Whether the model has something to answer: the path ends with a prompt, a result or a note."""
    last = next((node for node in reversed(live.hold.path) if node.kind not in ("marker", "prune", "compaction")), None)
    return last is not None and (last.kind in ("user", "tool", "note") or bool(last.payload.get("partial")))


def _outcome(task: asyncio.Task[EndReason], live: SessionHandle) -> tuple[EndReason, MoryflowError | None]:
    if task.cancelled():
        return ("stopped" if live.cancelled else "interrupted"), None
    error = task.exception()
    match error:
        case None:
            return task.result(), None
        case ApprovalRequired():
            return "approval_required", None
        case ModelError(code="context"):
            return "prompt_too_long", error
        case ModelError():
            return "model_error", error
        case MoryflowError():
            return "host_error", error
        case _:
            failure = MoryflowError(
                f"{type(error).__name__}: {error}", next_step="run it again with -v and report what it prints"
            )
            failure.__cause__ = error
            return "host_error", failure


class GenerationRefs:
    """Counts the turns that use each generation, so that a replaced generation ends with its last turn."""

    def __init__(self) -> None:
        self._turns: Counter[int] = Counter()
        self._ends: dict[int, Callable[[], Awaitable[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @contextmanager
    def hold(self, plugin_set: PluginSet) -> Iterator[None]:
        """Keep a generation for the duration of a turn."""
        self._turns[plugin_set.number] += 1
        try:
            yield
        finally:
            self._turns[plugin_set.number] -= 1
            end = self._ends.get(plugin_set.number)
            if end is not None and not self._turns[plugin_set.number]:
                del self._ends[plugin_set.number]
                task = asyncio.ensure_future(end())
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)

    async def retire(self, plugin_set: PluginSet, end: Callable[[], Awaitable[None]]) -> None:
        """Call `end` as soon as no turn is in this generation any more."""
        if self._turns[plugin_set.number]:
            self._ends[plugin_set.number] = end
        else:
            await end()

    async def aclose(self) -> None:
        """Wait for generations that are ending, and end those that still waited for a turn."""
        ends, self._ends = list(self._ends.values()), {}
        await asyncio.gather(*self._ending, *(end() for end in ends))


class TurnQueue:
    """Lets one caller at a time work in a session of this process; the others follow in the order in which they asked."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._lock = asyncio.Lock()
        self._waiting = 0

    @property
    def empty(self) -> bool:
        """Whether no caller has the session and none waits for it."""
        return not (self._lock.locked() or self._waiting)

    @asynccontextmanager
    async def place(self, *, wait: bool) -> AsyncIterator[None]:
        """Have the session to oneself during a block.

        :raises SessionBusy: another caller has it, and `wait` is false.
        """
        if not (wait or self.empty):
            raise SessionBusy(
                "the session is working on another prompt",
                where=f"session {self._session}",
                next_step="wait until it ends, or stop it; a program can let its prompt wait, with queue=True",
            )
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()


async def stream(turn: Callable[[Callable[[Event], None]], Coroutine[Any, Any, TurnResult]]) -> AsyncGenerator[Event]:
    """Run `turn` with a callback for its events; yield these events and finally its ``result``.

    Closing the generator early interrupts the turn; what it has so far is kept.
    """
    events: asyncio.Queue[Event | None] = asyncio.Queue()
    work = asyncio.create_task(turn(events.put_nowait))
    work.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            yield event
        yield _result_event(await work)
    finally:
        if not work.done():
            work.cancel()
            await asyncio.wait((work,))


def _result_event(result: TurnResult) -> Event:
    found = result.as_json()
    head = {key: found.pop(key) for key in ("v", "type", "ts", "session")}
    return Event(**head, data=found)


class Watchdog:
    """A thread that inspects the loop's stack when the loop has not run for a while, and reports the plugin that blocks it.

    It only reports: nothing can stop such a plugin.

    :param plugin_set: returns the plugins to look for on the stack.
    :param report: called on the loop, once it runs again, with the plugin and the line that blocked it.
    """

    def __init__(
        self, plugin_set: Callable[[], PluginSet], report: Callable[[HookFailure], None], *, limit: float = BLOCKED_SECONDS
    ) -> None:
        self._plugin_set = plugin_set
        self._report = report
        self._limit = limit
        self._beat = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stop = threading.Event()

    def start(self) -> None:
        """Watch the running loop, until :meth:`stop`."""
        loop = asyncio.get_running_loop()
        self._stop.clear()
        self._tick(loop)
        watched = (loop, threading.get_ident())
        threading.Thread(target=self._watch, args=watched, name="moryflow-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beat = time.monotonic()
        self._timer = loop.call_later(self._limit / 4, self._tick, loop)

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        reported = 0.0
        while not self._stop.wait(self._limit / 4):
            beat = self._beat
            late = time.monotonic() - beat
            if late < self._limit or beat == reported or loop.is_closed() or deadlines_lifted():
                continue
            reported = beat
            failure = self._culprit(sys._current_frames().get(thread), late)
            if failure is not None:
                # Log at once, from this thread: the loop may never run again. The event follows when it does.
                place = f"{failure.file}:{failure.line}"
                log.warning("plugin %s: %s (%s); %s", failure.plugin, failure.error, place, failure.hint)
                loop.call_soon_threadsafe(self._report, failure)

    def _culprit(self, frame: FrameType | None, late: float) -> HookFailure | None:
        """Return a failure of the innermost plugin on the stack, or ``None`` if no plugin is on it."""
        plugins = [plugin for plugin in self._plugin_set().plugins.values() if plugin.file]
        while frame is not None:
            for plugin in plugins:
                if within(frame.f_code.co_filename, root_of(plugin.file)):
                    return HookFailure(
                        plugin=plugin.name,
                        tier=plugin.tier,
                        hook="",
                        outcome="blocked",
                        error=f"it has kept the whole host from running for {late:.1f} s",
                        file=frame.f_code.co_filename,
                        line=frame.f_lineno,
                        hint="let it await, or make the function plain instead of async",
                        action="ignored",
                    )
            frame = frame.f_back
        return None
