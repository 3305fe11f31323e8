"""Questions of a model at the terminal: each with its choices, answered with a number or in the user's own words."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from moryflow_sdk.support.texts import visible

from moryflow.approvals import ApprovalReply

from . import folded, use_colour
from .streams import stderr


async def answer_choices(
    questions: Sequence[Mapping[str, Any]], read: Callable[[str], Awaitable[str]], above: str
) -> ApprovalReply | None:
    """Ask one question after the other, and return the answers as the reply; ``None`` at the end of a pipe.

    :param above: what separates the first from what stands above it.
    """
    answers: dict[str, str | list[str]] = {}
    for number, question in enumerate(questions, 1):
        labels = [str(option["label"]) for option in question["options"]]
        several = bool(question.get("multiSelect"))
        stderr().write(
            (above if number == 1 else "\n")
            + _shown(question, f" ({number} of {len(questions)})" if len(questions) > 1 else "")
        )
        offered = "numbers with commas, " if several else "".join(f"[{place}] " for place, _ in enumerate(labels, 1))
        answer: str | list[str] = ""
        while not answer:
            line = await read(f"  {offered}or your own words > ")
            if not line:
                return ApprovalReply("stop") if sys.stdin.isatty() else None
            answer = _chosen(line.strip(), labels, several=several)
        said = ", ".join(answer) if isinstance(answer, list) else answer
        stderr().write(f"{folded(f'  → {visible(said)}')}\n")
        answers[str(question["question"])] = answer
    return ApprovalReply("once", json.dumps(answers, ensure_ascii=False))


def _shown(question: Mapping[str, Any], place: str) -> str:
    bold, dim, end = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if use_colour(sys.stderr) else ("", "", "")
    header = f"{visible(str(question.get('header') or ''))}{place}".strip()
    asked = folded(f"  {visible(str(question['question']))}")
    lines = [*([f"{dim}? {header}{end}"] if header else []), f"{bold}{asked}{end}"]
    for number, option in enumerate(question["options"], 1):
        about = visible(str(option.get("description") or ""))
        lines.append(folded(f"  {number}  {visible(str(option['label']))}"))
        lines += [f"{dim}{folded(f'     {about}')}{end}"] if about else []
    return "\n".join(lines) + "\n"


def _chosen(typed: str, labels: Sequence[str], *, several: bool) -> str | list[str]:
    """Return the choices that the numbers in `typed` mean, else what was typed."""
    numbers = typed.replace(",", " ").split()
    if numbers and all(one.isdecimal() and 0 < int(one) <= len(labels) for one in numbers) and (several or len(numbers) == 1):
        chosen = [labels[int(one) - 1] for one in numbers]
        return chosen if several else chosen[0]
    return typed
