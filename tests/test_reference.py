"""The reference on the site: every public name, command and event is there, and what it says of them is so."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import click
import pytest
from moryflow.packages.distributions import CAPABILITIES
from moryflow.plugins.manifest import ATTRIBUTES

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    """The generator of the pages, as its command would run it."""
    return runpy.run_path(str(ROOT / "tests" / "packaging" / "refresh_docs.py"))


def test_every_exported_name_is_on_a_page(generator):
    """A name that a module exports is put into the first line of a block of docs/reference/."""
    reference = generator["api_reference"]
    assert reference.exported() - reference.places().keys() == set(), "add it to a 'begin:' line of a page in docs/reference/"
    text = "\n".join(path.read_text(encoding="utf-8") for path in PAGES.glob("*.md"))
    assert [name for name in reference.exported() if f"\n## `{name}`\n" not in text] == []


def test_every_page_says_how_stable_it_is():
    """Each page of the reference says what may change, and when."""
    silent = [
        path.name for path in PAGES.glob("*.md") if not re.search(r"\*\*(Stable|Provisional)", path.read_text(encoding="utf-8"))
    ]
    assert silent == []


def test_every_helper_for_plugins_is_on_its_page():
    """And nothing that is gone."""
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^- (.*?):", (ROOT / "docs" / "support.md").read_text("utf-8"), re.M)))
    there = [path.stem for path in (ROOT / "plugin_sdk" / "moryflow_sdk" / "support").glob("[!_]*.py")]
    assert sorted(named) == sorted(there)


def test_an_example_of_each_command_is_understood(generator, tmp_path, monkeypatch):
    """Its options and arguments are those of the command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MORYFLOW_HOME", str(tmp_path / "home"))
    for name in ("session.jsonl", "shout.py", "cases.jsonl", "cases.yaml"):
        (tmp_path / name).write_text("", encoding="utf-8")
    reference = generator["cli_reference"]
    wrong: list[str] = []
    for line, _ in reference.example_lines():
        try:
            reference.parse(line)
        except click.ClickException as error:
            wrong.append(f"{line}: {error.message}")
    assert wrong == []


def test_every_word_of_a_manifest_is_on_its_page():
    """The keys of plugin.toml and the attributes of a module."""
    text = (PAGES / "manifest.md").read_text(encoding="utf-8")
    words = {*ATTRIBUTES, *CAPABILITIES, "name", "hooks", "tools", "capabilities"}
    assert [word for word in words if f"`{word}`" not in text] == []


def fields_on_the_page() -> dict[str, set[str]]:
    """The fields of each type of event, as the list has them."""
    found: dict[str, set[str]] = {}
    for line in (PAGES / "events.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("- `"):
            types, _, fields = line.partition(": ")
            for name in re.findall(r"`([a-z._]+)`", types):
                found[name] = set(re.findall(r"\b(\w+)\b", fields))
    return found


def test_every_type_of_event_in_the_code_is_in_the_table():
    """The host publishes nothing that the page of events does not name."""
    pattern = re.compile(r"(?:\.event|\.delta|Event)\(\s*(?:type=)?\"([a-z._]+)\"")
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "host").rglob("*.py") if "testing" not in path.parts]
    types = {name for source in sources for name in pattern.findall(source)}
    assert {"turn.start", "tool.result", "reload"} <= types
    assert types - fields_on_the_page().keys() == set()


def test_the_events_of_real_turns_have_the_fields_of_the_table(moryflow):
    """A turn with tools, a question, a plugin that fails, a compaction, a change of mode."""
    moryflow.plugin("""
        from moryflow_sdk import hookimpl, tool

        @tool
        def wait(context: "ToolContext") -> str:
            "Wait."
            context.progress("waiting")
            return "done"

        @hookimpl
        def tools():
            return [wait]

        @hookimpl
        def tool_after(result):
            raise ValueError("no")
    """)
    (moryflow.vault / "a.md").write_text("one\n", encoding="utf-8")
    moryflow.allow_all()
    session = moryflow.session()
    edit = {"name": "edit", "arguments": {"path": "a.md", "old": "one", "new": "two"}}
    moryflow.run("go", [{"reasoning": "hm", "calls": [{"name": "wait"}, edit]}, {"text": "done"}], session=session)
    moryflow.run("again", [{"error": {"code": "rate_limit", "retry_after": 0}}, "done"], session=session)
    moryflow.wait(session.set_mode("full_access"))
    known = fields_on_the_page()
    seen = {event.type for event in moryflow.events}
    assert {
        "turn.start",
        "tool.delta",
        "tool.result",
        "plugin.failed",
        "session.mode",
        "message.end",
        "reasoning.delta",
    } <= seen
    surprising = [
        (event.type, set(event.data) - known[event.type]) for event in moryflow.events if set(event.data) - known[event.type]
    ]
    assert surprising == [], json.dumps([kind for kind, _ in surprising])
