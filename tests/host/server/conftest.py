"""A real ``moryflow serve`` in a process of its own, a client of a few lines, and its page in a real Chromium."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forked_command
import pytest
from forked_command import Running

MORYFLOW = [sys.executable, "-m", "moryflow"]
PATIENCE = 60.0
"""Seconds after which a wait has failed, on the slowest machine."""

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--host-resolver-rules=MAP evil.test 127.0.0.1, MAP rebind.test 127.0.0.1"]
ASKS = {"text": "I ask first.", "calls": [{"name": "danger", "arguments": {"what": "a thing"}}]}

HOLDING = """
from moryflow_sdk import *
import asyncio
from pathlib import Path

@tool(domain="read", timeout=500)
async def hold(name: str = "go") -> str:
    "Wait until a file is there."
    Path({folder!r}, name + ".begun").touch()
    while not Path({folder!r}, name).exists():
        await asyncio.sleep(0.01)
    return "let go"

@tool(domain="bash")
def danger(what: str) -> str:
    "Do something that is asked about."
    Path({folder!r}, "did").write_text(what)
    return "did " + what

@tool(domain="read")
def lengthy(text: str, times: int) -> str:
    "Say something often."
    return (text + chr(10)) * times

@hookimpl
def tools():
    return [hold, danger, lengthy]
"""


@dataclass
class Reply:
    """What came back."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)


@dataclass
class Stream:
    """An open stream of events."""

    reply: http.client.HTTPResponse
    seen: list[dict[str, Any]] = field(default_factory=list)
    last_id: int | None = None

    def frames(self) -> Iterator[dict[str, Any]]:
        """Yield events as they come, each with ``_id`` where the frame had one; end where the stream ends."""
        found: dict[str, str] = {}
        while line := self.reply.fp.readline():
            text = line.decode().rstrip("\r\n")
            if text and not text.startswith(":"):
                name, _, value = text.partition(": ")
                found[name] = value
            elif not text and "data" in found:
                event = json.loads(found["data"])
                if "id" in found:
                    self.last_id = event["_id"] = int(found["id"])
                found = {}
                self.seen.append(event)
                yield event

    def until(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Return the next event of a type and with these fields."""
        for event in self.frames():
            if event["type"] == kind and fields.items() <= event.items():
                return event
        raise AssertionError(f"the stream ended before {kind}: {[event['type'] for event in self.seen]}")

    def close(self) -> None:
        self.reply.close()


@dataclass
class Server:
    """One server, its process and its address."""

    home: Path
    vault: Path
    process: Running | subprocess.Popen[bytes]
    said: dict[str, Any]

    @property
    def port(self) -> int:
        return int(self.said["url"].rpartition(":")[2])

    @property
    def token(self) -> str:
        return Path(self.said["token_file"]).read_text().strip()

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None) -> Reply:
        """Send a request with the token, a body as JSON unless it is bytes; a header set to an empty text is left out."""
        given = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", **(headers or {})}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection = self.connection()
        try:
            connection.request(method, path, data, {name: value for name, value in given.items() if value})
            reply = connection.getresponse()
            return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """Return the JSON of a path, which must be there."""
        reply = self.ask("GET", path)
        assert reply.status == 200, reply.data
        return reply.json

    def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        """Return the JSON of an answer that has this status."""
        reply = self.ask("POST", path, body if body is not None else {})
        assert reply.status == status, reply.data
        return reply.json

    def session(self, *answers: Any, **given: Any) -> str:
        """Begin a session whose model gives these answers; return its id."""
        script = self.vault / f"answers{len(list(self.vault.glob('answers*')))}.json"
        script.write_text(json.dumps(answers))
        return str(self.post("/sessions", {"model": f"script:{script}", **given}, 201)["id"])

    @contextmanager
    def stream(self, path: str = "/events", last_id: int | None = None) -> Iterator[Stream]:
        """Open a stream and read its first event."""
        connection = self.connection()
        last = {} if last_id is None else {"Last-Event-ID": str(last_id)}
        connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}", **last})
        stream = Stream(connection.getresponse())
        assert stream.reply.status == 200, stream.reply.read()
        try:
            yield stream
        finally:
            stream.close()
            connection.close()

    def whole_turn(self, session: str, text: str = "Go on.") -> list[dict[str, Any]]:
        """Run a turn and return its events."""
        with self.stream(f"/sessions/{session}/events") as stream:
            stream.until("open")
            self.post(f"/sessions/{session}/prompt", {"text": text}, 202)
            stream.until("session.status", status="idle", session=session)  # not one of a sub-agent
            return stream.seen[1:]

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a tool that waits for a file in the folder ``files``, and one that is asked about."""
    return made_home(tmp_path)


def made_home(folder: Path) -> Path:
    """Make a home below `folder`, with tools that wait, ask and say much."""
    home = folder / "home"
    (folder / "files").mkdir()
    (home / "plugins").mkdir(parents=True)
    (home / "plugins" / "holding.py").write_text(HOLDING.format(folder=str(folder / "files")))
    return home


@pytest.fixture
def start(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    """Start servers of the home; all are ended with the test."""
    monkeypatch.setenv("MORYFLOW_HOME", str(home))
    with servers(tmp_path, home) as start:
        yield start


@contextmanager
def servers(folder: Path, home: Path) -> Iterator[Callable[..., Server]]:
    """Give a function that starts servers of a home; all are ended in the end."""
    vault = folder / "vault"
    vault.mkdir()
    (vault / "README.md").write_text("# Read me\n")
    begun: list[Server] = []

    def start(*flags: str, port: int = 0, inside: Sequence[str] = ()) -> Server:
        command = [*inside, *MORYFLOW, "serve", "--json", "--port", str(port), "--vault", str(vault), *flags]
        with (folder / f"errors{len(begun)}").open("w") as errors:
            reading, said = os.pipe()
            environ = {**os.environ, "MORYFLOW_HOME": str(home)}
            streams = [os.open(os.devnull, os.O_RDONLY), said, os.dup(errors.fileno())]
            process = forked_command.start(command, streams, cwd=Path.cwd(), env=environ)
        with os.fdopen(reading, encoding="utf-8") as stream:
            line = stream.readline()
        assert line, (folder / f"errors{len(begun)}").read_text()
        begun.append(Server(home, vault, process, json.loads(line)))
        return begun[-1]

    yield start
    for server in begun:
        server.process.kill()
        server.process.wait()


@pytest.fixture
def server(start: Callable[..., Server]) -> Server:
    """A server on a free port."""
    return start()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for tests of a module that do not harm it."""
    folder = tmp_path_factory.mktemp("shared")
    with servers(folder, made_home(folder)) as start:
        yield start()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser of the system's."""
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open tabs; a page error, or a request to anywhere else, fails the test."""
    contexts: list[Any] = []
    wrong: list[str] = []

    def tab(server: Server, session: str = "", **how: Any) -> Any:
        context = browser.new_context(**how)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: _own(request.url) or wrong.append(request.url))
        page.goto(server.post("/codes", {}, 201)["link"])
        # the shell has the list too, before the code of the link is exchanged; on a phone it is there unseen
        page.wait_for_selector(".sessions .new", state="attached")
        if session:
            page.evaluate("id => { location.hash = id; location.reload(); }", session)
            page.wait_for_selector(".composer #message")  # the page before the reload has a #message too
        return page

    yield tab
    for context in contexts:
        context.close()
    assert wrong == []


def _own(address: str) -> bool:
    return re.match(r"(http://(127\.0\.0\.1|localhost):|blob:|data:)", address) is not None


def expect(what: Any) -> Any:
    """Return playwright's assertions about a locator or a page; they wait for what an event, a request or a timer brings."""
    from playwright.sync_api import expect

    return expect(what)


def say(page: Any, text: str) -> None:
    """Type a prompt and send it."""
    page.fill("#message", text)
    page.press("#message", "Enter")


def finished(page: Any, text: str) -> None:
    """Wait for the end of a turn, whose answer has this text."""
    page.locator(".assistant:not(.live) .markdown", has_text=text).last.wait_for()
    expect(page.locator("main > .transcript > .doing")).to_have_count(0)
