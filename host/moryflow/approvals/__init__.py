"""Questions to a person and their answers: what is asked, what it is bound to, which words answer it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

from moryflow_sdk import MoryflowError

Reply = Literal["once", "always", "reject", "stop"]

WORDS: dict[str, Reply] = {
    "o": "once", "once": "once", "y": "once", "yes": "once", "allow": "once",
    "a": "always", "always": "always",
    "r": "reject", "reject": "reject", "n": "reject", "no": "reject", "d": "reject", "deny": "reject",
    "s": "stop", "stop": "stop", "cancel": "stop",
}  # fmt: skip
"""What a person types or a program sends → what it means. ``reject`` refuses the call and lets the model go on. The four
words on the right are those that help, hints and documents use; the others are accepted wherever an answer is read."""

OFFERED = "|".join(dict.fromkeys(WORDS.values()))
"""The words as help and hints name them."""


class ApprovalReply(NamedTuple):
    """An answer: the reply, a message for the model, and who gave it."""

    reply: str
    message: str = ""
    by: str = "user"


class Answers(Protocol):
    """Where answers go: to the questions of this process, or of a server."""

    async def reply(self, approval_id: str, reply: str, *, message: str = "", by: str = "user") -> object:
        """Answer a question; the first answer stands.

        :raises MoryflowError: there is no such question, or it is no longer open.
        """
        ...

    async def nobody_left(self) -> None:
        """Deny the open questions and all later ones: nobody is left to answer."""
        ...


def reply_of(word: str) -> Reply:
    """Return the answer that a program means by `word`.

    :raises MoryflowError: it is none of :data:`WORDS`.
    """
    found = WORDS.get(word.strip().lower())
    if found is None:
        raise MoryflowError(f"unknown reply {word!r}", next_step=f"one of {', '.join(OFFERED.split('|'))}")
    return found


def reply_in(document: Mapping[str, Any]) -> Reply:
    """Return the answer that a program's message gives as its ``reply``; older clients call it ``remember``.

    :raises MoryflowError: it gives none of :data:`WORDS`.
    """
    return reply_of(str(document.get("reply", document.get("remember", ""))))


def answer_of(text: str) -> ApprovalReply | None:
    """Return what a person means by `text`: a word, or else a refusal for that reason; nothing by an empty one."""
    text = text.strip()
    word = WORDS.get(text.lower())
    if word is not None:
        return ApprovalReply(word)
    return ApprovalReply("reject", text) if text else None
