"""The system prompt and its parameters."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from moryflow.agents import DEFAULT_PROMPT


@pytest.fixture
def run(tmp_path):
    """Run a command with a home of its own."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    environ = {**os.environ, "MORYFLOW_HOME": str(home), "HOME": str(tmp_path)}

    def command(*arguments):
        line = [sys.executable, "-m", "moryflow", *arguments]
        return subprocess.run(
            line, cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    command.home = home
    return command


def test_the_default_mode_shows_the_built_in_prompt_and_no_parameters(run):
    """Default mode: the built-in prompt, the model's own parameters (S0.79, S0.78)."""
    shown = json.loads(run("config", "prompt", "show", "--json").stdout)
    assert shown == {"mode": "default", "text": DEFAULT_PROMPT, "params": {}}


def test_a_prompt_of_ones_own_replaces_and_reset_restores(run, tmp_path):
    """Custom text replaces the default entirely; reset disturbs no other setting (S0.80, S0.81, S0.84)."""
    (run.home / "config.jsonc").write_text('{\n  // mine\n  "language": "zh"\n}\n')
    (run.home / "config.jsonc").chmod(0o600)
    (tmp_path / "mine.md").write_text("You are terse.\n")
    assert run("config", "prompt", "edit", "-f", "mine.md").returncode == 0
    assert run("config", "set", "agents.runtime.prompt.params.temperature", "0.2").returncode == 0
    shown = json.loads(run("config", "prompt", "show", "--json").stdout)
    assert shown == {"mode": "custom", "text": "You are terse.\n", "params": {"temperature": 0.2}}
    assert run("config", "prompt", "reset").returncode == 0
    text = (run.home / "config.jsonc").read_text()
    assert "// mine" in text and '"language": "zh"' in text
    built_in = json.loads(run("config", "prompt", "show", "--json").stdout)
    assert built_in == {"mode": "default", "text": DEFAULT_PROMPT, "params": {}}
    assert json.loads(run("config", "prompt", "reset", "--json").stdout) == {"changed": False}
    assert run("config", "set", "agents.runtime.prompt.mode", "custom").returncode == 0  # what was written is kept
    assert json.loads(run("config", "prompt", "show", "--json").stdout) == shown


def test_the_built_in_prompt_is_short_and_has_no_placeholders():
    """Under 1,500 tokens, the same bytes in every run, nothing dynamic (S0.82)."""
    assert len(DEFAULT_PROMPT) / 4 < 1500
    assert "{{" not in DEFAULT_PROMPT and "{" not in DEFAULT_PROMPT


def test_the_built_in_prompt_names_only_tools_that_exist(run):
    """A tool the prompt speaks of must be there (S0-h)."""
    names = {row["name"] for row in json.loads(run("tool", "list", "--json").stdout)}
    quoted = {word.strip("`") for word in DEFAULT_PROMPT.split() if word.startswith("`")}
    assert quoted <= names
