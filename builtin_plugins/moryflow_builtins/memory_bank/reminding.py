"""Mark messages that say something meant to last, so that the model proposes it (S3.15, S3.23, S3.41)."""

from __future__ import annotations

from collections.abc import Sequence

from moryflow_sdk import Message, Turn

from .settings import MemoryBankSettings
from .words import means_to_last

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
    if not settings.remind or turn.parent is not None:
        return None
    users = [index for index, message in enumerate(messages) if message.role == "user" and message.node]
    hints = {index: marked for index in users if (marked := _with_hint(messages[index])) is not None}
    if not hints:
        return None
    return [hints.get(index, message) for index, message in enumerate(messages)]


def _with_hint(message: Message) -> Message | None:
    if message.node not in _marked:
        if len(_marked) > 4096:
            _marked.clear()
        text = message.text
        lasting = not text.startswith(NOTE) and means_to_last(text[-LONGEST:])
        _marked[message.node] = message.replace(text=f"{text}\n\n{HINT}") if lasting else None
    return _marked[message.node]
