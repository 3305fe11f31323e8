"""The words that answer a question, wherever they are typed or sent from."""

from __future__ import annotations

from typing import Literal, NamedTuple

from moryflow_sdk import MoryflowError

Reply = Literal["once", "always", "reject", "stop"]

WORDS: dict[str, Reply] = {
    "o": "once", "once": "once", "y": "once", "yes": "once",
    "a": "always", "always": "always",
    "n": "reject", "no": "reject", "reject": "reject",
    "s": "stop", "stop": "stop",
}  # fmt: skip
"""What a person types or a program sends → what it means. ``reject`` refuses the call and lets the model go on."""

OFFERED = "once|always|no|stop"
"""The words as help and hints name them."""


class ApprovalReply(NamedTuple):
    """An answer: the reply, a message for the model, and who gave it."""

    reply: str
    message: str = ""
    by: str = "user"


def reply_of(word: str) -> Reply:
    """Return the answer that a program means by `word`.

    :raises MoryflowError: it is none of :data:`WORDS`.
    """
    found = WORDS.get(word.strip().lower())
    if found is None:
        raise MoryflowError(f"unknown reply {word!r}", next_step="one of once, always, reject, stop")
    return found


def answer_of(text: str) -> ApprovalReply | None:
    """Return what a person means by `text`: a word, or else a refusal for that reason; nothing by an empty one."""
    text = text.strip()
    word = WORDS.get(text.lower())
    if word is not None:
        return ApprovalReply(word)
    return ApprovalReply("reject", text) if text else None
