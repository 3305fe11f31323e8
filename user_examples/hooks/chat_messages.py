"""Spell out the house's abbreviations for the model."""

from __future__ import annotations

import re
from collections.abc import Sequence

from moryflow_sdk import Message, hookimpl

WORDS = {"KB": "knowledge base", "PoR": "plan of record"}
ABBREVIATION = re.compile(rf"\b({'|'.join(WORDS)})\b")


@hookimpl
def chat_messages(messages: Sequence[Message]) -> list[Message]:
    """Change what the user wrote in this request; the session keeps their words.

    The same message gets the same text in every step, so that the provider's cache holds.
    """
    return [spelled_out(message) if message.role == "user" else message for message in messages]


def spelled_out(message: Message) -> Message:
    """Return `message` with each abbreviation explained; the same object where there is none."""
    text = ABBREVIATION.sub(lambda found: f"{found[1]} ({WORDS[found[1]]})", message.text)
    return message.replace(text=text) if text != message.text else message
