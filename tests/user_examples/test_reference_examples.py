"""The examples of the reference: each runs, and those that are plugins do in a host what they say."""

from __future__ import annotations

import asyncio
import inspect
import runpy
from pathlib import Path

import pytest

FILES = Path(__file__).resolve().parents[2] / "user_examples" / "reference"
CASES = {
    f"{path.stem}-{name}": function
    for path in sorted(FILES.glob("*.py"))
    for name, function in runpy.run_path(str(path)).items()
    if name.startswith("example_")
}


@pytest.mark.parametrize("example", CASES.values(), ids=CASES)
def test_an_example_runs(example, request):
    """What it asserts holds."""
    given = {name: request.getfixturevalue(name) for name in inspect.signature(example).parameters}
    outcome = example(**given)
    if inspect.iscoroutine(outcome):
        asyncio.run(outcome)


@pytest.fixture
def options(moryflow):
    """Arguments of `open_host` for a home of the test's own, with a model that says hello."""
    moryflow.model.add("Hello", "Hello")
    return moryflow.options


@pytest.fixture
def vault(moryflow):
    """A folder to work in."""
    return moryflow.vault


@pytest.fixture
def services(moryflow):
    """A host with the plugin of the services."""
    moryflow.plugin(FILES / "services.py")
    moryflow.allow_all()
    return moryflow


def output_of(host, tool: str, **args: str) -> str:
    """Return what a tool gives in a turn."""
    host.run("go", [{"calls": [{"name": tool, "arguments": args}]}, "done"])
    return host.until("tool.result").data["output"]


def test_files_are_changed_and_listed(services):
    """The example of the service files."""
    (services.vault / "a.md").write_text("one  \ntwo\n", encoding="utf-8")
    assert output_of(services, "tidy", path="a.md") == "a.md (8 bytes)"
    assert (services.vault / "a.md").read_text(encoding="utf-8") == "one\ntwo\n"


@pytest.mark.parametrize(
    ("tool", "args", "expected"),
    [
        ("keep", {"text": "a long text"}, "11 bytes, beginning with a lon"),
        ("recall", {}, "'go', 1 calls, 1 session"),
        ("allow_make", {}, "5"),
        ("rename", {"title": "Spring"}, "done"),
        ("announce", {"text": "hear"}, "told"),
    ],
)
def test_a_service_gives_what_its_example_says(services, tool, args, expected):
    """Artifacts, history, rules, info and emit."""
    assert output_of(services, tool, **args) == expected


def test_a_title_and_an_event_are_there_afterwards(services):
    """What the examples of info and emit leave."""
    output_of(services, "announce", text="hear")
    assert services.until("plugin.services.announced").data["text"] == "hear"


def test_a_child_and_a_question_to_a_model(services):
    """The examples of the services spawn and complete."""
    services.run("go", [{"calls": [{"name": "review", "arguments": {"path": "a.md"}}]}, "It is fine.", "done"])
    assert services.until("tool.result").data["output"] == "completed: It is fine."
    services.events.clear()
    services.run("go", [{"calls": [{"name": "translate", "arguments": {"text": "hi"}}]}, "salut", "done"])
    assert services.until("tool.result").data["output"] == "salut"


def test_a_file_becomes_a_tool(services):
    """The example of the service code_loader."""
    folder = services.home / "recipes"
    folder.mkdir(mode=0o700)
    (folder / "soup.py").write_text("def cook() -> str:\n    'Cook.'\n    return 'soup'\n", encoding="utf-8")
    (folder / "soup.py").chmod(0o600)
    (folder / "stone.py").write_text("def cook(:\n", encoding="utf-8")
    (folder / "stone.py").chmod(0o600)
    assert services.call_tool("cook").result.output == "soup"
    (record,) = [record for record in services.host.plugin_set.records if record.name == "services"]
    assert "stone.py" in str(record.notes)


def test_the_plugin_of_the_reference_does_what_it_says(moryflow):
    """The examples of hookimpl, tool, ToolContext, Turn, Command and CommandContext."""
    moryflow.plugin(FILES / "plugin.py")
    moryflow.allow_all()
    (moryflow.vault / "a.md").write_text("one\ntwo\n", encoding="utf-8")
    assert moryflow.call_tool("count_lines", path="a.md").result.output == '{"lines": 2}'
    assert moryflow.call_tool("secret").result.output == "it is [hidden]"
    moryflow.events.clear()
    assert output_of(moryflow, "publish", version="1.0").startswith("not published")
    assert moryflow.until("plugin.plugin.first_call").data["tool"] == "publish"
    assert "greet" in moryflow.host.plugin_set.commands
