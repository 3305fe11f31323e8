"""What was found in the user's own files, such as agents: files that cannot be used one by one, everything else by its kind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from moryflow.cli.terminal import say

if TYPE_CHECKING:
    from moryflow_sdk import Rule

    from moryflow.runtime.host import Host

# The folders of files of which a run uses only some.
FOLDERS = ("agents", "commands")
_PLACE = re.compile(r"\A.*?\.md(:\d+)*: ", re.DOTALL)
_VALUE = re.compile(r"'(?:[^'\\]|\\.)*'|\"[^\"]*\"|\d+")


@dataclass(frozen=True)
class DoctorFinding:
    """One line of what `moryflow doctor` prints: what was checked, its state, and what helps."""

    name: str
    state: Literal["ok", "warning", "bad"]
    text: str
    next_step: str = ""


def notes_on(host: Host, *folders: str) -> list[str]:
    """Return the notes on the files in some of :data:`FOLDERS`."""
    starts = tuple(f"{host.home / folder}/" for folder in folders)
    return [note for record in host.plugin_set.records for note in record.notes if note.startswith(starts)]


def in_folders(host: Host, note: str) -> bool:
    """Whether a note is on a file in one of :data:`FOLDERS`."""
    return note.startswith(tuple(f"{host.home / folder}/" for folder in FOLDERS))


def by_kind(host: Host, notes: Iterable[str]) -> Iterator[str]:
    """Yield each note on a file that gives nothing; of the others the first of each kind, with how many there are."""
    plugins = host.plugin_set
    used = tuple(f"{item.source}:" for item in (*plugins.agents.values(), *plugins.commands.values()) if item.source)
    notes = list(dict.fromkeys(notes))
    kinds = [_VALUE.sub("…", _PLACE.sub("", note)) if note.startswith(used) else note for note in notes]
    counts, seen = Counter(kinds), set[str]()
    for note, kind in zip(notes, kinds, strict=True):
        if kind not in seen:
            seen.add(kind)
            text, next_step, step = note.partition("; next: ")
            yield f"{text}{f' (and {counts[kind] - 1} more of this kind)' if counts[kind] > 1 else ''}{next_step}{step}"


def say_about(host: Host, notes: Iterable[str], *, quiet: bool) -> None:
    """Print notes on standard error, as a start does, unless it is to be quiet."""
    if not quiet and (lines := list(by_kind(host, notes))):
        say("\n".join(f"moryflow: {' '.join(line.splitlines())}" for line in lines))


def say_about_agent(host: Host, source: str, *, quiet: bool) -> None:
    """Print the notes on the file of the agent that a run uses."""
    say_about(host, (note for note in notes_on(host, "agents") if note.startswith(f"{source}:")), quiet=quiet)


def rule_remarks(host: Host) -> Iterator[str]:
    """Yield what the plugins' ``check_rules`` find in the rules of the user's agents; each source is judged separately."""
    checks = [check for plugin in host.plugin_set.plugins.values() if (check := getattr(plugin.object, "check_rules", None))]
    for agent in host.agents.values():
        if Path(agent.source).parent != host.home / "agents":
            continue
        for source in dict.fromkeys(rule.source for rule in agent.rules):
            rules = [rule for rule in agent.rules if rule.source == source and not rule.problem]
            yield from (_sentence(agent.source, *remark[:2]) for check in checks for remark in check(rules))


def _sentence(file: str, rule: Rule, sentence: str) -> str:
    return f"{file}:{rule.line}: {sentence}" if rule.line else f"{file}: {sentence}"
