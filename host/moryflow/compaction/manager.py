"""Decides at each pause of a turn whether to shorten the view, and does it (S0.12, S1.19–S1.21, D18)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moryflow_sdk import ConfigError, ModelProvider, MoryflowError

from moryflow.kernel.context import pruned
from moryflow.sessions.covering import effective

from .apply import Record, note_pruning, scope_can_be_shortened
from .measure import measured
from .planning import REFUSED, Job, Trigger, is_prepared, plan_job, room_for
from .policy import limit_of
from .prune import PruneLimits, Pruning, harder, limits_of, plan_images, plan_pruning, plan_rescue

if TYPE_CHECKING:
    from moryflow.kernel.journal import Journal
    from moryflow.kernel.request import RequestBuilder
    from moryflow.kernel.scope import TurnScope

    from .memory import Memory
    from .writing import Writing


class TurnCompaction:
    """Compaction of one turn. Its own failures end in an event, never in the turn."""

    def __init__(
        self, memory: Memory, scope: TurnScope, journal: Journal, provider: ModelProvider, requests: RequestBuilder
    ) -> None:
        assert scope.model is not None
        self._memory = memory
        self._scope = scope
        self._journal = journal
        self._main = (provider, scope.model)
        self._requests = requests
        self._context = requests.context
        self._settings = memory.settings(scope.around.config)
        self._meter = memory.meter(requests.context, self._settings.estimator, scope.plugin_set)
        self._limit = limit_of(scope.model.context_window, self._settings)

    # ---------------------------------------------------------------- the seam

    async def before_step(self) -> None:
        """Apply what was written in the background, then shorten the view where it is too long."""
        await self._take_finished()
        if not self._settings.automatic:
            return
        tokens = await self._tokens()
        if not self._too_long(tokens) or (is_prepared(self._path) and not self._beyond_window(tokens)):
            return
        if self._settings.prune:
            tokens -= await self._prune(limits_of(self._settings), tokens, "threshold")
            if not self._too_long(tokens):
                return
        if self._memory.cooling(self._scope.session, self._seq):
            return
        if self._settings.mode == "background" and not self._beyond_window(tokens):
            await self._start_background(tokens)
        else:
            await self._compact(tokens, "threshold")

    async def recover(self) -> bool:
        """Shorten the view because the provider refused it: summary, then harder pruning, at last without images (D60)."""
        if not self._settings.automatic:
            return False
        await self._drop_background()
        tokens = await self._tokens()
        most = min(self._main[1].context_window or tokens, tokens * REFUSED)
        compacted = await self._compact(tokens, "recovery")
        left = await self._tokens() if compacted else tokens
        if compacted and left <= most:
            return True
        return await self._rescue(left, most) or compacted

    async def after_turn(self) -> None:
        """Prune what the next turn will not need, and take what a turn beside it has finished (S4.5, D18)."""
        if not self._settings.automatic or not scope_can_be_shortened(self._scope):
            return
        if self._memory.working(self._scope.session):
            await self._journal.commit()  # the answer is not to wait for the summary, nor to be lost with the host meanwhile
        await self._take_finished(wait=not self._scope.live.kept)
        if self._settings.prune:
            self._note_prune(limits_of(self._settings), self._estimate(), "after_turn")

    async def on_demand(self, focus: str) -> Mapping[str, Any]:
        """Compact now because a person asks (S0.29).

        :raises ConfigError: there is nothing to compact, or it did not work; the message says why.
        """
        tokens = await self._tokens()
        job = self._job(tokens, "demand", actual=tokens)
        if job is None:
            raise ConfigError("there is nothing to compact: everything that is left is recent", next_step="go on working")
        try:
            record, error = await self._written(job, focus)
        except asyncio.CancelledError:
            await self._journal.commit()  # there is no turn that would write down how it ended
            raise
        if error is not None:
            step = error.next_step or "try another model: moryflow session compact -m MODEL"
            raise ConfigError(f"not compacted: {error.message}", where=error.where, next_step=step)
        return {
            "tokens_before": record.writing.job.tokens_before,
            "tokens_after": round(await self._tokens()),
            "run": record.writing.fork.turn,
            "remarks": list(record.writing.remarks),
        }

    # ---------------------------------------------------------------- size

    @property
    def _path(self) -> Any:
        return self._scope.live.hold.path

    @property
    def _seq(self) -> int:
        """How far the session has come; unlike the path in memory it never gets shorter."""
        return self._path[-1].seq if self._path else 0

    async def _tokens(self) -> float:
        view = self._context.build(self._path)
        self._meter.forget(view)
        return measured(self._path, view, self._meter, await self._requests.overhead(self._meter.estimate))

    def _estimate(self) -> float:
        return self._meter.view(self._context.build(self._path))

    def _too_long(self, tokens: float) -> bool:
        if self._main[1].context_window:
            return self._limit.exceeded(tokens)
        return self._meter.characters(self._context.build(self._path)) > self._settings.fallback_char_limit

    def _beyond_window(self, tokens: float) -> bool:
        window = self._main[1].context_window
        return tokens > window if window else False

    # ---------------------------------------------------------------- prune

    async def _prune(self, limits: PruneLimits, tokens: float, trigger: str) -> float:
        """Prune and commit; return the tokens that it saved."""
        saved = self._note_prune(limits, tokens, trigger)
        if saved:
            await self._journal.commit()
        return saved

    def _note_prune(self, limits: PruneLimits, tokens: float, trigger: str) -> float:
        _, visible = effective(self._path)
        pruning = plan_pruning(visible, pruned(self._path), limits, self._meter.estimate)
        if pruning:
            note_pruning(self._journal, pruning, tokens, trigger)
        return pruning.saved

    async def _rescue(self, tokens: float, most: float) -> bool:
        """Prune without mercy until no more than `most` is left, else leave images out; return whether anything went (D60)."""
        if not scope_can_be_shortened(self._scope):
            return False
        if self._settings.prune:
            room = room_for(self._settings, self._limit, 0.0, tokens).tail
            left = tokens - await self._prune(harder(self._settings, room), tokens, "recovery")
            if left == tokens or left > most:
                left -= await self._add(self._last_pruning(left - most), left)
            if left < tokens:
                return True
        _, visible = effective(self._path)
        return await self._add(plan_images(visible, pruned(self._path)), tokens) > 0

    def _last_pruning(self, excess: float) -> Pruning:
        _, visible = effective(self._path)
        return plan_rescue(visible, pruned(self._path), excess, self._settings.protected_tools, self._meter.estimate)

    async def _add(self, pruning: Pruning, tokens: float) -> float:
        """Commit `pruning`, if it is one; return the tokens that it saved."""
        if pruning:
            note_pruning(self._journal, pruning, tokens, "recovery")
            await self._journal.commit()
        return pruning.saved

    # ---------------------------------------------------------------- compact

    def _job(self, tokens: float, trigger: Trigger, actual: float | None = None) -> Job | None:
        overhead = max(0.0, tokens - self._estimate())
        room = room_for(self._settings, self._limit, min(overhead, self._limit.tokens / 2), actual)
        return plan_job(self._path, self._context, self._meter, self._settings, room, tokens, trigger)

    async def _compact(self, tokens: float, trigger: Trigger) -> bool:
        job = self._job(tokens, trigger, tokens if trigger == "recovery" else None)
        if job is None:
            return False
        await self._drop_background()
        record, error = await self._written(job, "")
        if error is None:
            self._memory.succeeded(self._scope.session)
            return True
        self._memory.failed(self._scope.session, self._seq)
        if trigger != "recovery" and self._settings.prune:
            room = record.writing.job.room.tail
            await self._prune(harder(self._settings, room), tokens, "no_summary")
        return False

    def _writing(self, job: Job, focus: str) -> Writing:
        from .writing import Writing, forked  # what most turns never need

        fork = forked(self._scope, f"t_{secrets.token_hex(6)}")
        return Writing(fork, job, self._settings, self._context, self._meter, self._main, focus)

    async def _written(self, job: Job, focus: str) -> tuple[Record, MoryflowError | None]:
        """Write and apply a summary while the turn waits; return what went wrong, if something did."""
        record = Record(self._writing(job, focus))
        try:
            await record.pending()
            payload = await record.writing.payload()
        except asyncio.CancelledError:
            record.interrupted(self._journal)
            raise
        except MoryflowError as error:
            await record.failed(error.message)
            self._charge(record)
            return record, error
        applied = await record.done(payload, self._scope.live)
        self._charge(record)
        return record, None if applied else MoryflowError("the conversation has changed meanwhile")

    def _charge(self, record: Record) -> None:
        """Let the turn pay for what its fork used."""
        writing = record.writing
        self._scope.extra_usage.append((writing.usage, writing.cost))

    # ---------------------------------------------------------------- beside the turn

    async def _start_background(self, tokens: float) -> None:
        if self._memory.working(self._scope.session):
            return
        job = self._job(tokens, "background")
        if job is None:
            return
        record = Record(self._writing(job, ""))
        await record.pending()
        self._memory.start(self._scope.session, record)

    async def _drop_background(self) -> None:
        """End what is written beside the turn, as a summary is needed at once."""
        record = self._memory.cancel(self._scope.session)
        if record is not None:
            record.writing.fork.live = self._scope.live
            await record.abandoned("a summary was needed at once")

    async def _take_finished(self, *, wait: bool = False) -> None:
        """Apply or record what a background fork has written, at this pause of the turn (S1.30)."""
        found = await self._memory.finished(self._scope.session, wait=wait)
        if found is None:
            return
        record, result = found
        record.writing.fork.live = self._scope.live
        self._charge(record)
        if result is None:
            await record.abandoned("a person did not wait for it")
        elif isinstance(result, MoryflowError):
            await record.failed(result.message)
            self._memory.failed(self._scope.session, self._seq)
        elif await record.done(result, self._scope.live):
            self._memory.succeeded(self._scope.session)
