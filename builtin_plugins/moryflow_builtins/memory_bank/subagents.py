"""The agents of the memory bank: anyone may start the reader, only ``memory_write`` starts the writer."""

from __future__ import annotations

from functools import cache

from moryflow_sdk import Agent, ToolCall

from .bank import FOLDER, SKILL
from .reads import READER

WRITER = "memory-bank-writer"
READING = ("read", "ls", "glob", "grep")
EDITING = ("write", "edit", "multiedit", "apply_patch")


def reader_agent() -> Agent:
    """Return the reader: it reads the bank, samples sources and answers with a package."""
    return Agent(
        id=READER,
        name="Memory reader",
        description="Reads the memory bank and key sources for a question; answers with a context package.",
        mode="subagent",
        prompt=prompt_of("memory-reader-prompt.md"),
        tools=READING,
        max_steps=20,
        source="memory_bank",
        needs=FOLDER,
    )


def writer_agent() -> Agent:
    """Return the writer. Its id gives it nothing; the grant of its session does."""
    return Agent(
        id=WRITER,
        name="Memory bank writer",
        description="Carries out one confirmed proposal.",
        mode="subagent",
        prompt=prompt_of("writer.md"),
        tools=(*READING, *EDITING),
        hidden=True,
        max_steps=12,
        source="memory_bank",
    )


@cache
def prompt_of(name: str) -> str:
    """Return a page of the skill."""
    return (SKILL / "references" / name).read_text(encoding="utf-8")


def is_reader_task(call: ToolCall) -> bool:
    """Whether a call starts the memory reader, whatever the tool that does it is called."""
    return any(target.kind == "task" and target.text == f"task:{READER}" for target in call.targets)
