"""Agent files of every kind that people and attackers write: each has its outcome, and a mistake is named (D41, D42)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from agent_texts import agent_of
from moryflow import open_host
from moryflow_sdk.support.agent_files import read_agent

GOOD = '{"id": "w", "name": "W"}'


def head(front: str, body: str = "b\n") -> bytes:
    return f"---\n{front}\n---\n{body}".encode("utf-8", "surrogatepass")


def fields(**given: Any) -> bytes:
    import json

    return head(json.dumps({"id": "w", **given}))


LOADED = {
    "plain": head(GOOD),
    "single quotes, trailing comma": head("{'id': 'w', 'modelSettings': {'temperature': 0.2,},}"),
    "unquoted keys": head("{id: 'w'}"),
    "comments": head("{ // who\n 'id': /* x */ 'w' }"),
    "mark": b"\xef\xbb\xbf" + head(GOOD),
    "crlf": head(GOOD).replace(b"\n", b"\r\n"),
    "crlf and comments": head("{ // x\n'id':'w'}").replace(b"\n", b"\r\n"),
    "yaml": head("id: w\nname: W\nmodelSettings:\n  temperature: 0.2"),
    "yaml block text": head("id: w\ndescription: |\n  two\n  lines"),
    "yaml comments": head("# who\nid: w # here"),
    "spaces after the lines": b"--- \n" + GOOD.encode() + b"\n---\t\nb\n",
    "empty body": head(GOOD, ""),
    "no newline at the end": head(GOOD, "").rstrip(),
    "rules in the body": head(GOOD, "a\n---\nb\n---\n"),
    "frontmatter-like body": head(GOOD, "---\nid: other\n---\n"),
    "three dashes in a text": head('{"id": "w", "description": "a\\n---\\nb"}'),
    "html in the body": head(GOOD, "<script>x</script>"),
    "placeholders in the body": head(GOOD, "{{current_time}} ${HOME} $(id)"),
    "right to left": head(GOOD, "\u202e\u05d0\u05d1"),
    "emoji": head('{"id": "w", "name": "✍️", "description": "写作"}'),
    "every field": fields(
        name="W", description="d", mode="subagent", model="openai/x", hidden=True,
        tools={"allow": ["read", "g*"], "deny": ["glob"]},
        permission=[{"domain": "edit", "pattern": "*", "decision": "deny"}], maxSteps=5,
        modelSettings={"temperature": 0, "topP": 1, "maxTokens": 1},
    ),
    "numbers at their ends": fields(modelSettings={"temperature": 2, "topP": 0, "maxTokens": 10**6}),
    "id with dash and underscore": head('{"id": "a-b_C9"}'),
    "id of 64": head('{"id": "%s"}' % ("a" * 64)),
    "settings without an id": head('{"description": "d", "modelSettings": {}}'),
    "null fields": fields(tools=None, permission=None, modelSettings=None),
    "tools as text": fields(tools="read, grep ,,"),
    "another system's": head("name: Code Reviewer\ndescription: Reviews code\ntools: Read, Grep, WebFetch\nmodel: inherit"),
    "switches": head("description: d\nmode: subagent\ntemperature: 0.1\ntools:\n  write: false\n  bash: false"),
    "permissions by domain": head(
        "description: d\npermission:\n  edit: deny\n  bash:\n    '*': ask\n    git push: deny\n  webfetch: allow"
    ),
}  # fmt: skip

WARNED = {
    "unknown field": (fields(colour="red"), "'colour'"),
    "python names": (fields(__class__="x", __proto__={"a": 1}), "__proto__"),
    "temperature as text": (fields(modelSettings={"temperature": "0.2"}), "modelSettings.temperature"),
    "temperature true": (fields(modelSettings={"temperature": True}), "modelSettings.temperature"),
    "temperature too high": (fields(modelSettings={"temperature": 2.1}), "modelSettings.temperature"),
    "temperature negative": (fields(modelSettings={"temperature": -0.1}), "modelSettings.temperature"),
    "temperature nan": (head('{"id":"w","modelSettings":{"temperature":NaN}}'), "modelSettings.temperature"),
    "temperature infinite": (head('{"id":"w","modelSettings":{"temperature":1e999}}'), "modelSettings.temperature"),
    "temperature a list": (fields(modelSettings={"temperature": [0.2]}), "modelSettings.temperature"),
    "topP too high": (fields(modelSettings={"topP": 1.01}), "modelSettings.topP"),
    "maxTokens zero": (fields(modelSettings={"maxTokens": 0}), "modelSettings.maxTokens"),
    "maxTokens negative": (fields(modelSettings={"maxTokens": -5}), "modelSettings.maxTokens"),
    "maxTokens a fraction": (fields(modelSettings={"maxTokens": 512.5}), "modelSettings.maxTokens"),
    "maxTokens infinite": (head('{"id":"w","modelSettings":{"maxTokens":1e999}}'), "modelSettings.maxTokens"),
    "unknown parameter": (fields(modelSettings={"seed": 7}), "modelSettings.seed"),
    "settings a list": (fields(modelSettings=[]), "modelSettings must be an object"),
    "settings a text": (fields(modelSettings="hot"), "modelSettings must be an object"),
    "name a number": (fields(name=5), "name must be text"),
    "description a list": (fields(description=["a"]), "description must be text"),
    "half a character": (head('{"id":"w","name":"\\ud800"}'), "name must be text"),
    "mode unknown": (fields(mode="boss"), "mode must be"),
    "mode a list": (fields(mode=["primary"]), "mode must be"),
    "hidden as text": (fields(hidden="yes"), "hidden must be"),
    "maxSteps zero": (fields(maxSteps=0), "maxSteps"),
    "tools a number": (fields(tools=5), "the agent gets none"),
    "tools of numbers": (fields(tools=[1]), "the agent gets none"),
    "tools with a typo": (fields(tools={"alow": ["read"]}), "the agent gets none"),
    "tools nested": (fields(tools={"allow": {"read": True}}), "the agent gets none"),
    "model elsewhere": (fields(description="d", model="sonnet"), "'sonnet'"),
    "a domain that is none": (fields(permission=[{"domain": "shell", "pattern": "*", "decision": "allow"}]), '"shell"'),
    "permission a text": (fields(permission="allow"), "a rule is an object"),
    "permission with a typo": (
        fields(permission=[{"domain": "bash", "pattern": "*", "decision": "dney"}]),
        "permission rule 1",
    ),
    "permission a list of texts": (fields(permission=["deny bash"]), "permission rule 1"),
    "a deny in no domain": (fields(permission=[{"domain": "shell", "pattern": "*", "decision": "deny"}]), '"shell"'),
    "permission by domain with a typo": (fields(permission={"bash": "dney"}), 'did you mean "deny"?'),
    "an expression that is none": (
        fields(permission=[{"domain": "bash", "pattern": "regex:([", "decision": "deny"}]),
        "cannot be used",
    ),
}

REJECTED = {
    **{
        f"yaml {value}": (head(f"id: w\nname: {value}"), "does not fit its tag")
        for value in ("!!bool x", "!!int ''", "!!int '-'", "!!float ''", "!!timestamp x")
    },
    "empty": (b"", 'begins with a line "---"'),
    "no frontmatter": (b"Just text.\n", 'begins with a line "---"'),
    "space first": (b" " + head(GOOD), 'begins with a line "---"'),
    "newline first": (b"\n" + head(GOOD), 'begins with a line "---"'),
    "text first": (b"# Title\n" + head(GOOD), 'begins with a line "---"'),
    "four dashes": (head(GOOD).replace(b"---", b"----"), 'begins with a line "---"'),
    "toml": (b'+++\nid = "w"\n+++\n', 'begins with a line "---"'),
    "one line only": (b"---\n", "not closed"),
    "not closed": (b'---\n{"id":"w"}\nb\n', "not closed"),
    "dots": (b'---\n{"id":"w"}\n...\nb\n', "not closed"),
    "nothing in it": (head(""), "must be an object"),
    "only a comment": (head("# x"), "must be an object"),
    "null": (head("null"), "must be an object"),
    "a number": (head("5"), "must be an object"),
    "a text": (head("hello"), "must be an object"),
    "a list": (head('["id", "w"]'), "must be an object"),
    "yaml list": (head("- id: w"), "must be an object"),
    "not closed brace": (head('{"id": "w"'), "not JSON5"),
    "two objects": (head('{"id": "w"} {"id": "v"}'), "not JSON5"),
    "missing colon": (head('{"id" "w"}'), "not JSON5"),
    "key twice": (head('{"id": "w", "id": "v"}'), "not JSON5"),
    "key twice, single quotes": (head("{'id': 'w', 'id': 'v'}"), "not JSON5"),
    "code": (head('{"id": __import__("os").system("id")}'), "not JSON5"),
    "deep": (head('{"id": "w", "x": ' + "[" * 5000 + "]" * 5000 + "}"), "8 KiB"),
    "large": (head('{"id": "w", "x": "%s"}' % ("a" * 70_000)), "larger than"),
    "yaml tag": (head("id: !!python/object/apply:os.system ['id']"), "not YAML"),
    "yaml name": (head("id: !!python/name:os.system"), "not YAML"),
    "JSON5 of 9 KB": (head("{id: 'w', tools: [" + "'a'," * 2300 + "]}"), "may have 8 KiB; write it as JSON or YAML"),
    "yaml nested deeply": (head("- " * 5000 + "a"), "the frontmatter"),
    "yaml alias": (head("a: &a x\nid: *a"), "aliases"),
    "yaml merge": (head("a: &a {id: w}\n<<: *a"), "aliases"),
    "yaml key twice": (head("id: w\nid: v"), "given twice"),
    "yaml tab": (head("id: w\n\tname: x"), "not YAML"),
    "yaml deep": (head("a: " + "[" * 2000), "nest"),
    "yaml no": (head("id: no"), "needs an id"),
    "yaml date": (head("id: 2026-01-01"), "needs an id"),
    "yaml number": (head("id: 0x10"), "needs an id"),
    "no id": (head('{"name": "x"}'), "needs an id"),
    "no id but settings": (head('{"name": "n", "modelSettings": {}}'), "add a line 'id: w', or a description"),
    "id null": (head('{"id": null}'), "needs an id"),
    "id empty": (head('{"id": ""}'), "needs an id"),
    "id a number": (head('{"id": 7}'), "needs an id"),
    "id a list": (head('{"id": ["w"]}'), "needs an id"),
    "id an object": (head('{"id": {"a": 1}}'), "needs an id"),
    "id true": (head('{"id": true}'), "needs an id"),
    "id with a space": (head('{"id": "a b"}'), "letters, digits"),
    "id with a slash": (head('{"id": "a/b"}'), "letters, digits"),
    "id with a backslash": (head('{"id": "a\\\\b"}'), "letters, digits"),
    "id upwards": (head('{"id": "../w"}'), "letters, digits"),
    "id dots": (head('{"id": ".."}'), "letters, digits"),
    "id with a newline": (head('{"id": "w\\n"}'), "letters, digits"),
    "id with NUL": (head('{"id": "w\\u0000"}'), "letters, digits"),
    "id with a control": (head('{"id": "w\\u001b[31m"}'), "letters, digits"),
    "id of another script": (head('{"id": "wrіter"}'), "letters, digits"),
    "id of half a character": (head('{"id": "\\ud800"}'), "letters, digits"),
    "id too long": (head('{"id": "%s"}' % ("a" * 65)), "letters, digits"),
    "id with a dash first": (head('{"id": "-w"}'), "letters, digits"),
    "id a glob": (head('{"id": "*"}'), "letters, digits"),
    "id reserved": (head('{"id": "default_compact_agent"}'), "host's own"),
    "id reserved, other case": (head('{"id": "Default_Compact_Agent"}'), "host's own"),
    "id of the default agent": (head('{"id": "build"}'), "host's own"),
    "utf-16": (head(GOOD).decode().encode("utf-16"), "UTF-8"),
    "utf-16 without a mark": (head(GOOD).decode().encode("utf-16-le"), "NUL"),
    "latin-1": (head('{"id": "w", "name": "é"}').decode().encode("latin-1"), "UTF-8"),
    "overlong": (head(GOOD) + b"\xc0\xaf", "UTF-8"),
    "half a character in the body": (head(GOOD) + b"\xed\xa0\x80", "UTF-8"),
    "NUL in the body": (head(GOOD) + b"\0", "NUL"),
    "binary": (bytes(range(256)), "UTF-8"),
    "huge": (head(GOOD, "x" * 1_100_000), "larger than"),
    "old line ends": (head(GOOD).replace(b"\n", b"\r"), 'begins with a line "---"'),
}


@pytest.mark.parametrize("data", LOADED.values(), ids=LOADED.keys())
def test_what_is_right_loads_without_a_word(data):
    """JSON5 and YAML, marks, line ends, comments, and what other systems write (S0.90, S0.91, D41)."""
    agent, problems = agent_of(data, "w.md")
    assert agent is not None and problems == []


@pytest.mark.parametrize(("data", "text"), WARNED.values(), ids=WARNED.keys())
def test_what_cannot_be_used_is_left_out_and_named(data, text):
    """The agent loads without it (D42)."""
    agent, problems = agent_of(data, "w.md")
    assert agent is not None and [str(problem) for problem in problems if text in problem.message]
    assert agent.settings.temperature is None and agent.settings.max_tokens is None and agent.settings.top_p is None


@pytest.mark.parametrize(("data", "text"), REJECTED.values(), ids=REJECTED.keys())
def test_what_is_wrong_is_refused_and_named(data, text):
    """With the file and the reason; nothing in it is executed or expanded (D41)."""
    agent, problems = agent_of(data, "w.md")
    assert agent is None and text in problems[0].message and problems[0].file == "w.md"


def test_tools_of_other_systems_are_ours():
    """Names in their spelling, and switches (S0.90)."""
    agent, _ = agent_of(LOADED["another system's"], "reviewer.md")
    assert agent.id == "reviewer" and agent.model is None
    assert {"read", "grep", "web_fetch"} <= set(agent.tools)
    agent, _ = agent_of(LOADED["switches"], "x.md")
    assert (agent.tools, agent.deny_tools, agent.settings.temperature) == (None, ("write", "bash"), 0.1)
    agent, _ = agent_of(fields(tools={"*": False, "read": True}), "x.md")
    assert (agent.tools, agent.deny_tools) == (("read",), ())


def test_permissions_of_other_systems_are_rules():
    """By domain, in the order they are written (S0.90, S0.40)."""
    agent, _ = agent_of(LOADED["permissions by domain"], "x.md")
    assert [(rule.domain, rule.pattern, rule.decision) for rule in agent.rules] == [
        ("edit", "*", "deny"), ("bash", "*", "ask"), ("bash", "git push", "deny"), ("web_fetch", "*", "allow"),
    ]  # fmt: skip


@pytest.mark.usefixtures("shared_group")
@pytest.mark.parametrize("mode", [0o602, 0o620])
def test_a_file_that_others_can_write_allows_nothing(tmp_path, mode):
    """Its denies hold (R17)."""
    rules = [{"domain": "bash", "pattern": "*", "decision": decision} for decision in ("allow", "deny")]
    file = tmp_path / "w.md"
    file.write_bytes(fields(permission=rules))
    file.chmod(mode)
    agent, [problem] = read_agent(file)
    assert [rule.decision for rule in agent.rules] == ["deny"]
    assert "can write to it" in problem.message and f"chmod go-w {file}" in problem.message
    file.write_bytes(fields(permission=rules[1:]))
    assert read_agent(file)[1] == []


def test_an_agent_in_a_folder_that_others_can_write_allows_nothing(tmp_path):
    """They could put another file in its place (R17)."""
    file = tmp_path / "agents" / "w.md"
    file.parent.mkdir()
    file.write_bytes(fields(permission=[{"domain": "bash", "pattern": "*", "decision": "allow"}]))
    file.chmod(0o600)
    assert read_agent(file)[1] == []
    file.parent.chmod(0o777)
    agent, [problem] = read_agent(file)
    assert agent.rules == () and f"chmod go-w {file.parent}" in problem.message


def odd_files(folder: Path) -> None:
    """Things that are not agent files, or not files, or oddly named."""
    (folder / "folder.md").mkdir()
    os.mkfifo(folder / "pipe.md")
    (folder / "loop.md").symlink_to("loop.md")
    (folder / "gone.md").symlink_to("nowhere")
    (folder / "null.md").symlink_to("/dev/null")
    (folder / "zero.md").symlink_to("/dev/zero")
    (folder / "below").mkdir()
    for name in (".hidden.md", "writer.md~", ".writer.md.swp", "#writer.md#", "README.txt", "upper.MD", "below/x.md"):
        (folder / name).write_bytes(head('{"id": "ignored"}'))
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.md")).write_bytes(head('{"id": "odd"}'))
    (folder / "line\nbreak.md").write_bytes(head('{"id": "broken-name"}'))
    (folder / "link.md").symlink_to("../elsewhere.md")
    (folder.parent / "elsewhere.md").write_bytes(head('{"id": "linked"}'))


async def test_odd_files_stop_nobody(tmp_path):
    """Pipes, devices, loops, folders, names that are not text: each is named or passed over, the good one loads (D41)."""
    folder = tmp_path / "agents"
    folder.mkdir()
    odd_files(folder)
    (folder / "zz.md").write_bytes(head(GOOD))
    async with await open_host(tmp_path, environ={}, builtins=("moryflow_builtins.user_agents",)) as host:
        record = next(record for record in host.plugin_set.records if record.name == "user_agents")
        mine = {agent.id for agent in host.agents.values() if agent.source.startswith(str(tmp_path))}
    assert mine == {"w", "odd", "broken-name", "linked"}
    for name in ("folder.md", "pipe.md", "loop.md", "gone.md", "null.md", "zero.md"):
        assert any(name in note for note in record.notes), name


async def test_many_broken_ones_are_all_named(tmp_path):
    """A hundred broken agents beside three good ones (SECURITY §4)."""
    folder = tmp_path / "agents"
    folder.mkdir()
    wrong = [data for data, _ in REJECTED.values() if len(data) < 10_000]
    for number in range(100):
        (folder / f"bad{number:03}.md").write_bytes(wrong[number % len(wrong)])
    for name in ("a", "b", "c"):
        (folder / f"{name}.md").write_bytes(head(f'{{"id": "{name}"}}'))
    async with await open_host(tmp_path, environ={}, builtins=("moryflow_builtins.user_agents",)) as host:
        record = next(record for record in host.plugin_set.records if record.name == "user_agents")
        assert {"a", "b", "c"} <= set(host.agents)
    assert all(any(f"bad{number:03}.md" in note for note in record.notes) for number in range(100))


def test_the_check_names_what_cannot_be_used(bench):
    """Also an id that somebody else has; exit code 3 (D41)."""
    folder = bench.home / "agents"
    folder.mkdir()
    (folder / "a.md").write_bytes(head(GOOD))
    done = bench.cli("agent", "check")
    assert (done.returncode, done.stdout) == (0, "1 agent file, no problems found\n")
    (folder / "b.md").write_bytes(head(GOOD))
    (folder / "c.md").write_bytes(head('{"id": "plan"}'))
    done = bench.cli("agent", "check")
    assert done.returncode == 3
    assert "b.md: the id 'w' is taken by" in done.stdout and "c.md: the name 'plan' is taken by" in done.stdout
    assert "b.md: the id 'w' is taken" in bench.cli("agent", "list").stderr


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ('["read", "gerp"]', "w.md:4: tools: there is no tool 'gerp'; did you mean 'grep'?"),
        (
            '{"allow": ["*"], "deny": ["bsh"]}',
            "w.md:4: tools: there is no tool 'bsh' to take away, so the agent gets none; did you mean 'bash'?",
        ),
        ('"Read, Gerp"', "w.md:4: tools: there is no tool 'Gerp'; did you mean 'grep'?"),
        ('{"*": false, "raed": true}', "w.md:4: tools: there is no tool 'raed'; did you mean 'read'?"),
        ('["zzzzzz"]', "w.md:4: tools: there is no tool 'zzzzzz'; next: moryflow agent check"),
        ('["read", "Grep", "mcp_*", "server_*", "!?*"]', ""),
    ],
)
def test_a_tool_that_is_not_there_is_named(bench, tools, said):
    """A slip takes a tool away, or leaves one: by start and by ``agent check``, with what was meant (S0.90, D41)."""
    folder = bench.home / "agents"
    folder.mkdir()
    text = f'---\n{{"id": "w", "name": "W",\n"description": "d",\n"tools": {tools}}}\n---\nDo.\n'
    (folder / "w.md").write_text(text, "utf-8")
    done = bench.cli("agent", "check")
    assert done.returncode == 0
    if not said:
        assert done.stdout == "1 agent file, no problems found\n"
        return
    assert said.removesuffix("; next: moryflow agent check") in done.stdout
    assert said.partition(":4")[2] in bench.cli("agent", "list").stderr


def test_nothing_is_said_of_tools_while_a_plugin_that_may_bring_them_is_missing(bench):
    """In safe mode a plugin's tools are not there, and that is not a slip (D41)."""
    (bench.home / "agents").mkdir()
    (bench.home / "agents" / "w.md").write_bytes(head('{"id": "w", "tools": ["gerp"]}'))
    (bench.home / "plugins").mkdir(mode=0o700)
    (bench.home / "plugins" / "brings.py").write_text("", "utf-8")
    assert "gerp" not in bench.cli("agent", "check", "--safe-mode").stdout
