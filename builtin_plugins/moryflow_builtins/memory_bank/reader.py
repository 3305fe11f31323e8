"""The context package with which the memory reader answers: its schema, and the check of an answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime
from typing import Annotated, Any, Literal

from moryflow_sdk import ToolError, ToolResult, Turn
from moryflow_sdk.support.markdown_files import YAML_VALUE_ERRORS, yaml_problem
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from . import PROTOCOL_VERSION, READER
from .prompt import shown_lines


def _stamp(value: object) -> object:
    """Convert dates, which YAML made from text, back to text."""
    return value.isoformat() if isinstance(value, date | datetime) else value


Said = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Stamp = Annotated[str, BeforeValidator(_stamp), StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}")]
Pointer = Annotated[str, StringConstraints(strip_whitespace=True, pattern=r"^[^\s:][^\n]*:\d+(-\d+)?$")]


class Part(BaseModel):
    """Base of the parts; unknown keys are refused, so that changes of the format are noticed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Summary(Part):
    """Layer 1: a summary for the task itself."""

    goal: Said
    focus: Said
    stack: list[Said]
    conventions: list[Said]


class Evidence(Part):
    """Layer 2: a quotation from a file, and the date of that file."""

    file: Said
    quote: Said
    mtime: Stamp


class Question(Part):
    """Layer 3: a question that the memory bank does not answer, and where to look."""

    question: Said
    look_in: Said


class Conflict(Part):
    """A contradiction between memory bank and code, each named by file and line."""

    memory: Pointer
    code: Pointer
    detail: Said


class ContextPackage(Part):
    """The answer of the memory reader."""

    protocol_version: Literal["memory-bank/v1"] = PROTOCOL_VERSION
    user_question: str = ""
    context_summary: Summary
    evidence: Annotated[list[Evidence], Field(min_length=1)]
    open_questions: list[Question]
    conflicts: list[Conflict] = []


_FENCE = re.compile(r"^[ \t]*```(?:ya?ml|json)?[ \t]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
LONGEST = 200_000

LEAST_QUOTED = 12
"""A part of a line counts as a quotation only from this length on; single words occur in nearly every file."""


async def check_package(result: ToolResult, turn: Turn, required: str) -> tuple[ToolResult, bool]:
    """Return the reader's result with notes about it, and whether it counts as reading `required`.

    It counts if the reader has read that file and quotes from it.
    """
    if result.metadata.get("background"):
        return result, False  # the reader has only just started
    package, problems = parse_package(result.output)
    if package is None:
        reasons = "; ".join(problems[:3])
        step = f"resume this {READER} session and ask for the package alone, or read memory-bank/details/patterns.md"
        note = f"[memory bank] this is not a context package: {reasons}. It does not count as reading. Next: {step}"
        return result.replace(output=f"{result.output}\n\n{note}"), False
    notes = [*_conflicts(package), *_quotes_not_found(package, turn)]
    missing = await _not_read(package, result, turn, required) if required else ""
    if missing:
        notes.append(f"{missing}. It does not count as reading. Next: read {required}")
    metadata = {**result.metadata, "memory_bank": {"conflicts": len(package.conflicts), "evidence": len(package.evidence)}}
    if package.conflicts:
        turn.emit("conflict", conflicts=[conflict.model_dump() for conflict in package.conflicts])
    text = "".join(f"\n\n[memory bank] {note}" for note in notes)
    return result.replace(output=result.output + text, metadata=metadata), not missing


def parse_package(output: str) -> tuple[ContextPackage | None, list[str]]:
    """Return the package in an answer, or ``None`` and the reasons."""
    import yaml

    problems: list[str] = []
    blocks = [match[1] for match in _FENCE.finditer(output[-LONGEST:])]
    for block in reversed(blocks or [output[-LONGEST:]]):
        if "context_summary" not in block:
            continue
        try:
            value: Any = yaml.safe_load(block)
        except (yaml.YAMLError, *YAML_VALUE_ERRORS) as error:
            problems.append(f"the YAML cannot be read: {yaml_problem(error)}")
            continue
        try:
            inner = value.get("memory_reader", value) if isinstance(value, dict) else value
            return ContextPackage.model_validate(inner), []
        except ValidationError as error:
            problems += [f"{'.'.join(map(str, item['loc'])) or 'it'}: {item['msg']}" for item in error.errors()]
    return None, problems or ["there is no block with context_summary, evidence and open_questions"]


def _conflicts(package: ContextPackage) -> list[str]:
    return [
        f"conflict: {item.memory} contradicts {item.code}: {item.detail}. The code is right. "
        "Next: propose the correction with memory_propose"
        for item in package.conflicts
    ]


def _quotes_not_found(package: ContextPackage, turn: Turn) -> list[str]:
    """Return a note about evidence whose quotation is not in its file, if there is any."""
    wrong = [item.file for item in package.evidence if not _is_quoted(item.file, item.quote, turn)]
    return [f"these quotes were not found in their files: {', '.join(wrong[:5])}. Next: read them yourself"] if wrong else []


async def _not_read(package: ContextPackage, result: ToolResult, turn: Any, required: str) -> str:
    """Return why the package does not count as reading `required`; empty if it does."""
    session = str(result.metadata.get("session", ""))
    target = turn.files.resolve(required, domain="read")
    shown = [node.payload for node in await turn.history.path(session) if node.kind == "tool"] if session else []
    if not any(item.get("status") == "ok" and shown_lines(turn, target, str(item.get("output"))) is not None for item in shown):
        return f"the reader did not read {required}"
    quoted = [item for item in package.evidence if required in _candidates(_file_of(item.file))]
    if not any(_is_quoted(item.file, item.quote, turn) for item in quoted):
        return f"the package quotes nothing that stands in {required}"
    return ""


def _file_of(pointer: str) -> str:
    return re.sub(r":\d+(-\d+)?$", "", pointer)


def _is_quoted(file: str, quote: str, turn: Any) -> bool:
    for name in _candidates(_file_of(file)):
        target = turn.files.resolve(name, domain="read")
        if target.error or not target.text.startswith("vault:/"):
            continue
        try:
            text = turn.files.read(target, limit=4 * 1024 * 1024).decode("utf-8", "replace")
        except ToolError:
            continue
        if _quotes(quote, text):
            return True
    return False


def _quotes(quote: str, text: str) -> bool:
    """Whether `quote` is in `text` and means something: a whole line, or a part too long to be there by chance."""
    words = " ".join(quote.split())
    if len(words) < LEAST_QUOTED and words not in (" ".join(line.split()) for line in text.splitlines()):
        return False
    return any(map(str.isalnum, words)) and words in " ".join(text.split())


def _candidates(path: str) -> Sequence[str]:
    return (path,) if path.startswith("memory-bank/") else (path, f"memory-bank/{path}")
