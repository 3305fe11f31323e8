"""One compaction from its plan to its record: hook, summarizer, the host's sections and checks, then applied or refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from moryflow_sdk import CompactionPlan, ConfigError, Message, ModelError, MoryflowError, Usage

from moryflow.base.events import now
from moryflow.config.schema import CompactionSettings
from moryflow.hooks.ledger import Ledger
from moryflow.kernel.outcome import TurnUsage
from moryflow.kernel.turn_context import Journal
from moryflow.store import Outdated, RunRow
from moryflow.store.messages import message_of, pair_results

from .plan import Job, why_stale
from .sections import (
    Facts,
    Records,
    call_ids,
    clean_summary,
    collect,
    compose_summary,
    effects,
    language_of,
    without_marks,
)
from .summarizer import COMPACT_AGENT, Summarizer, SummaryFailed, first_params, instructions

if TYPE_CHECKING:
    from moryflow_sdk import ModelInfo, ModelProvider

    from moryflow.kernel.turn_context import SessionHandle, TurnContext
    from moryflow.store import Node

_HUGE_SHARE = 0.5


class Declined(MoryflowError):
    """A plugin declined this compaction."""

    code = "declined"


@dataclass(frozen=True)
class Payload:
    """The result of a compact fork. The fork writes no node itself; the host stores the payload."""

    summary: str
    first_kept_node_id: str
    tokens_before: int
    details: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the payload of a compaction node."""
        return dict(vars(self))


@dataclass
class Writing:
    """One compaction while its summary is written; nothing in the session changes yet.

    :ivar fork: the compact agent's own turn context.
    """

    fork: TurnContext
    job: Job
    settings: CompactionSettings
    main: tuple[ModelProvider, ModelInfo]
    focus: str = ""
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    steps: int = 0
    model: str = ""
    remarks: list[str] = field(default_factory=list[str])
    # The compact agent's answers, including those that did not become a summary.
    answers: list[str] = field(default_factory=list[str])

    async def payload(self) -> Payload:
        """Write the summary and return the payload.

        :raises Declined: a plugin declined.
        :raises MoryflowError: no summary could be made, or it is not valid.
        """
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await self._payload()
        except TimeoutError as error:
            raise SummaryFailed(f"the summary took longer than {self.settings.timeout:g} s") from error

    async def _payload(self) -> Payload:
        plan = await self._plan()
        if plan.decline:
            raise Declined(f"declined: {plan.decline}")
        self.job = self._change_job(plan)
        if plan.summary is not None:
            written, self.model = clean_summary(plan.summary), ""
        else:
            written = await self._write_summary(plan)
        facts = self.job.earlier.merge(await self._facts())
        free = self.job.room.whole - self.job.kept - self.job.meter.estimate(written)
        room = max(min(self.job.room.records, free), 0.0)
        command = f"moryflow session records {self.fork.session}"
        summary = compose_summary(written, Records(facts, self.job.meter.estimate, room, self.language, command))
        self._check(written, summary)
        return Payload(summary, self.job.first_kept, self.job.tokens_before, self._details(written, facts))

    @property
    def language(self) -> str:
        return language_in(self.job.covered, self.job.previous)

    # ---------------------------------------------------------------- the hook

    async def _plan(self) -> CompactionPlan:
        job = self.job
        plan = first_plan(job.covered, job.first_kept, job.previous, job.tokens_before, self.settings, self.focus)
        return await self.fork.around.dispatcher.transform(self.fork, "compaction", plan)

    def _change_job(self, plan: CompactionPlan) -> Job:
        """Return the job with the changes of plugins; invalid ones are ignored and noted in `remarks`."""
        job = self.job.with_first_kept(plan.first_kept)
        if job is None:
            self.remarks.append(f"a plugin named {plan.first_kept!r} as first kept node; that is no place to cut")
            job = self.job
        unknown = set(plan.protect) - {node.id for node in job.covered}
        if unknown:
            self.remarks.append(f"a plugin protected {len(unknown)} nodes that are not covered")
        return job.with_protected(set(plan.protect) - unknown)

    # ---------------------------------------------------------------- the summary

    async def _write_summary(self, plan: CompactionPlan) -> str:
        provider, model = self._model()
        self.fork.model, self.model = model, model.id
        most, language = self.settings.max_output_tokens, self.language
        first = first_params(model, self.settings)
        writer = Summarizer(self.fork, provider, model, plan.instructions, most, plan.context, language=language, params=first)
        self.answers = writer.answers
        try:
            return await writer.summary(self._messages(self.job.history), self._messages(self.job.prefix), self.job.previous)
        except MoryflowError:
            raise
        except Exception as error:  # a provider is third-party code; the turn goes on without a summary
            raise ModelError(f"the model failed: {type(error).__name__}: {error}", code="protocol") from error
        finally:
            self.usage, self.cost, self.steps = writer.usage, writer.cost, writer.steps

    def _model(self) -> tuple[ModelProvider, ModelInfo]:
        if self.settings.model is None:
            return self.main
        try:
            return self.fork.around.models(self.fork.plugin_set).choose(self.settings.model)
        except ConfigError as error:
            self.remarks.append(f"compaction.model is not used: {error.message}")
            return self.main

    def _messages(self, nodes: Sequence[Any]) -> list[Message]:
        """Return nodes as messages, with outputs as they were before pruning; the summarizer shortens them itself."""
        return pair_results([message for node in nodes if (message := message_of(node)) is not None])

    async def _facts(self) -> Facts:
        tools, store, calls = self.fork.plugin_set.tools, self.fork.around.store, call_ids(self.job.covered)
        editing = [name for name, owned in tools.items() if owned.tool.domain == "edit"]
        ran = {row.id: row.args for row in await store.calls(session=self.fork.session) if row.id in calls} if calls else {}
        facts = collect(self.job.covered, editing, ran)
        facts.effects.update(effects(await store.hook_effects(self.fork.session) if calls else [], calls))
        return facts

    # ---------------------------------------------------------------- the checks

    def _check(self, written: str, summary: str) -> None:
        """Refuse a summary that must not replace a conversation, whether a model or a plugin wrote it."""
        if not without_marks(written).strip():
            raise SummaryFailed("the summary is empty")
        size, replaced = self.job.meter.estimate(summary), self.job.replaced - self.job.protected_tokens
        if size >= replaced:
            raise SummaryFailed(f"the summary would not shrink the context: {size:.0f} tokens for {replaced:.0f}")
        if size > max(self.job.room.whole - self.job.kept, self.job.room.records) * (1 + _HUGE_SHARE):
            raise SummaryFailed(f"the summary is too long for the context: {size:.0f} tokens")

    def _details(self, written: str, facts: Facts) -> dict[str, Any]:
        job = self.job
        details: dict[str, Any] = {
            "text": written,
            "facts": facts.as_json(),
            "covered": len(job.covered),
            "dropped": dict(Counter(node.payload.get("tool", "") for node in job.covered if node.kind == "tool")),
            "trigger": job.trigger,
            "run": self.fork.turn,
            "model": self.model,
        }
        if job.protected:
            details["protected"] = list(job.protected)
        if job.prefix:
            details["split"] = True
        return details

    def replaced_by(self, payload: Payload) -> float:
        """Return by how many tokens `payload` shrinks the view."""
        return self.job.replaced - self.job.protected_tokens - self.job.meter.estimate(payload.summary)


def language_in(nodes: Sequence[Node], previous: str) -> str:
    """Return the language of the headings for the prompts in `nodes`; without prompts, that of the previous summary."""
    said = [node.payload.get("text", "") for node in nodes if node.kind == "user"]
    return language_of(said or [previous])


def first_plan(
    covered: Sequence[Node], first_kept: str, previous: str, tokens: int, settings: CompactionSettings, focus: str
) -> CompactionPlan:
    """Return the compaction plan that the first plugin receives."""
    own = settings.instructions or instructions(language_in(covered, previous))
    return CompactionPlan(
        covered=tuple(node.id for node in covered),
        first_kept=first_kept,
        tokens_before=tokens,
        previous_summary=previous,
        instructions=f"{own}\nThe person asks to keep above all: {focus}\n" if focus else own,
    )


def fork_scope(scope: TurnContext, turn: str) -> TurnContext:
    """Return the compact agent's turn context: the same session and generation, but its own run, ledger and costs."""
    return replace(
        scope,
        agent=COMPACT_AGENT,
        turn=turn,
        purpose="compact",
        headless=True,
        node="",
        ledger=Ledger(),
        failures=[],
        notices=[],
        usage=TurnUsage(),
        extra_usage=[],
        artifacts=[],
        files=None,
        _views={},
        _saved={},
    )


@dataclass
class Record:
    """Stores one compaction: its run, its events, and its node if it succeeds."""

    writing: Writing
    begun: str = field(default_factory=now)

    async def pending(self) -> None:
        """Record that a summary is being written, and publish it at once."""
        journal = Journal(self.writing.fork)
        journal.run(self._run("running", None))
        job, focus = self.writing.job, self.writing.focus
        planned = {"anchor": job.anchor, "first_kept": job.first_kept, **({"focus": focus} if focus else {})}
        journal.event("compaction", **self._event("pending", **planned))
        await journal.commit()

    async def done(self, payload: Payload, live: SessionHandle) -> bool:
        """Append the compaction node if the plan still fits the path; return whether it was appended.

        The transaction checks it too: the store refuses the commit if another node has become active.
        """
        writing = self.writing
        writing.fork.live = live
        path = live.hold.path
        reason = why_stale(writing.job, path)
        if reason:
            await self.stale(reason)
            return False
        after = max(0, round(writing.job.tokens_before - writing.replaced_by(payload)))
        journal = Journal(writing.fork)
        journal.node("compaction", payload.as_json())
        journal.only_after(path[-1].id)
        journal.run(self._run("ended", "completed"))
        about = {"tokens_after": after, "dropped": payload.details["dropped"], "summary_chars": len(payload.summary)}
        journal.event("compaction", **self._event("done", **about))
        try:
            await journal.commit()
            await journal.settle()
        except Outdated as error:
            await self.stale(error.message)
            return False
        return True

    async def stale(self, reason: str) -> None:
        """Record the run of a compaction that no longer fits the path; it has no effect."""
        await self._end("stale", "completed", reason)

    async def failed(self, reason: str) -> None:
        """Record why no summary was made; the turn continues."""
        await self._end("failed", "model_error", reason)

    async def abandoned(self, reason: str) -> None:
        """Record that the summary is no longer needed."""
        await self._end("stale", "interrupted", reason)

    def interrupted(self, journal: Journal) -> None:
        """Record in the turn's own journal that the turn was stopped while the summary was written."""
        journal.run(self._run("ended", "interrupted"))
        journal.event("compaction", **self._event("failed", reason="the turn was stopped"))

    async def _end(self, state: str, reason: str, why: str) -> None:
        journal = Journal(self.writing.fork)
        journal.run(self._run("ended", reason))
        journal.event("compaction", **self._event(state, reason=why))
        await journal.commit()
        await journal.settle()

    def _event(self, state: str, **more: Any) -> dict[str, Any]:
        job: Job = self.writing.job
        said = {
            "kind": "compact",
            "state": state,
            "tokens_before": job.tokens_before,
            "trigger": job.trigger,
            "run": self.writing.fork.turn,
            **more,
        }
        lists = {"remarks": self.writing.remarks, "answers": self.writing.answers if state != "pending" else ()}
        return said | {name: list(items) for name, items in lists.items() if items}

    def _run(self, state: str, reason: str | None) -> RunRow:
        fork, writing = self.writing.fork, self.writing
        return RunRow(
            id=fork.turn,
            session=fork.session,
            purpose="compact",
            agent=fork.agent.id,
            model=writing.model,
            plugin_set=fork.plugin_set.id,
            state=state,
            end_reason=reason,
            usage=writing.usage.model_dump(),
            cost=writing.cost,
            steps=writing.steps,
            started=self.begun,
            ended=now() if reason else None,
        )
