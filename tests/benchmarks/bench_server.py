"""``moryflow serve`` beside 1,000 sessions, 10 running turns and 100 clients: how late an event comes, what it all takes.

Latency is from an event's own time stamp (milliseconds), taken before its commit, to the moment a client has read it.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from measuring import Figure

CLIENTS, TURNS, SESSIONS, CALLS = 100, 10, 1000, 20
WATCHES = 5
"""Clients that read what they get; the others only take it, or this process would be what is measured."""
TOOL = """
from moryflow_sdk import *
import asyncio

@tool(domain="read")
async def tick(number: int) -> str:
    "Wait a little."
    await asyncio.sleep(0.3)
    return "x" * 400

@hookimpl
def tools():
    return [tick]
"""


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure."""
    with tempfile.TemporaryDirectory() as folder:
        home, vault = Path(folder, "home"), Path(folder, "vault")
        (home / "plugins").mkdir(parents=True)
        vault.mkdir()
        (home / "plugins" / "tick.py").write_text(TOOL)
        environ = {**os.environ, "MORYFLOW_HOME": str(home)}
        asyncio.run(_many_sessions(home, vault))
        began = time.perf_counter()
        command = [sys.executable, "-m", "moryflow", "serve", "--json", "--port", "0", "--vault", str(vault)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as server:
            assert server.stdout is not None
            said = json.loads(server.stdout.readline())
            ready = (time.perf_counter() - began) * 1000
            try:
                measured = asyncio.run(_load(said, vault, server.pid))
            finally:
                began = time.perf_counter()
                server.terminate()
                server.wait()
        ended = time.perf_counter() - began
    return [
        ("server: ready", ready, "ms", None),
        ("server: memory, idle", measured["idle"], "MiB", None),
        (f"server: memory, {CLIENTS} clients and {TURNS} turns", measured["loaded"], "MiB", None),
        ("server: what a client that never reads adds", measured["stalled"], "MiB", 1.0),
        ("server: an event reaches a client, median", measured["median"], "ms", 20),
        ("server: an event reaches a client, 99 of 100", measured["late"], "ms", None),
        ("server: GET /sessions (50 of 1,000), median", measured["list"], "ms", None),
        ("server: end with open streams", ended, "s", 3),
    ]


async def _many_sessions(home: Path, vault: Path) -> None:
    from moryflow.store import open_store

    store = open_store(home)
    for number in range(SESSIONS):
        await store.create(vault=str(vault), agent="build", mode="agent", id=f"s{number:04}")
    store.close()


async def _load(said: dict[str, Any], vault: Path, pid: int) -> dict[str, float]:
    port, token = int(said["url"].rpartition(":")[2]), Path(said["token_file"]).read_text().strip()
    late: list[float] = []

    async def ask(method: str, path: str, body: Any = None) -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        data = json.dumps(body).encode() if body is not None else b""
        writer.write(_head(method, path, port, token, len(data)) + data)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        reply = json.loads(await reader.readexactly(length))
        writer.close()
        return reply

    async def follow(watches: bool) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        writer.write(_head("GET", "/events", port, token, 0))
        while not watches and await reader.read(1 << 16):
            pass
        while line := await reader.readline():
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "ts" in event and event["type"] == "tool.result":
                    late.append((time.time() - datetime.fromisoformat(event["ts"]).timestamp()) * 1000)

    idle = _memory(pid)
    sessions = []
    for number in range(TURNS):
        script = vault / f"a{number}.json"
        steps = [{"calls": [{"name": "tick", "arguments": {"number": one}}]} for one in range(CALLS)]
        script.write_text(json.dumps([*steps, "Done."]))
        sessions.append((await ask("POST", "/sessions", {"model": f"script:{script}"}))["id"])
    followers = [asyncio.create_task(follow(number < WATCHES)) for number in range(CLIENTS)]
    await asyncio.sleep(0.5)
    for session in sessions:
        await ask("POST", f"/sessions/{session}/prompt", {"text": "go"})
    lists: list[float] = []
    while not lists or any([(await ask("GET", f"/sessions/{one}?limit=1"))["here"] for one in sessions]):
        began = time.perf_counter()
        await ask("GET", "/sessions")
        lists.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.5)
    loaded = _memory(pid)
    stalled = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
    for _, writer in stalled:
        writer.write(_head("GET", "/events?after=0", port, token, 0))
    await asyncio.sleep(2)
    grown = _memory(pid) - loaded
    for task in followers:
        task.cancel()
    late.sort()
    return {
        "idle": idle, "loaded": loaded, "stalled": max(0.0, grown / len(stalled)), "median": statistics.median(late),
        "late": late[int(len(late) * 0.99)], "list": statistics.median(lists),
    }  # fmt: skip


def _head(method: str, path: str, port: int, token: str, length: int) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Authorization: Bearer {token}"]
    lines += ["Content-Type: application/json", f"Content-Length: {length}", "", ""]
    return "\r\n".join(lines).encode()


def _memory(pid: int) -> float:
    """Return what a process holds, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024
