"""A server's tool is a tool like any other: its results are cut, its calls are audited, and it runs in no circles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .conftest import Servers, settings_of

ECHO = "mcp__good__echo"
ALLOWED = {"domain": "mcp", "pattern": "mcp:good/*", "decision": "allow"}


def call(text: str) -> dict[str, Any]:
    return {"calls": [{"name": ECHO, "arguments": {"text": text}}]}


def results(servers: Servers) -> list[dict[str, Any]]:
    return [dict(event.data) for event in servers.events if event.type == "tool.result"]


def test_results_are_cut_calls_audited_and_circles_stopped(servers: Servers) -> None:
    """No other path leads to a tool of a server (S0.50, S0.61, S0.74, issue 19)."""
    servers.configure({"agents": {"runtime": {"permission": {"rules": [ALLOWED]}}}})
    servers.review({"good": settings_of("good")})
    text = "".join(f"line {number}\n" for number in range(1, 3001))

    assert servers.run("say it", [call(text), "said"]).end_reason == "completed"
    (result,) = results(servers)
    assert result["truncated"] and "[Output truncated: the first 2,000 of 3,000 lines, " in result["output"]
    assert Path(result["path"]).read_text() == text and Path(result["path"]).parent == servers.vault / ".agent-output"

    servers.events.clear()
    assert servers.run("say it again", [call("again")] * 6).end_reason == "doom_loop"
    assert f"{ECHO} was called 5 times in a row with the same arguments" in results(servers)[-1]["output"]

    audited = [json.loads(line) for line in servers.command("audit", "tail", "--json").splitlines()]
    decided = [(line["tool"], line["permissionDomain"], line["decision"], line["rulePattern"]) for line in audited]
    assert decided == [(ECHO, "mcp", "allow", "mcp:good/*")] * 5 + [(ECHO, "mcp", "stop", None)]
    assert (audited[0]["targets"], audited[-1]["cause"]) == (["mcp:good/echo"], "doom_loop")
    assert f"{ECHO}  mcp:good/echo  (user rule mcp:good/*)" in servers.command("audit", "tail")
