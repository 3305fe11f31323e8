"""What a person's message says about the memory bank: commands, things meant to last, and what wants reading first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_COMMAND = re.compile(r"(?<![\w/:.-])mb:(write|no)(?![\w-])(?:[ \t]+(p-[0-9a-f]{8})\b)?", re.IGNORECASE)
_AGREES = frozenset({
    *("yes", "yep", "yeah", "y", "ok", "okay", "sure", "fine", "good", "great", "perfect", "thanks", "thank", "you", "agreed"),
    *("right", "please", "do", "go", "ahead", "and", "then", "now", "so", "i", "say", "send", "run", "it", "write", "lgtm"),
    *("好", "好的", "可以", "是", "是的", "行", "确认", "同意", "请", "谢谢"),
})  # fmt: skip
"""Words that may stand before ``mb:write`` on its line; behind others it may be spoken of, doubted or denied."""
_LONGEST_YES = 100
_QUOTES = (">", '"', "'", "“", "「")
_ASKS = re.compile(r"[^.!;,。！；，、?？]{0,200}[?？]")
_LASTING = re.compile(
    r"\b(remember (this|that|it)|from now on|for the record|in future,|going forward|we (have )?(decided|agreed)|"
    r"our convention|the convention is|always use|never use)\b|记住|以后(都|请|一律)|从现在起|我们决定|约定(是|为|：|:)|一律",
    re.IGNORECASE,
)


_DESIGN = re.compile(
    r"\b(architect(ure|ural)|refactor(ing)?|migrat(e|ing|ion)|redesign)\b"
    r"|\b(new|add an?|create an?) (\w+ )?(module|component|package|service|subsystem)\b"
    r"|\b(shared|common) (module|component|library|code|utilit(y|ies))\b"
    r"|\b(which|choose|pick|switch to|replace) (an? |the )?(\w+ )?(library|framework|database|tool|stack|technology)\b"
    r"|技术选型|选型|架构|重构|迁移|(新建|新增|创建|新的?)\S{0,6}(模块|组件)|(公共|共享)(模块|组件|库)",
    re.IGNORECASE,
)
"""Choice of technology, new module, architecture, shared module, refactoring, migration."""


@dataclass(frozen=True)
class Said:
    """What one message of a person says; `answer` is ``write``, ``no`` or empty, `proposal` the id it names, if any."""

    answer: str = ""
    proposal: str = ""


def commands_in(text: str) -> bool:
    """Whether `text` holds ``mb:write`` or ``mb:no``; such a message never leads to a new proposal."""
    return _COMMAND.search(text) is not None


def heard(text: str) -> Said:
    """Return what `text` answers; only the commands are an answer. A message that says both has said no.

    A command counts as a yes where it is given, not where it is spoken of: ``do not mb:write``, ``what does mb:write do?``.
    """
    found = [(match[1].lower(), (match[2] or "").lower()) for match in _COMMAND.finditer(text) if _given(match, text)]
    refused = next((item for item in found if item[0] == "no"), None)
    return Said(*(refused or next(iter(found), ())))


def _given(match: re.Match[str], text: str) -> bool:
    """Whether a command is given where it stands. A no always is: nothing is written by mistake."""
    if match[1].lower() == "no":
        return True
    line = text.rfind("\n", 0, match.start()) + 1
    before = text[max(line, match.start() - _LONGEST_YES) : match.start()]
    if match.start() - line > _LONGEST_YES or before.strip().startswith(_QUOTES):
        return False
    words = re.findall(r"[\w'’]+", before.casefold())
    return _AGREES.issuperset(words) and _ASKS.match(text[match.end() : match.end() + 200].partition("\n")[0]) is None


def means_to_last(text: str) -> bool:
    """Whether a message says something that is meant to hold beyond it; words only, no judgement."""
    return _LASTING.search(text) is not None and not commands_in(text)


def wants_patterns(text: str) -> bool:
    """Whether a message is about what ``patterns.md`` is read for; words only, no judgement."""
    return _DESIGN.search(text) is not None and not commands_in(text)


@dataclass(frozen=True)
class Prompt:
    """A message that a person typed: its node and its words. Attached files and what was piped in are not its words."""

    node: str
    seq: int
    text: str


def prompts(path: Iterable[Any]) -> Sequence[Prompt]:
    """Return what a person typed, in order: user nodes that the host did not write itself."""
    return [
        Prompt(node.id, node.seq, str(node.payload.get("text", ""))[: node.payload.get("typed")])
        for node in path
        if node.kind == "user" and not node.payload.get("synthetic")
    ]
