"""``moryflow memory-bank``: init creates missing files, check examines the bank, doctor compares protocol, skill and bank.

``init`` never changes the user's parts. If protocol, skill and bank differ, the protocol is right.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from moryflow_sdk import ConfigError, MoryflowError, ToolError

from . import (
    FOLDER,
    MACHINE,
    MEMORY,
    PROTOCOL_VERSION,
    SECTIONS,
    SKILL,
    USER,
    USER_PLACEHOLDER,
    MemoryBankSettings,
    as_text,
    bank_of,
    read_text,
    split,
)
from .check import Finding, check_bank, document, schema_problems
from .prompt import protocol

TEMPLATE_VERSION = "7.1"

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
        "- Nothing here is written without a proposal and the user's `mb:write`; `mb:no` drops it.\n"
        "- What is between the user markers belongs to the user.\n"
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
    """Return a section of the front page (``MEMORY.md``) of a new bank."""
    return f"## {name}\n\n{_MEMORY_SECTIONS[name]}"


def files() -> dict[str, str]:
    """Return the files of a new bank: path in the vault → text."""
    front_page = _FRONT + "\n# Memory\n\n" + _blocks("\n".join(section(name) for name in SECTIONS))
    details = {f"{FOLDER}/details/{name}.md": f"# {title}\n\n{_blocks(body)}" for name, (title, body) in _DETAILS.items()}
    return {MEMORY: front_page, **details}


def _blocks(machine: str) -> str:
    inner = machine.strip("\n")
    return f"{MACHINE[0]}\n{inner}\n{MACHINE[1]}\n\n{USER[0]}\n{USER_PLACEHOLDER}\n{USER[1]}\n"


# File → `created`, `extended: …`, `unchanged`, or `left alone: …` with the reason.
Done = dict[str, str]


def make_bank(turn: Any) -> Done:
    """Create the bank of the turn's vault and return what was done to each file.

    :raises MoryflowError: something else than a folder exists where the bank needs one.
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
    text = as_text(turn.files.read(target, limit=1024 * 1024))
    blocks = split(text) if text is not None else None
    if text is None or blocks is None:
        return "left alone: it has no machine block" if text is not None else "left alone: it is not UTF-8 text"
    missing = [name for name in SECTIONS if not re.search(rf"^##\s+{re.escape(name)}\s*$", text, re.MULTILINE)]
    if not missing:
        return "unchanged"
    inner = "\n\n".join([blocks.machine_text.strip("\n"), *(section(name).strip("\n") for name in missing)])
    turn.files.write(target, blocks.with_machine(inner).encode())
    return f"extended: {', '.join(missing)}"


def install_skill(home: Path, *, replace: bool) -> tuple[Path, str]:
    """Install the skill into the user's skills, and return its folder and what was done."""
    place = home / "skills" / "memory-bank"
    if not _changed_pages(place):
        return place, "unchanged"
    if place.exists() and not replace:
        return place, "kept: it differs from the one that came with Moryflow"
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    shutil.copytree(SKILL, place, dirs_exist_ok=True, copy_function=shutil.copyfile)
    return place, "installed"


def _changed_pages(place: Path) -> list[Path]:
    """Return the pages of the skill at `place` that are missing, or differ from those that came with Moryflow."""
    pages = [(place / page.relative_to(SKILL), page) for page in sorted(SKILL.rglob("*.md"))]
    return [mine for mine, page in pages if not (mine.is_file() and mine.read_bytes() == page.read_bytes())]


def diagnose(turn: Any) -> list[Finding]:
    """Return where the installed skill and the front page differ from what comes with Moryflow."""
    place, message = turn.home / "skills" / "memory-bank", "it is missing, or differs from the page that came with Moryflow"
    changed = _changed_pages(place) if place.exists() else ()
    found = [Finding("drift", str(page), message, "moryflow memory-bank init --skill") for page in changed]
    bank = bank_of(turn)
    if bank is not None and bank.problem:
        found.append(Finding("link", FOLDER, bank.problem, "moryflow memory-bank check"))
    elif bank is not None and bank.has(MEMORY):
        text = read_text(turn, MEMORY)
        wrong = ["it cannot be read as text"] if text is None else list(schema_problems(MEMORY, text))
        found += [Finding("drift", MEMORY, each, "moryflow memory-bank check", 1) for each in wrong]
    return found


def facts(turn: Any) -> dict[str, Any]:
    """Return the state of the memory bank for ``--json``."""
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


def _within(context: Any, work: Callable[[Any], Any]) -> Any:
    async def at(turn: Any) -> Any:
        if not turn.vault.is_dir():
            raise ConfigError("there is no such folder", where=str(turn.vault), next_step="give one that is there with --vault")
        return work(turn)

    return context.run(at)


@click.group(name="memory-bank")
def memory_bank() -> None:
    """Make and check the memory bank of this folder: what the project knows about itself."""


@memory_bank.command()
@click.option("--skill", is_flag=True, help="Replace the installed skill with the one that ships with Moryflow.")
@click.pass_obj
def init(context: Any, skill: bool) -> None:
    """Create what is missing in memory-bank/ and install its skill. Existing files stay; user blocks are never touched."""
    done = _within(context, make_bank)
    place, installed = install_skill(context.home, replace=skill)
    lines = [f"{name}: {what}" for name, what in done.items()]
    text = "\n".join([*lines, f"skill {place}: {installed}"])
    context.print(
        {"v": 1, "type": "memory_bank.init", "files": done, "skill": {"path": str(place), "done": installed}}, text=text
    )


@memory_bank.command()
@click.pass_obj
@click.pass_context
def check(ctx: click.Context, context: Any) -> None:
    """Validate structure, schema, links, pointers and sizes. Exit code 3 when something is wrong."""
    found, count = _within(context, check_bank)
    fine = f"{count} files, no problems found"
    context.print(document("memory_bank.check", found, files=count), text="\n".join(map(str, found)) or fine)
    ctx.exit(3 if found else 0)


@memory_bank.command()
@click.pass_obj
@click.pass_context
def doctor(ctx: click.Context, context: Any) -> None:
    """Check that protocol, skill and bank agree. Exit code 3 if they differ."""
    found, known = _within(context, lambda turn: (diagnose(turn), facts(turn)))
    state = known["bank"] or "none here"
    fine = f"protocol {known['protocol_version']}, guard mode {known['guard_mode']}, bank {state}: no drift"
    context.print(document("memory_bank.doctor", found, **known), text="\n".join(map(str, found)) or fine)
    ctx.exit(3 if found else 0)
