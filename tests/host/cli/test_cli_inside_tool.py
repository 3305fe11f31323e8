"""The program, started by a tool: what a person decides it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
from moryflow.cli.options import DECISIONS
from moryflow_builtins.permission.shell.tables import OWN_CHANGES as CHANGES

MARK = {"MORYFLOW_CALL": "c1-0a1b2c3d"}


@pytest.mark.parametrize(
    "line",
    [
        "permission allow bash sudo",
        "permission deny bash rm",
        "config set language zh",
        "config prompt reset",
        "plugin install x",
        "plugin key set x api_key",
        "approval reply a1 always",
        "tool allow x.py",
        "serve --port 0",
        "run --mode full_access -y hello",
        "run --config {} hello",
        "run hello --until true",
        "eval cases.yaml",
        "import claude --apply",
        "plugin marketplace add .",
        "plugin check x.py --host 1",
        "tool run ls --mode full_access -y",
    ],
)
def test_a_decision_is_refused_inside_a_tool(cli: Any, line: str) -> None:
    """Exit code 2, one sentence, and nothing is written (R38)."""
    cli.environ = MARK
    file = cli.home / "config.jsonc"
    before = file.read_bytes() if file.exists() else None
    done = cli(*line.split())
    assert done.returncode == 2 and "was started by a tool" in done.stderr and "Traceback" not in done.stderr
    assert (file.read_bytes() if file.exists() else None) == before


@pytest.mark.parametrize("line", ["permission rules", "config show", "plugin list", "permission allow --help", "--version"])
def test_what_only_looks_works_inside_a_tool(cli: Any, line: str) -> None:
    """A tool may look at rules, settings and plugins (R38)."""
    cli.environ = MARK
    assert cli(*line.split()).returncode == 0


def test_gate_and_program_refuse_the_same_commands() -> None:
    """What the gate refuses of this program, the program refuses by itself; the gate knows more, of plugins' commands (R38)."""
    short = {words.replace("config prompt", "prompt").replace("plugin marketplace", "marketplace") for words in CHANGES}
    ours = {words.removeprefix("session ").removeprefix("serve ") for words in short}
    of_plugins = {words for words in ours if words.startswith(("permission ", "mcp "))}
    assert ours - of_plugins - {"plugin rm", "schedule rm", "plugin key set"} == DECISIONS - {"key set"}
