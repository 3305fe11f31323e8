"""``memory-bank doctor``: do protocol, skill and bank say the same? The protocol is right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .bank import FOLDER, MEMORY, SKILL, MemoryBankSettings, bank_of, read_text
from .check import Finding, read_page
from .init import PROTOCOL_VERSION, SECTIONS, TEMPLATE_VERSION
from .prompt import protocol
from .reads import READER
from .subagents import WRITER

PAGES = ("SKILL.md", "references/reader.md", "references/writer.md", "references/memory-reader-prompt.md")
SKILL_AGAIN = "moryflow memory-bank init --skill"


def diagnose(turn: Any) -> list[Finding]:
    """Return where the parts disagree."""
    settings: MemoryBankSettings = turn.config
    return [
        *_skill(SKILL, settings, shipped=True),
        *_installed(turn.home, settings),
        *_bank(turn, settings),
        *_agents(turn.home),
    ]


def _skill(folder: Path, settings: MemoryBankSettings, *, shipped: bool) -> Iterator[Finding]:
    """Hold a skill against the protocol."""
    step = "reinstall moryflow" if shipped else SKILL_AGAIN
    for name in PAGES:
        if not (folder / name).is_file():
            yield Finding("missing", str(folder / name), "this page of the skill is missing", step)
    try:
        text = (folder / "SKILL.md").read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        return
    front = read_page("SKILL.md", text).front or {}
    said = (front.get("metadata") or {}).get("protocol_version") if isinstance(front.get("metadata"), dict) else None
    if said != PROTOCOL_VERSION:
        message = f"the skill is for {said or 'no protocol'}, the protocol is {PROTOCOL_VERSION}; the protocol wins"
        yield Finding("drift", str(folder / "SKILL.md"), message, step, 1)
    yield from _numbers(folder / "references" / "reader.md", settings, step)


def _numbers(file: Path, settings: MemoryBankSettings, step: str) -> Iterator[Finding]:
    """Compare the thresholds that a page names with those that hold."""
    try:
        text = " ".join(file.read_text(encoding="utf-8").split())
    except (OSError, UnicodeError):
        return
    yield from _thresholds(text, str(file), settings, step)


def _thresholds(text: str, file: str, settings: MemoryBankSettings, step: str) -> Iterator[Finding]:
    match = re.search(r"more than (\d+) files or (\d+) lines", text)
    held = (settings.reader_files, settings.reader_lines)
    if match and (int(match[1]), int(match[2])) != held:
        message = f"it says {match[0]}, the protocol says more than {held[0]} files or {held[1]} lines; the protocol wins"
        yield Finding("drift", file, message, step)


def _installed(home: Path, settings: MemoryBankSettings) -> Iterator[Finding]:
    place = home / "skills" / "memory-bank"
    if not place.exists():
        return
    yield from _skill(place, settings, shipped=False)
    for name in PAGES:
        try:
            same = (place / name).read_bytes() == (SKILL / name).read_bytes()
        except OSError:
            continue
        if not same:
            yield Finding("drift", str(place / name), "it differs from the page that came with Moryflow", SKILL_AGAIN)


def _bank(turn: Any, settings: MemoryBankSettings) -> Iterator[Finding]:
    bank = bank_of(turn)
    if bank is not None and bank.problem:
        yield Finding("link", FOLDER, bank.problem, "moryflow memory-bank check")
    if bank is None or bank.problem or not bank.has(MEMORY):
        return
    text = read_text(turn, MEMORY)
    if text is None:
        yield Finding("encoding", MEMORY, "it cannot be read as text", "moryflow memory-bank check")
        return
    page = read_page(MEMORY, text)
    front = page.front or {}
    if front.get("protocol_version") != PROTOCOL_VERSION:
        said = front.get("protocol_version", "no protocol")
        message = f"the bank is for {said}, the protocol is {PROTOCOL_VERSION}; the protocol wins"
        yield Finding("drift", MEMORY, message, f"write `protocol_version: {PROTOCOL_VERSION}` in its front matter", 1)
    if str(front.get("template", TEMPLATE_VERSION)) != TEMPLATE_VERSION:
        message = f"the bank has template {front['template']}, Moryflow brings {TEMPLATE_VERSION}"
        yield Finding("drift", MEMORY, message, "moryflow memory-bank init", 1)
    missing = [name for name in SECTIONS if name not in [text for _, text, _ in page.headings]]
    if missing:
        yield Finding("drift", MEMORY, f"the section {missing[0]!r} is missing", "moryflow memory-bank init", 1)
    yield from _thresholds(" ".join(text.split()), MEMORY, settings, f"edit {MEMORY}")


def _agents(home: Path) -> Iterator[Finding]:
    """Name agents of the person's that are called like the plugin's own, whatever their files are; they get nothing by it."""
    from moryflow_sdk.support.agent_files import read_agent

    for file in sorted((home / "agents").glob("[!.]*.md")):
        agent, _ = read_agent(file)
        if agent is not None and agent.id.lower() in (READER, WRITER):
            message = f"an agent called {agent.id} has no part in the memory bank: it may not write there"
            yield Finding("shadow", str(file), message, "give the agent another name")


def facts(turn: Any) -> dict[str, Any]:
    """Return what holds here, for ``--json``."""
    bank = bank_of(turn)
    settings: MemoryBankSettings = turn.config
    return {
        "protocol_version": PROTOCOL_VERSION,
        "protocol_lines": len(protocol(settings).splitlines()),
        "guard_mode": settings.guard_mode,
        "bank": None if bank is None else bank.problem or "usable",
        "required": "" if bank is None or bank.problem else bank.required(),
        "skill": str(SKILL),
    }
