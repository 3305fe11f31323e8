"""What the host knows better than any model: files, stored outputs, denials, failures, effects of hooks (S1.13, S1.14).

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
    from moryflow.sessions import HookCallRow, Node

_PATHS = ("path", "file", "file_path", "filename", "source", "destination", "from", "to", "old_path", "new_path", "target")
_LISTS = ("paths", "files", "edits")
_PATCH = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.M)
_WRITERS = frozenset({"write", "edit", "multiedit", "move", "delete", "apply_patch"})
_REASON, _MOST = 160, 20_000
_SPAWNERS = ("task", "spawn")


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


def collect(nodes: Sequence[Node], editing: Collection[str] = ()) -> Facts:
    """Return the facts of `nodes`.

    :param editing: names of tools that change files; those of the host are known anyway.
    """
    facts = Facts()
    requests = {call["id"]: call for node in nodes if node.kind == "assistant" for call in node.payload.get("calls", ())}
    for node in nodes:
        if node.kind == "user":
            facts.read.update({str(item.get("path")): "attached" for item in node.payload.get("files", ())})
        elif node.kind == "tool":
            _of_result(facts, node.payload, requests.get(node.payload.get("call_id", "")), _WRITERS.union(editing))
    return facts


def _of_result(facts: Facts, payload: Mapping[str, Any], request: Mapping[str, Any] | None, writers: Collection[str]) -> None:
    tool, status = payload.get("tool", ""), payload.get("status", "ok")
    arguments = _arguments(request)
    about = _about(arguments)
    paths = paths_in(arguments)
    stored = payload.get("path") or payload.get("output_id")
    if stored:
        facts.artifacts[str(stored)] = f"{tool} {about}: {_line(payload.get('output', ''), 100)}"
    if status == "denied":
        facts.denied[f"{tool} {about}".strip()] = _line(payload.get("output", ""))
    elif status != "ok":
        facts.failed[f"{tool} {about}".strip()] = _line(payload.get("output", "")) or status
    place = facts.changed if tool in writers and status == "ok" else facts.read
    for path in paths:
        place[path] = tool if status == "ok" else f"{tool}: {status}"
    if tool.startswith(_SPAWNERS) and status == "ok":
        facts.agents[about or tool] = _line(payload.get("output", ""), 400)


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


def _arguments(request: Mapping[str, Any] | None) -> Mapping[str, Any]:
    try:
        value = json.loads(request["arguments"]) if request else {}
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
