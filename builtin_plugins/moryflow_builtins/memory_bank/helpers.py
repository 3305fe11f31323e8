"""The two helpers: the reader, which anyone may start, and the writer, which only ``memory_write`` starts."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from moryflow_sdk import Agent

from .bank import FOLDER

SKILL = Path(__file__).parent / "skills" / "memory-bank"
READER = "memory-reader"
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
