"""What the benchmarks share: a home and a vault, processes with their time and memory, and a model server with a clock."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self

from moryflow.testing.replies import Reply

Figure = tuple[str, float, str, float | None]
MODEL = "openai/test-model"


@dataclass(frozen=True)
class Run:
    """A process that has ended: wall time from before its start to its end, processor time, and the most memory it had."""

    ms: float
    cpu_ms: float
    peak_mb: float
    started: float
    output: str


@dataclass
class Place:
    """A home and a vault of their own, with the environment that leads there."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home = self.root / "home"
        self.vault = self.root / "vault"
        self.home.mkdir(mode=0o700)
        self.vault.mkdir()
        (self.vault / "notes.md").write_text("# Notes\n\nA few words.\n", encoding="utf-8")
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        self.environ = {**kept, "HOME": str(self.root), "MORYFLOW_HOME": str(self.home), **self.environ}

    def configure(self, **settings: Any) -> None:
        """Write the configuration."""
        file = self.home / "config.jsonc"
        file.write_text(json.dumps(settings), encoding="utf-8")
        file.chmod(0o600)

    def use(self, server: ModelServer) -> None:
        """Let the OpenAI service be `server`."""
        self.environ |= {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-loopback-benchmark"}

    def run(self, *command: str) -> Run:
        """Run a command here and wait for it.

        :raises RuntimeError: it failed; the message is what it printed.
        """
        # The peak is what the kernel says of the child; spawning from a small process keeps it the child's own.
        with tempfile.TemporaryFile() as out:
            started = time.perf_counter()
            child = subprocess.Popen(
                command, env=self.environ, cwd=self.vault, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
            _, status, usage = os.wait4(child.pid, 0)
            ms = (time.perf_counter() - started) * 1000
            child.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            text = out.read().decode("utf-8", "replace")
        if child.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit code {child.returncode}: {text[-2000:]}")
        unit = 1024 if sys.platform != "darwin" else 1024 * 1024
        return Run(ms, (usage.ru_utime + usage.ru_stime) * 1000, usage.ru_maxrss / unit, started, text)


@contextlib.contextmanager
def place() -> Iterator[Place]:
    """A place that is removed at the end."""
    root = Path(tempfile.mkdtemp(prefix="moryflow-bench-")).resolve()
    try:
        yield Place(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def command() -> str:
    """The installed command, as a user types it."""
    beside = Path(sys.executable).with_name("moryflow")
    found = str(beside) if beside.exists() else shutil.which("moryflow")
    if not found:
        raise RuntimeError("moryflow is not installed in this environment: python3 -m pip install -e '.[dev]'")
    return found


def repeated(times: int, measure: Callable[[], float]) -> float:
    """The median of several measurements, after one that does not count."""
    measure()
    return median(measure() for _ in range(times))


class ModelServer:
    """Answers chat-completion requests from raw sockets and notes when each request had come and each answer had gone.

    It parses nothing but lengths, so that what it measures is the client.

    :param answer: the reply to request number `n`, counted from 1.
    """

    def __init__(self, answer: Callable[[int], Reply]) -> None:
        self.came: list[float] = []
        self.went: list[float] = []
        self.sizes: list[int] = []
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def gap(self, step: int) -> float:
        """Milliseconds from the end of answer number `step` to the whole of the next request."""
        return (self.came[step] - self.went[step - 1]) * 1000

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            waiting = b""
            while True:
                while b"\r\n\r\n" not in waiting:
                    piece = connection.recv(1 << 18)
                    if not piece:
                        return
                    waiting += piece
                head, _, body = waiting.partition(b"\r\n\r\n")
                missing = _length(head) - len(body)
                while missing > 0:
                    missing -= len(connection.recv(1 << 18))
                self.came.append(time.perf_counter())
                self.sizes.append(_length(head))
                connection.sendall(_encoded(self._answer(len(self.came))))
                self.went.append(time.perf_counter())
                waiting = b""


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


def _encoded(reply: Reply) -> bytes:
    body = reply.body if isinstance(reply.body, bytes) else b"".join(reply.body)
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
