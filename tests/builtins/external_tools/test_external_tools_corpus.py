"""The example cases of broken extensions, as files with tools: the host is up, each is named, the good one works."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

CASES = [
    case
    for line in (Path(__file__).parents[2] / "data/corpus/extensions.jsonl").read_text("utf-8").splitlines()
    if (case := json.loads(line))["target"] == "plugin"
]
ALONE = [case for case in CASES if case["cat"] in ("syntax", "empty", "import", "process")]
TOOLS = [case for case in CASES if case["cat"] in ("tool_name", "tool_schema", "tool_desc", "tool_call")]
GOOD = "from moryflow_sdk import tool\n@tool\ndef fine() -> str:\n    'Fine.'\n    return 'fine'\n"
ADAPTER = """
class Api:
    def __init__(self):
        self.made = []
    def add_tool(self, name, handler, schema, description):
        from moryflow_sdk import Tool
        self.made.append(Tool(name=name, description=description, function=handler, schema=schema))

def create_tools(ctx):
    api = Api()
    register(api)
    return api.made
"""


def source(case) -> bytes:
    if "b64" in case:
        return base64.b64decode(case["b64"])
    if "gen" in case:
        gen = case["gen"]
        return (gen["prefix"] + gen["repeat"] * gen["n"] + gen.get("tail", "") + gen.get("close", "") * gen["n"]).encode()
    return case["text"].encode()


@pytest.mark.parametrize("case", ALONE, ids=lambda case: f"{case['id']}-{case['name']}")
async def test_a_file_that_cannot_be_loaded_is_named(box, case):
    """Syntax, import, exit, crash, hang: rejected, with the file and a reason (D57, SECURITY §4)."""
    file = box.write("bad", "")
    file.write_bytes(source(case))
    box.write("good", GOOD)
    box.enable()
    tools, notes = await box.loaded()
    assert list(tools) == ["fine"]
    assert notes and all(str(file) in note for note in notes)


@pytest.mark.parametrize("case", TOOLS, ids=lambda case: f"{case['id']}-{case['name']}")
async def test_a_tool_that_cannot_be_offered_is_named(box, case):
    """Names, schemas and descriptions are looked at before a model is told of them; a call may return what it likes (D57)."""
    file = box.write("odd", "")
    file.write_bytes(source(case) + ADAPTER.encode())
    box.write("zz", GOOD)
    box.enable()
    async with box.bench.host() as host:
        record = next(record for record in host.plugin_set.records if record.name == "external_tools")
        mine = [owned for owned in host.tools.values() if owned.tool.source == str(file)]
        assert (await host.call_tool("fine", {}, vault=box.bench.vault, mode="full_access")).result.output == "fine"
        if "call" in case:
            done = await host.call_tool(case["call"]["tool"], case["call"]["args"], vault=box.bench.vault, mode="full_access")
            assert done.result.status == ("error" if case["expect"].get("report") == "tool_error" else done.result.status)
    found = "loaded_with_warning" if mine and record.notes else "loaded" if mine else "rejected"
    assert found in case["expect"]["item"].split("_or_"), record.notes
    assert all(str(file) in note for note in record.notes)
