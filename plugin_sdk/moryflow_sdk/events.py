"""Events: the record of what happened. Hooks, ``stream-json``, the server and the store all use this one shape."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ._frozen import Frozen, FrozenMapping

DELTAS: frozenset[str] = frozenset({
    "message.start", "text.delta", "reasoning.delta", "tool.input.delta", "message.end", "tool.delta",
})  # fmt: skip
"""Event types that are not stored and may be dropped for a slow observer."""

OTHER_NAMES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "session.compacted": ("compaction", {"kind": "compact", "state": "done"}),
    "session.idle": ("session.status", {"status": "idle"}),
    "session.error": ("error", {}),
    "message.updated": ("message.end", {}),
    "approval.requested": ("permission.asked", {}),
    "approval.replied": ("permission.replied", {}),
}
"""Other agent hosts' names for an event → our type and the values of its fields. They are accepted wherever a type is given."""


class Event(Frozen):
    """Something that happened.

    :param seq: position in the store, ``None`` for events that are not stored.
    :param ts: UTC, ISO 8601 with milliseconds.
    :param data: the fields that this `type` of event has.
    """

    type: str
    session: str
    ts: str = ""
    seq: int | None = None
    parent: str | None = None
    agent: str | None = None
    turn: str | None = None
    step: int | None = None
    data: FrozenMapping = {}
    v: int = 1

    def is_one_of(self, names: Collection[str]) -> bool:
        """Whether `names` contains this event's type, or a name for it from :data:`OTHER_NAMES`."""
        if self.type in names:
            return True
        for name in OTHER_NAMES.keys() & names:
            type, fields = OTHER_NAMES[name]
            if type == self.type and fields.items() <= self.data.items():
                return True
        return False

    def as_json(self) -> dict[str, Any]:
        """Return the flat object that clients read; fields that do not apply are left out."""
        head = {"v": self.v, "type": self.type, "seq": self.seq, "ts": self.ts, "session": self.session}
        place = {"parent": self.parent, "agent": self.agent, "turn": self.turn, "step": self.step}
        known = {key: value for key, value in {**head, **place}.items() if value is not None}
        return {**known, **self.model_dump()["data"]}
