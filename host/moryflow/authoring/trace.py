"""The ledger of a session for people: which plugin changed what, how long it took, in which file it is, and what it costs.

The first part reads what the store knows of a session, turn by turn: nodes, calls, and the ledger of its hooks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from moryflow_sdk import HOOKS, ConfigError

if TYPE_CHECKING:
    from moryflow_sdk import Event

    from moryflow.runtime.host import Host
    from moryflow.store import CallRow, HookCallRow, Node, RunRow, SessionRow, Store


@dataclass(frozen=True)
class RecordedTurn:
    """A turn as it was recorded.

    :ivar number: counted from 1, as in ``--turn``. 0 for a compaction, which is recorded like a turn but is none.
    :ivar prompt: what the user, or the parent agent, wrote.
    :ivar tools: the tool of each call, by the call's id.
    """

    number: int
    run: RunRow
    rows: Sequence[HookCallRow]
    prompt: str
    tools: Mapping[str, str]

    @property
    def place(self) -> str:
        """The turn's name, for people."""
        return f"turn {self.number}" if self.number else "a compaction"


@dataclass(frozen=True)
class RecordedSession:
    """A session as it was recorded."""

    session: SessionRow
    turns: Sequence[RecordedTurn]

    def turn(self, name: str) -> RecordedTurn:
        """Return a turn by its number, or a turn or a compaction by its id.

        :raises ConfigError: there is no such turn.
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


async def recorded(store: Store, session: str) -> RecordedSession:
    """Return a session with everything that was recorded of its turns.

    :raises StoreError: there is no such session.
    """
    row = await store.session(session)
    rows, calls, runs = await store.hook_calls(row.id), await store.calls(row.id), await store.runs(row.id)
    prompts = _prompts({node.id: node for node in await store.nodes(row.id)}, calls, await store.events(row.id))
    numbers = iter(range(1, len(runs) + 1))
    turns = [
        RecordedTurn(
            0 if run.is_compaction else next(numbers),
            run,
            [item for item in rows if item.turn == run.id],
            prompts.get(run.id, ""),
            {item.id: item.tool for item in calls if item.turn == run.id},
        )
        for run in runs
    ]
    return RecordedSession(row, turns)


async def recorded_family(store: Store, session: str) -> list[RecordedSession]:
    """Return a session as :func:`recorded` does, followed by the sessions that it started, at any depth."""
    row = await store.session(session)
    return [await recorded(store, id) for id in await store.family(row.id)]


def chosen(family: Sequence[RecordedSession], name: str | None) -> list[tuple[RecordedSession, Sequence[RecordedTurn]]]:
    """Return the turns of a family that belong to the turn called `name`: that turn itself, and all turns of the sub-agents
    that it started. Without a name, return all turns.

    :raises ConfigError: the first session of the family has no such turn.
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


def _prompts(nodes: Mapping[str, Node], calls: Sequence[CallRow], events: Sequence[Event]) -> dict[str | None, str]:
    """Return, by turn, the text of its prompt: of the last user's node above the first answer, which calls or events name."""
    answers: dict[str | None, str] = {call.turn: call.node for call in calls if call.step == 1}
    ends = (event for event in events if event.type == "step.finish" and event.step == 1)
    answers |= {event.turn: str(event.data["node"]) for event in ends if event.data.get("node")}
    found: dict[str | None, str] = {}
    for turn, id in answers.items():
        node = nodes.get(id)
        while node is not None and node.kind != "user":
            node = nodes.get(node.parent or "")
        found[turn] = str(node.payload.get("text", "")) if node is not None else ""
    return found


@dataclass
class Bill:
    """What a plugin cost in the turns shown: `us` is the time in microseconds."""

    plugin: str
    tier: str = ""
    file: str = ""
    status: str = "not loaded now"
    calls: int = 0
    us: int = 0
    changed: int = 0
    failed: int = 0


@dataclass
class Trace:
    """What :func:`trace` found, by turn and by plugin.

    :ivar compactions: recorded like turns, but listed apart. In both, entries of sub-agents have ``session`` and ``agent``.
    """

    session: str
    turns: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    compactions: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    plugins: list[Bill] = field(default_factory=list[Bill])

    def as_json(self) -> dict[str, Any]:
        plugins = [asdict(bill) for bill in self.plugins]
        found = {"turns": self.turns, "compactions": self.compactions, "plugins": plugins}
        return {"v": 1, "type": "trace", "session": self.session, **found}

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Trace:
        """Return the trace from which :meth:`as_json`, in another process, made `found`."""
        bills = [Bill(**bill) for bill in found["plugins"]]
        return cls(found["session"], found["turns"], found["compactions"], bills)


async def traced(host: Host, session: str, turn: str = "", plugin: str | None = None) -> Trace:
    """Return the ledger of a stored session and its sub-agents: for one turn, for the ``last`` turn, or for all turns.

    :raises ConfigError: there is no such turn.
    """
    family = await recorded_family(host.store, session)
    if turn != "last":
        return trace(host, chosen(family, turn or None), plugin)
    number = max((one.number for one in family[0].turns), default=0)
    return trace(host, chosen(family, str(number)) if number else [(family[0], [])], plugin)


def trace(host: Host, family: Sequence[tuple[RecordedSession, Sequence[RecordedTurn]]], plugin: str | None = None) -> Trace:
    """Return the ledger of turns of a session and its sub-agents; if `plugin` is named, of that plugin alone.

    :param family: the turns of the session, then those of its sub-agents.
    """
    bills: dict[str, Bill] = {}
    found = Trace(family[0][0].session.id)
    for recorded, turns in family:
        below = recorded is not family[0][0]
        for turn in turns:
            rows = [row for row in turn.rows if plugin in (None, row.plugin)]
            place = found.turns if turn.number else found.compactions
            of = {"session": recorded.session.id, "agent": turn.run.agent} if below else {}
            place.append({**_turn(host, turn, rows), **of})
            for row in rows:
                bill = bills.setdefault(row.plugin, _bill(host, row.plugin))
                bill.calls += row.count
                bill.us += row.us
                bill.failed += row.outcome in ("failed", "timeout", "withheld")
                bill.changed += row.outcome == "changed"
    found.plugins = sorted(bills.values(), key=lambda bill: (-bill.us, bill.plugin))
    return found


def _turn(host: Host, turn: RecordedTurn, rows: Sequence[HookCallRow]) -> dict[str, Any]:
    run = turn.run
    return {
        **({"turn": turn.number} if turn.number else {}),
        "id": run.id,
        "purpose": run.purpose,
        "prompt": turn.prompt,
        "end_reason": run.end_reason,
        "steps": run.steps,
        "model": run.model,
        "plugin_set": run.plugin_set,
        "us": sum(row.us for row in rows),
        "hooks": [_row(host, row, turn.tools) for row in _in_order(rows)],
    }


_CHAT = ("compaction", "chat_messages", "chat_system", "system_blocks", "chat_params")
_ORDER = {name: place for place, name in enumerate([*_CHAT, *(name for name in HOOKS if name not in _CHAT)])}


def _in_order(rows: Sequence[HookCallRow]) -> list[HookCallRow]:
    """Sort as the hooks were called: by step, chat before calls, call by call, hook by hook, by position."""
    seen: dict[str | None, int] = {None: -1}
    for row in rows:
        seen.setdefault(row.call_id, len(seen))
    return sorted(rows, key=lambda row: (row.step, row.hook == "event", seen[row.call_id], _ORDER[row.hook], row.position))


def _row(host: Host, row: HookCallRow, tools: Mapping[str, str]) -> dict[str, Any]:
    file, line, changed = _place(host, row)
    shown = {
        "step": row.step,
        "hook": HOOKS[row.hook].dotted,
        "plugin": row.plugin,
        "position": row.position,
        "outcome": row.outcome,
        "us": row.us,
        "count": row.count,
        "call_id": row.call_id,
        "tool": tools.get(row.call_id or ""),
        "delta": row.delta,
        "file": file,
        "line": line or None,
        "code_changed_since": changed,
    }
    return {key: value for key, value in shown.items() if value is not None and (value != "" or key == "delta")}


def _place(host: Host, row: HookCallRow) -> tuple[str, int, bool | None]:
    plugin = host.plugin_set.plugins.get(row.plugin)
    if plugin is None:
        return "", 0, None
    own = (item for item in host.plugin_set.ordered(row.hook) if item.plugin == row.plugin)
    file, line = next((item.place for item in own), (plugin.file, 0))
    return file or plugin.file, line, plugin.hash != row.plugin_hash


def _bill(host: Host, name: str) -> Bill:
    plugin = host.plugin_set.plugins.get(name)
    return Bill(name) if plugin is None else Bill(name, plugin.tier, plugin.file, "loaded")


def snapshot(trace: Trace, places: Mapping[str, str]) -> str:
    """Return a line for each hook call in which a plugin that is not built in changed or said something or failed, in order.

    :param places: text that differs from run to run, and its replacement: ``{str(vault): "<vault>"}``.
    """
    wanted = {bill.plugin for bill in trace.plugins if bill.tier != "builtin"}
    lines = [
        _line(turn["turn"], row)
        for turn in trace.turns
        for row in turn["hooks"]
        if row["plugin"] in wanted and (row["outcome"] != "ok" or row.get("delta"))
    ]
    text = "\n".join(lines)
    for given, name in sorted(places.items(), key=lambda item: -len(item[0])):
        text = text.replace(json.dumps(given)[1:-1], name)
    return text


def _line(turn: int, row: Mapping[str, Any]) -> str:
    about = f" {row['tool']}" if row.get("tool") else ""
    times = f" x{row['count']}" if row["count"] > 1 else ""
    head = f"{turn}.{row['step']} {row['hook']}{about} {row['plugin']}: {row['outcome']}{times}"
    delta = row.get("delta")
    return f"{head} {json.dumps(_plain(delta), ensure_ascii=False, sort_keys=True)}" if delta else head


def _plain(value: Any) -> Any:
    """Return a JSON value without what differs in every run: ids of nodes, calls and stored outputs."""
    if isinstance(value, dict):
        kept = {key: _plain(item) for key, item in value.items() if key not in ("node", "id", "call_id", "output_id")}
        return "<stored>" if set(value) == {"stored"} else kept
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
