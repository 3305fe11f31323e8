"""What the tests of the examples share: a home, a vault, and the command line in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import forked_command
import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "user_examples"


@dataclass
class Shell:
    """A user's shell: their home, the folder they stand in, what else is on Python's path."""

    home: Path
    vault: Path
    path: Path | None = None
    environ: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, exit_code: int = 0) -> str:
        """Run ``moryflow`` and return what it printed."""
        environ = {"PATH": os.environ["PATH"], "HOME": str(self.home.parent), "MORYFLOW_HOME": str(self.home), **self.environ}
        if self.path:
            environ["PYTHONPATH"] = str(self.path)
        command = [sys.executable, "-m", "moryflow", *arguments]
        done = forked_command.run(command, env=environ, cwd=self.vault, text=True)
        assert done.returncode == exit_code, done.stdout + done.stderr
        return done.stdout if exit_code == 0 else done.stderr

    def json(self, *arguments: str) -> Any:
        """Run ``moryflow`` and return the document it printed."""
        return json.loads(self.run(*arguments))

    def install(self, example: Path, folder: str) -> None:
        """Copy an example where its docstring says."""
        target = self.home / folder / example.name
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copyfile(example, target)
        target.chmod(0o600)

    def configure(self, **settings: Any) -> None:
        """Write the configuration."""
        file = self.home / "config.jsonc"
        file.write_text(json.dumps(settings), encoding="utf-8")
        file.chmod(0o600)

    def plugin(self, name: str, source: str) -> None:
        """Write a plugin of the user's own."""
        folder = self.home / "plugins"
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
        (folder / f"{name}.py").chmod(0o600)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A shell with an empty home and an empty vault."""
    home, vault = tmp_path / ".moryflow", tmp_path / "vault"
    home.mkdir(mode=0o700)
    vault.mkdir()
    return Shell(home, vault)


@pytest.fixture(scope="session")
def wordcount_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the wordcount plugin, from a copy of its sources."""
    source = tmp_path_factory.mktemp("source") / "moryflow-wordcount"
    shutil.copytree(EXAMPLES / "plugins" / "moryflow-wordcount", source, ignore=shutil.ignore_patterns("__pycache__"))
    site = tmp_path_factory.mktemp("site")
    arguments = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site), str(source)]
    subprocess.run([*pip(), *arguments], check=True, capture_output=True)
    return site


def pip() -> list[str]:
    """The command for pip; the wheel that comes with Python serves environments made without it."""
    if find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    import ensurepip

    wheel = next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    return [sys.executable, f"{wheel}/pip"]
