"""``moryflow run --attach`` without a terminal: it starts in a third of the time of the full command line.

Everything unusual is left to :mod:`moryflow.cli`: options that no table here contains, and anything that must be explained
to a person.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from . import home_of, is_address, wanted
from .turn import AttachedTurn, TurnOrder, open_session
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
"""Variables that configure the process that runs turns; a server has its own, so with them this module does not run."""
INSIDE_TOOL = "MORYFLOW_CALL"
OUTPUTS = ("text", "json", "stream-json")


class Quick(NamedTuple):
    """The arguments of a command line that this module understands."""

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
    """Prints the problems of a turn, and how it ended unless it simply completed."""

    def __call__(self, document: dict[str, Any]) -> None:
        """Take an event."""

    def finish(self, result: Mapping[str, Any]) -> int:
        """Print the result and return the exit code."""
        ...


class FullCommandLine(Protocol):
    """The parts of the full command line that this module calls; they take long to import."""

    def view(self, output: str, *, quiet: bool) -> AnswerView: ...

    def refused(self, error: ServerRefusal) -> int:
        """Print why the server refused, and return the exit code."""
        ...

    def unwritten(self, error: OSError) -> int:
        """Print that standard output cannot be written, and return the exit code."""
        ...


def run(arguments: list[str], cli: Callable[[], FullCommandLine]) -> int | None:
    """Run a turn in a server and return the exit code, or ``None`` if the full command line has to run it.

    :param cli: imports the full command line.
    """
    said = _read(arguments)
    if said is None or _is_unusual(said):
        return None
    if said.attach is None and not wanted():
        return None
    try:
        server = find(home_of(os.environ), said.attach or "")
    except ServerRefusal:
        return None  # the full command line reports it, or runs the turn without a server
    if server.traces and not said.quiet:
        return None
    return _Run(server, said, cli).run_turn()


def _read(arguments: list[str]) -> Quick | None:
    """Return the parsed `arguments`, or ``None`` if they contain anything that this module does not know."""
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
    """Whether the full command line is needed: for a terminal, piped input, settings for this process, or unusual options."""
    try:
        shown = said.output == "text" and (os.isatty(1) or os.isatty(2))
        piped = not (os.isatty(0) or stat.S_ISCHR(os.fstat(0).st_mode))
        plain = sys.stdout.encoding == "utf-8" == sys.stderr.encoding
    except (OSError, AttributeError):  # a stream was closed
        return True
    settings = any(name in os.environ for name in (*SETTINGS, INSIDE_TOOL, "_MORYFLOW_COMPLETE"))
    odd = said.mode not in (None, "agent", "full_access" if said.yes else "agent") or said.on_ask not in (None, "deny", "fail")
    return shown or piped or not plain or settings or odd


class _Run:
    """Runs one turn and prints its result at the end, or its events line by line."""

    def __init__(self, server: RunningServer, said: Quick, cli: Callable[[], FullCommandLine]) -> None:
        self._server, self._said, self._cli = server, said, cli
        self._turn: AttachedTurn | None = None
        self._view: AnswerView | None = None
        self._seen: list[dict[str, Any]] = []

    def run_turn(self) -> int:
        self._catch_signals()
        try:
            return self._print_result(self._follow_turn())
        except ServerRefusal as error:
            return self._cli().refused(error)
        except _Unwritten as error:
            return self._cli().unwritten(error.cause)
        except OSError as error:
            return self._cli().refused(NoServer(self._server.url, f"the server does not answer: {error.strerror or error}"))

    def _follow_turn(self) -> dict[str, Any]:
        said = self._said
        model = said.model or (None if said.agent else os.environ.get("MORYFLOW_MODEL", "").strip() or None)
        wanted = TurnOrder(
            folder=os.path.realpath(said.vault), text=said.prompt, resume="" if said.again else None, agent=said.agent,
            model=model if not said.again else said.model, mode=said.mode, on_ask=said.on_ask or "deny",
        )  # fmt: skip
        row = open_session(self._server, wanted)
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
        """Pass an event to the view. The first event that must be reported creates it, with all events before."""
        if self._view is not None:
            self._view(document)
            return
        self._seen.append(document)
        if must_be_reported(document):
            self._open_view()

    def _open_view(self) -> AnswerView:
        self._view = view = self._cli().view(self._said.output, quiet=self._said.quiet)
        for seen in self._seen:
            view(seen)
        return view

    def _print_result(self, result: Mapping[str, Any]) -> int:
        output, text = self._said.output, str(result["text"])
        must_explain = result["exit_code"] or any(one["cause"] == "headless" for one in result["denied"])
        if output != "stream-json" and (must_explain or self._view is not None):
            return (self._view or self._open_view()).finish(result)
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


def must_be_reported(document: Mapping[str, Any]) -> bool:
    """Whether an event must be reported even without a terminal: a problem, a notice, a retry, or a wait after the answer."""
    kind = str(document["type"])
    if kind == "session.status":
        return document.get("status") == "retry" or bool(document.get("answered"))
    if kind == "compaction":
        return document.get("state") == "failed"
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
    """Standard output could not be written."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause
