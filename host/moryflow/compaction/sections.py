"""The text of a summary: the model's sections, followed by sections that the host writes from its own records.

The host reads its facts (files, stored outputs, denials, failures, effects of hooks) from nodes and the ledger, stores them in
the compaction node's `details`, and merges them with those of the previous compaction, so that none is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from moryflow_sdk.models import SUMMARY_MARKS

if TYPE_CHECKING:
    from moryflow.store import HookCallRow, Node

    from .measure import Estimate


_PATHS = ("path", "file", "file_path", "filename", "source", "destination", "from", "to", "old_path", "new_path", "target")
_LISTS = ("paths", "files", "edits")
_PATCH = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.M)
_WRITERS = frozenset({"write", "edit", "multiedit", "move", "delete", "apply_patch"})
_REASON, _MOST = 160, 20_000
_SPAWNERS = ("task", "spawn")
# How lines begin that say that an output was shortened.
_MARKS = ("[… left out", "[Output truncated", "Full output: ", "Next: ", "[cut")


@dataclass
class Facts:
    """Recorded facts, in the order they occurred. A key is a path, a call or a plugin; its value says what happened."""

    changed: dict[str, str] = field(default_factory=dict[str, str])
    read: dict[str, str] = field(default_factory=dict[str, str])
    artifacts: dict[str, str] = field(default_factory=dict[str, str])
    denied: dict[str, str] = field(default_factory=dict[str, str])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    agents: dict[str, str] = field(default_factory=dict[str, str])
    effects: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def from_json(cls, stored: Any) -> Facts:
        """Return the facts in a node's `details`; entries of another form are left out."""
        facts = cls()
        for name in facts.names() if isinstance(stored, Mapping) else ():
            part = stored.get(name)
            if isinstance(part, Mapping):
                getattr(facts, name).update({str(key): str(value) for key, value in part.items()})
        return facts

    def names(self) -> tuple[str, ...]:
        return tuple(self.__dataclass_fields__)

    def as_json(self) -> dict[str, Any]:
        """Return the facts for a node's `details`, at most the newest 20,000 of each part."""
        return {name: dict(list(part.items())[-_MOST:]) for name, part in asdict(self).items() if part}

    def merge(self, newer: Facts) -> Facts:
        """Return these facts with `newer` ones added; a fact that occurs again moves to the end."""
        result = Facts()
        for name in self.names():
            old, new = getattr(self, name), getattr(newer, name)
            getattr(result, name).update({key: value for key, value in old.items() if key not in new} | new)
        result.read = {path: value for path, value in result.read.items() if path not in result.changed}
        return result


def collect(nodes: Sequence[Node], editing: Collection[str] = (), ran: Mapping[str, str] = {}) -> Facts:
    """Return the facts in `nodes`.

    :param editing: names of tools that change files, in addition to :data:`_WRITERS`.
    :param ran: call id → the arguments that ran, as JSON; hooks may have changed what the model wrote.
    """
    facts = Facts()
    requests = {call["id"]: call for node in nodes if node.kind == "assistant" for call in node.payload.get("calls", ())}
    for node in nodes:
        if node.kind == "user":
            facts.read.update({str(item.get("path")): "attached" for item in node.payload.get("files", ())})
        elif node.kind == "tool":
            call = node.payload.get("call_id", "")
            written = ran.get(call) or requests.get(call, {}).get("arguments", "")
            _add_result(facts, node.payload, _arguments(written), editing)
    return facts


def _add_result(facts: Facts, payload: Mapping[str, Any], arguments: Mapping[str, Any], editing: Collection[str]) -> None:
    tool, status = payload.get("tool", ""), payload.get("status", "ok")
    about = _about(arguments)
    stored = payload.get("path") or payload.get("output_id")
    if stored:
        lines = [line for line in payload.get("output", "").splitlines() if line.strip() and not line.startswith(_MARKS)]
        facts.artifacts[str(stored)] = f"{tool} {about}: {' ⏎ '.join(_line(line, 100) for line in lines[:2])}"
    if status == "denied":
        facts.denied[f"{tool} {about}".strip()] = _line(payload.get("output", ""))
    elif status != "ok":
        facts.failed[f"{tool} {about}".strip()] = _line(payload.get("output", "")) or status
    else:
        place = facts.changed if tool in _WRITERS or tool in editing else facts.read
        place.update(dict.fromkeys(paths_in(arguments), str(tool)))
        if tool.startswith(_SPAWNERS):
            facts.agents[about or tool] = _line(payload.get("output", ""), 400)


def effects(rows: Iterable[HookCallRow], calls: Collection[str]) -> dict[str, str]:
    """Return what hooks did to `calls`: which plugin changed arguments or results, which failed, and how often."""
    counted: dict[str, int] = {}
    for row in rows:
        if row.call_id in calls and row.outcome in ("changed", "failed", "timeout", "withheld") and row.hook != "event":
            key = f"plugin {row.plugin}: {row.hook} {row.outcome}"
            counted[key] = counted.get(key, 0) + row.count
    return {key: f"{number} call{'s' if number > 1 else ''}" for key, number in counted.items()}


def call_ids(nodes: Sequence[Node]) -> set[str]:
    return {call["id"] for node in nodes if node.kind == "assistant" for call in node.payload.get("calls", ())}


def paths_in(arguments: Mapping[str, Any]) -> list[str]:
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
    paths = paths_in(arguments)
    if paths:
        return " ".join(paths)[:300]
    first = next((value for value in arguments.values() if isinstance(value, str) and value.strip()), "")
    return _line(first, 120)


def _line(text: str, width: int = _REASON) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= width else line[: width - 1] + "…"


# The headings of the model's sections by language of the conversation; any other language gets the English ones.
ASKED: Mapping[str, tuple[str, ...]] = {
    "en": ("Goal", "Constraints & Preferences", "Progress", "Key Decisions", "Next Steps", "Critical Context"),
    "zh": ("目标", "约束与偏好", "进展", "关键决定", "下一步", "关键信息"),
}
FILES = {"en": "Files & Artifacts", "zh": "文件与产物"}
NOTES = {"en": "Tool & Runtime Notes", "zh": "工具与运行记录"}
TURN = {"en": "The current turn so far", "zh": "当前回合至此"}
_HEADING = re.compile(r"^#{1,4}\s*\**(.+?)\**\s*[:：]?\s*$", re.M)
_HAN, _KANA, _LETTER = r"[\u3400-\u9fff]", r"[\u3040-\u30ff]", r"[^\W\d_]"
_NOTHING = re.compile(r"[\W_]*(?:none|n/?a|无)?[\W_]*\Z", re.I)
_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.S)
_FENCE = re.compile(r"\A```(?:markdown|md)?\n(.*)\n```\Z", re.S)


def language_of(texts: Iterable[str]) -> str:
    """Return the language of the headings for the user who wrote `texts`: ``zh`` or ``en``."""
    text = "\n".join(texts)
    wide = len(re.findall(_HAN, text))
    return "zh" if 3 * wide > len(re.findall(_LETTER, text)) and 10 * len(re.findall(_KANA, text)) < wide else "en"


def without_marks(text: str) -> str:
    for mark in SUMMARY_MARKS.values():
        text = text.replace(mark, "")
    return text


def clean_summary(answer: str) -> str:
    """Return an answer without the summary mark, thinking, code fences and the host's own sections."""
    text = _THINKING.sub("", answer).strip()
    fenced = _FENCE.match(text)
    kept: list[str] = []
    dropping = False
    for line in without_marks(fenced[1] if fenced else text).strip().splitlines():
        if heading := _HEADING.match(line):
            dropping = heading[1].strip() in (*FILES.values(), *NOTES.values())
        if not dropping:
            kept.append(line)
    return "\n".join(kept).strip()


def is_summary(text: str, instructions: str) -> bool:
    """Whether `text` has content under one of the headings that `instructions` name; any text, if they name none.

    A chat, a refusal and an empty form have none.
    """
    asked = {heading.casefold() for heading in _HEADING.findall(instructions)}
    parts = _HEADING.split(text)  # text before the first heading, then heading and body in turn
    bodies = {heading.casefold(): body.strip() for heading, body in zip(parts[1::2], parts[2::2], strict=True)}
    return any(heading in asked and not _NOTHING.match(body) for heading, body in bodies.items()) if asked else bool(text)


class Records(NamedTuple):
    """The facts of the host's sections, and the limits for writing them.

    :ivar room: tokens that the sections may take; the oldest lines are left out, and a line says how many.
    :ivar command: the command that lists all facts.
    """

    facts: Facts
    size: Estimate
    room: float
    language: str = "en"
    command: str = "moryflow session records"


def compose_summary(written: str, records: Records) -> str:
    """Return the whole summary: the model's sections or a plugin's summary, then the host's sections."""
    body = "\n\n".join(part for part in (written.strip(), *host_sections(records)) if part)
    return f"{SUMMARY_MARKS[records.language]}\n{body}"


def host_sections(records: Records) -> list[str]:
    """Return the two sections made from facts; denials and failures get room before files do."""
    say, left, missing = _WORDS[records.language], records.room, 0
    written: list[str] = []
    for title, groups in ((NOTES, _notes(records.facts)), (FILES, _files(records.facts))):
        lines: list[str] = []
        for name, items in groups.items():
            kept: list[str] = []
            for line in reversed(items):
                left -= records.size(line) + 0.25
                if left < 0:
                    break
                kept.append(line)
            missing += len(items) - len(kept)
            lines += [f"{say[name]}:", *reversed(kept)] if kept else []
        if lines:
            written.insert(0, "\n".join((f"## {title[records.language]}", *lines)))
    return [*written, say["more"].format(missing=missing, command=records.command)] if missing else written


def _files(facts: Facts) -> Mapping[str, list[str]]:
    return {
        "changed": [f"- {path} ({how})" for path, how in facts.changed.items()],
        "artifacts": [f"- {path}: {what}" for path, what in facts.artifacts.items()],
        "read": [f"- {path}" if how in ("read", "attached") else f"- {path} ({how})" for path, how in facts.read.items()],
    }


def _notes(facts: Facts) -> Mapping[str, list[str]]:
    return {
        "denied": [f"- {what}: {why}" for what, why in facts.denied.items()],
        "failed": [f"- {what}: {why}" for what, why in facts.failed.items()],
        "agents": [f"- {what}: {result}" for what, result in facts.agents.items()],
        "effects": [f"- {what} ({number})" for what, number in facts.effects.items()],
    }


_WORDS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "changed": "Changed", "artifacts": "Stored outputs", "read": "Read", "denied": "Denied (do not work around)",
        "failed": "Failed", "agents": "Sub-agents", "effects": "Hooks",
        "more": "({missing} older lines are left out here; all of it: {command})",
    },
    "zh": {
        "changed": "已修改", "artifacts": "已存储的输出", "read": "已读取", "denied": "被拒绝（不要绕过）",
        "failed": "失败", "agents": "子代理", "effects": "钩子",
        "more": "（此处省略了 {missing} 行较早的记录；全部：{command}）",
    },
}  # fmt: skip


def listing(facts: Facts) -> str:
    """Return all facts as text for the user."""
    groups = {**_files(facts), **_notes(facts)}
    return "\n\n".join("\n".join((f"{_WORDS['en'][name]}:", *items)) for name, items in groups.items() if items)
