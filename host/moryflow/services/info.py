"""Title and notes of a session, for plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moryflow.kernel.scope import TurnScope


class InfoService:
    """What a plugin says about a session waits in the inbox until the turn pauses (invariant 6)."""

    def __init__(self, scope: TurnScope) -> None:
        self._scope = scope

    async def set_title(self, title: str) -> None:
        """Set the session's title."""
        self._scope.live.inbox.append(lambda journal: journal.session(title=title[:200]))

    async def note(self, text: str, *, title: str = "") -> None:
        """Append a note that the model reads as a marked user message."""
        self._scope.live.notes.append(lambda journal: journal.node("note", {"text": text, "title": title}))
