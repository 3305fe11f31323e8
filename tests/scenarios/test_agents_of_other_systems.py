"""Agent files of other systems: each takes away what its author wanted to take away, and gives no more than it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent_texts import agent_of
from moryflow import Host, RunOptions, open_host
from moryflow.agents import narrow_agent
from moryflow.testing import replies
from moryflow.testing.replies import LoopbackServer
from moryflow_builtins.permission.policy import Policy, default_rules
from moryflow_builtins.permission.policy import make_policy as policy_of
from moryflow_sdk import Agent, Rule
from moryflow_sdk.support.agent_files import read_agent
from moryflow_sdk.support.foreign_names import tools_here

EDITING = {"edit", "multiedit", "write", "apply_patch", "move", "delete"}
READING = {"read", "ls", "glob", "grep", "search_in_file"}
PLUGIN = """
    name = "extras"

    @tool(domain="edit")
    def stamp(path: str) -> str:
        \"\"\"Write a date into a file.\"\"\"
        return path

    @tool(domain="mcp", name="mcp__files__remove")
    def remove() -> str:
        \"\"\"Remove a file on a server.\"\"\"
        return ""

    @tool
    def list() -> str:
        \"\"\"A tool of the user's own, whose name means another tool elsewhere.\"\"\"
        return ""

    @hookimpl
    def tools():
        return [stamp, remove, list]
"""


def put(home: Path, name: str, fields: str, body: str = "Do.") -> None:
    (home / "agents").mkdir(exist_ok=True, mode=0o700)
    (home / "agents" / f"{name}.md").write_text(f"---\n{fields}\n---\n{body}\n", "utf-8")
    (home / "agents" / f"{name}.md").chmod(0o600)


def parsed(fields: str) -> Any:
    agent, problems = agent_of(f"---\ndescription: d\n{fields}\n---\nx\n".encode(), "a.md")
    assert agent is not None
    return agent, [problem.message for problem in problems]


async def offered(host: Host, server: LoopbackServer, vault: Path, agent: str, model: str) -> set[str]:
    """Return the names of the tools that the model was told of."""
    session = await host.new_session(vault, agent=agent, model=model)
    await session.prompt("go", options=RunOptions(on_ask="deny"))
    return {tool["function"]["name"] for tool in server.requests[-1].body.get("tools", [])}


TAKEN = {
    "tools: {write: false, edit: false}": {*EDITING, "stamp"},
    "tools: {write: false}": {*EDITING, "stamp"},
    "tools: {patch: false}": {*EDITING, "stamp"},
    "tools: {edit: true, write: false}": {*EDITING, "stamp"},
    "disallowedTools: Write, Edit": {*EDITING, "stamp"},
    "disallowedTools: NotebookEdit": {*EDITING, "stamp"},
    "disallowedTools: [replace]": {*EDITING, "stamp"},
    "disallowedTools: [delete]": {"delete"},
    "permission: {list: deny, grep: deny}": {"ls", "list", "grep"},
    "disallowedTools: WebFetch, google_web_search, BashOutput, TodoWrite": {"web_fetch", "web_search"},
    "disallowedTools: run_shell_command": {"bash"},
    "disallowedTools: Agent": {"task"},
    "disallowedTools: mcp__files": {"mcp__files__remove"},
    'tools: {"files_*": false}': {"mcp__files__remove"},
    'tools: {"files*": false}': {"mcp__files__remove"},
    "tools: {files_remove: false}": {"mcp__files__remove"},
    "disallowedTools: [mcp_files_remove]": {"mcp__files__remove"},
    "disallowedTools: [files/remove]": {"mcp__files__remove"},
    'disallowedTools: ["@files"]': {"mcp__files__remove"},
    "permission: {'files_*': deny}": {"mcp__files__remove"},
    "disallowedTools: [mcp__gone__x, 'gone_*']": set[str](),
    "disallowedTools: Teleport": None,
    "tools: {bsh: false}": None,
}
"""Fields → the tools that they take away; ``None`` for all."""

GIVEN = {
    "tools: Read, Write, Edit, WebFetch, TodoWrite": {"read", *EDITING, "web_fetch"} - {"move", "delete"},
    "tools: [read, edit]": {"read", *EDITING} - {"move", "delete"},
    "tools: {'*': false, write: true}": EDITING - {"move", "delete"},
    "tools: [codebase, 'edit/editFiles', runCommands, usages, vscodeAPI, 'web/fetch']":
        {"glob", "grep", "search_in_file", *EDITING, "bash", "web_fetch"} - {"move", "delete"},
    "tools: [read_file, run_shell_command, list_directory]": {"read", "bash", "ls"},
    "tools: ['files/*', Grep]": {"mcp__files__remove", "grep"},
    "tools: mcp__files, Grep": {"mcp__files__remove", "grep"},
    "tools: Bash(git:*), Read": {"bash", "read"},
    "tools: Telepathy(far), Read": {"read"},
    "tools: [r*]": {"read"},
    "tools: ''": set[str](),
}  # fmt: skip
"""Fields → the tools that they give."""


@pytest.mark.parametrize("model", ["openai/gpt-5", "openai/qwen3"])
async def test_what_a_file_of_another_system_takes_away_is_gone_with_every_model(rig, model):
    """Whatever the tool is called there, and whichever editor the model has; what it gives is the model's own (R37, S0.90)."""
    rig.plugin("extras", PLUGIN)
    for number, fields in enumerate([*TAKEN, *GIVEN]):
        put(rig.home, f"a{number}", f"description: d\n{fields}")
    with LoopbackServer(*[replies.text("ok")] * 99) as server:
        rig.environ.update({"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "k"})
        async with rig.host() as host:
            every = await offered(host, server, rig.vault, "build", model)
            assert ("apply_patch" in every) is ("gpt" in model) and {"stamp", "mcp__files__remove", "list"} <= every
            for number, (fields, tools) in enumerate([*TAKEN.items(), *GIVEN.items()]):
                found = await offered(host, server, rig.vault, f"a{number}", model)
                wanted = (every - tools if tools is not None else set[str]()) if fields in TAKEN else every & tools
                assert (fields, found) == (fields, wanted)
        notes = [note for record in host.plugin_set.records for note in record.notes]
    assert sum("to take away, so the agent gets none" in note for note in notes) == 2
    assert not [note for note in notes if "TodoWrite" in note or "vscodeAPI" in note]


def make_policy(rows: list[dict[str, str]], agent: Any) -> Policy:
    """Return the policy of the defaults, of a user's rules and of an agent's."""
    user = [Rule.model_validate(row) for row in rows]
    here = Path("/nowhere")
    return policy_of((*default_rules(), *user), home=here, vault=here, resolve=lambda *_: None, agent=agent)  # type: ignore


def test_a_part_of_a_tool_is_a_rule():
    """``Bash(git:*)`` gives git and nothing else, or takes git away (S0.90, R37)."""

    def said(fields: str, *calls: tuple[str, str]) -> list[str]:
        policy = make_policy([], agent=parsed(fields)[0].rules)
        return [policy.by_text(domain, target).decision for domain, target in calls]

    git, rm = ("bash", "shell:git status"), ("bash", "shell:rm x")
    assert said("tools: Bash(git:*), Bash(ls), Read", git, rm) == ["ask", "deny"]
    assert said("disallowedTools: Bash(rm:*)", git, rm) == ["ask", "deny"]
    assert said("tools: Bash, Bash(git:*)", git, rm) == ["ask", "ask"]
    paths = ("edit", "vault:/docs/a.md"), ("edit", "vault:/src/a.py")
    assert said("tools: Edit(docs/**)", *paths) == ["allow", "deny"]
    assert said("disallowedTools: ['Write(./docs/**)']", *paths) == ["deny", "allow"]
    sites = ("web_fetch", "url:https://example.com/a"), ("web_fetch", "url:https://example.org/a")
    assert said("tools: WebFetch(domain:example.com)", *sites) == ["allow", "deny"]
    kin = ("task", "task:explore"), ("task", "task:general")
    assert said("tools: Read, Agent(x:explore, x:plan)", *kin)[1] == "deny" == said("agents: [explore]", *kin)[1]
    assert said("tools: Read, Agent(x:explore, x:plan)", *kin)[0] == said("agents: [explore]", *kin)[0] != "deny"


@pytest.mark.parametrize(
    ("fields", "decisions"),
    [
        ("permission: {edit: deny, write: allow}", "deny deny"),
        ("permission: {write: allow, edit: deny}", "deny deny"),
        ("permission: {edit: allow, patch: ask}", "ask ask"),
        ("permission:\n  edit: {'*': deny, 'docs/**': allow}\n  write: {'*': allow}", "allow deny"),
        ("permission:\n  edit: {'*': allow}\npermissions:\n  edit: {'src/**': deny}", "allow deny"),
        ("permission: {'*': deny, edit: allow}", "allow allow"),
        ("permission: {'*': deny, edit: allow, write: {'docs/**': allow}}", "allow deny"),
        ("permission: {edit: allow, '*': deny}", "deny deny"),
        ("permission: deny", "deny deny"),
        ("permission: {edit: allow, todowrite: deny, doom_loop: ask}", "allow allow"),
    ],
)
def test_the_stricter_of_two_names_of_a_domain_counts(fields, decisions):
    """In one file, for every target, and for a child of the agent too (R37, S0.40)."""

    class Above:
        agent = Agent(id="above")

        class plugin_set:
            tools: dict[str, Any] = {}

    agent, problems = parsed(fields)
    assert problems == []
    for rules in (agent.rules, narrow_agent(agent, Above, ()).rules):  # type: ignore[arg-type]
        policy = make_policy([], agent=rules)
        assert " ".join(policy.by_text("edit", f"vault:/{name}").decision for name in ("docs/a", "src/a")) == decisions


def test_what_lies_outside_the_folder_is_a_domain_of_another_system():
    """OpenCode calls it ``external_directory`` (S0.90)."""
    agent, problems = parsed("permission: {external_directory: {'*': deny, '/data/**': allow}}")
    everything = [{"domain": "read", "pattern": "*", "decision": "allow"}]
    policy = make_policy(everything, agent=agent.rules)
    assert problems == []
    assert [policy.by_text("read", f"fs:/{name}").decision for name in ("etc/x", "data/x")] == ["deny", "allow"]


NEARLY = """name: Code Reviewer
description: Use it when code is done. Examples: user: "look at this"
argument-hint: [a] | [b]
tools:
  bash: true
  write: false
permission:
  edit: {"docs/**": allow}
  bash: deny"""


def test_frontmatter_that_is_only_nearly_yaml_is_read_field_by_field():
    """A colon in a description costs nothing, and what restricts is understood; no allow is taken from it (S0.90, D41)."""
    agent, problems = agent_of(f"---\n{NEARLY}\n---\nx".encode(), "w.md")
    assert agent is not None and agent.description.endswith('Examples: user: "look at this"') and agent.name == "Code Reviewer"
    assert "write" in agent.deny_tools and [(rule.domain, rule.decision) for rule in agent.rules] == [("bash", "deny")]
    assert ["no allow rule is taken from it, because its frontmatter is not YAML" in said.message for said in problems] == [
        True
    ]
    for wrong in ("tools: [Read, Grep", "disallowedTools: [Bash, Write"):
        agent, _ = agent_of(f"---\ndescription: a: b\n{wrong}\n---\nx".encode(), "w.md")
        assert agent is not None and not agent.may_use("bash") and not agent.may_use("write")
    for odd in ("*all* of it", "!important", "@me", "`x`: y", "[a] | [b]"):
        agent, problems = agent_of(f"---\ndescription: {odd}\n---\nx".encode(), "w.md")
        assert agent is not None and agent.description == odd and problems == []


@pytest.mark.parametrize(
    ("file", "name"),
    [("reviewer.agent.md", "reviewer"), ("v4.1-beast.md", "v4.1-beast"), ("C# Expert.chatmode.md", "C-Expert")],
)
async def test_the_files_name_is_the_id(tmp_path: Path, file: str, name: str):
    """Copilot's ``NAME.agent.md``, and names with dots, which can be started with an @ too (S0.90)."""
    (tmp_path / "agents").mkdir(mode=0o700)
    (tmp_path / "agents" / file).write_text("---\ndescription: d\nmodel: Claude Sonnet 4.5\n---\nx\n")
    agent, [problem] = read_agent(tmp_path / "agents" / file)
    assert agent is not None and (agent.id, agent.model) == (name, None)
    assert problem.message == "the model 'Claude Sonnet 4.5' does not exist here; the default model is used"
    (tmp_path / "vault").mkdir()
    (tmp_path / "s.json").write_text(json.dumps(["did it", {"purpose": "child", "text": "child"}, "done"]))
    async with await open_host(tmp_path, environ={}) as host:
        session = await host.new_session(tmp_path / "vault", model=f"script:{tmp_path / 's.json'}")
        await session.prompt(f"@{name} go")
        assert [row.agent for row in await host.store.sessions(9, purpose=None, parent=session.id)] == [name]


def test_who_may_choose_an_agent_and_whether_it_is_there_at_all():
    """Other systems have switches for it; one that is switched off is not there (S0.90)."""
    for field, mode in (
        ("disable-model-invocation: true", "primary"), ("infer: false", "primary"), ("user-invocable: false", "subagent"),
        ("color: red", "all"),
    ):  # fmt: skip
        assert (parsed(field)[0].mode, parsed(field)[1]) == (mode, [])
    for field in ("disable: true", "disabled: yes", "enabled: false", 'disable: "true"'):
        assert agent_of(f"---\ndescription: d\n{field}\n---\nx".encode(), "w.md") == (None, [])
    assert parsed("disable: false\nenabled: true")[0].id == "a"
    assert parsed("permissionMode: acceptEdits\ncolor: red\nmetadata: {a: 1}\nmodel: inherit")[1] == []
    assert parsed("hooks: {PreToolUse: []}")[1] == [
        "the field 'hooks' is not used here: what its commands check is not checked"
    ]


def test_a_name_means_the_same_tools_however_it_is_spelled():
    """One table for all systems (S0.90)."""
    for name in ("WebFetch", "webfetch", "web_fetch", "fetch"):
        assert "web_fetch" in tools_here(name)
    assert tools_here("Telepathy") == ("Telepathy",) and tools_here("g*") == ("g*",)
    assert tools_here("github*") == ("github*", "mcp__github*") and tools_here("g*", denied=True) == ("g*", "mcp__g*")


async def test_the_list_of_many_agents_stays_short(rig):
    """A collection of agents keeps every name in the prompt, and of each description what there is room for (S0.82, S2.3)."""
    for number in range(200):
        put(rig.home, f"agent-{number}", f"description: Number {number}. {'Long. ' * 100}")
    with LoopbackServer(replies.text("ok")) as server:
        rig.environ.update({"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "k"})
        async with rig.host() as host:
            await offered(host, server, rig.vault, "build", "openai/qwen3")
    system = server.requests[-1].body["messages"][0]["content"]
    listed = system[system.index("Agents that the task tool can start:") :]
    assert len(listed) < 20_000 and all(f"- agent-{number}: Number {number}." in listed for number in range(200))
