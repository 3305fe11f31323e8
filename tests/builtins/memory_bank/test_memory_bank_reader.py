"""Drill-down: direct reading first, then the memory reader, whose package is checked before anyone relies on it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow_builtins.memory_bank.reader import check_package, parse_package
from moryflow_sdk import ToolResult

PATTERNS = "memory-bank/details/patterns.md"
PACKAGE = """Here it is.

```yaml
memory_reader:
  protocol_version: memory-bank/v1
  user_question: "how is money kept?"
  context_summary:
    goal: "a shop"
    focus: "checkout"
    stack: ["python"]
    conventions: ["money in cents"]
  evidence:
    - file: memory-bank/details/patterns.md:9
      quote: "Money is kept in integer   cents"
      mtime: 2026-01-31
  open_questions:
    - question: "how are refunds rounded?"
      look_in: src/refunds.py
```
"""
CONFLICT = PACKAGE.replace(
    "  open_questions:",
    "  conflicts:\n    - memory: memory-bank/details/patterns.md:9\n      code: src/money.py:1\n      detail: cents are 100\n"
    "  open_questions:",
)


def call(name, **arguments):
    return {"calls": [{"name": name, "arguments": arguments}]}


READ = call("read", path=PATTERNS)
ASK = call("task", agent="memory-reader", prompt="how is money kept?")
RISKY = call("write", path="package.json", content="{ }\n")


async def test_a_finished_reader_counts_as_reading(project):
    """Called like any task, waits for it, and its package satisfies the gate (S3.5, S3.6, S3.14, S3.35, D30)."""
    project.configure(bank={"guardMode": "block"})
    talk = await project.run(ASK, READ, PACKAGE, RISKY, "done")
    assert [node["status"] for node in talk.tools] == ["ok", "ok"]
    child = [event for event in project.events if event.parent and event.type == "tool.result"]
    assert [event.agent for event in child] == ["memory-reader"], "its work is seen by the person"
    assert "open_questions" in talk.tools[0]["output"] and "not found in their files" not in talk.tools[0]["output"]


DEFECTS = {
    "no package": "I read it all, trust me.",
    "no evidence": PACKAGE.replace("  evidence:\n", "  evidence: []\n  x:\n"),
    "a layer missing": PACKAGE.replace("open_questions", "questions"),
    "no quote": PACKAGE.replace("quote:", "words:"),
    "a key of its own": PACKAGE.replace("  open_questions:", "  mood: good\n  open_questions:"),
    "no age": PACKAGE.replace("2026-01-31", "yesterday"),
    "another protocol": PACKAGE.replace("memory-bank/v1", "memory-bank/v2"),
    "broken YAML": PACKAGE.replace('goal: "a shop"', 'goal: "a shop'),
    "a list": "```yaml\n- context_summary\n```",
}


@pytest.mark.parametrize("defect", DEFECTS)
async def test_a_package_that_is_none_does_not_count(project, defect):
    """The format is checked against a schema, and the note names what is wrong and one step (S3.13, D30)."""
    project.configure(bank={"guardMode": "block"})
    talk = await project.run(ASK, DEFECTS[defect], RISKY, "done")
    first, second = talk.tools
    assert "not a context package" in first["output"] and first["output"].count("Next:") == 1
    assert second["status"] == "denied"


async def test_a_reader_that_fails_does_not_count(project):
    """Finished means finished (D30)."""
    project.configure(bank={"guardMode": "block"})
    talk = await project.run(ASK, {"error": "auth"}, RISKY, "done")
    assert [node["status"] for node in talk.tools] == ["error", "denied"]


async def test_a_reader_in_the_background_does_not_count():
    """Begun is not finished (S3.14, D30)."""
    begun = ToolResult(output="works in the background", metadata={"background": True})
    assert await check_package(begun, None, PATTERNS) == (begun, False)


async def test_the_reader_works_in_the_foreground(project):
    """Also when it is started in the background: its package is the call's own result, and counts (S3.14)."""
    project.configure(bank={"guardMode": "block"})
    ask = call("task", agent="memory-reader", prompt="how is money kept?", background=True)
    talk = await project.run(ask, READ, PACKAGE, RISKY, "done")
    assert [node["status"] for node in talk.tools] == ["ok", "ok"] and "open_questions" in talk.tools[0]["output"]


NOT_READ = {
    "read nothing": ([], PACKAGE),
    "listed it": ([call("glob", pattern="memory-bank/**")], PACKAGE),
    "searched it": ([call("grep", pattern="Money", path="memory-bank")], PACKAGE),
    "read another": ([call("read", path="memory-bank/MEMORY.md")], PACKAGE),
    "read the end": ([call("read", path=PATTERNS, offset=9)], PACKAGE),
}


@pytest.mark.parametrize("case", NOT_READ)
async def test_a_package_counts_only_for_what_was_really_read(case, project):
    """A valid package about a file that its reader did not read opens nothing (D30)."""
    project.configure(bank={"guardMode": "block"})
    reads, package = NOT_READ[case]
    talk = await project.run(ASK, *reads, package, RISKY, "done")
    first, second = talk.tools
    assert "It does not count as reading" in first["output"] and second["status"] == "denied"


async def test_conflicts_between_memory_and_code_are_told_with_both_pointers(project):
    """And how to set it right (S3.8)."""
    talk = await project.run(ASK, CONFLICT, "done")
    assert f"conflict: {PATTERNS}:9 contradicts src/money.py:1: cents are 100" in talk.last["output"]
    assert "memory_propose" in talk.last["output"] and talk.events("conflict")[0]["conflicts"][0]["code"] == "src/money.py:1"


@pytest.mark.parametrize("pointer", ["src/money.py", "somewhere", ":3", "money.py:x"])
async def test_a_conflict_without_a_place_is_refused(project, pointer):
    """A pointer has a file and a line (S3.8, S3.13)."""
    package, problems = parse_package(CONFLICT.replace("src/money.py:1", f'"{pointer}"'))
    assert package is None and "conflicts.0.code" in problems[0]


READER_MUST_NOT = {
    "write": call("write", path="notes.md", content="x"),
    "shell": call("bash", command="ls"),
    "a secret": call("read", path=".env"),
    "a key folder": call("read", path=".ssh/config"),
    "outside": call("read", path="/etc/hostname"),
    "a task": call("task", agent="general", prompt="x"),
}


@pytest.mark.parametrize("case", READER_MUST_NOT)
async def test_the_reader_only_reads_and_no_secrets(project, case):
    """An allow list of tools, a deny list of names, whatever the rules say (S3.13)."""
    (project.vault / ".env").write_text("KEY=1\n")
    (project.vault / ".ssh").mkdir()
    (project.vault / ".ssh" / "config").write_text("Host x\n")
    project.allow("read", "edit", "bash", "task")
    await project.run(ASK, READER_MUST_NOT[case], PACKAGE, "done")
    child = [event.data for event in project.events if event.parent and event.type == "tool.result"]
    assert child[0]["status"] in ("denied", "error") and child[0]["code"] in ("memory_bank", "unknown_tool", "policy")
    if case in ("a secret", "a key folder", "outside"):
        assert child[0]["code"] == "memory_bank"


async def test_the_reader_is_told_when_a_file_was_changed(project):
    """So that its evidence can say so; nobody else's results grow (S3.6)."""
    talk = await project.run(ASK, READ, PACKAGE, READ, "done")
    child = [event.data for event in project.events if event.parent and event.type == "tool.result"]
    assert f"[{PATTERNS} modified 20" in child[0]["output"] and "modified 20" not in talk.last["output"]


async def test_reader_and_writer_have_their_own_words(project):
    """No protocol in their prompts: a reader that starts readers never ends (S3.12)."""
    async with project.conversation(ASK, PACKAGE, "done") as talk:
        await talk.say("go")
        child = next(request for request in talk.requests if request.purpose == "child")
        assert (
            child.messages[0].text.startswith("You are the memory reader")
            and "Memory Bank Protocol" not in child.messages[0].text
        )
        assert {tool.name for tool in child.tools} == {"read", "ls", "glob", "grep"}


async def test_other_children_have_the_protocol(project):
    """They work in the same project (S3.9)."""
    project.allow("task")
    async with project.conversation(call("task", agent="explore", prompt="look"), "seen", "done") as talk:
        await talk.say("go")
        child = next(request for request in talk.requests if request.purpose == "child")
        assert "Memory Bank Protocol" in child.messages[0].text


async def test_too_much_direct_reading_is_the_readers_work(project):
    """Above three files, one hint a turn, never a refusal (S3.35, S3.36, S3.41, D31)."""
    for number in range(6):
        (project.bank / "details" / f"n{number}.md").write_text(f"number {number}\n")
    reads = [call("read", path=f"memory-bank/details/n{number}.md") for number in range(6)]
    talk = await project.run(*reads, "done")
    hints = ["memory-reader" in node["output"] for node in talk.tools]
    assert hints == [False, False, False, True, False, False] and {node["status"] for node in talk.tools} == {"ok"}


async def test_long_files_are_the_readers_work_too(project):
    """Above 300 lines, or what is configured (D31)."""
    (project.bank / "details" / "long.md").write_text("line\n" * 301)
    read = call("read", path="memory-bank/details/long.md")
    assert "301 lines" in (await project.run(read, "done")).last["output"]
    project.configure(bank={"readerLines": 1000})
    assert "memory-reader" not in (await project.run(read, "done")).last["output"]


async def test_the_reader_is_not_sent_to_itself(project):
    """It may read as much as it needs (S3.19, S3.35)."""
    project.configure(bank={"readerFiles": 1, "readerLines": 1})
    memory = call("read", path="memory-bank/MEMORY.md")
    await project.run(ASK, READ, memory, PACKAGE, "done")
    child = [event.data for event in project.events if event.parent and event.type == "tool.result"]
    assert len(child) == 2 and not any("Next:" in item["output"] for item in child)


async def test_files_outside_of_the_bank_do_not_count(project):
    """Reading code is not drilling down (S3.24, D31)."""
    names = [f"f{number}.md" for number in range(6)]
    for name in names:
        (project.vault / name).write_text(name)
    talk = await project.run(*(call("read", path=name) for name in names), "done")
    assert not any("memory-reader" in node["output"] for node in talk.tools)


@given(st.text(max_size=400))
def test_any_answer_is_taken_or_refused_but_never_breaks(text):
    """A model may answer anything (S3.13)."""
    for answer in (text, f"```yaml\n{text}\n```", f"context_summary: {text}", f"```\ncontext_summary:\n  {text}\n```"):
        package, problems = parse_package(answer)
        assert (package is None) == bool(problems)


@pytest.mark.parametrize("value", ["!!bool x", "!!int ''", "!!float ''", "!!timestamp x"])
def test_a_value_that_does_not_fit_its_tag_is_a_problem(value):
    """PyYAML raises errors that are not its own for it."""
    package, problems = parse_package(f"```yaml\ncontext_summary: {value}\n```")
    assert package is None and "does not fit its tag" in problems[0]
