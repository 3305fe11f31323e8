"""Where tools would cost much, they are found with ``tool_search``, and what the model was told before stays as it was."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from .conftest import Servers, settings_of


def _tools(*names: str) -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    return [
        {"name": name, "description": f"Does {name.replace('_', ' ')} " + "x" * 400, "inputSchema": schema} for name in names
    ]


def _prepared(servers: Servers, tmp_path: Path, **more: Any) -> None:
    state = tmp_path / "tools.json"
    state.write_text(json.dumps(_tools("create_issue", "list_issues", "merge_branch", "zip_file")))
    servers.review({"hub": settings_of("state", str(state), **more)}, searchAbove=100)


def _call(tool: str, **args: Any) -> dict[str, Any]:
    return {"calls": [{"name": tool, "arguments": args}]}


def test_found_tools_are_called_in_the_same_turn_and_stay(servers: Servers, tmp_path: Path) -> None:
    """The tools of a request begin with those of the request before it, byte for byte (S2.12)."""
    _prepared(servers, tmp_path)
    servers.run(
        "go",
        [
            _call("tool_search", query="zip"),
            _call("mcp__hub__zip_file", text="packed"),
            _call("tool_search", query="create_issue"),
            _call("mcp__hub__create_issue", text="made"),
            "done",
        ],
        session=(session := servers.session()),
    )
    servers.run("again", [_call("mcp__hub__zip_file", text="again"), "done"], session=session)
    outputs = [event.data["output"] for event in servers.events if event.type == "tool.result"]
    assert outputs[1] == "packed" and outputs[3] == "made" and outputs[4] == "again"
    told = [[json.dumps(tool.model_dump(mode="json")) for tool in request.tools] for request in servers.model.requests]
    assert len(told[0]) + 2 == len(told[-1])
    for before, after in pairwise(told):
        assert after[: len(before)] == before
    assert "mcp__hub__zip_file" in told[-1][-2] and "mcp__hub__create_issue" in told[-1][-1]


def test_what_was_not_found_is_refused(servers: Servers, tmp_path: Path) -> None:
    _prepared(servers, tmp_path)
    servers.run("go", [_call("mcp__hub__zip_file", text="x"), "done"])
    assert "unknown tool" in servers.until("tool.result").data["output"]
    assert servers.call("hub", "zip_file", text="x").result.output == "x"  # a user who names it needs no search


def test_always_load_tells_of_all_at_once(servers: Servers, tmp_path: Path) -> None:
    _prepared(servers, tmp_path, alwaysLoad=True)
    servers.run("go", ["done"])
    names = [tool.name for tool in servers.model.requests[0].tools]
    assert "mcp__hub__zip_file" in names and "tool_search" not in names


def test_the_best_few_are_found_by_words(servers: Servers, tmp_path: Path) -> None:
    _prepared(servers, tmp_path)
    servers.run("go", [_call("tool_search", query="issues please"), "done"])
    output = servers.until("tool.result").data["output"]
    assert "mcp__hub__create_issue" in output and "mcp__hub__list_issues" in output and "zip_file" not in output


def test_context_shows_what_each_server_costs(servers: Servers, tmp_path: Path) -> None:
    from moryflow.runtime.documents import context_report

    _prepared(servers, tmp_path, alwaysLoad=True)
    report = servers.wait(context_report(servers.host, servers.session(), None))
    assert report.sources["mcp.servers.hub"] > 400
