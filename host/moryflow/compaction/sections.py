"""The text of a summary: the model's sections, then those that the host writes itself (D17)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from moryflow.kernel.context import SUMMARY_MARK

from .facts import Facts

ASKED = ("Goal", "Constraints & Preferences", "Progress", "Key Decisions", "Next Steps", "Critical Context")
FILES, NOTES = "Files & Artifacts", "Tool & Runtime Notes"
TURN = "The current turn so far"
_HEADING = re.compile(r"^#{1,4}\s*\**(.+?)\**\s*:?\s*$", re.M)
_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.S)
_FENCE = re.compile(r"\A```(?:markdown|md)?\n(.*)\n```\Z", re.S)

Size = Callable[[str], float]


@dataclass(frozen=True)
class _Lines:
    """The lines of a group, and what is left of each where room is short; ``None``: nothing can be left out."""

    full: list[str]
    short: list[str] | None = None


def cleaned(answer: str) -> str:
    """Return a model's answer as the asked sections: without marks, thoughts, fences and the host's own sections."""
    text = _THINKING.sub("", answer).strip()
    fenced = _FENCE.match(text)
    text = (fenced[1] if fenced else text).replace(SUMMARY_MARK, "").strip()
    text = _without(text, (FILES, NOTES))
    return text if not text or has_sections(text) else f"## Progress\n{text}"


def has_sections(text: str) -> bool:
    """Whether any of the asked headings is there."""
    return any(heading.strip().casefold() in _KNOWN for heading in _HEADING.findall(text))


_KNOWN = frozenset(name.casefold() for name in (*ASKED, TURN))


def _without(text: str, names: tuple[str, ...]) -> str:
    """Drop the sections called `names`: the host knows these better."""
    dropped = {name.casefold() for name in names}
    kept: list[str] = []
    dropping = False
    for line in text.splitlines():
        heading = _HEADING.match(line)
        if heading:
            dropping = heading[1].strip().casefold() in dropped
        if not dropping:
            kept.append(line)
    return "\n".join(kept).strip()


def assembled(written: str, facts: Facts, size: Size, room: float) -> str:
    """Return the whole summary.

    :param written: the model's sections, or a plugin's summary.
    :param room: tokens that the host's sections may take; the oldest lines give way, and a line says how many.
    """
    parts = [SUMMARY_MARK, written.strip(), *host_sections(facts, size, room)]
    return "\n\n".join(part for part in parts if part).replace(f"{SUMMARY_MARK}\n\n", f"{SUMMARY_MARK}\n", 1)


def host_sections(facts: Facts, size: Size, room: float) -> list[str]:
    """Return the two sections built from records; denials and failures have room before files."""
    left = room
    shown: dict[str, str] = {}
    sections = ((NOTES, _notes(facts)), (FILES, _files(facts)))
    every = [line for _, groups in sections for items in groups.values() for line in items.full]
    short = sum(size(line) + 0.25 for line in every) > room
    for title, groups in sections:
        lines: list[str] = []
        for name, items in groups.items():
            kept = _newest(items.short if short and items.short is not None else items.full, size, left)
            left -= size("\n".join(kept))
            if kept:
                lines += [f"{name}:", *kept]
        if lines:
            shown[title] = "\n".join((f"## {title}", *lines))
    return [shown[title] for title in (FILES, NOTES) if title in shown]


def _files(facts: Facts) -> Mapping[str, _Lines]:
    return {
        "Changed": _Lines([f"- {path} ({how})" for path, how in facts.changed.items()], _named(facts.changed)),
        "Stored outputs": _Lines([f"- {path}: {what}" for path, what in facts.artifacts.items()], _named(facts.artifacts)),
        "Read": _Lines([_read(path, how) for path, how in facts.read.items()], _named(facts.read)),
    }


def _named(part: Mapping[str, str]) -> list[str]:
    return [f"- {path}" for path in part]


def _read(path: str, how: str) -> str:
    return f"- {path}" if how in ("read", "attached") else f"- {path} ({how})"


def _notes(facts: Facts) -> Mapping[str, _Lines]:
    return {
        "Denied (do not work around)": _Lines([f"- {what}: {why}" for what, why in facts.denied.items()]),
        "Failed": _Lines([f"- {what}: {why}" for what, why in facts.failed.items()]),
        "Sub-agents": _Lines([f"- {what}: {result}" for what, result in facts.agents.items()]),
        "Hooks": _Lines([f"- {what} ({number})" for what, number in facts.effects.items()]),
    }


def _newest(lines: list[str], size: Size, room: float) -> list[str]:
    """Return as many of the newest lines as fit, after a line that says how many did not."""
    kept: list[str] = []
    for line in reversed(lines):
        room -= size(line) + 0.25
        if room < 0:
            break
        kept.append(line)
    missing = len(lines) - len(kept)
    first = [f"- ({missing} older ones are in the session's history)"] if missing else []
    return [*first, *reversed(kept)]
