"""Apply a compaction, or record why not: nodes, run and events in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moryflow.kernel.events import now
from moryflow.kernel.journal import TurnJournal
from moryflow.kernel.ports import Journal
from moryflow.store import RunRow

from .planning import still_true

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import SessionHandle, TurnContext

    from .planning import Job
    from .prune import Pruning
    from .writing import Payload, Writing


@dataclass
class Record:
    """The stored side of one compaction: its run and its events."""

    writing: Writing
    begun: str = field(default_factory=now)

    async def pending(self) -> None:
        """Record that a compaction is being written; it shows at once."""
        pen = TurnJournal(self.writing.fork)
        pen.run(self._run("running", None))
        job, focus = self.writing.job, self.writing.focus
        planned = {"anchor": job.anchor, "first_kept": job.first_kept, **({"focus": focus} if focus else {})}
        pen.event("compaction", **self._said("pending", **planned))
        await pen.commit()

    async def done(self, payload: Payload, live: SessionHandle) -> bool:
        """Append the compaction node behind the active one if everything it covered still holds; return whether it did.

        The check is part of the transaction: the store refuses the commit when another node has become active.
        """
        from moryflow.store import Outdated

        writing = self.writing
        writing.fork.live = live
        path = live.hold.path
        reason = still_true(writing.job, path)
        if reason:
            await self.stale(reason)
            return False
        after = max(0, round(writing.job.tokens_before - writing.replaced_by(payload)))
        pen = TurnJournal(writing.fork)
        pen.node("compaction", payload.as_json())
        pen.only_after(path[-1].id)
        pen.run(self._run("ended", "completed"))
        about = {"tokens_after": after, "dropped": payload.details["dropped"], "summary_chars": len(payload.summary)}
        pen.event("compaction", **self._said("done", **about))
        try:
            await pen.commit()
            await pen.settle()
        except Outdated as error:
            await self.stale(error.message)
            return False
        return True

    async def stale(self, reason: str) -> None:
        """Keep the run of a compaction that is not true any more, without any effect."""
        await self._end("stale", "completed", reason)

    async def failed(self, reason: str) -> None:
        """Record why there is no summary; the turn goes on."""
        await self._end("failed", "model_error", reason)

    async def abandoned(self, reason: str) -> None:
        """Record that nobody waits for it any more."""
        await self._end("stale", "interrupted", reason)

    def interrupted(self, journal: Journal) -> None:
        """Note in the turn's own journal that the turn was stopped meanwhile."""
        journal.run(self._run("ended", "interrupted"))
        journal.event("compaction", **self._said("failed", reason="the turn was stopped"))

    async def _end(self, state: str, reason: str, why: str) -> None:
        pen = TurnJournal(self.writing.fork)
        pen.run(self._run("ended", reason))
        pen.event("compaction", **self._said(state, reason=why))
        await pen.commit()
        await pen.settle()

    def _said(self, state: str, **more: Any) -> dict[str, Any]:
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


def note_pruning(journal: Journal, pruning: Pruning, tokens: float, trigger: str) -> None:
    """Note a prune node and its event; nothing is deleted, files neither."""
    journal.node("prune", {"nodes": dict(pruning.nodes)})
    journal.event("compaction", **pruned_event(pruning, tokens, trigger))


def pruned_event(pruning: Pruning, tokens: float, trigger: str) -> Mapping[str, Any]:
    """Return the fields of a prune's event."""
    return {
        "kind": "prune",
        "state": "done",
        "tokens_before": round(tokens),
        "tokens_after": max(0, round(tokens - pruning.saved)),
        "dropped": dict(pruning.dropped),
        "trigger": trigger,
    }


def scope_can_be_shortened(scope: TurnContext) -> bool:
    """Whether no call at the end of the path waits for its result; only then may nodes be added."""
    path = scope.live.hold.path
    answered: set[str] = set()
    for node in reversed(path):
        if node.kind == "tool":
            answered.add(node.payload["call_id"])
        elif node.kind == "assistant":
            return all(call["id"] in answered for call in node.payload.get("calls", ()))
        elif node.kind == "user":
            return True
    return True
