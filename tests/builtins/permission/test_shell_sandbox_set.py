"""Commands that only the sandbox holds, run in the real one: what they did is looked up on the disk and at a listener."""

from __future__ import annotations

import logging
import secrets
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from moryflow.services.files import VaultFiles
from moryflow.services.paths import resolve_target
from moryflow_builtins.shell import bash
from moryflow_builtins.shell.protected import Search
from moryflow_builtins.shell.run import run
from moryflow_sdk import Denied, ToolCall
from moryflow_sdk.support.sandbox import find_sandbox

pytestmark = pytest.mark.skipif(
    find_sandbox() is None, reason="no working bubblewrap on this machine (install bubblewrap, or moryflow[sandbox])"
)
DATA = Path(__file__).parents[2] / "data" / "permission" / "shell_sandbox.txt"
COMMANDS = [line.replace("␤", "\n") for line in DATA.read_text("utf-8").splitlines() if not line.startswith("# ")]
SECRET = "TOP-CANARY-SECRET"
PARTS = 4


class Place:
    """A vault, a home with secrets, a folder outside, and a port that nobody may reach."""

    def __init__(self, root: Path, port: int) -> None:
        self.vault, self.home, self.outside, self.port = root / "vault", root / "home", root / "outside", port
        files = {
            "vault/.env": SECRET, "vault/deep/.aws/credentials": SECRET, "vault/plain.txt": "plain", "vault/a": "a",
            "vault/.github/workflows/ci.yml": "on: push", "vault/.husky/pre-commit": "true", "vault/src/a.py": "1",
            "home/.ssh/id_ed25519": SECRET, "home/.bashrc": "true", "home/.moryflow/config.jsonc": "{}",
            "home/.moryflow/server.token": SECRET, "home/.moryflow/x": "x", "outside/kept": "kept",
        }  # fmt: skip
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        subprocess.run(["git", "init", "-q", str(self.vault)], check=True)

    def elsewhere(self) -> dict[str, bytes]:
        """What is outside the vault, file by file, without what the host itself keeps: what runs, what it put aside."""
        found = [
            path
            for folder in (self.home, self.outside)
            for path in folder.rglob("*")
            if not {"running", "aside"} & set(path.parts)
        ]
        return {f"{path} {path.lstat().st_mode:o}": path.read_bytes() if path.is_file() else b"" for path in found}

    def runs_later(self) -> dict[str, bytes]:
        """What runs later in the vault, file by file."""
        found: dict[str, bytes] = {}
        for path, entry in Search(str(self.vault)).before().guarded.items():
            below = () if entry.kind == "repository" else sorted((self.vault / path).rglob("*"))
            found |= {str(file): file.read_bytes() if file.is_file() else b"" for file in (self.vault / path, *below)}
        return found

    def context(self, command: str) -> Any:
        """What ``bash`` needs; nobody answers a question of its body."""
        home = self.home / ".moryflow"
        files = VaultFiles(self.vault, home, home)
        targets = tuple(resolve_target(request, lambda: files) for request in bash.target_requests({"command": command}))

        async def ask(question: Any) -> None:
            raise Denied("the user refused this call")

        return SimpleNamespace(
            vault=self.vault, home=home, data_dir=home, files=files, watched=(), agent=SimpleNamespace(rules=()),
            call=ToolCall(id="c", tool="bash", args={}, targets=targets), rules=SimpleNamespace(all=list),
            mark=secrets.token_hex(8), progress=lambda _: None, log=logging.getLogger("moryflow.plugin.shell"), ask=ask,
        )  # fmt: skip


@pytest.fixture
def reached() -> Iterator[tuple[int, list[str]]]:
    """A port, and who connected to it."""
    came: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        over = threading.Event()

        def accept() -> None:
            while not over.is_set():
                try:
                    connection, address = listener.accept()
                except TimeoutError:
                    continue
                came.append(str(address))
                connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        yield listener.getsockname()[1], came
        over.set()
        thread.join()


@pytest.mark.parametrize("part", range(PARTS))
async def test_no_command_of_the_set_gets_out_of_the_sandbox(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: tuple[int, list[str]]
) -> None:
    """No write outside the vault, to the home or to what runs later; no secret read, no connection (S0.36, R14, R21, R34)."""
    port, came = reached
    escaped: list[str] = []
    for number, written in enumerate(COMMANDS[part::PARTS]):
        place = Place(tmp_path / str(number), port)
        monkeypatch.setenv("HOME", str(place.home))
        before, later = place.elsewhere(), place.runs_later()
        command = written.replace("{home}", str(place.home)).replace("{port}", str(port))
        result = await run(place.context(command), 30)
        gone = {path: text for path, text in later.items() if place.runs_later().get(path) != text and Path(path).exists()}
        new = sorted(place.runs_later().keys() - later.keys())
        changed = sorted({path for path, _ in place.elsewhere().items() ^ before.items()})
        if changed or gone or new or SECRET in result.output or came:
            escaped.append(f"{command}: {changed or gone or new or came or result.output[:200]}")
        came.clear()
    assert escaped == [], "\n".join(escaped)
