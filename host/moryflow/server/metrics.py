"""``GET /metrics``: figures as Prometheus text. Gauges are read when they are asked for.

Counters count from the start of this server on, over all sessions of the store, also those of other processes. They are made
from the events that were stored since the last request, so a turn does nothing for them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from moryflow_sdk import MoryflowError

if TYPE_CHECKING:
    from moryflow_sdk import Event

    from moryflow.store import RunRow, Store

# Upper limits in seconds of the buckets for the waiting time of questions.
BUCKETS = (1, 5, 15, 60, 300, 900, 3600, 14_400, 86_400)
# How many events are read at a time.
PAGE = 1000
_COUNTED = ("step.finish", "turn.finish", "compaction", "permission.replied")
Labels = tuple[tuple[str, str], ...]


class Family(NamedTuple):
    """One metric: its samples are its value by suffix of the name and by labels.

    Figures that another part of the host knows, such as the depth of a queue, are a family too; see :func:`gauge`.
    """

    name: str
    kind: str
    help: str
    samples: Sequence[tuple[str, Labels, float]]

    def lines(self) -> Iterable[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.kind}"
        for suffix, labels, value in self.samples:
            marks = ",".join(f'{name}="{text}"' for name, text in labels)
            yield f"{self.name}{suffix}{f'{{{marks}}}' if marks else ''} {value:.15g}"


def gauge(name: str, help: str, value: float) -> Family:
    """Return a metric with one value, which may rise and fall."""
    return Family(name, "gauge", help, [("", (), value)])


def prometheus(families: Iterable[Family]) -> str:
    """Return metrics in Prometheus' text format."""
    return "".join(f"{line}\n" for family in families for line in family.lines())


class Counters:
    """Tokens and waiting times, from stored events.

    :ivar after: the number of the last event that was counted.
    """

    def __init__(self, store: Store, since: str) -> None:
        self._store, self._since = store, since
        self.after = 0
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._waits: Counter[int] = Counter()
        self._waited = 0.0
        self._runs: set[str] = set()
        self._reading = asyncio.Lock()

    async def families(self) -> list[Family]:
        """Count what was stored since the last call, and return the counters."""
        async with self._reading:
            newest = (await self._store.event_span())[1]
            self.after = min(self.after, newest)  # another database may have taken the place of this one
            worked: set[str] = set()
            while events := await self._store.events(None, self.after, PAGE, types=_COUNTED):
                for event in events:
                    await self._count(event)
                worked |= {event.session for event in events if event.type in ("turn.finish", "compaction")}
                self.after = events[-1].seq or newest
            for session in worked:  # what was asked beside the conversation stands in the runs
                for run in await self._store.runs(session):
                    self._count_beside(run)
            self.after = max(self.after, newest)
        return [self._tokens_by_source(), self._waiting_time()]

    async def _count(self, event: Event) -> None:
        if event.type == "step.finish":
            self._add("sub-agent" if event.parent else "agent", event.data.get("usage") or {})
        elif event.type == "permission.replied":
            await self._wait(str(event.data.get("approval_id")))

    def _count_beside(self, run: RunRow) -> None:
        source = "summary" if run.is_compaction else "plugin" if run.purpose == "complete" else ""
        if source and run.ended and run.ended >= self._since and run.id not in self._runs:
            self._runs.add(run.id)
            self._add(source, run.usage)

    def _add(self, source: str, usage: Mapping[str, int]) -> None:
        for kind in ("input", "output", "cached"):
            self._tokens[source, kind] += int(usage.get(kind) or 0)

    async def _wait(self, approval: str) -> None:
        try:
            row = await self._store.approval(approval)
        except MoryflowError:  # its session was deleted meanwhile
            return
        begun, ended = (datetime.fromisoformat(text) for text in (row.created, row.replied_at or row.created))
        seconds = max(0.0, (ended - begun).total_seconds())
        self._waited += seconds
        self._waits[next((limit for limit in BUCKETS if seconds <= limit), 0)] += 1

    def _tokens_by_source(self) -> Family:
        samples = [("", (("kind", kind), ("source", source)), n) for (source, kind), n in sorted(self._tokens.items())]
        about = "Tokens that models counted: of agents, sub-agents, summaries, and plugins' own questions."
        return Family("moryflow_tokens_total", "counter", about, samples)

    def _waiting_time(self) -> Family:
        name, count = "moryflow_question_wait_seconds", 0
        samples: list[tuple[str, Labels, float]] = []
        for limit in BUCKETS:
            count += self._waits[limit]
            samples.append(("_bucket", (("le", str(limit)),), count))
        count = self._waits.total()
        samples += [("_bucket", (("le", "+Inf"),), count), ("_sum", (), round(self._waited, 3)), ("_count", (), count)]
        return Family(name, "histogram", "How long questions waited for their answer.", samples)
