"""The events of a streaming answer: its parts begin, grow and end together."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Literal

from .ports import Journal

Kind = Literal["text", "reasoning", "tool_input"]


class AnswerEvents:
    """Publishes ``message.start``, the deltas, and ``message.end``. A model call that is made again is another message.

    :ivar id: what its events carry as ``message_id``; the node that stores the answer has the same id.
    :param name_call: gives a call an id that no other call of the session has.
    """

    def __init__(self, journal: Journal, name_call: Callable[[str], str]) -> None:
        self.id = secrets.token_hex(8)
        self._journal = journal
        self._name_call = name_call
        self._open: dict[str, Kind] = {}
        self._calls: dict[str, str] = {}

    def say(self, kind: Literal["text", "reasoning"], text: str) -> None:
        """Publish a piece of the answer or of a thought."""
        self._begin(kind, kind)
        self._journal.delta(f"{kind}.delta", message_id=self.id, text=text)

    def input(self, call: str, tool: str, text: str) -> None:
        """Publish a piece of the arguments of a call; `call` is its id as the model gave it."""
        if call not in self._calls:
            self._calls[call] = self._name_call(call)
        call_id = self._calls[call]
        self._begin(call_id, "tool_input", call_id=call_id, tool=tool[:200])
        if text:
            self._journal.delta("tool.input.delta", message_id=self.id, call_id=call_id, text=text)

    def call_id(self, call: str) -> str | None:
        """Return the id under which the input of `call` was published, once: a model may give two calls the same id."""
        return self._calls.pop(call, None)

    def end(self, finish: str) -> None:
        """End every part. `finish` is why the answer ended, or ``retried`` when another message takes its place."""
        for place, kind in self._open.items():
            about = {"call_id": place} if kind == "tool_input" else {}
            self._journal.delta("message.end", message_id=self.id, kind=kind, finish=finish, **about)
        self._open.clear()

    def _begin(self, place: str, kind: Kind, **about: str) -> None:
        if place not in self._open:
            self._open[place] = kind
            self._journal.delta("message.start", message_id=self.id, kind=kind, **about)
