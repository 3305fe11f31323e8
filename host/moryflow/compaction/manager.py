"""The compaction of one turn: decides at each pause whether to shorten the view, and shortens it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from moryflow_sdk import ConfigError, Message, ModelProvider, MoryflowError

from moryflow.kernel.turn_context import Compaction
from moryflow.store.messages import message_of, placeholders
from moryflow.store.records import effective

from .measure import LESS, SHORTER, Meter, does_not_fit, limit_of, request_tokens, too_large
from .plan import (
    REFUSED,
    Job,
    Trigger,
    answers_since,
    finished_turns,
    is_prepared,
    plan_job,
    room_for,
    scope_can_be_shortened,
    spoken_per_answer,
    turn_sizes,
)
from .prune import (
    PruneLimits,
    Pruning,
    limits_of,
    note_pruning,
    plan_cut,
    plan_fit,
    plan_images,
    plan_pruning,
    plan_rescue,
    plan_texts,
    strict_limits,
    unseen_tokens,
)

BETWEEN = 4
"""How many answers should lie between two summaries, if anything else makes the view fit: each summary costs a request."""
_WORTH_A_TRY = 1.0
"""Tokens that a pruning must save at least."""
_TURN_SHARE = 0.125
"""The share of the usable window that the next turn is assumed to need, even if the last turns were smaller."""

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
            await self._require_room()
        if self._settings.automatic:
            await self._shorten()
            if await self._excess(self._window):
                await self._cut_texts()
        if excess := await self._excess(self._window):
            assert self._window is not None
            raise does_not_fit(excess + self._window, self._window)

    async def _shorten(self) -> None:
        """Prune, then summarise, then leave out outputs and images until the request fits.

        A conversation that was summarised a few answers ago is summarised again only if nothing else helps.
        """
        if beyond := await self._excess() > 0:
            await self._cut_newest()
        if not await self._too_long() or (is_prepared(self._path) and not beyond):
            return
        if self._settings.prune:
            await self._prune(limits_of(self._settings, self._window), "threshold")
            if not await self._too_long():
                return
        fresh, paused = answers_since(self._path) < BETWEEN, self._paused
        if not fresh and not paused:
            if await self._fits_beside_turn():
                await self._start_background()
            else:
                await self._compact("threshold")
        await self._fit()
        if answers_since(self._path) < BETWEEN and self._prompt_tokens < self._limit.most / 2:
            await self._cut_texts()  # shortens old texts only in the view; the next summary reads them whole
        if await self._excess() and (not self._paused or (paused and await self._excess(self._window))):
            await self._compact("threshold", calm=True)  # after a failure only if the turn cannot go on otherwise
            await self._fit()

    async def recover(self) -> bool:
        """Shorten the view because the provider refused it: summarise and prune, else leave out images, else cut old texts."""
        if not self._settings.automatic:
            return False
        await self._drop_background()
        tokens = await self._request_tokens(self._strict)
        most = min(self._window or tokens, tokens * REFUSED)
        compacted = await self._compact("recovery")
        fitted = await self._fit(most)
        _, visible = effective(self._path)
        if (
            compacted
            or fitted
            or await self._commit_pruning(plan_images(visible, placeholders(self._path), float("inf")), "recovery")
        ):
            return True
        return await self._cut_texts(most)

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
            self._note_prune(limits_of(self._settings, self._window), self._meter.view(self._view()), "after_turn")

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

    @property
    def _paused(self) -> bool:
        """Whether a summary failed so recently that another try would probably be wasted."""
        return self._memory.is_paused(self._scope.session, self._seq)

    def _view(self) -> list[Message]:
        return self._context.build(self._path)

    async def _request_tokens(self, meter: Meter | None = None) -> float:
        meter, view = meter or self._meter, self._view()
        meter.forget(view)
        return request_tokens(self._path, view, meter, await self._overhead(meter))

    async def _overhead(self, meter: Meter) -> float:
        """Return the tokens of the system prompt and the tools."""
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
            return self._meter.characters(self._view()) > self._settings.fallback_char_limit
        return self._limit.is_exceeded_by(await self._request_tokens()) or await self._excess() > 0

    async def _fits_beside_turn(self) -> bool:
        """Whether the summary can be written beside the turn, because the window has room for one more turn."""
        if self._settings.mode == "background":
            return not await self._excess()
        sizes = turn_sizes(self._view(), self._meter)[-self._settings.protected_turns - 1 :]
        if self._scope.purpose == "child":  # its whole work is one turn, and the summary can be applied after each step
            sizes = sizes[:-1]
        turn = max([self._limit.most * _TURN_SHARE, *sizes])
        return self._settings.mode == "auto" and not await self._excess(self._limit.most - turn)

    async def _require_room(self) -> None:
        """Refuse at once if the parts that can be neither summarised nor left out do not fit the window.

        :raises ModelError: the system prompt and the tools are too large, or the prompt is.
        """
        assert self._window is not None
        overhead = await self._overhead(self._strict)
        asked = self._prompt_tokens
        if overhead > self._window:
            raise too_large("the system prompt and the tools alone do", overhead, self._window, LESS)
        if overhead + asked > self._window:
            raise too_large("the prompt alone does", overhead + asked, self._window, SHORTER)

    @property
    def _prompt_tokens(self) -> float:
        prompt = next((message for node in reversed(self._path) if node.kind == "user" and (message := message_of(node))), None)
        return self._strict.estimate(prompt.text) if prompt is not None else 0.0

    # ---------------------------------------------------------------- prune

    async def _prune(self, limits: PruneLimits, trigger: str) -> None:
        if self._note_prune(limits, await self._request_tokens(), trigger):
            await self._journal.commit()

    def _note_prune(self, limits: PruneLimits, tokens: float, trigger: str) -> bool:
        _, visible = effective(self._path)
        pruning = plan_pruning(visible, placeholders(self._path), limits, self._meter.estimate)
        if pruning:
            note_pruning(self._journal, pruning, tokens, trigger)
        return bool(pruning)

    async def _cut_newest(self) -> None:
        """Cut the outputs of the newest step if they alone take more than half of the window."""
        if not self._settings.prune or not scope_can_be_shortened(self._scope):
            return
        _, visible = effective(self._path)
        done, size = placeholders(self._path), self._strict.estimate
        room = max(self._limit.most / 2, unseen_tokens(visible, done, size) - await self._excess())
        await self._commit_pruning(plan_cut(visible, done, room, size), "fit")

    async def _fit(self, most: float | None = None) -> bool:
        """Prune outputs and images until the next request is no larger than `most`; return whether any were pruned."""
        if not self._settings.prune:
            return await self._leave_out(lambda nodes, done, excess, _: plan_images(nodes, done, excess), most)
        tools = self._settings.protected_tools
        return await self._leave_out(lambda nodes, done, excess, size: plan_fit(nodes, done, excess, tools, size), most)

    async def _cut_texts(self, most: float | None = None) -> bool:
        """Cut texts of old turns until the next request is no larger than `most`; return whether any were cut."""
        return await self._leave_out(plan_texts, most)

    async def _leave_out(self, plan: Callable[..., Pruning], most: float | None) -> bool:
        """Apply `plan` until the next request is no larger than `most`; return whether anything was left out.

        It may take several rounds: once the view has changed, the provider's count is replaced by a higher estimate.
        """
        shorter = False
        while scope_can_be_shortened(self._scope) and (excess := await self._excess(most)):
            pruning = plan(effective(self._path)[1], placeholders(self._path), excess, self._strict.estimate)
            if pruning.saved < _WORTH_A_TRY or not await self._commit_pruning(pruning, "fit"):
                break
            shorter = True
        return shorter

    async def _commit_pruning(self, pruning: Pruning, trigger: str) -> bool:
        """Commit `pruning` unless it is empty; return whether it was committed."""
        if pruning:
            note_pruning(self._journal, pruning, await self._request_tokens(self._strict), trigger)
            await self._journal.commit()
        return bool(pruning)

    # ---------------------------------------------------------------- compact

    async def _job(self, trigger: Trigger, *, calm: bool = False) -> Job | None:
        """Return what to compact, or ``None``; if the view is too large to be sent, sizes are estimated carefully."""
        meter = self._strict if calm or trigger == "recovery" else self._meter
        tokens = await self._request_tokens(meter)
        overhead = min(max(0.0, tokens - meter.view(self._view())), self._limit.most)
        actual = tokens if trigger in ("recovery", "demand") else None
        room = room_for(self._settings, self._limit, overhead, actual, demanded=trigger == "demand")
        if calm or (trigger != "demand" and answers_since(self._path) < 2 * BETWEEN):
            lasting = room.tail - BETWEEN * spoken_per_answer(self._view(), meter)
            calm_room = min(room.tail, room.calm, max(lasting, 0.0))
            room = room._replace(keep=min(room.keep, calm_room), calm=calm_room)
        if await self._prune_kept_turns(room.tail, meter):
            tokens = await self._request_tokens(meter)
        return plan_job(self._path, self._context, meter, self._settings, room, tokens, trigger)

    async def _prune_kept_turns(self, room: float, meter: Meter) -> bool:
        """Prune outputs of the turns that should stay until these fit `room`; return whether any were pruned.

        An output can be read again, but a turn that is given up is gone from the view.
        """
        if not self._settings.prune or not scope_can_be_shortened(self._scope):
            return False
        _, visible = effective(self._path)
        done = placeholders(self._path)
        turns = finished_turns(visible, self._settings.protected_turns)
        messages = (self._context.message(node, done.get(node.id, "")) for node in visible[turns.start :])
        excess = sum(meter.message(message) for message in messages if message is not None) - room
        pruning = plan_rescue(visible[turns.start : turns.stop], done, excess, self._settings.protected_tools, meter.estimate)
        return excess > 0 and await self._commit_pruning(pruning, "fit")

    async def _compact(self, trigger: Trigger, *, calm: bool = False) -> bool:
        """Write a summary while the turn waits; return whether it was applied.

        :param calm: keep less of the newest turns, because the last summary helped only for a few answers. Without it, a
            summary soon after another one keeps less too, to leave room for :data:`BETWEEN` answers like the last ones.
        """
        if self._memory.is_writing(self._scope.session) and trigger != "recovery":
            await self._take_finished(wait=True)
            if not await self._too_long():
                return True
        job = await self._job(trigger, calm=calm)
        if job is None:
            return False
        await self._drop_background()
        record, error = await self._write_summary(job, "")
        if error is None:
            self._memory.succeeded(self._scope.session)
            return True
        self._memory.failed(self._scope.session, self._seq)
        if trigger != "recovery" and self._settings.prune:
            await self._prune(strict_limits(self._settings, record.writing.job.room.tail), "no_summary")
        return False

    def _record(self, job: Job, focus: str = "") -> Record:
        from .summary import Record, Writing, fork_scope  # most turns never need these

        fork = fork_scope(self._scope, f"t_{secrets.token_hex(6)}")
        writing = Writing(fork, job, self._settings, self._main, focus)
        newest = finished_turns(job.visible, self._settings.protected_turns)
        turns = [place for place in newest if job.visible[place].kind == "user"]
        if lost := sum(place < job.at for place in turns):
            writing.remarks.append(
                f"{len(turns) - lost} of the {len(turns)} newest turns stay word for word; more do not fit the window"
            )
        return Record(writing)

    async def _write_summary(self, job: Job, focus: str) -> tuple[Record, MoryflowError | None]:
        """Write and apply a summary while the turn waits; return its record, and the error if it failed."""
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
        """Add the fork's tokens and cost to those of the turn."""
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
        """Cancel the summary that is being written beside the turn, and record the reason."""
        record = self._memory.cancel(self._scope.session)
        if record is not None:
            record.writing.fork.live = self._scope.live
            await record.abandoned(reason)

    async def _take_finished(self, *, wait: bool = False) -> None:
        """Apply the summary of a finished background fork, or record why there is none."""
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
