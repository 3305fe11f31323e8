"""The context package with which the memory reader answers: its schema, and the check of an answer."""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Annotated, Any, Literal

from moryflow_sdk import ToolResult, Turn
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


async def check_package(result: ToolResult, turn: Turn, required: str) -> tuple[ToolResult, bool]:
    """Return the reader's result with notes about it, and whether it counts as reading `required`.

    It counts if the reader was shown that file.
    """
    if result.metadata.get("background"):
        return result, False  # the reader has only just started
    package, problems = parse_package(result.output)
    if package is None:
        reasons = "; ".join(problems[:3])
        step = f"resume this {READER} session and ask for the package alone, or read memory-bank/details/patterns.md"
        note = f"[memory bank] this is not a context package: {reasons}. It does not count as reading. Next: {step}"
        return result.replace(output=f"{result.output}\n\n{note}"), False
    notes = [
        f"conflict: {item.memory} contradicts {item.code}: {item.detail}. The code is right. "
        "Next: propose the correction with memory_propose"
        for item in package.conflicts
    ]
    read = not required or await _has_read(result, turn, required)
    if not read:
        notes.append(f"the reader did not read {required}. It does not count as reading. Next: read {required}")
    metadata = {**result.metadata, "memory_bank": {"conflicts": len(package.conflicts), "evidence": len(package.evidence)}}
    if package.conflicts:
        turn.emit("conflict", conflicts=[conflict.model_dump() for conflict in package.conflicts])
    text = "".join(f"\n\n[memory bank] {note}" for note in notes)
    return result.replace(output=result.output + text, metadata=metadata), read


def parse_package(output: str) -> tuple[ContextPackage | None, list[str]]:
    """Return the package in an answer, or ``None`` and the reasons."""
    import yaml

    blocks = [block for block in _FENCE.findall(output) or [output] if "context_summary" in block]
    if not blocks:
        return None, ["there is no block with context_summary, evidence and open_questions"]
    try:
        value: Any = yaml.safe_load(blocks[-1])
        return ContextPackage.model_validate(value.get("memory_reader", value) if isinstance(value, dict) else value), []
    except ValidationError as error:
        return None, [f"{'.'.join(map(str, item['loc'])) or 'it'}: {item['msg']}" for item in error.errors()]
    except (yaml.YAMLError, *YAML_VALUE_ERRORS) as error:
        return None, [f"the YAML cannot be read: {yaml_problem(error)}"]


async def _has_read(result: ToolResult, turn: Any, required: str) -> bool:
    session = str(result.metadata.get("session", ""))
    target = turn.files.resolve(required, domain="read")
    shown = [node.payload for node in await turn.history.path(session) if node.kind == "tool"] if session else []
    return any(item.get("status") == "ok" and shown_lines(turn, target, str(item.get("output"))) is not None for item in shown)
