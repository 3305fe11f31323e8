"""A vault, a home, and what a person does with undo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import forked_command
import pytest
from moryflow import RunOptions, open_host

ALLOW = [{"domain": domain, "pattern": "*", "decision": "allow"} for domain in ("read", "edit", "bash", "tool", "task")]


class Desk:
    """A vault, a home, and what a person does."""

    def __init__(self, base: Path) -> None:
        self.home, self.vault = base / "home", base / "vault"
        self.home.mkdir(mode=0o700)
        self.vault.mkdir()
        self.config()

    def config(self, **snapshots) -> None:
        file = self.home / "config.jsonc"
        runtime = {"permission": {"rules": ALLOW}, "snapshots": snapshots}
        file.write_text(json.dumps({"agents": {"runtime": runtime}, "disabledPlugins": ["litellm_models"]}), "utf-8")
        file.chmod(0o600)

    async def turn(self, *answers, prompt="go", session=None, environ=None, events=None, watch=None, settle=False):
        """Run a prompt; return the session's id.

        :param watch: sees each event before the plugins do; `settle` waits for children in the background.
        """
        script = self.home.parent / "script.json"
        script.write_text(json.dumps(list(answers)), "utf-8")
        async with await open_host(self.home, environ=environ or {"PATH": os.environ["PATH"]}) as host:
            if events is not None:
                host.bus.subscribe(events.append)
            if watch is not None:
                host.bus.subscribe(watch)
            if session:
                opened = await host.resume(self.vault, session, model=f"script:{script}")
            else:
                opened = await host.new_session(self.vault, model=f"script:{script}")
            result = await opened.prompt(prompt, options=RunOptions(on_ask="deny"))
            assert result.end_reason == "completed", result
            if settle:
                await opened.children.settled()
            return opened.id

    def cli(self, *words: str, code: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the real program."""
        env = {**os.environ, "MORYFLOW_HOME": str(self.home), **environ}
        done = forked_command.run([sys.executable, "-m", "moryflow", *words], cwd=self.vault, env=env, text=True)
        assert done.returncode == code, done.stderr
        return done

    def shell(self, command: str) -> str:
        """Run a command as the person would; return what it prints."""
        return subprocess.run(command, shell=True, cwd=self.vault, capture_output=True, text=True, check=True).stdout

    def texts(self, session: str) -> list[str]:
        """What the conversation's prompts say."""
        shown = json.loads(self.cli("session", "show", session, "--json").stdout)
        return [node["payload"]["text"] for node in shown["nodes"] if node["kind"] == "user"]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)
