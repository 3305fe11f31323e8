"""The text of a summary: the model's sections, then those that the host writes itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from moryflow_sdk.messages import SUMMARY_MARK

from .facts import Facts

ASKED: Mapping[str, tuple[str, ...]] = {
    "en": ("Goal", "Constraints & Preferences", "Progress", "Key Decisions", "Next Steps", "Critical Context"),
    "zh": ("目标", "约束与偏好", "进展", "关键决定", "下一步", "关键信息"),
}
"""The headings of the model's sections, by the language of the conversation; all others have the English ones."""
FILES = {"en": "Files & Artifacts", "zh": "文件与产物"}
NOTES = {"en": "Tool & Runtime Notes", "zh": "工具与运行记录"}
TURN = {"en": "The current turn so far", "zh": "当前回合至此"}
_HEADING = re.compile(r"^#{1,4}\s*\**(.+?)\**\s*[:：]?\s*$", re.M)
_NUMBER = re.compile(r"\A(?:\d+\s*[.)、．]|[一二三四五六七八九十]+、)\s*")
_NOTHING = re.compile(r"[\W_]*(?:none|nothing|n/?a|empty|unknown|无|没有|暂无)?[\W_]*\Z", re.I)
_HAN, _KANA, _LETTER = r"[\u3400-\u9fff]", r"[\u3040-\u30ff]", r"[^\W\d_]"
_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.S)
_FENCE = re.compile(r"\A```(?:markdown|md)?\n(.*)\n```\Z", re.S)

Size = Callable[[str], float]


@dataclass(frozen=True)
class _Lines:
    """The lines of a group, and what is left of each where room is short; ``None``: nothing can be left out."""

    full: list[str]
    short: list[str] | None = None


def language_of(texts: Iterable[str]) -> str:
    """Return the language that headings are in for a person who wrote `texts`: ``zh`` or ``en``."""
    text = "\n".join(texts)
    wide = len(re.findall(_HAN, text))
    return "zh" if 3 * wide > len(re.findall(_LETTER, text)) and 10 * len(re.findall(_KANA, text)) < wide else "en"


def cleaned(answer: str) -> str:
    """Return an answer without marks, thoughts, fences and the host's own sections."""
    text = _THINKING.sub("", answer).strip()
    fenced = _FENCE.match(text)
    text = (fenced[1] if fenced else text).replace(SUMMARY_MARK, "").strip()
    return _without(text, (*FILES.values(), *NOTES.values()))


def headings_in(instructions: str) -> tuple[str, ...]:
    """Return the headings that instructions ask for; those of the host's prompt, or what a person or a plugin wrote."""
    return tuple(dict.fromkeys(_key(heading) for heading in _HEADING.findall(instructions)))


def is_summary(text: str, asked: Collection[str]) -> bool:
    """Whether `text` says something under one of the headings that were `asked` for, in either language.

    A chat, a refusal and a form that was left empty do not. Where no heading was asked for, any text will do.
    """
    said = bodies(text)
    return any(said.get(heading) for heading in asked) if asked else bool(text.strip())


def bodies(text: str) -> dict[str, str]:
    """Return what `text` says by heading; a section that says nothing is empty."""
    found: dict[str, str] = {}
    places = [*_HEADING.finditer(text)]
    for place, heading in enumerate(places):
        end = places[place + 1].start() if place + 1 < len(places) else len(text)
        body = text[heading.end() : end].strip()
        found[_key(heading[1])] = "" if _NOTHING.match(body) else body
    return found


def merged(text: str, previous: str, asked: Sequence[str]) -> str:
    """Return `text` with those of the `asked` sections of the summary before that it leaves out."""
    here, before = bodies(text), bodies(previous)
    left_out = [heading for heading in asked if before.get(heading) and heading not in here]
    titles = {_key(title): title for title in _HEADING.findall(previous)}
    return "\n".join([text, *(f"## {titles[heading].strip()}\n{before[heading]}" for heading in left_out)])


def _key(heading: str) -> str:
    """Return a heading as it is compared: without signs and numbers, and a Chinese one by its English name."""
    plain = _NUMBER.sub("", heading.strip("*#:： ")).strip("* ").casefold().replace(" and ", " & ")
    return _ENGLISH.get(plain, plain)


_ENGLISH: Mapping[str, str] = {
    chinese.casefold(): english.casefold()
    for english, chinese in (
        *zip(ASKED["en"], ASKED["zh"], strict=True), *((names["en"], names["zh"]) for names in (FILES, NOTES, TURN))
    )
}  # fmt: skip


def _without(text: str, names: tuple[str, ...]) -> str:
    """Drop the sections called `names`: the host knows these better."""
    dropped = {_key(name) for name in names}
    kept: list[str] = []
    dropping = False
    for line in text.splitlines():
        heading = _HEADING.match(line)
        if heading:
            dropping = _key(heading[1]) in dropped
        if not dropping:
            kept.append(line)
    return "\n".join(kept).strip()


@dataclass(frozen=True)
class Records:
    """What the host writes itself, and how.

    :ivar room: tokens that it may take; the oldest lines give way, and a line says how many.
    :ivar command: lists all of it.
    """

    facts: Facts
    size: Size
    room: float
    language: str = "en"
    command: str = "moryflow session records"


def assembled(written: str, records: Records) -> str:
    """Return the whole summary: the model's sections, or a plugin's summary, then the host's."""
    parts = [SUMMARY_MARK, written.strip(), *host_sections(records)]
    return "\n\n".join(part for part in parts if part).replace(f"{SUMMARY_MARK}\n\n", f"{SUMMARY_MARK}\n", 1)


def host_sections(records: Records) -> list[str]:
    """Return the two sections built from records; denials and failures have room before files."""
    facts, size, language = records.facts, records.size, records.language
    say = _WORDS[language]
    sections = ((NOTES[language], _notes(facts)), (FILES[language], _files(facts)))
    every = [line for _, groups in sections for items in groups.values() for line in items.full]
    left = records.room
    short = sum(size(line) + 0.25 for line in every) > left
    shown: dict[str, str] = {}
    missing = 0
    for title, groups in sections:
        lines: list[str] = []
        for name, items in groups.items():
            wanted = items.short if short and items.short is not None else items.full
            kept = _newest(wanted, size, left)
            missing += len(wanted) - len(kept)
            left -= size("\n".join(kept))
            if kept:
                lines += [f"{say[name]}:", *kept]
        if lines:
            shown[title] = "\n".join((f"## {title}", *lines))
    written = [shown[title] for title, _ in reversed(sections) if title in shown]
    if short:
        written.append(say["more"].format(missing=missing, command=records.command))
    return written


def _files(facts: Facts) -> Mapping[str, _Lines]:
    return {
        "changed": _Lines([f"- {path} ({how})" for path, how in facts.changed.items()], _named(facts.changed)),
        "artifacts": _Lines([f"- {path}: {what}" for path, what in facts.artifacts.items()], _named(facts.artifacts)),
        "read": _Lines([_read(path, how) for path, how in facts.read.items()], _named(facts.read)),
    }


def _named(part: Mapping[str, str]) -> list[str]:
    return [f"- {path}" for path in part]


def _read(path: str, how: str) -> str:
    return f"- {path}" if how in ("read", "attached") else f"- {path} ({how})"


def _notes(facts: Facts) -> Mapping[str, _Lines]:
    return {
        "denied": _Lines([f"- {what}: {why}" for what, why in facts.denied.items()]),
        "failed": _Lines([f"- {what}: {why}" for what, why in facts.failed.items()]),
        "agents": _Lines([f"- {what}: {result}" for what, result in facts.agents.items()]),
        "effects": _Lines([f"- {what} ({number})" for what, number in facts.effects.items()]),
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
    """Return all records, for people."""
    say, groups = _WORDS["en"], {**_files(facts), **_notes(facts)}
    return "\n\n".join("\n".join((f"{say[name]}:", *items.full)) for name, items in groups.items() if items.full)


def _newest(lines: list[str], size: Size, room: float) -> list[str]:
    """Return as many of the newest lines as fit."""
    kept: list[str] = []
    for line in reversed(lines):
        room -= size(line) + 0.25
        if room < 0:
            break
        kept.append(line)
    return [*reversed(kept)]
