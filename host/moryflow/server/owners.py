"""Users of a shared store: each has a token of their own, and reads and changes only the sessions that are theirs.

The server's own token is the administrator's and may do everything. What a user asks for is decided here, before the operation
runs, from its path: an operation that is not named here is the administrator's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moryflow.store.postgres.inbox import Inbox
from moryflow.store.protocol import Store, StoreError

from .replies import RequestError
from .tokens import token_hash

if TYPE_CHECKING:
    from starlette.requests import Request


# What shows nothing of anybody.
_FOR_ALL = frozenset({"/health", "/openapi.json", "/agents", "/tools", "/models", "/plugins", "/commands"})
# Lists that are cut down to what is the user's, by the field that names the session.
_LISTS: Mapping[str, str] = {"/approvals": "session", "/search": "session"}
_MAKE = frozenset({"/sessions", "/import"})
# For how many seconds a token is not looked up again; a revoked one works for so long.
_REMEMBERED = 5.0
_MAX_REMEMBERED = 10_000


class Owners:
    """Who may do what at one server."""

    def __init__(self, store: Store, inbox: Inbox) -> None:
        self._store = store
        self._inbox = inbox
        self._known: dict[str, tuple[float, str | None]] = {}

    async def user_of(self, token: str) -> str | None:
        """Return whose token this is, or ``None``."""
        hashed, moment = token_hash(token), time.monotonic()
        known = self._known.get(hashed)
        if known is None or known[0] < moment:
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            known = self._known[hashed] = moment + _REMEMBERED, await self._inbox.user_of(hashed)
        return known[1]

    async def permit(self, path: str, request: Request, user: str) -> None:
        """Refuse what is not the user's.

        :param path: of the operation, as its table has it.
        :raises RequestError: it needs the administrator's token, or is another's: then it looks as if it were not there.
        """
        store = self._store
        sessions: list[str] = []
        if path.startswith("/sessions/{id}"):
            sessions = [(await store.session(request.path_params["id"])).id]
        elif path == "/approvals/{id}":
            sessions = [(await store.approval(request.path_params["id"])).session]
        elif path in ("/outputs/{id}", "/artifacts/{id}"):
            row = await store.artifact(request.path_params["id"])
            sessions = [row.session] if row else []
        elif path == "/events":
            names = [name for name in request.query_params.getlist("session") if name]
            sessions = [(await store.session(name)).id for name in names]
        elif path not in _FOR_ALL and path not in _LISTS and path not in _MAKE:
            raise RequestError(403, "denied", "this needs the administrator's token", "ask who runs the server")
        if path == "/events" and not sessions:
            raise RequestError(403, "denied", "name the sessions to follow", "GET /events?session=ID")
        if sessions and set((await self._inbox.owners(sessions)).values()) != {user}:
            raise StoreError(f"there is no {path.split('/')[1].rstrip('s')} of that id", code="not_found")

    async def own(self, method: str, path: str, reply: Any, user: str) -> Any:
        """Return what of an operation's reply is the user's; a new session becomes theirs."""
        if path in _MAKE and method == "POST":
            await self._inbox.set_owner(reply["id"], user)
        elif path in _LISTS:
            name = _LISTS[path]
            owners = await self._inbox.owners({row[name] for row in reply})
            return [row for row in reply if owners.get(row[name]) == user]
        return reply

    async def sessions_of(self, user: str, limit: int) -> list[str]:
        """Return the ids of a user's sessions, the last used first."""
        return await self._inbox.sessions_of(user, limit)
