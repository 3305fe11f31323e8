"""The compaction of one turn: decides at each pause whether to shorten the view, and shortens it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moryflow_sdk import ConfigError, Message, ModelProvider, MoryflowError

from moryflow.kernel.turn_context import Compaction
from moryflow.store.messages import message_of, placeholders
from moryflow.store.records import effective

from .measure import LESS, SHORTER, Meter, characters, does_not_fit, limit_of, request_tokens, too_large
from .plan import (
    REFUSED,
    Job,
    Trigger,
    answers_since,
    is_prepared,
    plan_job,
    room_for,
    scope_can_be_shortened,
)
from .prune import Pruning, limits_of, note_pruning, plan_cut, plan_fit, plan_pruning, unseen_tokens

# How many answers lie between two summaries at least: each summary costs a request.
BETWEEN = 4
# Tokens that a pruning must save at least.
_WORTH_A_TRY = 1.0
# The share of the usable window that the next turn is assumed to need.
_TURN_SHARE = 0.125

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import Journal, Requests, TurnContext

    from . import Memory
    from .summary import Record


class TurnCompaction(Compaction):
    """Compaction of one turn. Its own failures end in an event, never in the turn."""

    def __init__(
        self, memory: Memory, scope: TurnContext, journal: Journal, provider: ModelProvider, requests: Requests
    ) -> None:
        assert scope.model is not None
        self._memory = memory
        self._scope = scope
        self._journal = journal
        self._main = (provider, scope.model)
        self._window = scope.model.context_window or None
        self._requests = requests
        self._context = requests.context
        self._settings = memory.settings(scope.around.config)
        self._meter, self._strict = memory.meters(requests.context, self._settings.estimator, scope.plugin_set)
        self._limit = limit_of(scope.model.context_window, self._settings)

    # ---------------------------------------------------------------- called by the kernel

    async def before_step(self) -> None:
        """Apply a summary written in the background, then shorten the view if it is too long.

        :raises ModelError: the shortened view still does not fit the window; nothing was sent.
        """
        await self._take_finished()
        if await self._excess(self._window):
            assert self._window is not None
            overhead, asked = await self._overhead(self._strict), self._prompt_tokens
            if overhead > self._window:
                raise too_large("the system prompt and the tools alone do", overhead, self._window, LESS)
            if overhead + asked > self._window:
                raise too_large("the prompt alone does", overhead + asked, self._window, SHORTER)
        if self._settings.automatic:
            await self._shorten()
        if excess := await self._excess(self._window):
            assert self._window is not None
            raise does_not_fit(excess + self._window, self._window)

    async def _shorten(self) -> None:
        """Prune, then summarise, unless that was done a few answers ago; then leave out outputs and old texts until it fits."""
        beyond = await self._excess() > 0
        if beyond and self._settings.prune and scope_can_be_shortened(self._scope):  # what is new may be too large by itself
            _, visible = effective(self._path)
            done, size = placeholders(self._path), self._strict.estimate
            room = max(self._limit.most / 2, unseen_tokens(visible, done, size) - await self._excess())
            await self._commit_pruning(plan_cut(visible, done, room, size), "fit")
        if not await self._too_long() or (is_prepared(self._path) and not beyond):
            return
        if self._settings.prune:
            if self._note_prune(await self._request_tokens(), "threshold"):
                await self._journal.commit()
            if not await self._too_long():
                return
        paused = self._memory.is_paused(self._scope.session, self._seq)
        if not paused and answers_since(self._path) >= BETWEEN:
            if await self._fits_beside_turn():
                await self._start_background()
            else:
                await self._compact("threshold")
        if self._window:
            await self._fit(self._limit.most)

    async def recover(self) -> bool:
        """Shorten the view because the provider refused it."""
        if not self._settings.automatic:
            return False
        await self._drop_background()
        tokens = await self._request_tokens(self._strict)
        compacted = await self._compact("recovery")
        return await self._fit(min(self._window or tokens, tokens * REFUSED)) or compacted

    async def after_turn(self) -> None:
        """Prune outputs that the next turn will not need, and apply a summary that a fork has finished."""
        if not self._settings.automatic or not scope_can_be_shortened(self._scope):
            return
        if self._scope.purpose == "child":  # its parent waits for the answer, and will hardly prompt it again soon
            await self._drop_background("the sub-agent ended before it was there")
        waits = self._memory.is_writing(self._scope.session) and not self._scope.live.pinned
        if waits:  # store the answer first: a crash while the summary is being written must not lose it
            self._journal.event("session.status", status="busy", answered=True, text="writing the summary of what is older")
            await self._journal.commit()
        await self._take_finished(wait=waits)
        if self._settings.prune:
            self._note_prune(self._meter.view(self._view()), "after_turn")

    async def on_demand(self, focus: str) -> Mapping[str, Any]:
        """Compact now because the user asks; `focus` says what the summary must keep above all.

        :raises ConfigError: there is nothing to compact, or no summary could be made; the message says why.
        """
        job = await self._job("demand")
        if job is None:
            raise ConfigError("there is nothing to compact: everything that is left is recent", next_step="go on working")
        try:
            record, error = await self._write_summary(job, focus)
        except asyncio.CancelledError:
            await self._journal.commit()  # no turn will end and store this record
            raise
        if error is not None:
            step = error.next_step or "try another model: moryflow session compact -m MODEL"
            raise ConfigError(f"not compacted: {error.message}", where=error.where, next_step=step)
        return {
            "tokens_before": record.writing.job.tokens_before,
            "tokens_after": round(await self._request_tokens()),
            "run": record.writing.fork.turn,
            "remarks": list(record.writing.remarks),
        }

    # ---------------------------------------------------------------- size

    @property
    def _path(self) -> Any:
        return self._scope.live.hold.path

    @property
    def _seq(self) -> int:
        """The `seq` of the active node; unlike the length of the path in memory, a compaction does not reduce it."""
        return self._path[-1].seq if self._path else 0

    def _view(self) -> list[Message]:
        return self._context.build(self._path)

    async def _request_tokens(self, meter: Meter | None = None) -> float:
        meter = meter or self._meter
        return request_tokens(self._path, self._view(), meter, await self._overhead(meter))

    async def _overhead(self, meter: Meter) -> float:
        frames = 2 * meter.frame * (1 + len(self._requests.schemas()))
        return await self._requests.overhead(meter.estimate) + frames

    async def _excess(self, most: float | None = None) -> float:
        """Return by how many tokens the next request exceeds `most`, by default the size that leaves room for the answer.

        The estimate is the careful one, because a request must fit. If the window is unknown, every request fits.
        """
        if not self._window and most is None:
            return 0.0
        return max(0.0, await self._request_tokens(self._strict) - (self._limit.most if most is None else most))

    async def _too_long(self) -> bool:
        if not self._window:
            return characters(self._view()) > self._settings.fallback_char_limit
        return self._limit.is_exceeded_by(await self._request_tokens()) or await self._excess() > 0

    async def _fits_beside_turn(self) -> bool:
        """Whether the summary can be written beside the turn, because the window has room for one more turn."""
        if self._settings.mode == "background":
            return not await self._excess()
        room = self._limit.most * _TURN_SHARE
        return self._settings.mode == "auto" and not await self._excess(self._limit.most - room)

    @property
    def _prompt_tokens(self) -> float:
        prompt = next((message for node in reversed(self._path) if node.kind == "user" and (message := message_of(node))), None)
        return self._strict.estimate(prompt.text) if prompt is not None else 0.0

    # ---------------------------------------------------------------- prune

    def _note_prune(self, tokens: float, trigger: str) -> bool:
        _, visible = effective(self._path)
        limits = limits_of(self._settings, self._window)
        pruning = plan_pruning(visible, placeholders(self._path), limits, self._meter.estimate)
        if pruning:
            note_pruning(self._journal, pruning, tokens, trigger)
        return bool(pruning)

    async def _fit(self, most: float) -> bool:
        """Leave out outputs, and at last old texts, until the next request is no larger than `most`; return whether any were.

        It may take several rounds: once the view has changed, the provider's count is replaced by a higher estimate.
        """
        shorter = False
        tools = self._settings.protected_tools if self._settings.prune else None
        while scope_can_be_shortened(self._scope) and (excess := await self._excess(most)):
            visible, done = effective(self._path)[1], placeholders(self._path)
            pruning = plan_fit(visible, done, excess, tools, self._strict.estimate)
            if pruning.saved < _WORTH_A_TRY or not await self._commit_pruning(pruning, "fit"):
                break
            shorter = True
        return shorter

    async def _commit_pruning(self, pruning: Pruning, trigger: str) -> bool:
        if pruning:
            note_pruning(self._journal, pruning, await self._request_tokens(self._strict), trigger)
            await self._journal.commit()
        return bool(pruning)

    # ---------------------------------------------------------------- compact

    async def _job(self, trigger: Trigger) -> Job | None:
        """Return what to compact, or ``None``; if the view was refused, sizes are estimated carefully."""
        meter = self._strict if trigger == "recovery" else self._meter
        tokens = await self._request_tokens(meter)
        overhead = min(max(0.0, tokens - meter.view(self._view())), self._limit.most)
        room = room_for(self._settings, self._limit, overhead, tokens if trigger == "recovery" else None)
        if trigger == "demand":  # the user wants a shorter conversation, so only the protected turns stay
            room = room._replace(keep=0.0)
        return plan_job(self._path, self._context, meter, self._settings, room, tokens, trigger)

    async def _compact(self, trigger: Trigger) -> bool:
        if self._memory.is_writing(self._scope.session) and trigger != "recovery":
            await self._take_finished(wait=True)
            if not await self._too_long() or answers_since(self._path) < BETWEEN:
                return True
        job = await self._job(trigger)
        if job is None:
            return False
        await self._drop_background()
        _, error = await self._write_summary(job, "")
        if error is None:
            self._memory.succeeded(self._scope.session)
        else:
            self._memory.failed(self._scope.session, self._seq)
        return error is None

    def _record(self, job: Job, focus: str = "") -> Record:
        from .summary import Record, Writing, fork_scope  # most turns never need these

        fork = fork_scope(self._scope, f"t_{secrets.token_hex(6)}")
        writing = Writing(fork, job, self._settings, self._main, focus)
        return Record(writing)

    async def _write_summary(self, job: Job, focus: str) -> tuple[Record, MoryflowError | None]:
        record = self._record(job, focus)
        try:
            await record.pending()
            payload = await record.writing.payload()
        except asyncio.CancelledError:
            record.interrupted(self._journal)
            raise
        except MoryflowError as error:
            await record.failed(error.message)
            self._add_cost(record)
            return record, error
        applied = await record.done(payload, self._scope.live)
        self._add_cost(record)
        return record, None if applied else MoryflowError("the conversation has changed meanwhile")

    def _add_cost(self, record: Record) -> None:
        writing = record.writing
        self._scope.extra_usage.append((writing.usage, writing.cost))

    # ---------------------------------------------------------------- background forks

    async def _start_background(self) -> None:
        if self._memory.is_writing(self._scope.session):
            return
        job = await self._job("background")
        if job is None:
            return
        record = self._record(job)
        await record.pending()
        self._memory.start(self._scope.session, record)

    async def _drop_background(self, reason: str = "a summary was needed at once") -> None:
        record = self._memory.cancel(self._scope.session)
        if record is not None:
            record.writing.fork.live = self._scope.live
            await record.abandoned(reason)

    async def _take_finished(self, *, wait: bool = False) -> None:
        found = await self._memory.finished(self._scope.session, wait=wait)
        if found is None:
            return
        record, result = found
        record.writing.fork.live = self._scope.live
        self._add_cost(record)
        if result is None:
            await record.abandoned("the user did not wait for it")
        elif isinstance(result, MoryflowError):
            await record.failed(result.message)
            self._memory.failed(self._scope.session, self._seq)
        elif await record.done(result, self._scope.live):
            self._memory.succeeded(self._scope.session)
