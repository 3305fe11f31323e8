"""One session passes on every service: tools, parallel calls, reasoning, image, summary, title, schema, resume."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "data" / "services"))

from strict import RULES, SERVICES, SIGNATURE, StrictAnthropic, StrictServer

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
ODD_TOOL = """
from moryflow_sdk import tool

@tool
def pair(p: tuple[int, str], tags: list | None = None) -> str:
    "A pair."
    return str(p)
"""


def configure(cli: Any, *servers: StrictServer, **more: Any) -> None:
    providers = {
        SERVICES[server.service].provider: {
            "baseUrl": server.url,
            "apiKey": "k",
            "models": {SERVICES[server.service].model: {"contextWindow": 40_000, "images": True}},
        }
        for server in servers
    }
    runtime = {"tools": {"external": {"enabled": True}}, "titles": {"model": "session"}}
    cli.config(models={"providers": providers}, agents={"runtime": runtime}, **more)
    (cli.home / "tools").mkdir(exist_ok=True)
    (cli.home / "tools" / "pair.py").write_text(ODD_TOOL, encoding="utf-8")
    (cli.vault / "dot.png").write_bytes(PNG)


def model_of(service: str) -> str:
    return f"{SERVICES[service].provider}/{SERVICES[service].model}"


def succeeds(cli: Any, *words: str) -> str:
    done = cli(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def whole_session(cli: Any, server: StrictServer, model: str, saved: Path) -> None:
    """Images, effort, a schema, two calls at once, a summary, a fork, an export and an import, all with one service."""
    assert succeeds(cli, "run", "-m", model, "-f", "dot.png", "--effort", "high", "look at this") == "all done\n"
    assert succeeds(cli, "run", "-c", "look again") == "all done\n"
    assert json.loads(succeeds(cli, "run", "-c", "how many?", "--schema", json.dumps(SCHEMA))) == {"n": 1}
    for word in ("one", "two", "three", "four"):
        succeeds(cli, "run", "-c", f"{word} {'and so on ' * 600}")
    succeeds(cli, "session", "compact")
    assert succeeds(cli, "run", "-c", "look once more") == "all done\n"
    succeeds(cli, "session", "fork")
    assert succeeds(cli, "run", "-c", "look in the fork") == "all done\n"
    succeeds(cli, "session", "export", "--to", str(saved))
    succeeds(cli, "session", "import", str(saved))
    assert succeeds(cli, "run", "-c", "look after the import") == "all done\n"


@pytest.mark.parametrize("service", [name for name in SERVICES if name != "anthropic"])
def test_one_session_passes_on_every_service(cli: Any, service: str, tmp_path: Path) -> None:
    """What a service wants back goes back, what it refuses is not sent again (S4.6, S0.24, S0.79)."""
    with StrictServer(service) as server:
        configure(cli, server)
        whole_session(cli, server, model_of(service), tmp_path / "s.jsonl")
        if SERVICES[service].reasoning in ("extra_content", "reasoning_details", "thinking_blocks"):
            assert SIGNATURE in json.dumps(server.bodies[-1]["messages"])
        summary = next(body for body in server.bodies if "You write the record" in json.dumps(body["messages"]))
        assert summary.keys() <= {"model", "stream", "stream_options", "messages"}


@pytest.mark.slow
def test_one_session_passes_at_anthropic_through_litellm(cli: Any, tmp_path: Path) -> None:
    """Signed thinking goes back with each call, also after a fork and an import (S4.6, S0.24)."""
    with StrictAnthropic("anthropic") as server:
        configure(cli, server, disabledPlugins=[])
        cli.environ["ANTHROPIC_API_KEY"] = "k"
        whole_session(cli, server, model_of("anthropic"), tmp_path / "s.jsonl")
        assert SIGNATURE in json.dumps(server.bodies[-1]["messages"])
        assert server.refused == []


@pytest.mark.parametrize("later", ["deepseek", "kimi", "gemini", "groq", "mistral", "bedrock"])
def test_a_session_that_began_at_one_service_goes_on_at_another(cli: Any, later: str) -> None:
    """What the first added is not sent to the second, which gets what it needs all the same (S4.6)."""
    with StrictServer("openrouter") as first, StrictServer(later) as second:
        configure(cli, first, second)
        succeeds(cli, "run", "-m", model_of("openrouter"), "look")
        assert succeeds(cli, "run", "-c", "-m", model_of(later), "look") == "all done\n"
        assert SIGNATURE not in json.dumps(second.bodies[0]["messages"])


def test_every_rule_has_a_source() -> None:
    """A rule is what somebody saw (R2)."""
    assert all(rule.source.startswith("https://") and rule.services for rule in RULES)
