"""The example cases of broken plugins that are about loading: the host is up, each has its outcome and is named."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from moryflow import open_host

CATS = (
    "syntax",
    "empty",
    "contract",
    "import",
    "process",
    "filename",
    "tool_name",
    "tool_schema",
    "tool_desc",
    "tool_call",
    "file",
)
CASES = [
    case
    for line in (Path(__file__).parents[2] / "data/corpus/extensions.jsonl").read_text("utf-8").splitlines()
    if (case := json.loads(line))["target"] == "plugin" and case["cat"] in CATS
]
BUILTINS = tuple(f"moryflow_builtins.{name}" for name in ("permission", "files", "shell"))
ADAPTER = """
class Api:
    def __init__(self):
        self.made = []
    def add_tool(self, name, handler, schema, description):
        from moryflow_sdk import Tool
        self.made.append(Tool(name=name, description=description, function=handler, schema=schema))

from moryflow_sdk import hookimpl

@hookimpl
def tools():
    api = Api()
    register(api)
    return api.made
"""
GOOD = """
from moryflow_sdk import hookimpl, tool

@tool(domain="read")
def fine() -> str:
    "Fine."
    return "fine"

@hookimpl
def tools():
    return [fine]
"""


def source(case, marker: Path) -> bytes:
    """Return what stands in the file; `register(api)` is what our hook is elsewhere, `marker` what it may leave behind."""
    if "b64" in case:
        return base64.b64decode(case["b64"])
    if "gen" in case:
        gen = case["gen"]
        return (gen["prefix"] + gen["repeat"] * gen["n"] + gen.get("tail", "") + gen.get("close", "") * gen["n"]).encode()
    text = case["text"] if "text" in case else case.get("fs", {}).get("text", "")
    text = text.replace("{MARKER}", str(marker))
    return (text + ADAPTER if "def register" in text else text).encode()


@pytest.mark.filterwarnings("ignore:coroutine 'register' was never awaited")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']}-{case['name']}")
async def test_every_example_has_the_right_outcome(case, tmp_path):
    """Loaded, with a warning, rejected or ignored; named with file and reason; the good plugin works (SECURITY §4)."""
    folder = tmp_path / "plugins"
    folder.mkdir(mode=0o700)
    file = folder / (case.get("fs", {}).get("filename") or case["filename"])
    file.write_bytes(source(case, tmp_path / "marker"))
    (folder / "zgood.py").write_text(GOOD)
    async with await open_host(tmp_path, environ={}, builtins=BUILTINS) as host:
        assert (await host.call_tool("fine", {}, vault=folder)).result.output == "fine"
        records = [record for record in host.plugin_set.records if record.tier == "user" and record.name != "zgood"]
    found = "ignored"
    for record in records:
        gone = record.status != "loaded" or (record.error and not record.tools)
        found = "rejected" if gone else "loaded_with_warning" if record.error else "loaded"
        assert found != "rejected" or (record.error and record.file == str(file))
    assert found in case["expect"]["item"].split("_or_")
