"""One example per hook, as the hook's page shows it: loaded by an isolated host, fired, and its effect seen (S0-i)."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

import pytest

HOOKS = Path(__file__).resolve().parents[2] / "user_examples" / "hooks"


@pytest.fixture
def example(request, moryflow):
    """The isolated host, with the example of the hook that the test is named after."""
    name = request.function.__name__.removeprefix("test_example_of_")
    moryflow.plugin((HOOKS / f"{name}.py").read_text(encoding="utf-8"), f"my_{name}")
    return moryflow


def is_denied(done) -> bool:
    """Whether the call that `call_tool` made was refused."""
    return done.result.status == "denied"


def read(path: str) -> dict:
    """A model's call of `read`."""
    return {"calls": [{"name": "read", "arguments": json.dumps({"path": path})}]}


def test_example_of_plugin_start(example):
    """What it opened is closed when the plugin ends (S0-i)."""
    example.run("hi", ["hello"])
    diary = example.home / "data" / "my_plugin_start" / "diary.txt"
    example.close()
    assert diary.read_text(encoding="utf-8") == "opened\nclosed\n"


def test_example_of_tools(example):
    """The tool reads what was judged, under the rules for files (S0-i, R12)."""
    (example.vault / "a.md").write_text("# One\ntext\n## Two\n", encoding="utf-8")
    (example.vault.parent / "b.md").write_text("# Secret\n", encoding="utf-8")
    assert example.call_tool("headings", path="a.md").result.output == "# One\n## Two"
    assert is_denied(example.call_tool("headings", path="../b.md"))


def test_example_of_agents(example):
    """A turn of the agent has its prompt, its temperature and its tools (S0-i)."""
    session = example.session(agent="critic")
    example.run("look at this", ["fine"], session=session)
    request = example.model.requests[0]
    assert request.messages[0].text.startswith("You review texts.")
    assert request.params.temperature == 0.1
    assert {schema.name for schema in request.tools} == {"read", "grep", "ls"}


def test_example_of_models(example):
    """A turn with the model of the plugin (S0-i)."""
    session = example.session(model="parrot")
    assert example.run("good morning", session=session).text.strip() == "good morning"


def test_example_of_commands(example):
    """A person types it at a shell and in a conversation (S0-i)."""
    (example.vault / "a.md").write_text("12345", encoding="utf-8")
    assert example.command("vault-size") == "1 notes, 5 bytes\n"
    assert example.command("vault-size", "--json") == '{"files": 1, "bytes": 5}\n'
    assert example.slash("/vault-size").text == "1 notes, 5 bytes"


def test_example_of_system_blocks(example):
    """The block stands at the end of the system prompt, after what does not change (S0-i)."""
    example.run("hi", ["hello"])
    assert re.search(rf"Today is .*{date.today():%Y}\.$", example.model.requests[0].messages[0].text)


def test_example_of_chat_messages(example):
    """The model reads the words spelt out, the session keeps what was typed (S0-i, invariant 7)."""
    session = example.session()
    example.run("Read the KB", ["done"], session=session)
    assert example.model.requests[0].messages[-1].text == "Read the KB (knowledge base)"
    stored = example.wait(example.host.store.path(session.id))
    assert stored[0].payload["text"] == "Read the KB"


def test_example_of_chat_system(example):
    """In full access only (S0-i)."""
    example.run("hi", ["hello"])
    example.run("hi", ["hello"], mode="full_access")
    asked, free = (request.messages[0].text for request in example.model.requests)
    assert "Nobody is asked" not in asked
    assert "Nobody is asked" in free


def test_example_of_chat_params(example):
    """Two parameters change, the others stay (S0-i)."""
    fired = example.fire("chat_params", params={"temperature": 0.7, "max_tokens": 100, "extra": {"user": "ada"}})
    assert fired.value == {"temperature": 0.0, "max_tokens": 100, "extra": {"user": "ada", "seed": 7}}


def test_example_of_tool_before(example):
    """A missing argument is filled in before anyone judges, one that was given stays (S0-i)."""
    assert example.fire("tool_before", call={"tool": "read", "args": {"path": "a"}}).value["args"] == {
        "path": "a",
        "limit": 100,
    }
    assert example.fire("tool_before", call={"tool": "read", "args": {"limit": 3}}).value["args"] == {"limit": 3}
    (example.vault / "a.md").write_text("line\n" * 300, encoding="utf-8")
    assert "line 101" not in example.call_tool("read", path="a.md").result.output


def test_example_of_tool_gate(example):
    """It asks by the resolved target, also in full access, and nobody being there means no (S0-i, S2.11)."""
    example.allow_all()
    assert not is_denied(example.call_tool("write", path="free.md", content="x"))
    assert is_denied(example.call_tool("write", path="x/../contracts/a.md", content="x"))
    assert not (example.vault / "contracts").exists()
    fired = example.fire("tool_gate", call={"tool": "write", "args": {"path": "contracts/a.md", "content": "x"}})
    assert (fired.value["decision"], fired.value["reason"]) == ("ask", "contracts are signed")


def test_example_of_tool_decided(example):
    """It writes down what was decided, and tightens what only the mode allowed (S0-i, invariant 10)."""
    (example.vault / "a.md").write_text("x", encoding="utf-8")
    bash = {"calls": [{"name": "bash", "arguments": json.dumps({"command": "touch made"})}]}
    example.run("go", [read("a.md"), bash, "done"], mode="full_access")
    lines = (example.home / "data" / "my_tool_decided" / "decisions.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "read allow by rule"
    assert "no shell without a question here" in example.model.requests[2].messages[-1].text
    assert not (example.vault / "made").exists()


def test_example_of_tool_after(example):
    """The model never sees the address (S0-i, S0.94)."""
    (example.vault / "a.md").write_text("write to ada@example.org soon\n", encoding="utf-8")
    example.run("read it", [read("a.md"), "done"])
    assert example.model.requests[1].messages[-1].text.strip().endswith("write to [address] soon")


def test_example_of_compaction(example):
    """The summarizer is given one more thing to mind, nothing else changes (S0-i, S2.6)."""
    plan = {"covered": ["a", "b"], "first_kept": "c", "tokens_before": 900, "context": ["first"]}
    value = example.fire("compaction", plan=plan).value
    assert value["context"] == ["first", "Keep every decision word for word, with its date and who took it."]
    assert value["covered"] == ["a", "b"]


def test_example_of_event(example):
    """One line per turn, after it was committed (S0-i)."""
    (example.vault / "a.md").write_text("x", encoding="utf-8")
    example.run("read it", [read("a.md"), "done"])
    turns = example.home / "data" / "my_event" / "turns.txt"
    assert turns.read_text(encoding="utf-8") == "completed after 2 step(s)\n"
