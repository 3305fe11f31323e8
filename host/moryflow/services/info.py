"""Title and notes of a session, for plugins."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import TurnContext


class Done:
    """What a plain function may drop and an asynchronous one may await: it was done before this was returned."""

    def __await__(self) -> Generator[None]:
        yield from ()


DONE = Done()


class InfoService:
    """What a plugin says about a session waits in the inbox until the turn pauses.

    It is put there at once, on whatever thread: the inbox is a list that everyone adds to at its end.
    """

    def __init__(self, scope: TurnContext) -> None:
        self._scope = scope

    def set_title(self, title: str) -> Done:
        """Set the session's title."""
        self._scope.live.inbox.append(lambda journal: journal.session(title=title[:200]))
        return DONE

    def note(self, text: str, *, title: str = "") -> Done:
        """Append a note that the model reads as a marked user message."""
        self._scope.live.notes.append(lambda journal: journal.node("note", {"text": text, "title": title}))
        return DONE
