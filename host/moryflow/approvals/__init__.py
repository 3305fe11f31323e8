"""Questions to the user and their answers; here: the words that answer a question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

from moryflow_sdk import MoryflowError

Reply = Literal["once", "always", "exact", "preset", "reject", "stop"]

# The words that the user types or a program sends, and the reply each means. `reject` refuses the call and lets the model
# go on. `exact` is *always* for nothing but what was asked about, where *always* would store more; `preset` runs the call
# and adds the rules that the question offers. Hints list the other four; every word is accepted where an answer is read.
WORDS: dict[str, Reply] = {
    "o": "once", "once": "once", "y": "once", "yes": "once", "allow": "once",
    "a": "always", "always": "always", "exact": "exact", "preset": "preset",
    "r": "reject", "reject": "reject", "refuse": "reject", "n": "reject", "no": "reject", "d": "reject", "deny": "reject",
    "s": "stop", "stop": "stop", "cancel": "stop",
}  # fmt: skip

# The replies that every question has, as hints list them.
OFFERED = "once|always|reject|stop"


class ApprovalReply(NamedTuple):
    """An answer: the reply, a message for the model, and who answered."""

    reply: str
    message: str = ""
    by: str = "user"


class Answers(Protocol):
    """Where answers go: to the questions of this process, or of a server."""

    async def reply(self, approval_id: str, reply: str, *, message: str = "", by: str = "user") -> object:
        """Answer a question; only the first answer counts.

        :raises MoryflowError: there is no such question, or it is no longer open.
        """
        ...

    async def nobody_left(self) -> None:
        """Deny the open questions and all later ones, because nobody is left to answer."""
        ...


def reply_of(word: str) -> Reply:
    """Return the reply that `word` means.

    :raises MoryflowError: `word` is not in :data:`WORDS`.
    """
    found = WORDS.get(word.strip().lower())
    if found is None:
        raise MoryflowError(f"unknown reply {word!r}", next_step=f"one of {', '.join(OFFERED.split('|'))}")
    return found


def reply_in(document: Mapping[str, Any]) -> Reply:
    """Return the reply in the field ``reply`` of a program's message; older clients call the field ``remember``.

    :raises MoryflowError: the field is missing or its value is not in :data:`WORDS`.
    """
    return reply_of(str(document.get("reply", document.get("remember", ""))))


def answer_of(text: str) -> ApprovalReply | None:
    """Return the answer the user typed: the reply of a known word, else a refusal with `text` as reason; ``None`` if empty."""
    text = text.strip()
    word = WORDS.get(text.lower())
    if word is not None:
        return ApprovalReply(word)
    return ApprovalReply("reject", text) if text else None
