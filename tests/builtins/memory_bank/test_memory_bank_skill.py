"""The skill that comes with the plugin, and what nobody without a bank pays."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import moryflow_builtins.memory_bank as bank_module
import pytest
from moryflow_builtins.memory_bank import SKILL, agents
from moryflow_builtins.memory_bank.writer import writer_agent
from moryflow_sdk.support.markdown_files import parse_markdown

DOCS = Path(__file__).parents[3] / "docs" / "memory-bank.md"
REFERENCES = ("reader.md", "writer.md", "memory-reader-prompt.md")


def page(name):
    return (SKILL / name).read_text(encoding="utf-8")


def test_the_skill_is_split_as_agreed():
    """Priority, commands, layout; one folder with its references, no writer skill beside it (S3.2, S3.12, D70)."""
    text = page("SKILL.md")
    front = parse_markdown(text.encode(), json5=False).metadata
    assert front["name"] == "memory-bank" == SKILL.name and len(front["description"]) > 40
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Priority", "Layout", "Commands", "References"]
    assert sorted(path.name for path in (SKILL / "references").iterdir()) == sorted(REFERENCES)
    assert [path.name for path in SKILL.parent.iterdir()] == ["memory-bank"]


def test_references_are_described_in_sentences():
    """When to read them is said in words, not in a table of links (S3.3, D70)."""
    text = page("SKILL.md").partition("## References")[2]
    assert "|" not in text
    for name in REFERENCES:
        sentence = next(part for part in re.split(r"\n\n", text) if f"(references/{name})" in part)
        assert len(sentence.split()) > 8 and sentence.rstrip().endswith(".")


def test_the_reading_page_says_when_patterns_are_read_unasked():
    """The five occasions, and: if in doubt, read (S3.4)."""
    text = page("references/reader.md")
    for occasion in ("choose a technology", "module or a component", "architecture", "others share", "refactor or migrate"):
        assert occasion in text
    assert "If you are not sure" in text and "details/patterns.md" in text


def test_the_skill_falls_back_only_without_the_protocol():
    """The protocol is recognised by its version and wins over the skill (S3.10, S3.11, S3.12)."""
    text = page("SKILL.md")
    assert (
        "protocol_version: memory-bank/v1" in text
        and "the protocol wins" in text
        and "It is not there: follow this skill" in text
    )
    reader = page("references/reader.md")
    assert "for when the system prompt has no Memory Bank Protocol" in reader and "Open" not in reader.split("##")[0]
    assert "small talk" in reader and "not merely because it is the first message" in reader, "(S3.7)"


def test_the_pages_are_the_prompts():
    """Reader and writer are told what the skill says (S3.2, S3.5, S3.12, D70)."""
    reader = agents()[0]
    assert reader.prompt == page("references/memory-reader-prompt.md")
    assert writer_agent().prompt == page("references/writer.md")
    assert reader.mode == "subagent" and writer_agent().hidden


def test_the_example_in_the_readers_prompt_fits_the_schema():
    """What is asked for is what is checked (S3.6, S3.13)."""
    from moryflow_builtins.memory_bank.reader import parse_package

    package, problems = parse_package(page("references/memory-reader-prompt.md"))
    assert package is not None and problems == [] and package.conflicts


def test_what_is_not_built_is_said():
    """Prompt amendments of another product are optional and not built (S3.17–S3.20, S3.22, D69)."""
    assert "Not built: the prompt amendments of another product" in DOCS.read_text(encoding="utf-8")


async def test_the_agent_reads_for_itself(project):
    """No sub-agent is needed for a small reading (S3.30, S3.36)."""
    project.configure(bank={"guardMode": "block"})
    calls = [
        {"calls": [{"name": "read", "arguments": {"path": "memory-bank/details/patterns.md"}}]},
        {"calls": [{"name": "write", "arguments": {"path": "package.json", "content": "{ }"}}]},
    ]
    talk = await project.run(*calls, "done")
    assert talk.last["status"] == "ok" and not [event for event in project.events if event.parent]


@pytest.mark.parametrize("with_bank", [False, True])
async def test_one_look_at_the_disk_a_turn(bare, monkeypatch, with_bank):
    """However many calls and steps a turn has (S3.29)."""
    if with_bank:
        bare.make_bank()
    looks = []
    find = bank_module.find_bank
    monkeypatch.setattr(bank_module, "find_bank", lambda vault: looks.append(vault) or find(vault))
    read = {"calls": [{"name": "read", "arguments": {"path": "notes.md"}}]}
    write = {"calls": [{"name": "write", "arguments": {"path": "notes.md", "content": "x"}}]}
    async with bare.conversation(read, write, read, "done", read, "done") as talk:
        await talk.say("go")
        await talk.say("again")
        assert len(looks) == 2 and len(talk.tools) == 4


def test_importing_the_plugin_loads_no_other_module_of_it():
    """Every start pays for what is imported (S3.29, rule 5)."""
    code = "import sys, moryflow_builtins.memory_bank as m; print(*sorted(n for n in sys.modules if m.__name__ + '.' in n))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


async def test_a_tool_whose_plugin_cannot_say_is_not_offered(bare):
    """`offered_in` is other people's code: what it raises hides its own tool and nothing else (R23)."""
    bare.plugin(
        "moody",
        """
        def never(turn):
            raise RuntimeError("who knows")

        @tool(domain="read", offered_in=never)
        def hidden() -> str:
            "Hide."
            return "x"

        @tool(domain="read", offered_in=lambda turn: (turn.vault / "notes.md").exists())
        def here() -> str:
            "Be here."
            return "y"

        @hookimpl
        def tools():
            return [hidden, here]
        """,
    )
    calls = [{"calls": [{"name": name, "arguments": {}}]} for name in ("hidden", "here")]
    async with bare.conversation(*calls, "done") as talk:
        await talk.say("go")
        assert [node.get("code") for node in talk.tools] == ["unknown_tool", None]
        assert {"hidden", "here"} & {tool.name for tool in talk.requests[0].tools} == {"here"}
