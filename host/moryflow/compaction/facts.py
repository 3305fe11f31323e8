"""What the host knows better than any model: files, stored outputs, denials, failures, effects of hooks.

Facts are read from nodes and the ledger, kept whole in the compaction node's `details`, and joined with those of the
compaction before, so that no number of compactions loses one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moryflow.store import HookCallRow, Node

_PATHS = ("path", "file", "file_path", "filename", "source", "destination", "from", "to", "old_path", "new_path", "target")
_LISTS = ("paths", "files", "edits")
_PATCH = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.M)
_WRITERS = frozenset({"write", "edit", "multiedit", "move", "delete", "apply_patch"})
_REASON, _MOST = 160, 20_000
_SPAWNERS = ("task", "spawn")
LEFT_OUT = "[… left out"
"""How a preview begins that shows the end of an output."""
_MARKS = (LEFT_OUT, "[Output truncated", "Full output: ", "Next: ", "[cut")


@dataclass
class Facts:
    """Everything recorded, in the order it was met. Keys are unique; values say how it went or what it was."""

    changed: dict[str, str] = field(default_factory=dict[str, str])
    read: dict[str, str] = field(default_factory=dict[str, str])
    artifacts: dict[str, str] = field(default_factory=dict[str, str])
    denied: dict[str, str] = field(default_factory=dict[str, str])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    agents: dict[str, str] = field(default_factory=dict[str, str])
    effects: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def from_json(cls, stored: Any) -> Facts:
        """Return facts from `details`; what is not understood is left out."""
        facts = cls()
        for name in facts.names() if isinstance(stored, Mapping) else ():
            part = stored.get(name)
            if isinstance(part, Mapping):
                getattr(facts, name).update({str(key): str(value) for key, value in part.items()})
        return facts

    def names(self) -> tuple[str, ...]:
        """Return the names of the parts."""
        return tuple(self.__dataclass_fields__)

    def as_json(self) -> dict[str, Any]:
        """Return what `details` keeps; of each part the newest twenty thousand."""
        return {name: dict(list(part.items())[-_MOST:]) for name, part in asdict(self).items() if part}

    def joined(self, newer: Facts) -> Facts:
        """Return these facts with `newer` ones; one met again moves to the end."""
        result = Facts()
        for name in self.names():
            old, new = getattr(self, name), getattr(newer, name)
            getattr(result, name).update({key: value for key, value in old.items() if key not in new} | new)
        result.read = {path: value for path, value in result.read.items() if path not in result.changed}
        return result


@dataclass(frozen=True)
class Known:
    """What the store knows of calls beside their nodes.

    :ivar editing: names of tools that change files; those of the host are known anyway.
    :ivar ran: call id → the arguments that ran, as JSON: hooks may have changed what the model wrote.
    :ivar heads: id of a stored output → how it begins.
    """

    editing: Collection[str] = ()
    ran: Mapping[str, str] = field(default_factory=dict[str, str])
    heads: Mapping[str, str] = field(default_factory=dict[str, str])


def collect(nodes: Sequence[Node], known: Known = Known()) -> Facts:  # it is frozen
    """Return the facts of `nodes`."""
    facts = Facts()
    requests = {call["id"]: call for node in nodes if node.kind == "assistant" for call in node.payload.get("calls", ())}
    for node in nodes:
        if node.kind == "user":
            facts.read.update({str(item.get("path")): "attached" for item in node.payload.get("files", ())})
        elif node.kind == "tool":
            call = node.payload.get("call_id", "")
            written = known.ran.get(call) or requests.get(call, {}).get("arguments", "")
            _of_result(facts, node.payload, _arguments(written), known)
    return facts


def _of_result(facts: Facts, payload: Mapping[str, Any], arguments: Mapping[str, Any], known: Known) -> None:
    tool, status = payload.get("tool", ""), payload.get("status", "ok")
    about = _about(arguments)
    stored = payload.get("path") or payload.get("output_id")
    if stored:
        head = known.heads.get(payload.get("output_id") or "") or _begin(payload.get("output", ""))
        facts.artifacts[str(stored)] = f"{tool} {about}: {head}"
    if status == "denied":
        facts.denied[f"{tool} {about}".strip()] = _line(payload.get("output", ""))
    elif status != "ok":
        facts.failed[f"{tool} {about}".strip()] = _line(payload.get("output", "")) or status
    else:
        place = facts.changed if tool in _WRITERS or tool in known.editing else facts.read
        place.update(dict.fromkeys(paths_in(arguments), str(tool)))
        if tool.startswith(_SPAWNERS):
            facts.agents[about or tool] = _line(payload.get("output", ""), 400)


def _begin(output: str) -> str:
    """Return how an output begins, of one that was cut too: its own first lines, not the marks of what was left out."""
    return first_lines("\n".join(line for line in output.splitlines()[:40] if not line.startswith(_MARKS)))


def first_lines(text: str) -> str:
    """Return the first two lines that say something, as one."""
    return " ⏎ ".join(_line(line, 100) for line in [line for line in text.splitlines() if line.strip()][:2])


def effects(rows: Iterable[HookCallRow], calls: Collection[str]) -> dict[str, str]:
    """Return what hooks did to `calls`: who changed arguments or results, who failed."""
    counted: dict[str, int] = {}
    for row in rows:
        if row.call_id in calls and row.outcome in ("changed", "failed", "timeout", "withheld") and row.hook != "event":
            key = f"plugin {row.plugin}: {row.hook} {row.outcome}"
            counted[key] = counted.get(key, 0) + row.count
    return {key: f"{number} call{'s' if number > 1 else ''}" for key, number in counted.items()}


def call_ids(nodes: Sequence[Node]) -> set[str]:
    """Return the ids of the calls in `nodes`."""
    return {call["id"] for node in nodes if node.kind == "assistant" for call in node.payload.get("calls", ())}


def paths_in(arguments: Mapping[str, Any]) -> list[str]:
    """Return the paths that a call's arguments name."""
    found = [value for name in _PATHS if isinstance(value := arguments.get(name), str) and value]
    for name in _LISTS:
        listed = arguments.get(name)
        for item in listed if isinstance(listed, list) else ():
            if isinstance(item, str):
                found.append(item)
            elif isinstance(item, dict):
                found += paths_in(item)
    patch = arguments.get("patch") or arguments.get("input")
    if isinstance(patch, str):
        found += [path.strip() for path in _PATCH.findall(patch)]
    return list(dict.fromkeys(path for path in found if "\n" not in path and len(path) < 1000))


def _arguments(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _about(arguments: Mapping[str, Any]) -> str:
    """Return what a call was about, in one short line."""
    paths = paths_in(arguments)
    if paths:
        return " ".join(paths)[:300]
    first = next((value for value in arguments.values() if isinstance(value, str) and value.strip()), "")
    return _line(first, 120)


def _line(text: str, width: int = _REASON) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= width else line[: width - 1] + "…"
