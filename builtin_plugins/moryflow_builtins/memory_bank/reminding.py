"""Add a hint to messages that call for reading ``patterns.md`` first, or that say something meant to last."""

from __future__ import annotations

from collections.abc import Sequence

from moryflow_sdk import Message, Turn

from .bank import PATTERNS
from .settings import MemoryBankSettings
from .words import commands_in, means_to_last, wants_patterns

READ_HINT = (
    f"[memory bank] This is about what {PATTERNS} is kept for: conventions, decisions and their reasons. "
    "Read it before you answer or change anything, if you have not yet."
)
HINT = (
    "[memory bank] This message says something that may be meant to last. If it is, propose it with memory_propose "
    "after the work is done."
)
NOTE = "[note from the host]"
LONGEST = 20_000

_marked: dict[str, Message | None] = {}
"""Node → its message with the hint, ``None`` for most. Nodes never change, so neither does this."""


def reminded_messages(messages: Sequence[Message], turn: Turn) -> Sequence[Message] | None:
    """Return the messages with the hint where it belongs. The same message always gets the same bytes (prompt caches)."""
    settings: MemoryBankSettings = turn.config
    if not settings.hints or turn.parent is not None:
        return None
    users = [index for index, message in enumerate(messages) if message.role == "user" and message.node]
    if users and commands_in(messages[users[-1]].text[-LONGEST:]) and not turn.state.get("answers"):
        turn.state["answers"] = True
    hints = {index: marked for index in users if (marked := _with_hint(messages[index])) is not None}
    if not hints:
        return None
    return [hints.get(index, message) for index, message in enumerate(messages)]


def _with_hint(message: Message) -> Message | None:
    if message.node not in _marked:
        if len(_marked) > 4096:
            _marked.clear()
        text = message.text
        words = "" if text.startswith(NOTE) else text[-LONGEST:]
        hints = [hint for hint, fits in ((READ_HINT, wants_patterns), (HINT, means_to_last)) if fits(words)]
        _marked[message.node] = message.replace(text="\n\n".join([text, *hints])) if hints else None
    return _marked[message.node]
