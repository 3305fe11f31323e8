"""The files of a new bank, template v7.1: index first, direct reading first."""

from __future__ import annotations

from .blocks import MACHINE, USER

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
