"""``memory-bank init``: make what is missing of a bank; never touch what is the person's.

The template is v7.1: index first, direct reading first.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from moryflow_sdk import MoryflowError, ToolError

from .bank import FOLDER, MACHINE, MEMORY, SKILL, USER, as_text, bank_of, split

PROTOCOL_VERSION = "memory-bank/v1"
TEMPLATE_VERSION = "7.1"
USER_PLACEHOLDER = "Your own notes. No tool changes this part."
SECTIONS = ("Project", "Routing Rules", "Top Quick Answers", "Drill-Down Protocol", "Write Safety")
"""What the front page must have, in this order."""

_FRONT = f'---\nprotocol_version: {PROTOCOL_VERSION}\ntemplate: "{TEMPLATE_VERSION}"\n---\n'

_MEMORY_SECTIONS = {
    "Project": "- Goal: not written down yet.\n- Current focus: not written down yet.\n- Stack: see [tech](details/tech.md).\n",
    "Routing Rules": (
        "By what you want to do, not by topic:\n\n"
        "- choose a technology, add a module, change a shared one, refactor, migrate → [patterns](details/patterns.md)\n"
        "- build, run, test, deploy, add a dependency → [tech](details/tech.md)\n"
        "- pick up where the work stopped → [progress](details/progress.md)\n"
        "- anything else → `glob memory-bank/details/**`, then read\n"
    ),
    "Top Quick Answers": "Conclusion first, its boundary, a pointer:\n\n- none yet → details/patterns.md\n",
    "Drill-Down Protocol": (
        "1. Read 1–3 files from the rules above directly.\n"
        "2. Not enough, or more than 3 files or 300 lines: start the task agent `memory-reader`.\n"
        "3. Say where an answer comes from: `details/file.md:line`.\n"
    ),
    "Write Safety": (
        "- Before a high-risk write read [patterns](details/patterns.md) in the same turn.\n"
        "- Nothing here is written without a proposal and the person's `mb:write`; `mb:no` drops it.\n"
        "- What is between the user markers belongs to the person.\n"
    ),
}

_DETAILS = {
    "patterns": (
        "Patterns and decisions",
        "Each entry: conclusion first, where it ends, a pointer to the source.\n\n"
        "| Decision | Date | Why | Pointer |\n| --- | --- | --- | --- |\n",
    ),
    "tech": ("Tech", "How it is built, run, tested and deployed. Commands as they are typed.\n"),
    "progress": ("Progress", "What works, what is being done, what comes next.\n"),
}


def section(name: str) -> str:
    """Return a section of the front page."""
    return f"## {name}\n\n{_MEMORY_SECTIONS[name]}"


def memory_page() -> str:
    """Return a new front page."""
    return _FRONT + "\n# Memory\n\n" + _blocks("\n".join(section(name) for name in SECTIONS))


def details_page(title: str, body: str = "") -> str:
    """Return a new file of ``details/``."""
    return f"# {title}\n\n" + _blocks(body)


def files() -> dict[str, str]:
    """Return every file of a new bank by its name in the vault."""
    pages = {f"memory-bank/details/{name}.md": details_page(*page) for name, page in _DETAILS.items()}
    return {"memory-bank/MEMORY.md": memory_page(), **pages}


def _blocks(machine: str) -> str:
    inner = machine.strip("\n")
    return f"{MACHINE[0]}\n{inner}\n{MACHINE[1]}\n\n{USER[0]}\n{USER_PLACEHOLDER}\n{USER[1]}\n"


Done = dict[str, str]
"""File → ``created``, ``extended``, ``unchanged``, or why it was left alone."""


def init(turn: Any) -> Done:
    """Make the bank of the turn's vault and return what was done to each file.

    :raises MoryflowError: something that is not a folder of the vault stands in the way.
    """
    bank = bank_of(turn)
    folders = sorted({str(Path(name).parent) for name in files()})
    wrong = [name for name in folders if (place := Path(turn.vault, name)).exists() and not place.is_dir()]
    problem = bank.problem if bank and bank.problem else f"{wrong[0]} is there and is not a folder" if wrong else ""
    if problem:
        place = Path(turn.vault, wrong[0] if wrong else FOLDER)
        raise MoryflowError(problem, where=str(place), next_step="move it away, then moryflow memory-bank init")
    return {name: _file(turn, name, text) for name, text in files().items()}


def _file(turn: Any, name: str, text: str) -> str:
    target = turn.files.resolve(name, domain="edit")
    if target.error or target.text != f"vault:/{name}":
        return "left alone: it is reached through a link"
    if target.identity is None:
        turn.files.write(target, text.encode())
        return "created"
    if name != MEMORY:
        return "unchanged"
    try:
        return _extend(turn, target)
    except ToolError as error:
        return f"left alone: {error.message}"


def _extend(turn: Any, target: Any) -> str:
    """Add the sections that the front page lacks to its machine block, each where it belongs."""
    data = turn.files.read(target, limit=1024 * 1024)
    text = as_text(data)
    if text is None:
        return "left alone: it is not UTF-8 text"
    blocks = split(text)
    if blocks is None:
        return "left alone: it has no machine block"
    missing = [name for name in SECTIONS if not _heading(name).search(text)]
    if not missing:
        return "unchanged"
    if b"\r\n" in data:
        return f"left alone: it lacks {', '.join(missing)}, and its lines end in CR LF"
    inner = blocks.machine_text.strip("\n")
    for name in missing:
        inner = _with_section(inner, name)
    turn.files.write(target, blocks.with_machine(inner).encode())
    return f"extended: {', '.join(missing)}"


def _with_section(inner: str, name: str) -> str:
    """Return the machine block with a new section before the first of those that come after it."""
    later = [found.start() for other in SECTIONS[SECTIONS.index(name) + 1 :] if (found := _heading(other).search(inner))]
    place = min(later, default=len(inner))
    return "\n\n".join(part for part in (inner[:place].strip("\n"), section(name).strip("\n"), inner[place:]) if part)


def _heading(name: str) -> re.Pattern[str]:
    return re.compile(rf"^##\s+{re.escape(name)}\s*$", re.MULTILINE)


def install_skill(home: Path, *, replace: bool) -> tuple[Path, str]:
    """Put the skill among the person's own, and return where it is and what was done."""
    place = home / "skills" / "memory-bank"
    pages = sorted(SKILL.rglob("*.md"))
    if all(_same(page, place / page.relative_to(SKILL)) for page in pages):
        return place, "unchanged"
    if place.exists() and not replace:
        return place, "kept: it differs from the one that came with Moryflow"
    for page in pages:
        goal = place / page.relative_to(SKILL)
        goal.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        goal.write_bytes(page.read_bytes())
    return place, "installed"


def _same(page: Path, other: Path) -> bool:
    try:
        return page.read_bytes() == other.read_bytes()
    except OSError:
        return False
