"""What the store knows of a session, put together turn by turn: nodes, calls, and the ledger of its hooks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow_sdk import ConfigError

if TYPE_CHECKING:
    from moryflow_sdk import Event

    from moryflow.store import CallRow, HookCallRow, Node, RunRow, SessionRow, Store

LONGEST_OUTPUT = 32 * 2**20
"""Bytes of a stored output that are read; longer ones never were in memory whole."""


@dataclass(frozen=True)
class RecordedTurn:
    """One turn of the past.

    :ivar number: counted from 1; what ``--turn`` means. 0 for a compaction, which is recorded like a turn but is none.
    :ivar answers: step to the id of the node that the model's answer became.
    :ivar events: what observers were told, as far as it is stored, oldest first.
    """

    number: int
    run: RunRow
    rows: Sequence[HookCallRow]
    calls: Sequence[CallRow]
    answers: Mapping[int, str]
    events: Sequence[Event] = ()

    @property
    def place(self) -> str:
        """What it is called, for people."""
        return f"turn {self.number}" if self.number else "a compaction"


@dataclass(frozen=True)
class RecordedSession:
    """A session of the past.

    :ivar outputs: by id, the whole of outputs that were too long for the conversation, as far as they are still stored.
    :ivar state: what plugins keep, by plugin and scope, as it was when the session was left.
    """

    session: SessionRow
    nodes: Mapping[str, Node]
    turns: Sequence[RecordedTurn]
    outputs: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    state: Mapping[tuple[str, str], Any] = field(default_factory=dict[tuple[str, str], Any], repr=False)

    def turn(self, name: str) -> RecordedTurn:
        """Return a turn by its number, or a turn or a compaction by its id.

        :raises ConfigError: there is none.
        """
        for turn in self.turns:
            if turn.run.id == name or (turn.number and str(turn.number) == name):
                return turn
        turns = max((turn.number for turn in self.turns), default=0)
        count = f"it has {turns} turn{'s' if turns != 1 else ''}"
        raise ConfigError(
            f"there is no turn {name!r}; {count}",
            where=f"session {self.session.id}",
            next_step=f"moryflow trace {self.session.id}",
        )

    def until(self, last: RecordedTurn) -> Sequence[RecordedTurn]:
        """Return what was recorded up to `last`, and that."""
        return self.turns[: self.turns.index(last) + 1]

    def path(self, node: str | None) -> list[Node]:
        """Return the nodes from the root to `node`, root first."""
        found: list[Node] = []
        while node is not None and node in self.nodes:
            found.append(self.nodes[node])
            node = self.nodes[node].parent
        return found[::-1]

    def result_of(self, call: CallRow) -> Node | None:
        """Return the node with the result of `call`."""
        found = (node for node in self.nodes.values() if node.kind == "tool" and node.payload["call_id"] == call.id)
        return next(found, None)


async def recorded(store: Store, session: str, *, outputs: bool = False) -> RecordedSession:
    """Return a session with all that was recorded of its turns.

    :param outputs: read stored outputs and states too; only those who run hooks again need them.
    :raises StoreError: there is none of that name.
    """
    row = await store.session(session)
    nodes = {node.id: node for node in await store.nodes(row.id)}
    rows, calls = await store.hook_calls(row.id), await store.calls(row.id)
    events = await store.events(row.id)
    answers = _answers(calls, events)
    runs = await store.runs(row.id)
    numbers = iter(range(1, len(runs) + 1))
    turns = [
        RecordedTurn(
            0 if run.is_compaction else next(numbers),
            run,
            [item for item in rows if item.turn == run.id],
            [item for item in calls if item.turn == run.id],
            answers.get(run.id, {}),
            [item for item in events if item.turn == run.id],
        )
        for run in runs
    ]
    if not outputs:
        return RecordedSession(row, nodes, turns)
    return RecordedSession(row, nodes, turns, await _outputs(store, row.id), await store.plugin_state(row.id))


async def recorded_family(store: Store, session: str, *, outputs: bool = False) -> list[RecordedSession]:
    """Return a session as :func:`recorded` does, and behind it the sessions that it started, at any depth."""
    row = await store.session(session)
    return [await recorded(store, id, outputs=outputs) for id in await store.family(row.id)]


def chosen(family: Sequence[RecordedSession], name: str | None) -> list[tuple[RecordedSession, Sequence[RecordedTurn]]]:
    """Return which turns of which sessions of a family belong to the turn of that `name`: its own, and all of those
    sub-agents' that it started; without a name, all.

    :raises ConfigError: the first of the family has no such turn.
    """
    if name is None:
        return [(each, each.turns) for each in family]
    turn = family[0].turn(name)
    found: list[tuple[RecordedSession, Sequence[RecordedTurn]]] = [(family[0], [turn])]
    ids = {turn.run.id}
    for child in family[1:]:
        spawn = (child.session.origin or {}).get("spawn") or {}
        if spawn.get("turn") in ids:
            found.append((child, child.turns))
            ids.update(each.run.id for each in child.turns)
    return found


async def _outputs(store: Store, session: str) -> dict[str, str]:
    """Return the stored outputs of a session that are still there."""
    from moryflow.services.artifacts import OutputFolder, read

    found: dict[str, str] = {}
    for row in await store.artifacts(session, state="stored", limit=1_000_000):
        path = Path(row.path)
        try:
            data = await asyncio.to_thread(
                read, OutputFolder(path.parent.parent, path.parent.name), path.name, 0, LONGEST_OUTPUT
            )
        except OSError:
            continue
        if row.size <= LONGEST_OUTPUT:
            found[row.id] = data.decode("utf-8", "replace")
    return found


def _answers(calls: Sequence[CallRow], events: Sequence[Event]) -> dict[str, dict[int, str]]:
    """Return, by turn and step, the node of the answer: a step's end names it, and so does each call of it."""
    found: dict[str, dict[int, str]] = {}
    for call in calls:
        found.setdefault(call.turn, {})[call.step] = call.node
    for event in events:
        node = event.data.get("node") if event.type == "step.finish" else None
        if node and event.turn and event.step:
            found.setdefault(event.turn, {})[event.step] = node
    return found
