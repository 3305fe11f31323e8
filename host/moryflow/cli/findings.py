"""What was found in the user's own files, such as agents: files that cannot be used one by one, everything else by its kind;
and names in the configuration that do not exist: only a warning, as the plugin that brings a name may be installed later.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from moryflow_sdk.support.texts import did_you_mean

from moryflow.cli.terminal import say
from moryflow.config import Problem

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


_AGENT = "agents.runtime.agent.id"


def unknown_names(host: Host) -> Iterator[Problem]:
    """Yield a problem, with its line, for each name in the configuration that does not exist."""
    yield from unknown_agent(host)
    plugins = {record.name for record in host.plugin_set.records}
    for name in host.config.get("disabledPlugins") or ():
        if name not in plugins:
            text = f"there is no plugin {name!r}, so nothing is switched off"
            yield _problem(host, "disabledPlugins", text, str(name), plugins, "moryflow plugin list")


def unknown_agent(host: Host) -> Iterator[Problem]:
    """Yield a problem if the configured agent does not exist or is hidden: every start says so, for another one answers."""
    agent, offered = host.config.get(_AGENT), [name for name, agent in host.agents.items() if not agent.hidden]
    if agent and agent not in offered:
        text = f"there is no agent {agent!r} to choose; the default one answers, and asks before every call"
        yield _problem(host, _AGENT, text, agent, offered, "moryflow agent list", "agent_unknown")


def _problem(
    host: Host, key: str, text: str, name: str, known: Collection[str], hint: str, code: str = "config_value"
) -> Problem:
    origin = host.config.origin(key)
    hint = did_you_mean(name, known).removeprefix("; ") or hint
    return Problem(origin.file or origin.source, origin.line, None, f"{key}: {text}", hint, code=code)
