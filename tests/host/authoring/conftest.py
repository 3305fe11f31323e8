"""The command line in this process, with a home and a folder of its own."""

from __future__ import annotations

import asyncio
import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from moryflow import open_host
from moryflow.cli import main

NOT_OURS = ("MORYFLOW_CONFIG", "MORYFLOW_MODEL", "MORYFLOW_PLUGINS", "MORYFLOW_SAFE_MODE", "MORYFLOW_STRICT")


@dataclass(frozen=True)
class Printed:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Desk:
    """Somebody at their desk: a home, a folder, and ``moryflow``."""

    home: Path
    vault: Path
    unseen: bool = False

    def __call__(self, *arguments: str) -> Printed:
        if self.unseen:
            self._settle()
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, Path(os.devnull).open(encoding="utf-8") as nothing:
            patch.chdir(self.vault)
            patch.setenv("MORYFLOW_HOME", str(self.home))
            for name in NOT_OURS:
                patch.delenv(name, raising=False)
            patch.setattr("sys.stdin", nothing)
            with redirect_stdout(out), redirect_stderr(err):
                code = main(list(arguments))
        return Printed(code, out.getvalue(), err.getvalue())

    def plugin(self, name: str, source: str) -> Path:
        """Write a plugin of the user's own."""
        folder = self.home / "plugins"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.unseen = True
        return self.write(folder / f"{name}.py", dedent(source))

    def write(self, path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        return path

    def turn(self, *turns: Any, prompt: str = "go", again: bool = False) -> Printed:
        """Run one turn with a scripted model."""
        script = self.write(self.vault.parent / "script.json", json.dumps(turns))
        return self("run", *(["-c"] if again else []), "-m", f"script:{script}", "-q", prompt)

    def _settle(self) -> None:
        """Wait for the probe of what was not seen before; on a busy machine it may take longer than a host waits."""
        self.unseen = False
        for _ in range(20):
            if not asyncio.run(self._pending()):
                break

    async def _pending(self) -> bool:
        async with await open_host(self.home, environ={}) as host:
            return any(record.status == "pending" for record in host.plugin_set.records)


def _desk(root: Path) -> Desk:
    desk = Desk(root / "home", root / "vault")
    desk.home.mkdir(mode=0o700)
    desk.vault.mkdir()
    return desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A desk with an empty home and an empty folder."""
    return _desk(tmp_path)


@pytest.fixture(scope="module")
def shared_desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """One for the tests of a module that only look."""
    return _desk(tmp_path_factory.mktemp("shared"))
