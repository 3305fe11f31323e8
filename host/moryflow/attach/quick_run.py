"""``moryflow run --attach`` where no terminal shows the turn: the start takes a third of what the whole command line would.

Everything unusual goes to :mod:`moryflow.cli`: options that are in no table here, and whatever has to be explained to a
person.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from . import home_of, is_address, wanted
from .turn import AttachedTurn, TurnOrder, opened
from .wire import NoServer, RunningServer, ServerRefusal, find

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VALUED = {
    "-m": "model", "--model": "model", "--agent": "agent", "--mode": "mode", "--vault": "vault", "--output": "output",
    "--format": "output", "--on-ask": "on_ask",
}  # fmt: skip
SWITCHES = {"-c": "again", "--continue": "again", "-q": "quiet", "--quiet": "quiet", "-y": "yes", "--yes": "yes"}
SETTINGS = (
    "MORYFLOW_CONFIG", "MORYFLOW_PLUGINS", "MORYFLOW_SAFE_MODE", "MORYFLOW_STRICT", "MORYFLOW_TRACE", "MEMORY_BANK_GUARD_MODE",
)  # fmt: skip
"""Variables that configure the process which runs turns: a server has its own."""
INSIDE_TOOL = "MORYFLOW_CALL"
OUTPUTS = ("text", "json", "stream-json")


class Quick(NamedTuple):
    """What a command line says, as far as it is understood here."""

    prompt: str = ""
    attach: str | None = None
    model: str | None = None
    agent: str | None = None
    mode: str | None = None
    vault: str = "."
    output: str = "text"
    on_ask: str | None = None
    again: bool = False
    quiet: bool = False
    yes: bool = False


class AnswerView(Protocol):
    """What says what goes wrong in a turn, and how it ended if it did not simply complete."""

    def __call__(self, document: dict[str, Any]) -> None:
        """Take an event."""

    def finish(self, result: Mapping[str, Any]) -> int:
        """Print the result and return the exit code."""
        ...


class FullCommandLine(Protocol):
    """What is left to the command line, which takes long to import."""

    def view(self, output: str, *, quiet: bool) -> AnswerView: ...

    def refused(self, error: ServerRefusal) -> int:
        """Say why the server refused, and return the exit code."""
        ...

    def unwritten(self, error: OSError) -> int:
        """Say that standard output cannot be written, and return the exit code."""
        ...


def run(arguments: list[str], cli: Callable[[], FullCommandLine]) -> int | None:
    """Run a turn in a server and return the exit code; ``None``: the command line has to.

    :param cli: imports the command line.
    """
    said = _read(arguments)
    if said is None or _is_unusual(said):
        return None
    if said.attach is None and not wanted():
        return None
    try:
        server = find(home_of(os.environ), said.attach or "")
    except ServerRefusal:
        return None  # the command line says so, or does without a server
    if server.traces and not said.quiet:
        return None
    return _Run(server, said, cli).whole()


def _read(arguments: list[str]) -> Quick | None:
    """Return what `arguments` say; nothing where a flag is not one of the few that are known here."""
    given: dict[str, Any] = {}
    words = iter(arguments[1:])
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--attach":
            given["attach"] = ""
        elif name in VALUED:
            given[VALUED[name]] = value if equals else next(words, None)
        elif name in SWITCHES and not equals:
            given[SWITCHES[name]] = True
        elif word == "--json":
            given.setdefault("output", "json")
        elif word.startswith("-") or "prompt" in given or is_address(word):
            return None
        else:
            given["prompt"] = word
    usual = given.get("prompt", "").strip() and None not in given.values() and given.get("output", "text") in OUTPUTS
    return Quick(**given) if usual else None


def _is_unusual(said: Quick) -> bool:
    """Whether a person has to be shown or asked something, text is piped in, or what is asked for is not a server's."""
    try:
        shown = said.output == "text" and (os.isatty(1) or os.isatty(2))
        piped = not (os.isatty(0) or stat.S_ISCHR(os.fstat(0).st_mode))
        plain = sys.stdout.encoding == "utf-8" == sys.stderr.encoding
    except (OSError, AttributeError):  # a stream was closed
        return True
    settings = any(name in os.environ for name in (*SETTINGS, INSIDE_TOOL, "_MORYFLOW_COMPLETE"))
    odd = (
        said.mode not in (None, "agent", "full_access" if said.yes else "agent")
        or said.on_ask not in (None, "deny", "fail")
        or said.output not in OUTPUTS
    )
    return shown or piped or not plain or settings or odd


class _Run:
    """One turn, printed when it has ended, or line by line as events."""

    def __init__(self, server: RunningServer, said: Quick, cli: Callable[[], FullCommandLine]) -> None:
        self._server, self._said, self._cli = server, said, cli
        self._turn: AttachedTurn | None = None
        self._view: AnswerView | None = None
        self._seen: list[dict[str, Any]] = []

    def whole(self) -> int:
        """Run it and return the exit code."""
        self._catch_signals()
        try:
            return self._ended(self._ran())
        except ServerRefusal as error:
            return self._cli().refused(error)
        except _Unwritten as error:
            return self._cli().unwritten(error.cause)
        except OSError as error:
            return self._cli().refused(NoServer(self._server.url, f"the server is away: {error.strerror or error}"))

    def _ran(self) -> dict[str, Any]:
        said = self._said
        model = said.model or (None if said.agent else os.environ.get("MORYFLOW_MODEL", "").strip() or None)
        wanted = TurnOrder(
            folder=os.path.realpath(said.vault), text=said.prompt, resume="" if said.again else None, agent=said.agent,
            model=model if not said.again else said.model, mode=said.mode, on_ask=said.on_ask or "deny",
        )  # fmt: skip
        row = opened(self._server, wanted)
        self._turn = turn = AttachedTurn(self._server, row["id"], wanted)
        lines = said.output == "stream-json"
        try:
            if lines:
                _print_line(self._server.ask("GET", f"/sessions/{row['id']}/init"))
            for document in turn.events():
                _print_line(document) if lines else self._show(document)
        except _Unwritten:
            turn.stop()
            raise
        return turn.result

    def _show(self, document: dict[str, Any]) -> None:
        """Say what has to be said of an event; what was said before it is known to the view then."""
        if self._view is not None:
            self._view(document)
            return
        self._seen.append(document)
        if speaks(document):
            self._speak()

    def _speak(self) -> AnswerView:
        self._view = view = self._cli().view(self._said.output, quiet=self._said.quiet)
        for seen in self._seen:
            view(seen)
        return view

    def _ended(self, result: Mapping[str, Any]) -> int:
        """Print the result and return the exit code."""
        output, text = self._said.output, str(result["text"])
        told = result["exit_code"] or any(one["cause"] == "headless" for one in result["denied"])
        if output != "stream-json" and (told or self._view is not None):
            return (self._view or self._speak()).finish(result)
        if output != "text":
            _print_line(result)
        elif text:
            _write(text if text.endswith("\n") else text + "\n")
        return int(result["exit_code"])

    def _catch_signals(self) -> None:
        """Stop the turn at the first signal, and leave at once at the second."""
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]

        def received(*_: object) -> None:
            for number in numbers:
                signal.signal(number, lambda *_: os._exit(130))
            if self._turn is None:
                os._exit(130)
            self._turn.stop()

        for number in numbers:
            signal.signal(number, received)


def speaks(document: Mapping[str, Any]) -> bool:
    """Whether something is said of this event also where no terminal is."""
    kind = str(document["type"])
    if kind == "session.status":
        return document.get("status") == "retry" or bool(document.get("answered"))
    return kind in ("error", "plugin.failed", "plugin.quarantined") or kind.endswith(".notice")


def _print_line(document: Mapping[str, Any]) -> None:
    _write(json.dumps(document, ensure_ascii=False) + "\n")


def _write(text: str) -> None:
    data = memoryview(text.encode("utf-8", "backslashreplace"))
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError as error:
        raise _Unwritten(error) from None


class _Unwritten(Exception):
    """Standard output took no more."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause
