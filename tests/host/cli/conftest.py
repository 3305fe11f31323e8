"""The real command in a process of its own, with a temporary home; and the same at a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import forked_command
import pytest

NOT_NEEDED = ["files", "search", "shell", "local_model", "litellm_models"]
"""Built-in plugins that these tests do without, so that a process starts faster."""

DEMO = """
from moryflow_sdk import *
import time

@tool(domain="read")
def hello(name: str, times: int = 1, loud: bool = False, tags: list[str] | None = None) -> str:
    \"\"\"Say hello to NAME.\"\"\"
    text = f"Hello, {name}! " * times + ",".join(tags or [])
    return text.upper() if loud else text

@tool(domain="bash")
def danger(what: str) -> str:
    \"\"\"Do something that is asked about.\"\"\"
    return "did " + what

@tool(domain="read")
def slow(seconds: float = 30.0) -> str:
    \"\"\"Take long.\"\"\"
    time.sleep(seconds)
    return "woke up"

@hookimpl
def tools():
    return [hello, danger, slow]
"""


HOLDING = """
from moryflow_sdk import *
import asyncio
from pathlib import Path

@tool(domain="read", timeout=500)
async def hold() -> str:
    "Wait."
    Path({begun!r}).touch()
    while not Path({go!r}).exists():
        await asyncio.sleep(0.01)
    return "let go"

@hookimpl
def tools():
    return [hold]
"""


ONE_TOOL = """
from moryflow_sdk import *

@tool(domain="read")
def {name}({parameters}) -> str:
    "Say something."
    {body}

@hookimpl
def tools():
    return [{name}]
"""
ROWS = r'return "\n".join(f"row {number}" for number in range(start, start + 40))'


@dataclass
class Cli:
    """Runs ``moryflow``; nothing in it is a mock."""

    home: Path
    vault: Path
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("MORYFLOW", "OPENAI", "ANTHROPIC"))}
        return {**kept, "MORYFLOW_HOME": str(self.home), **self.environ}

    def __call__(self, *arguments: str, stdin: str | bytes | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        source: dict[str, Any] = {"stdin": subprocess.DEVNULL} if data is None else {"input": data}
        command = [sys.executable, "-m", "moryflow", *arguments]
        done = forked_command.run(command, cwd=self.vault, env=self.env, **source, **options)
        out, err = (stream.decode("utf-8", "backslashreplace") for stream in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(command, done.returncode, out, err)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Begin a command and return while it runs."""
        command = [sys.executable, "-m", "moryflow", *arguments]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(command, cwd=self.vault, env=self.env, text=True, **{**pipes, **options})

    def terminal(self, *arguments: str, columns: int = 100, shell: bool = False) -> Terminal:
        """Begin a command at a terminal, or below a shell there that says `fg` once it is stopped."""
        command = [sys.executable, "-m", "moryflow", *arguments]
        if shell:
            command = ["sh", "-c", ': <"$(tty)"; set -m; "$@"; fg', "sh", *command]  # opened by name, it has job control
        size = {"COLUMNS": str(columns), "LINES": "40"}
        return Terminal(command, self.vault, {**self.env, "TERM": "xterm-256color", **size, **self.environ}, columns)

    def config(self, **settings: Any) -> Path:
        """Write the user's file."""
        file = self.home / "config.jsonc"
        file.write_text(json.dumps({"disabledPlugins": NOT_NEEDED, **settings}, indent=2), "utf-8")
        return file

    def rules(self, *given: tuple[str, str, str]) -> None:
        """Write permission rules."""
        rules = [dict(zip(("domain", "pattern", "decision"), rule, strict=True)) for rule in given]
        self.config(agents={"runtime": {"permission": {"rules": rules}}})

    def plugin(self, name: str, source: str) -> Path:
        """Write a user plugin."""
        file = self.home / "plugins" / f"{name}.py"
        file.parent.mkdir(mode=0o700, exist_ok=True)
        file.write_text(dedent(source), "utf-8")
        file.chmod(0o600)
        return file

    def tool(self, name: str, body: str, parameters: str = "") -> None:
        """Write a user plugin with one tool of the same name, whose code is `body`."""
        self.plugin(name, ONE_TOOL.format(name=name, body=body, parameters=parameters))

    def listing(self, *starts: int) -> dict[str, Any]:
        """Return an answer with a call for each of `starts`; each call lists forty rows, from ``row {start}`` on."""
        self.tool("lister", ROWS, "start: int")
        return {"calls": [{"name": "lister", "arguments": {"start": start}} for start in starts]}

    def holding(self) -> dict[str, Any]:
        """Return a call that lasts until :meth:`let_go`; :meth:`holds` says whether it runs."""
        self.plugin("holding", HOLDING.format(begun=str(self._mark("holds")), go=str(self._mark("go"))))
        return self.calls("hold")

    def holds(self) -> bool:
        return self._mark("holds").exists()

    def let_go(self) -> None:
        self._mark("go").touch()

    def _mark(self, name: str) -> Path:
        return self.vault.parent / name

    def script(self, *turns: Any) -> str:
        """Write what the model will say; return the model's name."""
        file = self.vault.parent / "script.json"
        file.write_text(json.dumps(list(turns)), "utf-8")
        return f"script:{file}"

    def prompts(self, *session: str) -> list[str]:
        """What the person asked in a session, or in the last one, in order."""
        nodes = json.loads(self("session", "show", *session, "--json").stdout)["nodes"]
        return [node["payload"]["text"] for node in nodes if node["kind"] == "user"]

    def calls(self, *names: str, **arguments: Any) -> dict[str, Any]:
        """A model's answer that calls tools, all with the same arguments."""
        return {"calls": [{"name": name, "arguments": arguments} for name in names]}


def wait_until_it_waits(pid: int) -> None:
    """Return when the main thread of a process sleeps in a system call, at three looks in a row.

    A signal that comes just before a call that blocks is heard of after it: Python looks between two instructions.
    """
    state, looks = Path(f"/proc/{pid}/stat"), 0
    while looks < 3:
        time.sleep(0.05)
        looks = looks + 1 if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "S" else 0


class Terminal:
    """A process at a pseudo-terminal: what it shows, what is typed."""

    def __init__(self, command: list[str], cwd: Path, env: dict[str, str], columns: int = 100) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self._process = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, close_fds=True
        )
        os.close(slave)
        self.raw = ""
        self._seen = 0

    @property
    def text(self) -> str:
        """What was shown, without the terminal's own control sequences."""
        return re.sub(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[=>])", "", self.raw).replace("\r", "")

    def expect(self, wanted: str, within: float = 60.0) -> None:
        """Wait until `wanted` was shown, after what was waited for before."""
        deadline = time.monotonic() + within
        while (found := self.text.find(wanted, self._seen)) < 0:
            assert time.monotonic() < deadline, f"{wanted!r} did not appear in:\n{self.text}"
            if not self._read(0.2) and self._process.poll() is not None and self.text.find(wanted, self._seen) < 0:
                raise AssertionError(f"ended with {self._process.returncode} before {wanted!r}:\n{self.text}")
        self._seen = found + len(wanted)

    def _read(self, wait: float) -> bool:
        if not select.select([self._master], [], [], wait)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self.raw += data.decode("utf-8", "replace")
        # A real terminal answers when it is asked where the cursor is; prompt_toolkit asks.
        for _ in range(data.count(b"\x1b[6n")):
            os.write(self._master, b"\x1b[1;1R")
        return bool(data)

    def type(self, text: str) -> None:
        """Type `text`."""
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        """Send what Ctrl-C sends."""
        os.killpg(self._process.pid, signal.SIGINT)

    @property
    def descriptor(self) -> int:
        """The terminal's own end, by which its modes can be changed."""
        return self._master

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.killpg(self._process.pid, number)

    def stop(self) -> None:
        """Stop the process, as a shell does after Ctrl-Z."""
        os.killpg(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        """Let it go on, as `fg` does."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def resize(self, columns: int) -> None:
        """Change the width."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def wait_until_it_waits(self) -> None:
        """Return when nothing goes on but waiting."""
        wait_until_it_waits(self._process.pid)

    def rest(self, seconds: float) -> None:
        """Do nothing for so long but take in what is shown."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._read(left)

    def end(self, within: float = 90.0) -> int:
        """Wait for the end; return the exit code."""
        deadline = time.monotonic() + within
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"it did not end:\n{self.text}"
            self._read(0.1)
        while self._read(0.05):
            pass
        return self._process.returncode

    def quit(self) -> int:
        """Type the command that ends a conversation; return the exit code."""
        self.type("/quit\r")
        return self.end()

    def close(self) -> None:
        """Make sure that nothing is left."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._master >= 0:
            os.close(self._master)

    def hang_up(self) -> None:
        """Take the terminal away, and wait for the end."""
        os.close(self._master)
        self._master = -1
        self._process.wait(200)


@pytest.fixture(name="wait_until_it_waits")
def _wait_until_it_waits() -> Callable[[int], None]:
    return wait_until_it_waits


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """A command line with a home and a vault of its own, and three tools."""
    home, vault = tmp_path / "home", tmp_path / "vault"
    home.mkdir(mode=0o700)
    vault.mkdir()
    made = Cli(home, vault)
    made.rules(("read", "*", "allow"))
    made.plugin("demo", DEMO)
    return made


@pytest.fixture
def at_terminal(cli: Cli) -> Iterator[Callable[..., Terminal]]:
    """Begin a command at a terminal; it is closed when the test has ended."""
    opened: list[Terminal] = []

    def begin(*arguments: str, **how: Any) -> Terminal:
        opened.append(cli.terminal(*arguments, **how))
        return opened[-1]

    yield begin
    for terminal in opened:
        terminal.close()


@pytest.fixture
def at_prompt(at_terminal: Callable[..., Terminal]) -> Callable[..., Terminal]:
    """Begin a conversation at a terminal, and wait for its prompt."""

    def begin(*arguments: str, **how: Any) -> Terminal:
        terminal = at_terminal("chat", *arguments, **how)
        terminal.expect("\n>")
        return terminal

    return begin
