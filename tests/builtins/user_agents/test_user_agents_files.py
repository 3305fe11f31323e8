"""Agents as Markdown files: the corpus, the samples, and what people of other systems write."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest
from agent_texts import agent_of
from hypothesis import given
from hypothesis import strategies as st
from moryflow import open_host
from moryflow.testing.replies import LoopbackServer
from moryflow_sdk.support.agent_files import read_agent

ROOT = Path(__file__).parent.parent.parent
CASES = [json.loads(line) for line in (ROOT / "data/corpus/extensions.jsonl").read_text(encoding="utf-8").splitlines()]
AGENTS = [case for case in CASES if case["target"] == "agent"]
GOOD = b'---\n{"id":"good","name":"Good"}\n---\nbe good\n'


def place(case, folder: Path) -> None:
    """Put what a case describes into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for item in case.get("files") or [case]:
        path = folder / (item.get("fs", {}).get("filename") or item["filename"])
        if "b64" in item:
            path.write_bytes(base64.b64decode(item["b64"]))
        elif "text" in item:
            path.write_text(item["text"], encoding="utf-8", newline="")
        elif item.get("fs", {}).get("make") == "fifo":
            os.mkfifo(path)
        else:
            path.write_bytes(GOOD.replace(b"good", b"swap"))


@pytest.mark.parametrize("case", AGENTS, ids=lambda case: f"{case['id']}-{case['name']}")
async def test_every_example_has_the_right_outcome(case, tmp_path):
    """Loaded, loaded with a warning, rejected or ignored, named with file and reason, and the others still load (D41, D42)."""
    home = tmp_path / "home"
    place(case, home / "agents")
    (home / "agents" / "zz-good.md").write_bytes(GOOD)
    async with await open_host(home, environ={}) as host:
        record = next(record for record in host.plugin_set.records if record.name == "user_agents")
        mine = {name: agent for name, agent in host.agents.items() if agent.source.startswith(str(home))}
    assert mine.pop("good") and record.status == "loaded"
    ours = set(mine)
    outcome = case["expect"]["item"].split("_or_")
    found = "ignored" if not ours and not record.error else "rejected" if not ours else "loaded"
    found = "loaded_with_warning" if found == "loaded" and record.error else found
    assert found in outcome, record.error
    if case["expect"].get("report"):
        assert case["filename"].split(".")[0] in record.error or "b.md" in record.error


@pytest.mark.parametrize("name", ["writer.md"])
def test_the_sample_of_the_source_loads_as_it_stands(name):
    """Single quotes and a trailing comma inside the frontmatter (S0.91, D74)."""
    agent, problems = read_agent(ROOT.parent / "user_examples/agents" / name)
    assert (agent.id, problems) == ("writer", [])
    assert agent.settings.temperature == 0.2 and agent.prompt


def test_keys_of_other_systems_are_understood():
    """``name``, ``description``, ``tools``, ``model`` without an id: the file name is the id (S0.90)."""
    text = b"---\nname: Code Reviewer\ndescription: Reviews code\ntools: read, grep\nmodel: openai/gpt-4.1\n---\nReview.\n"
    agent, problems = agent_of(text, "reviewer.md")
    assert (agent.id, agent.name, agent.tools, agent.model) == ("reviewer", "Code Reviewer", ("read", "grep"), "openai/gpt-4.1")
    assert not problems


def test_a_field_that_is_nearly_right_is_named_with_the_right_one():
    """What is ignored is said, and what was meant (D42)."""
    agent, (said,) = agent_of(b"---\n{'id': 'a', 'nmae': 'Ada', 'description': 'x'}\n---\nBe brief.\n", "a.md")
    assert agent is not None
    assert said.message == "the field 'nmae' is not known and is ignored; did you mean 'name'?"


@pytest.mark.parametrize(
    "field",
    [
        "'maxSteps': 'one'",
        "'maxTurns': 0",
        "'maxsteps': 3",
        "'max_turns': 3",
        "'rules': {'edit': 'deny'}",
        "'perms': {'edit': 'deny'}",
        "'permissionMode': 'plan'",
    ],
)
def test_a_limit_of_an_agent_that_is_not_understood_makes_it_ask(field):
    """The agent must not be freer than its author may have meant (R37, D41)."""
    agent, (said,) = agent_of(f"---\n{{'id': 'a', 'name': 'A', {field}}}\n---\nBe brief.\n".encode(), "a.md")
    assert agent is not None and "; meanwhile every call is asked about" in said.message
    assert [(rule.domain, rule.decision) for rule in agent.rules if rule.problem] == [("*", "deny")]


@pytest.mark.parametrize("field", ["'versions': '1.0'", "'session': 'new'", "'returns': 'JSON'", "'maxTokens': 900"])
def test_a_field_that_is_only_a_little_like_a_limit_is_ignored(field):
    """Many files have a version; the agent is not asked about because of it (D41)."""
    agent, (said,) = agent_of(f"---\n{{'id': 'a', 'name': 'A', {field}}}\n---\nBe brief.\n".encode(), "a.md")
    assert agent is not None and "is not known and is ignored" in said.message
    assert agent.rules == ()


def test_the_limit_of_another_system_is_taken():
    """Claude Code calls it ``maxTurns``; our own name counts where both are written (S0.90)."""
    agent, problems = agent_of(b"---\n{'id': 'a', 'name': 'A', 'maxTurns': 3}\n---\nBe brief.\n", "a.md")
    assert (agent.max_steps, problems) == (3, [])


@pytest.mark.parametrize(
    "head", ["  id: w\n  # colour: no\n  colour: red\n  modelSettings:\n    temperature: 9\n  mode: boss", "json"]
)
def test_what_is_ignored_of_a_file_is_named_with_its_line(head):
    """In YAML and in JSON5, of nested fields too; what stands in a comment is none (D41, D42)."""
    if head == "json":
        head = "{ 'id': 'w',\n// 'colour': 1\n\n'colour': 'red', 'modelSettings':\n { 'temperature': 9 }, mode: 'boss' }"
    agent, problems = agent_of(f"---\r\n{head.replace(chr(10), chr(13) + chr(10))}\r\n---\r\nhi\r\n".encode(), "w.md")
    assert agent is not None and agent.id == "w"
    lines = {said.message.split()[0]: said.line for said in problems}
    nested = head.splitlines()
    place = {
        name: number for number, text in enumerate(nested, 2) for name in ("temperature", "mode:", "colour") if name in text
    }
    assert lines == {"the": place["colour"], "modelSettings.temperature:": place["temperature"], "mode": place["mode:"]}
    assert all(f"w.md:{said.line}: " in str(said) for said in problems)
    said = next(said.message for said in problems if "temperature" in said.message)
    assert said == "modelSettings.temperature: 9 cannot be used and is dropped; it takes a number from 0 to 2"


@pytest.mark.parametrize(
    ("field", "tools", "denied"),
    [
        ("disallowedTools: Bash, WebFetch", None, ("Bash", "bash", "WebFetch", "web_fetch")),
        ("disallowed-tools: [bash]", None, ("bash",)),
        ("disallowedTools: 5", None, ("*",)),
        ("disallowedTools:", None, ()),
        ('disallowedTools: ["Skill(x)"]', None, ("Skill", "skill")),
        ("tools: [read, bash]\ndenyTools: [bash]", (), ()),
        ("tools: read, ls\ndisallowedTools: ls", ("read", "ls"), ("ls",)),
        ("allowedTools: [read]", (), ()),
        ("allowed-tools: read", (), ()),
        ("blocked_tools: bash", (), ()),
    ],
)
def test_a_field_that_takes_tools_away_never_leaves_them(field, tools, denied):
    """What other systems call it is understood, or the agent gets no tools (R37, S0.90)."""
    agent, problems = agent_of(f"---\nname: A\ndescription: d\n{field}\n---\nb\n".encode(), "a.md")
    assert (agent.tools, agent.deny_tools) == (tools, denied)
    assert bool(problems) == (tools == () or denied == ("*",) or "(" in field)


def test_a_mistake_in_a_rule_makes_its_domain_ask():
    """A deny is never silently lost (D26, R37)."""
    agent, problems = agent_of(b'---\n{"id":"a","permission":[{"domain":"read","decision":"dney"}]}\n---\n', "a.md")
    assert [(rule.domain, rule.problem) for rule in agent.rules] == [("read", 'the rule has no "pattern"')]
    assert "permission rule 1" in problems[0].message


@given(st.binary(max_size=400))
def test_no_file_stops_the_host(data):
    """Whatever stands in a file, the answer is an agent or a sentence (D41)."""
    for text in (data, b"---\n" + data + b"\n---\nbody"):
        agent, problems = agent_of(text, "x.md")
        assert agent is not None or problems


async def test_an_agent_of_ones_own_is_used_for_a_run(tmp_path):
    """A user agent is recognised and used: its prompt replaces the built-in one (S0.89, S0.90, D58)."""
    home, vault = tmp_path / "home", tmp_path / "vault"
    vault.mkdir()
    place({"filename": "w.md", "text": "---\n{'id': 'w',}\n---\nOnly haiku.\n"}, home / "agents")
    with LoopbackServer() as server:
        async with await open_host(home, environ={"OPENAI_BASE_URL": server.url}) as host:
            session = await host.new_session(vault, agent="w", model="openai/test-model")
            await session.prompt("go")
    system = server.requests[0].body["messages"][0]
    assert system["role"] == "system" and system["content"].startswith("Only haiku.")
    assert "Moryflow's agent" not in system["content"]
