"""A real ``moryflow acp`` in a process of its own, and a client of a few lines that holds every message against the schema.

The schema is the official one, out of the npm package of the protocol; without npm the messages are not compared.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

SDK = "@agentclientprotocol/sdk@2.4.0"
PATIENCE = 60.0
"""Seconds after which a wait has failed, on the slowest machine."""

ASKING = """
from moryflow_sdk import *
import asyncio, os, sys
from pathlib import Path

print("a plugin prints at import")
os.write(1, b"and past Python\\n")

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
    print("a plugin prints in a tool", sys.stdin.read())
    with Path({folder!r}, "did").open("a") as file:
        file.write(what)
    return "did " + what

@hookimpl
def chat_system(system):
    print("a plugin prints in a hook")

@hookimpl
def tools():
    return [hold, danger]
"""


@cache
def schema() -> dict[str, Any]:
    """Return the definitions of the official schema; nothing where it cannot be had."""
    folder = Path(tempfile.gettempdir(), f"moryflow-acp-schema-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    file = folder / f"{SDK.rpartition('@')[2]}.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists() and shutil.which("npm"):
            subprocess.run(["npm", "pack", "--silent", SDK], cwd=folder, capture_output=True, check=False, timeout=120)
            for archive in folder.glob("*.tgz"):
                with tarfile.open(archive) as found:
                    member = found.extractfile("package/schema/v1/schema.json")
                    assert member is not None
                    file.write_bytes(member.read())
                archive.unlink()
    return json.loads(file.read_text())["$defs"] if file.exists() else {}


@cache
def checker(name: str) -> Any:
    """Return what holds a message against the definition `name`."""
    from jsonschema import Draft202012Validator

    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema()})


def name_of(method: str, ending: str) -> str:
    """Return the definition of what a method takes or returns."""
    return next(name for name, one in schema().items() if one.get("x-method") == method and name.endswith(ending))


@dataclass
class Client:
    """One editor. Questions are answered by `answer`, requests for files by `files`; without an answer they stay open."""

    process: subprocess.Popen[bytes]
    errors: Path
    answer: Callable[[dict[str, Any]], Any] = lambda request: {"outcome": {"outcome": "cancelled"}}
    files: Callable[[dict[str, Any]], Any] = lambda request: None
    seen: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    raw: list[bytes] = field(default_factory=list[bytes])
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _methods: dict[Any, str] = field(default_factory=dict[Any, str])
    _queue: queue.Queue[dict[str, Any] | None] = field(default_factory=queue.Queue[dict[str, Any] | None])
    _number: int = 100

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.raw.append(line)
            self._queue.put(json.loads(line))
        self._queue.put(None)

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, method: str, params: Any = None, *, notify: bool = False) -> int:
        """Send a request, or a notification; return its id."""
        self._number += 1
        self._methods[self._number] = method
        head = {"jsonrpc": "2.0", **({} if notify else {"id": self._number}), "method": method}
        self.write(json.dumps(head if params is None else {**head, "params": params}).encode() + b"\n")
        return self._number

    def notify(self, method: str, params: Any) -> None:
        """Send a notification."""
        self.send(method, params, notify=True)

    def next(self) -> dict[str, Any] | None:
        """Return the next message, checked; ``None`` at the end. Questions are answered on the way."""
        message = self._queue.get(timeout=PATIENCE)
        if message is None:
            return None
        self.seen.append(message)
        self._check(message)
        if message.get("method") == "session/request_permission":
            self.asked.append(message)
            answer = self.answer(message)
            self._reply(message, answer)
        elif str(message.get("method")).startswith("fs/"):
            self.asked.append(message)
            self._reply(message, self.files(message))
        return message

    def _reply(self, message: dict[str, Any], result: Any) -> None:
        if result is None:
            return
        if isinstance(result, Exception):
            said: dict[str, Any] = {"error": {"code": -32603, "message": str(result)}}
        else:
            said = {"result": result}
            if schema() and str(message["method"]).startswith("fs/"):
                checker(name_of(message["method"], "Response")).validate(result)
        self.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}).encode() + b"\n")

    def _check(self, message: dict[str, Any]) -> None:
        assert message["jsonrpc"] == "2.0"
        if not schema():
            return
        if "method" in message:
            method = message["method"]
            checker(name_of(method, "Request" if "id" in message else "Notification")).validate(message["params"])
        elif "error" in message:
            checker("Error").validate(message["error"])
        else:
            checker(name_of(self._methods[message["id"]], "Response")).validate(message["result"])

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the next message that is wanted."""
        while (message := self.next()) is not None:
            if wanted(message):
                return message
        raise AssertionError(f"the agent ended: {self.errors.read_text()[-2000:]}\n{self.seen[-5:]}")

    def reply(self, number: int | None) -> dict[str, Any]:
        """Return the answer to a request."""
        return self.until(lambda message: "method" not in message and message["id"] == number)

    def ask(self, method: str, params: Any) -> Any:
        """Send a request and return its result."""
        reply = self.reply(self.send(method, params))
        assert "result" in reply, reply
        return reply["result"]

    def fail(self, method: str, params: Any) -> dict[str, Any]:
        """Send a request and return its error."""
        reply = self.reply(self.send(method, params))
        assert "error" in reply, reply
        return reply["error"]

    def begin(self, **capabilities: Any) -> Any:
        """Send ``initialize``."""
        return self.ask("initialize", {"protocolVersion": 1, "clientCapabilities": capabilities})

    def new(self, vault: Path) -> str:
        """Begin a session and return its id."""
        return str(self.ask("session/new", {"cwd": str(vault), "mcpServers": []})["sessionId"])

    def session(self, vault: Path, *answers: Any) -> str:
        """Begin a session whose model gives these answers; return its id."""
        session = self.new(vault)
        script = vault.parent / f"answers-{session}.json"
        script.write_text(json.dumps(answers))
        self.ask("session/set_config_option", {"sessionId": session, "configId": "model", "value": f"script:{script}"})
        return session

    def prompt(self, session: str, text: str = "Go on.") -> str:
        """Run a turn and return its stop reason."""
        return str(self.ask("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]})["stopReason"])

    def send_prompt(self, session: str, text: str = "Go on.") -> int:
        """Begin a turn and return the id of the request."""
        return self.send("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]})

    def updates(self, kind: str = "") -> list[dict[str, Any]]:
        """Return the updates seen so far, or those of a kind."""
        found = [message["params"]["update"] for message in self.seen if message.get("method") == "session/update"]
        return [one for one in found if kind in ("", one["sessionUpdate"])]

    def said(self) -> str:
        """Return the text of the answers so far."""
        return "".join(one["content"]["text"] for one in self.updates("agent_message_chunk"))

    def end(self) -> int:
        """Close standard input and return the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        while self.next() is not None:
            pass
        return self.process.wait(PATIENCE)

    def kill(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


def choosing(kind: str) -> Callable[[dict[str, Any]], Any]:
    """Return what answers each question with the option of this kind."""

    def answer(request: dict[str, Any]) -> Any:
        option = next(one["optionId"] for one in request["params"]["options"] if one["kind"] == kind)
        return {"outcome": {"outcome": "selected", "optionId": option}}

    return answer


@dataclass
class Place:
    """A home, a folder to work in, and what starts agents in them."""

    home: Path
    vault: Path
    files: Path
    clients: list[Client] = field(default_factory=list[Client])

    def start(self, *answers: Any, flags: tuple[str, ...] = ()) -> Client:
        """Start an agent whose model gives these answers."""
        script = self.home.parent / f"answers{len(self.clients)}.json"
        script.write_text(json.dumps(answers))
        errors = self.home.parent / f"errors{len(self.clients)}"
        model = ("-m", f"script:{script}") if answers else ()
        with errors.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "moryflow", "acp", *model, *flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "MORYFLOW_HOME": str(self.home)},
                cwd=self.home.parent,
            )
        self.clients.append(Client(process, errors))
        return self.clients[-1]

    def ready(self, *answers: Any, **capabilities: Any) -> tuple[Client, str]:
        """Start an agent, and a session in the folder."""
        client = self.start(*answers)
        client.begin(**capabilities)
        return client, client.new(self.vault)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A place; its agents are ended with the test."""
    with made_place(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Client]]:
    """One place and one agent for the tests of a module that do not harm them."""
    with made_place(tmp_path_factory.mktemp("shared")) as found:
        client = found.start("unused")
        client.begin()
        yield found, client
        assert client.process.poll() is None, client.errors.read_text()[-2000:]


@pytest.fixture
def client(shared: tuple[Place, Client]) -> Client:
    """The shared agent, with nothing seen yet."""
    client = shared[1]
    client.seen.clear()
    client.asked.clear()
    client.answer = choosing("allow_once")
    return client


@pytest.fixture
def vault(shared: tuple[Place, Client], tmp_path: Path) -> Path:
    """A folder of its own."""
    folder = tmp_path / "vault"
    folder.mkdir()
    return folder


@contextmanager
def made_place(folder: Path) -> Iterator[Place]:
    """Make a place; its agents are ended in the end."""
    found = Place(folder / "home", folder / "vault", folder / "files")
    found.files.mkdir()
    found.vault.mkdir()
    (found.home / "plugins").mkdir(parents=True)
    (found.home / "plugins" / "asking.py").write_text(ASKING.format(folder=str(found.files)))
    yield found
    for client in found.clients:
        client.process.kill()
        client.process.wait()
        for stream in (client.process.stdin, client.process.stdout):
            assert stream is not None
            stream.close()
