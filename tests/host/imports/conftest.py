"""A home with what other systems keep, and ``moryflow import`` run in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked_command
import pytest


@dataclass
class Person:
    """Somebody's home, a project in it, and the command line."""

    home: Path
    project: Path

    @property
    def config(self) -> Path:
        return self.home / ".moryflow" / "config.jsonc"

    def write(self, name: str, content: Any) -> Path:
        """Write a file of the home; what is no text becomes JSON."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    def lines(self, name: str, *values: Any) -> Path:
        """Write a file with JSON Lines."""
        return self.write(name, "".join(value if isinstance(value, str) else f"{json.dumps(value)}\n" for value in values))

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run ``moryflow`` in the project."""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        environ = {**kept, "HOME": str(self.home), "MORYFLOW_HOME": str(self.home / ".moryflow")}
        done = forked_command.run([sys.executable, "-m", "moryflow", *words], cwd=self.project, env=environ, text=True)
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        """Run ``moryflow`` and return the document that it prints."""
        return json.loads(self.run(*words, "--json", "-q", code=code).stdout)


@pytest.fixture
def person(tmp_path: Path) -> Person:
    """An empty home with a project."""
    home, project = tmp_path / "u", tmp_path / "u" / "proj"
    project.mkdir(parents=True)
    (home / ".moryflow").mkdir(mode=0o700)
    return Person(home, project)
