"""One turn in a server: begin it, follow it across broken connections, stop it, and return its result.

:class:`SessionFollower` follows a session between its turns in the same way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from .wire import NoServer, RunningServer, ServerRefusal, find

PAUSES = (0.1, 0.3, 1.0, 2.0, 3.0, 4.0)
"""Seconds between tries to reach a server that does not answer; after the last try the turn counts as interrupted."""


class TurnOrder(NamedTuple):
    """The turn to run: the flags of ``run``, and the folder.

    :ivar text: the prompt; ``None`` continues what an earlier turn left open.
    :ivar resume: the session to continue; ``""`` for the last one of the folder, ``None`` for a new one.
    :ivar wait: how many seconds to wait for a busy session.
    :ivar background: ``wait`` for sub-agents in the background before the turn ends, or ``leave`` them at work.
    """

    folder: str
    text: str | None = None
    files: tuple[Mapping[str, str], ...] = ()
    images: tuple[Mapping[str, str], ...] = ()
    typed: int | None = None
    resume: str | None = None
    agent: str | None = None
    model: str | None = None
    mode: str | None = None
    on_ask: str = "deny"
    max_steps: int | None = None
    max_cost: float | None = None
    effort: str | None = None
    schema: Mapping[str, Any] | None = None
    wait: float | None = None
    background: str = "wait"


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to send with a turn: all but Moryflow's own and those that are not valid Unicode."""
    return {name: value for name, value in environ.items() if not name.startswith("MORYFLOW_") and _is_text(name + value)}


def quoted(text: str) -> str:
    """Return a text quoted for a URL; :func:`urllib.parse.quote` does the same, but takes long to import."""
    return "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"%{byte:02X}" for byte in os.fsencode(text))


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def open_session(server: RunningServer, wanted: TurnOrder) -> dict[str, Any]:
    """Create the session, or find the one to continue, and set its agent, model and mode; return its row.

    :raises ServerRefusal: the server refuses, or there is no such session.
    """
    changes = {name: getattr(wanted, name) for name in ("agent", "model", "mode") if getattr(wanted, name) is not None}
    if wanted.mode == "full_access":
        changes["confirm"] = True
    if wanted.resume is None:
        return server.ask("POST", "/sessions", {"vault": wanted.folder, **changes})
    if wanted.resume:
        row = server.ask("GET", f"/sessions/{quoted(wanted.resume)}?limit=1")
    else:
        found = server.ask("GET", f"/sessions?limit=1&vault={quoted(wanted.folder)}")
        if not found:
            raise ServerRefusal(404, "config", f"no session of {wanted.folder} to continue", "", "moryflow session list")
        row = found[0]
    if changes.get("mode") == row["mode"]:
        del changes["mode"]
    return server.ask("PATCH", f"/sessions/{row['id']}", changes) if changes else row


class AttachedTurn:
    """A turn that runs in a server.

    :param seen: the id of the last event that the caller knows; later events are yielded first.
    :ivar result: the ``result`` object, once :meth:`events` has ended.
    :ivar broken: how often the connection broke; deltas that were missed then are not sent again.
    :ivar server: the server that was found last; it may have been restarted at another address.
    """

    def __init__(self, server: RunningServer, session: str, wanted: TurnOrder, seen: int | None = None) -> None:
        self.server, self.session, self._wanted = server, session, wanted
        self.turn = ""
        self.result: dict[str, Any] = {}
        self.broken = 0
        self._seen = seen
        self._ended: dict[str, Any] | None = None
        self._key = os.urandom(12).hex()
        self._waits = self._stopped = False
        self._answer_text = ""

    def events(self) -> Iterator[dict[str, Any]]:
        """Begin the turn and yield its events and those of its sub-agents, until its result has arrived.

        :raises ServerRefusal: the server refuses, or went away before it confirmed the prompt.
        """
        while not self.result:
            try:
                yield from self._follow_turn()
            except OSError:
                pass
            except ServerRefusal as error:
                if not self.turn or error.status not in (0, 429, 503):
                    raise
            if not self.result:
                self._reconnect()

    def _follow_turn(self) -> Iterator[dict[str, Any]]:
        for number, document in self.server.events(self.session, self._seen):
            kind = document["type"]
            if kind == "open" and not self.turn:
                self._seen = number
                self.turn = self._send_prompt()
                if self._stopped and self.turn:
                    self._cancel()
            elif kind in ("open", "reset"):
                if self.broken and self._ended is not None:
                    self._fetch()
            elif kind in ("result", "turn.failed") and document.get("turn") == self.turn:
                self._settle(document)
            elif kind not in ("result", "turn.failed"):
                self._seen = number or self._seen
                self._note(document)
                yield document
                if self.broken and self._ended is not None and kind == "session.status":
                    self._fetch()
            if self.result:
                return

    @property
    def missed(self) -> bool:
        """Whether the connection broke and parts of the answer were missed, because deltas are not sent again."""
        return bool(self.broken) and self._answer_text.strip() != str(self.result.get("text", "")).strip()

    def _note(self, document: Mapping[str, Any]) -> None:
        if document["type"] in ("message.start", "text.delta") and document["session"] == self.session:
            self._answer_text = self._answer_text + document["text"] if document["type"] == "text.delta" else ""
        if document["type"] == "turn.finish" and document.get("turn") == self.turn and document["session"] == self.session:
            self._ended = dict(document)

    def _settle(self, document: dict[str, Any]) -> None:
        """Take the result from the turn's final event.

        :raises ServerRefusal: the turn failed.
        """
        if document["type"] == "turn.failed":
            raise ServerRefusal(
                500, str(document["code"]), document["message"], document.get("where", ""), document.get("next", "")
            )
        self.result = {name: value for name, value in document.items() if name != "turn"}

    def _fetch(self) -> None:
        """Request the result, since its event may have come while the connection was broken."""
        self.result = self.server.ask("GET", f"/sessions/{self.session}/turns/{self.turn}", wait=True)

    def _send_prompt(self) -> str:
        """Send the prompt or the request to continue; return the turn's id."""
        wanted = self._wanted
        body: dict[str, Any] = {"on_ask": wanted.on_ask, "environment": environment(os.environ)}
        body |= {"max_steps": wanted.max_steps, "max_cost": wanted.max_cost, "schema": wanted.schema, "effort": wanted.effort}
        body["background"] = wanted.background
        if wanted.text is not None:
            body |= {"text": wanted.text, "files": wanted.files, "images": wanted.images, "typed": wanted.typed}
        path = f"/sessions/{self.session}/{'resume' if wanted.text is None else 'prompt'}"
        return self._send_when_free(path, {name: value for name, value in body.items() if value is not None})

    def _send_when_free(self, path: str, body: dict[str, Any]) -> str:
        """Send a prompt until the server accepts it; wait for a busy session as long as the order allows."""
        until = time.monotonic() + (self._wanted.wait or 0.0)
        while True:
            try:
                begun = self.server.ask("POST", path, body, key=self._key)
                if begun["turn"] is None:  # the text was a slash command
                    self.result = self._result_without_turn("completed", begun["text"], {})
                return str(begun["turn"] or "")
            except ServerRefusal as error:
                if error.code != "busy" or time.monotonic() >= until or self._stopped:
                    raise
            self._waits = True
            time.sleep(0.2)

    def _reconnect(self) -> None:
        """Find the server again; if it was restarted or is gone, take the turn as interrupted."""
        until = time.monotonic() + (PAUSES[self.broken] if self.broken < len(PAUSES) else 0.0)
        while not self._stopped and time.monotonic() < until:
            time.sleep(0.05)
        if self.broken >= len(PAUSES) or self._stopped:
            self.result = self._interrupted()
            return
        self.broken += 1
        before = self.server
        try:
            self.server = find(before.home, before.url if self.broken == 1 else "")
            if self.turn and before.process not in (0, self.server.process):
                self.result = self._interrupted()
        except ServerRefusal:
            if self.broken >= len(PAUSES) or not os.path.exists(f"{before.home}/server/running.json"):  # noqa: PTH110
                self.result = self._interrupted()

    def _interrupted(self) -> dict[str, Any]:
        """Return the result of a turn whose server has ended: the stored one from a new server, or one from the events seen.

        :raises NoServer: the server never confirmed the prompt.
        """
        if not self.turn:
            raise NoServer(self.server.url, "the server went away and did not say that it has the prompt")
        try:
            return self.server.ask("GET", f"/sessions/{self.session}/turns/{self.turn}")
        except (OSError, ServerRefusal):
            ended = self._ended or {}
        return self._result_without_turn(ended.get("end_reason") or "interrupted", "", ended)

    def _result_without_turn(self, reason: str, text: str, ended: Mapping[str, Any]) -> dict[str, Any]:
        """Return a result that the server did not send: of a command, or as far as the events of a turn tell."""
        code = {"completed": 0, "interrupted": 130, "stopped": 130}.get(reason, 1)
        return {
            "v": 1, "type": "result", "ts": ended.get("ts", ""), "status": "failed" if code else "completed",
            "end_reason": reason, "finish": "", "exit_code": code, "text": text,
            "usage": dict.fromkeys(("input", "output", "cached"), 0), "cost": ended.get("cost"),
            "steps": ended.get("steps") or 0, "denied": [], "session": self.session,
        }  # fmt: skip

    def stop(self) -> None:
        """Stop the turn and its sub-agents; what they have so far is kept. Stop waiting for a server that does not answer."""
        self._stopped = True
        if not self._waits or self.turn:  # while it waits, the running turn is somebody else's
            self._cancel()

    def _cancel(self) -> None:
        with suppress(OSError, ServerRefusal):
            self.server.ask("POST", f"/sessions/{self.session}/cancel", {})


PAUSE = 1.0
"""Seconds between two tries to reach a server that does not answer."""


class SessionFollower:
    """Follows the events of a session and its server until it is closed.

    :param tell: called with each event, in the thread that runs :meth:`run`.
    """

    def __init__(self, server: RunningServer, session: str, tell: Callable[[dict[str, Any]], None]) -> None:
        self._server, self._session, self._tell = server, session, tell
        self._place: int | None = None
        self._closed = False

    def close(self) -> None:
        """Pass on no more events. The thread ends at the next line from the server, at the latest at a heartbeat."""
        self._closed = True

    def run(self) -> None:
        """Follow the events, and block until closed."""
        while not self._closed:
            with suppress(OSError, ServerRefusal):
                self._follow()
            if not self._closed:
                time.sleep(PAUSE)
                self._find_again()

    def _follow(self) -> None:
        events = self._server.events(self._session, self._place, of_server=True, ended=lambda: self._closed)
        for number, document in events:
            self._place = self._place if number is None else number
            self._tell(document)

    def _find_again(self) -> None:
        for url in (self._server.url, ""):
            with suppress(ServerRefusal):  # it does not answer; the next try may find it
                self._server = find(self._server.home, url)
                return
