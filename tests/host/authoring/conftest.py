"""The command line in this process, with a home and a folder of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from moryflow.cli import main


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
    read: Callable[[], tuple[str, str]]

    def __call__(self, *arguments: str) -> Printed:
        code = main(list(arguments))
        return Printed(code, *self.read())

    def plugin(self, name: str, source: str) -> Path:
        """Write a plugin of the user's own."""
        folder = self.home / "plugins"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.write(folder / f"{name}.py", dedent(source))

    def write(self, path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        return path

    def configure(self, **settings: Any) -> None:
        self.write(self.home / "config.jsonc", json.dumps(settings))

    def turn(self, *turns: Any, prompt: str = "go", again: bool = False) -> Printed:
        """Run one turn with a scripted model."""
        script = self.write(self.vault.parent / "script.json", json.dumps(turns))
        return self("run", *(["-c"] if again else []), "-m", f"script:{script}", "-q", prompt)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    """A desk with an empty home and an empty folder, which is the current one."""
    home, vault = tmp_path / "home", tmp_path / "vault"
    home.mkdir(mode=0o700)
    vault.mkdir()
    monkeypatch.chdir(vault)
    monkeypatch.setenv("MORYFLOW_HOME", str(home))
    for name in ("MORYFLOW_CONFIG", "MORYFLOW_MODEL", "MORYFLOW_PLUGINS", "MORYFLOW_SAFE_MODE", "MORYFLOW_STRICT"):
        monkeypatch.delenv(name, raising=False)
    with Path(os.devnull).open(encoding="utf-8") as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        yield Desk(home, vault, lambda: tuple(capsys.readouterr()))
