"""The schema of a context package. Imported only when a reader has answered."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from .template import PROTOCOL_VERSION


def _stamp(value: object) -> object:
    """Take the dates that YAML has already made of text back to text."""
    return value.isoformat() if isinstance(value, date | datetime) else value


Said = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Stamp = Annotated[str, BeforeValidator(_stamp), StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}")]
Pointer = Annotated[str, StringConstraints(strip_whitespace=True, pattern=r"^[^\s:][^\n]*:\d+(-\d+)?$")]


class Part(BaseModel):
    """Base: unknown keys are refused, so that the format cannot drift unseen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Summary(Part):
    """Layer 1, for the task itself."""

    goal: Said
    focus: Said
    stack: list[Said]
    conventions: list[Said]


class Evidence(Part):
    """Layer 2: where a statement stands, in its own words, and how old that file is."""

    file: Said
    quote: Said
    mtime: Stamp


class Question(Part):
    """Layer 3: what memory does not say, and where to look."""

    question: Said
    look_in: Said


class Conflict(Part):
    """Memory and code disagree; both are named by file and line."""

    memory: Pointer
    code: Pointer
    detail: Said


class Package(Part):
    """What the memory reader answers with."""

    protocol_version: Literal["memory-bank/v1"] = PROTOCOL_VERSION
    user_question: str = ""
    context_summary: Summary
    evidence: Annotated[list[Evidence], Field(min_length=1)]
    open_questions: list[Question]
    conflicts: list[Conflict] = []
