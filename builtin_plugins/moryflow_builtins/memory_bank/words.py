"""What a person's message says about the memory bank: commands, plain yes and no, and things meant to last (S3.15, D33)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_COMMAND = re.compile(r"(?<![\w/:.-])mb:(write|no)(?![\w-])(?:[ \t]+(p-[0-9a-f]{8})\b)?", re.IGNORECASE)
_YES = frozenset(
    {
        *("yes", "y", "ok", "okay", "sure", "please do", "yes please", "go ahead", "do it"),
        *("好", "好的", "可以", "是", "是的", "行", "确认", "同意"),
    }
)
_NO = frozenset(
    {
        *("no", "n", "nope", "no thanks", "don't", "do not", "leave it"),
        *("不", "不要", "不用", "不行", "否", "算了", "不需要"),
    }
)
_LASTING = re.compile(
    r"\b(remember (this|that|it)|from now on|for the record|in future,|going forward|we (have )?(decided|agreed)|"
    r"our convention|the convention is|always use|never use)\b|记住|以后(都|请|一律)|从现在起|我们决定|约定(是|为|：|:)|一律",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Said:
    """What one message of a person says; `answer` is ``write``, ``no`` or empty, `proposal` the id it names, if any."""

    answer: str = ""
    proposal: str = ""
    plain: bool = False


def commands_in(text: str) -> bool:
    """Whether `text` holds ``mb:write`` or ``mb:no``; such a message never leads to a new proposal (S3.16)."""
    return _COMMAND.search(text) is not None


def heard(text: str) -> Said:
    """Return what `text` answers. A message that says both has said no."""
    found = [(match[1].lower(), (match[2] or "").lower()) for match in _COMMAND.finditer(text)]
    if found:
        refused = next((item for item in found if item[0] == "no"), None)
        return Said(*(refused or found[0]))
    word = text.strip().strip(".!。！,， ").casefold()
    if word in _YES:
        return Said("write", plain=True)
    return Said("no", plain=True) if word in _NO else Said()


def means_to_last(text: str) -> bool:
    """Whether a message says something that is meant to hold beyond it; words only, no judgement (S3.41)."""
    return _LASTING.search(text) is not None and not commands_in(text)


@dataclass(frozen=True)
class Prompt:
    """A message that a person typed: its node and its words. Attached files and what was piped in are not its words."""

    node: str
    seq: int
    text: str


def prompts(path: Iterable[Any]) -> Sequence[Prompt]:
    """Return what a person typed, in order: user nodes that the host did not write itself (D34)."""
    return [
        Prompt(node.id, node.seq, str(node.payload.get("text", ""))[: node.payload.get("typed")])
        for node in path
        if node.kind == "user" and not node.payload.get("synthetic")
    ]
