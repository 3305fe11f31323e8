"""Workers in processes of their own, on a real PostgreSQL, with a model that needs no network and tools that count outside."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import forked_command
from moryflow.runtime.session import new_turn_id
from moryflow.store import open_store
from moryflow.store.postgres.inbox import Inbox
from moryflow.store.postgres.store import PostgresStore, inbox_of

T = TypeVar("T")
Worker = forked_command.Running | subprocess.Popen[bytes]
RULES = [{"domain": "bash", "pattern": "*", "decision": "allow"}]
MORYFLOW = [sys.executable, "-m", "moryflow"]

PLUGIN = '''
import asyncio, json, os
from moryflow_sdk import *

class Steps(BaseProvider):
    """``steps:N``: call the tool `work` N times, one after another, then say done; ``asks:N``: `danger` in its place.

    ``types:N``: write N pieces of text, two a second.
    """
    name = "steps"
    prefixes = ("steps:", "asks:", "again:", "types:")

    def find(self, model):
        kind, _, count = model.partition(":")
        return ModelInfo(id=model, name=model, provider="steps", context_window=128_000) if count.isdigit() else None

    async def stream(self, request):
        kind, _, count = request.model.name.partition(":")
        prompts = [at for at, message in enumerate(request.messages) if message.role == "user"]
        after = request.messages[prompts[-1]:]
        done = sum(message.role == "tool" for message in after)
        mark = after[0].text.split()[-1]
        if kind == "types" and request.purpose != "title":
            yield ReasoningDelta(text="hm")
            for number in range(int(count)):
                yield TextDelta(text=f"{number} é𝄞 ")
                await asyncio.sleep(0.5)
            yield Finished(reason="stop", usage=Usage(input=10, output=1))
            return
        if request.purpose == "title" or done >= int(count):
            yield TextDelta(text="done")
            yield Finished(reason="stop", usage=Usage(input=10, output=1))
            return
        name = {"asks": "danger", "again": "again"}.get(kind, "work")
        call = ToolRequest(id=f"c{prompts[-1]}_{done}", name=name, arguments=json.dumps({"step": done + 1, "mark": mark}))
        yield Finished(reason="tool_calls", tool_calls=(call,), usage=Usage(input=10, output=1))

def note(mark, step):
    with open(OUTSIDE, "a") as file:
        file.write(f"{mark} {step} {os.getpid()}\\n")

@tool(domain="bash", timeout=60)
async def work(step: int, mark: str) -> str:
    "Count a side effect outside."
    await asyncio.sleep(PAUSE / 2)
    note(mark, step)
    await asyncio.sleep(PAUSE / 2)
    return f"step {step}"

@tool(domain="bash", retry_safe=True, timeout=60)
async def again(step: int, mark: str, context: ToolContext) -> str:
    "Count a side effect under its key."
    note(mark + ":" + context.call.id, step)
    await asyncio.sleep(PAUSE)
    return f"step {step}"

@tool
async def danger(step: int, mark: str) -> str:
    "Do something that is asked about."
    note(mark, step)
    return f"danger {step}"

@hookimpl
def models():
    return [Steps()]

@hookimpl
def tools():
    return [work, again, danger]
'''


@dataclass
class ClusterRig:
    """A home, a vault, a database and any number of workers.

    :ivar outside: the file in which the tools count what they did: mark, step, process.
    """

    home: Path
    vault: Path
    url: str
    lease: float = 2.0
    pause: float = 0.0
    workers: list[Worker] = field(default_factory=list[Worker])

    def __post_init__(self) -> None:
        self.outside = self.home.parent / "outside"
        self.outside.touch()
        self.vault.mkdir(exist_ok=True, parents=True)
        (self.home / "plugins").mkdir(parents=True, exist_ok=True, mode=0o700)
        source = f"OUTSIDE, PAUSE = {str(self.outside)!r}, {self.pause}\n{PLUGIN}"
        self._write(self.home / "plugins" / "steps.py", source)
        self._write(
            self.home / "config.jsonc",
            json.dumps(
                {"store": {"url": self.url, "lease": self.lease}, "agents": {"runtime": {"permission": {"rules": RULES}}}}
            ),
        )
        self.store = open_store(self.home, url=self.url, patience=10.0)
        assert isinstance(self.store, PostgresStore)
        inbox = inbox_of(self.store)
        assert inbox is not None
        self.inbox: Inbox = inbox

    @staticmethod
    def _write(file: Path, text: str) -> None:
        file.write_text(text, encoding="utf-8")
        file.chmod(0o600)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MORYFLOW_")}
        return {**kept, "MORYFLOW_HOME": str(self.home), "PYTHONUNBUFFERED": "1"}

    def worker(self, *arguments: str) -> Worker:
        """Start a worker: a process of its own, whose imports are forked."""
        log = os.open(self.home.parent / f"worker{len(self.workers)}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        streams = [os.open(os.devnull, os.O_RDONLY), log, os.dup(log)]
        started = forked_command.start([*MORYFLOW, "worker", *arguments], streams, cwd=self.vault, env=self.environment)
        self.workers.append(started)
        return started

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Moryflow to its end."""
        return subprocess.run(
            [*MORYFLOW, *arguments], capture_output=True, text=True, env=self.environment, check=False, cwd=self.vault
        )

    async def ask(
        self, text: str, model: str = "steps:3", session: str = "", owner: str = "", **options: Any
    ) -> tuple[str, str]:
        """Ask for a turn as a server does; return the session and the turn."""
        if not session:
            session = (await self.store.create(vault=str(self.vault), agent="build", mode="agent", model=model)).id
        body = {"prompt": {"text": text}, "options": {"on_ask": "prompt", **options}, "leave": True}
        if owner:
            await self.inbox.set_owner(session, owner)
        return session, await self.inbox.add(session, new_turn_id(), body, owner=owner)

    async def result(self, turn: str, patience: float = 60.0) -> tuple[str, Any]:
        """Wait for the end of a turn; return its state and its result."""

        async def ended() -> tuple[str, Any] | None:
            return (await self.inbox.ends([turn])).get(turn)

        return await self.until(ended, patience)

    async def until(self, look: Callable[[], Awaitable[T | None]], patience: float = 60.0) -> T:
        """Look until something is found."""
        deadline = time.monotonic() + patience
        while not (found := await look()):
            assert time.monotonic() < deadline, self.logs()
            await asyncio.sleep(0.05)
        return found

    def logs(self) -> str:
        """What the workers said."""
        return "\n".join(file.read_text() for file in sorted(self.home.parent.glob("worker*.log")))

    def effects(self) -> list[tuple[str, int]]:
        """What the tools did, in order."""
        return [(line.split()[0], int(line.split()[1])) for line in self.outside.read_text().splitlines()]

    def close(self) -> None:
        """End the workers and close the store."""
        for worker in self.workers:
            worker.kill()
            worker.wait()
        self.store.close()
