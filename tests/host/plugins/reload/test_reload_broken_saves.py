"""A plugin that is saved with a mistake, at each stage: the last good version goes on, and it says where (S0-i, D41)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest
from moryflow.cli.open_host import complaint

GOOD = """
from moryflow_sdk import hookimpl, tool

@tool(domain="read")
def hello() -> str:
    "Say it."
    return "{word}"

@hookimpl
def tools():
    return [hello]
"""
HOOK = "from moryflow_sdk import hookimpl\n@hookimpl\n"
MISTAKES = {
    "syntax": ("x = 1\ndef broken(:\n", "import", 2, "SyntaxError: invalid syntax (column 12)"),
    "import": ("import not_there\n", "import", 1, "No module named 'not_there'"),
    "unknown hook": (f"{HOOK}def tool_gat(): ...\n", "register", 2, "did you mean 'tool_gate'?"),
    "bad signature": (f"{HOOK}def tool_gate(cal): ...\n", "register", 2, "unknown argument cal; the hook gives"),
    "raise": ("x = 1\n1 / 0\n", "import", 2, "ZeroDivisionError"),
    "raise in a hook": (f"{HOOK}def tools():\n    1 / 0\n", "contribute", 4, "ZeroDivisionError"),
    "raise at the start": (f"{HOOK}def plugin_start():\n    1 / 0\n", "start", 4, "ZeroDivisionError"),
    "hang": ("while True: pass\n", "import", 0, "it did not finish in 2 s"),
    "wrong return type": (f"{HOOK}def tools():\n    return 3\n", "contribute", 0, "a list of items is expected, not int"),
    "exit": ("import sys\nsys.exit(3)\n", "import", 2, "it called sys.exit(3)"),
    "hard exit": ("import os\nos._exit(3)\n", "import", 0, "it ended the process without a message (exit code 3)"),
}
CHECK = "; moryflow plugin check mine"
SAID = {
    "syntax": f"failed (mine.py:2): SyntaxError: invalid syntax (column 12){CHECK}",
    "import": "failed (mine.py:1): ModuleNotFoundError: No module named 'not_there'; install what it needs: not_there",
    "raise": f"failed (mine.py:2): ZeroDivisionError: division by zero{CHECK}",
    "unknown hook": "failed (mine.py:2): unknown hook 'tool_gat'; did you mean 'tool_gate'?",
    "bad signature": f"failed (mine.py:2): tool_gate: unknown argument cal; the hook gives call, turn{CHECK}",
    "raise in a hook": f"has a problem (mine.py:4): tools: ZeroDivisionError: division by zero{CHECK}",
    "wrong return type": f"has a problem (mine.py:2): tools: TypeError: a list of items is expected, not int{CHECK}",
    "raise at the start": f"failed (mine.py:4): ZeroDivisionError: division by zero{CHECK}",
    "hang": "failed (mine.py): it did not finish in 2 s; import heavy libraries inside the functions that need them; "
    "moryflow plugin check gives it more time",
    "exit": f"failed (mine.py:2): it called sys.exit(3) while it was imported{CHECK}",
    "hard exit": f"failed (mine.py): it ended the process without a message (exit code 3){CHECK}",
}
"""What a start says of each."""


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_broken_save_keeps_the_last_good_version(home, mistake):
    """What was there goes on, with file, line and reason; the next good save takes over (S0-i, invariant 5)."""
    source, stage, line, error = MISTAKES[mistake]
    file = home.write("plugins/mine.py", GOOD.format(word="one"))
    async with home.open():
        home.write("plugins/mine.py", source)
        report = await home.report()
        record = home.record()
        assert (record.status, record.kept, record.stage) == ("loaded", True, stage)
        assert line in (0, record.line) and record.file == str(file)
        assert error in f"{record.error} {record.hint}"
        said = report.lines()[-1]
        assert list(report.kept) == [str(file)] and said.count(str(file)) == 1
        assert error in said and said.endswith("; moryflow plugin check mine")
        assert await home.says() == "one"
        home.write("plugins/mine.py", GOOD.format(word="two"))
        assert "fixed" in (await home.report()).lines()[0]
        assert (await home.says(), home.record().error) == ("two", "")


@pytest.mark.parametrize("source", ["", "from moryflow_sdk import hookimpl\n"])
async def test_a_file_that_is_written_only_in_part_takes_no_gate_away(home, source):
    """Many editors empty a file before they write it: what is left without a hook is no version (invariant 4)."""
    home.write("plugins/mine.py", f"{HOOK}def tool_gate(call): ...\n")
    async with home.open() as host:
        home.write("plugins/mine.py", source)
        assert "it implements no hook" in (await home.report()).lines()[-1]
        assert home.record().kept and home.record().gate and not host.plugin_set.missing_gates
    async with home.open() as host:
        assert host.plugin_set.missing_gates == ("mine",)


def _replace_with(make):
    def replace(file):
        file.unlink()
        make(file)

    return replace


def _package(file):
    file.mkdir()
    (file / "__init__.py").write_text(GOOD.format(word="two"))


UNREADABLE = {
    "pipe": (_replace_with(os.mkfifo), "not a regular file"),
    "folder": (_replace_with(Path.mkdir), "a folder without __init__.py is not a plugin"),
    "package": (_replace_with(_package), "'mine.py' is not a plugin name"),
    "lost link": (_replace_with(lambda file: file.symlink_to("nowhere.py")), "this is a link that leads nowhere: nowhere.py"),
    "too large": (lambda file: file.write_bytes(b"#" * (8 * 2**20 + 1)), "larger than 8 MiB"),
    "open to all": (lambda file: (file.write_text("x = 2\n"), file.chmod(0o666)), "everybody can write to it"),
    "open folder": (lambda file: (file.parent.chmod(0o777), file.write_text("x = 2\n")), "everybody can write to it"),
    "no folder": (lambda file: (shutil.rmtree(file.parent), file.parent.write_text("")), "the folder cannot be read"),
}


@pytest.mark.parametrize("way", UNREADABLE)
async def test_a_plugin_that_cannot_be_read_any_more_keeps_its_last_good_version(home, way):
    """What is refused at a start changes nothing while a host runs: the gate stays (S0-i, invariant 4)."""
    change, error = UNREADABLE[way]
    file = home.write("plugins/mine.py", GOOD.format(word="one") + "@hookimpl\ndef tool_gate(call): ...\n")
    async with home.open() as host:
        change(file)
        [line] = (await home.report()).lines()
        assert line.startswith("kept the previous version: ") and error in line
        assert await home.says() == "one"
        assert home.record().kept and home.record().gate and not host.plugin_set.missing_gates
        assert [record.name for record in host.plugin_set.records if record.tier != "builtin"] == ["mine"]
    async with home.open() as host:
        assert host.plugin_set.missing_gates == ("mine",) and "hello" not in host.tools


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_plugin_that_begins_broken_is_named_and_comes_once_it_is_mended(home, mistake):
    """There is nothing to keep; the host is up, and says what is wrong, where, and what to do (invariant 5)."""
    source, stage, _, _ = MISTAKES[mistake]
    file = home.write("plugins/mine.py", source)
    async with home.open():
        record = home.record()
        assert (record.status, record.stage) in (("failed", stage), ("loaded", "contribute"))
        assert complaint(record).replace(str(file), "mine.py") == SAID[mistake]
        home.write("plugins/mine.py", GOOD.format(word="two"))
        await home.until(lambda: "hello" in home.host.tools)
        assert await home.says() == "two"


UNDESCRIBED = GOOD.replace('    "Say it."\n', "")
GATE = "@hookimpl\ndef tool_gate(call): ...\n"


@pytest.mark.parametrize("mistake", ["raise at the start", "raise in a hook", "syntax"])
async def test_a_version_with_a_remark_is_kept_like_any_other(home, mistake):
    """It works, whatever is said of it; the place is that of the mistake, not of the remark (S0-i, invariant 4)."""
    source, stage, line, error = MISTAKES[mistake]
    home.write("plugins/mine.py", UNDESCRIBED.format(word="one") + GATE)
    async with home.open() as host:
        assert "has no description" in home.record().error
        home.write("plugins/mine.py", source)
        [said] = (await home.report()).lines()
        assert said.startswith("kept the previous version: ") and error in said and "description" not in said
        record = home.record()
        assert (record.kept, record.gate, record.stage, record.line) == (True, True, stage, line)
        assert await home.says() == "one" and not host.plugin_set.missing_gates


async def test_a_new_version_with_a_remark_is_taken(home):
    """As at a start. A version that loses a tool is not, and the next command is said once (S0-i)."""
    file = home.write("plugins/mine.py", GOOD.format(word="one"))
    async with home.open():
        home.write("plugins/mine.py", UNDESCRIBED.format(word="two"))
        line = (await home.report()).lines()[0]
        assert "plugin mine: has a problem: " in line and "has no description" in line and line.count(str(file)) == 1
        assert await home.says() == "two" and not home.record().kept
        home.write("plugins/mine.py", UNDESCRIBED.format(word="three").replace("[hello]", "[hello, 5]"))
        [line] = (await home.report()).lines()
        assert "5 is not a tool" in line and line.count("moryflow plugin check mine") == 1
        assert await home.says() == "two"


async def test_a_plugin_that_is_saved_with_a_broken_one_starts_once(home):
    """Its start may take a port or a lock that a second one would not get (SDK, ``plugin_start``)."""
    log = home.path / "log"
    start = f"{HOOK}def plugin_start():\n    open({str(log)!r}, 'a').write({{word!r}})\n"
    for name in ("good", "bad"):
        home.write(f"plugins/{name}.py", start.format(word=name))
    async with home.open() as host:
        log.write_text("")
        home.write("plugins/good.py", start.format(word="good2"))
        home.write("plugins/bad.py", start.format(word="bad2") + "    1 / 0\n")
        await host.refresh()
        assert home.record("bad").kept and not home.record("good").kept
        assert log.read_text().count("good2") == 1


async def test_a_new_plugin_that_does_not_start_is_tried_once(home):
    """Whatever else must be put back at the same reload: its start has effects too (SDK, ``plugin_start``)."""
    log = home.path / "log"
    start = f"{HOOK}def plugin_start():\n    open({str(log)!r}, 'a').write({{word!r}})\n"
    gate = "    1 / 0\n@hookimpl\ndef tool_gate(call): ...\n"
    home.write("plugins/old.py", start.format(word="old"))
    home.write("plugins/new.py", start.format(word="new") + gate)
    async with home.open() as host:
        home.write("plugins/old.py", start.format(word="old2") + "    1 / 0\n")
        home.write("plugins/new.py", start.format(word="new2") + gate)
        await host.refresh()
        record = home.record("new")
        assert (record.status, record.stage, record.line) == ("failed", "start", 5) and "ZeroDivisionError" in record.error
        assert home.record("old").kept and host.plugin_set.missing_gates == ("new",)
        assert log.read_text().count("new2") == 1


async def test_what_is_kept_may_make_another_new_version_worse(home):
    """Two plugins change names at once and one of them is broken: both keep their previous version (S0-i)."""
    home.tool("a1", name="foo", plugin="a")
    home.tool("b1", name="baz", plugin="b")
    async with home.open():
        home.tool("b2", name="foo", plugin="b")
        home.write("plugins/a.py", f"{HOOK}def plugin_start():\n    1 / 0\n")
        await home.until(lambda: home.record("a").kept and home.record("b").kept)
        assert (await home.says("foo"), await home.says("baz")) == ("a1", "b1")


async def test_one_mistake_after_another_keeps_the_last_good_version(home):
    """Whatever stage they are of: what was kept is the version before still (S0-i, D41)."""
    home.write("plugins/mine.py", GOOD.format(word="one"))
    async with home.open():
        for mistake in ("syntax", "raise in a hook", "raise at the start", "import", "wrong return type"):
            home.write("plugins/mine.py", MISTAKES[mistake][0])
            await home.report()
            assert await home.says() == "one", mistake


@pytest.mark.parametrize(
    ("file", "good", "bad", "command"),
    [
        ("agents/w.md", '---\n{"id": "w", "name": "W"}\n---\nx\n', '---\n{"id": \n---\nx\n', "moryflow agent check"),
        ("tools/w.py", "def w() -> str:\n    'W.'\n    return ''\ntools = [w]\n", "def w(:\n", "moryflow tool check"),
        ("commands/w.md", "Read $1.\n", "", "moryflow doctor"),
        ("config.jsonc", '{"agents": {"runtime": {"tools": {"external": {"enabled": true}}}}}', "{", "moryflow config check"),
    ],
)
async def test_what_is_kept_is_told_with_the_next_command(home, file, good, bad, command):
    """What happened, where, what to type, whatever kind of file it is; and that it is fixed (STYLE, errors; S0-i)."""
    home.write("config.jsonc", '{"agents": {"runtime": {"tools": {"external": {"enabled": true}}}}}')
    path = home.write(file, good)
    async with home.open():
        home.write(file, bad)
        report = await home.report()
        assert f"kept the previous version: {path}:" in report.lines()[-1]
        assert report.lines()[-1].endswith(f"; {command}")
        assert report.as_event()["kept"][0]["next"] == command and report.changed == ()
        home.write(file, good)
        assert f"file {path}: fixed" in (await home.report()).lines()[0]


@pytest.mark.parametrize(
    ("file", "good", "bad", "names"),
    [
        (
            "tools/w.py",
            "def w() -> str:\n    'W.'\n    return ''\ntools = [w]\n",
            ("w", "ls"),
            "taken by the builtin plugin files",
        ),
        (
            "tools/w.sh",
            '#!/bin/sh\n# /// moryflow\n# name = "w"\n# description = "W."\n# ///\n',
            ('"w"', '"a b"'),
            "not a tool name",
        ),
        (
            "tools/w.sh",
            '#!/bin/sh\n# /// moryflow\n# name = "w"\n# description = "W."\n# parameters.properties.n.type = "string"\n# ///\n',
            ("string", "strong"),
            "properties.n.type must be one of",
        ),
        ("agents/w.md", '---\n{"id": "w"}\n---\nx\n', ('"w"', '"build"'), "the id 'build' is the host's own"),
    ],
)
async def test_a_file_whose_new_items_are_refused_keeps_those_before(home, file, good, bad, names):
    """A file that parses may still hold nothing that can be used: the previous version stays as for any other error (D41)."""
    home.write("config.jsonc", '{"agents": {"runtime": {"tools": {"external": {"enabled": true}}}}}')
    path = home.write(file, good)
    path.chmod(0o700)
    async with home.open() as host:
        path.write_text(good.replace(*bad), encoding="utf-8")
        report = await home.report()
        assert "w" in {**host.tools, **host.agents} and report.changed == ()
        assert f"kept the previous version: {path}:" in report.lines()[-1] and names in report.lines()[-1]
        assert len(report.lines()) == 1
        path.write_text(good, encoding="utf-8")
        assert f"file {path}: fixed" in (await home.report()).lines()[0]


async def test_what_another_plugin_has_taken_over_is_not_said_to_be_kept(home):
    """A report names a version as kept only if it is in use (D41)."""
    settings = '{"agents": {"runtime": {"tools": {"external": {"enabled": true}}}}, "disabledPlugins": [%s]}'
    home.write("config.jsonc", settings % '"files"')
    path = home.write("tools/w.py", "def ls() -> str:\n    'W.'\n    return ''\ntools = [ls]\n")
    async with home.open() as host:
        assert host.tools["ls"].plugin == "external_tools"
        home.write("config.jsonc", settings % "")
        report = await home.report()
        assert host.tools["ls"].plugin == "files" and not report.kept and not host.plugin_set.kept
        assert f"file {path}:1: the name 'ls' is taken by the builtin plugin files" in report.lines()[0]


async def test_a_broken_agent_file_keeps_the_agent_before(home):
    """A file that fails keeps the previous good version, with file, line, column and reason (D41)."""
    text = '---\n{{"id": "writer", "name": "Writer"{more}}}\n---\nYou write {what}.\n'
    file = home.write("agents/writer.md", text.format(what="prose", more=""))
    async with home.open() as host:
        home.write("agents/writer.md", text.format(what="verse", more=", oops"))
        report = await home.report()
        assert host.agents["writer"].prompt == "You write prose."
        assert str(file) in report.lines()[-1] and "kept the previous version" in report.lines()[-1]
        home.write("agents/writer.md", text.format(what="verse", more=""))
        await home.report()
        assert host.agents["writer"].prompt == "You write verse."
        file.unlink()
        await home.until(lambda: "writer" not in host.agents)


async def test_another_file_takes_no_name_of_an_agent_that_is_kept(home):
    """Else an agent without the rules of the broken file would answer in its place (D41, invariant 5)."""
    text = '---\n{{"id": "w", "permission": {}}}\n---\nYou write.\n'
    first = home.write("agents/a.md", text.format('[{"domain": "edit", "pattern": "*", "decision": "deny"}]'))
    home.write("agents/b.md", text.format("[]"))
    async with home.open() as host:
        home.write("agents/a.md", "---\n")
        report = await home.report()
        assert [rule.decision for rule in host.agents["w"].rules] == ["deny"]
        assert list(report.kept) == [str(first)] and f"the name 'w' is taken by {first}" in report.lines()[0]


async def test_the_file_whose_tool_is_kept_is_named_to_the_file_that_wants_its_name(home):
    """Not the built-in plugin that reads both, which leads to neither (D41, invariant 5)."""
    home.write("config.jsonc", '{"agents": {"runtime": {"tools": {"external": {"enabled": true}}}}}')
    code = "def {0}() -> str:\n    'W.'\n    return ''\ntools = [{0}]\n"
    first = home.write("tools/a.py", code.format("w"))
    home.write("tools/b.py", code.format("v"))
    async with home.open() as host:
        home.write("tools/a.py", "def w(:\n")
        await home.report()
        home.write("tools/b.py", code.format("w"))
        report = await home.report()
        assert host.tools["w"].tool.source == str(first)
        assert f"the name 'w' is taken by {first}" in "".join(report.lines())


@pytest.mark.parametrize("folder", ["agents", "commands"])
async def test_a_folder_that_cannot_be_read_takes_nothing_along(home, folder):
    """A link whose disk is not mounted, a file in its place: what was read from it goes on (D41, invariant 5)."""
    home.write(f"{folder}/w.md", '---\n{"id": "w", "description": "W."}\n---\nYou write.\n')
    async with home.open() as host:
        (home.path / folder).rename(home.path / "away")
        (home.path / folder).symlink_to(home.path / "nowhere")
        await host.refresh()
        assert "w" in getattr(host.plugin_set, folder) and list(host.plugin_set.kept) == [str(home.path / folder)]
        (home.path / folder).unlink()
        await host.refresh()
        assert "w" not in getattr(host.plugin_set, folder)


@pytest.mark.parametrize("left", ["---\n", None])
async def test_an_agent_that_is_lost_at_a_restart_asks_before_every_call(home, left):
    """Its rules are lost with its file: the default agent in its place must not do what it could not (D41, D26)."""
    (home.vault / "a.txt").write_text("alpha")
    text = '---\n{"id": "w", "permission": [{"domain": "read", "pattern": "*", "decision": "deny"}]}\n---\nYou write.\n'
    file = home.write("agents/w.md", text)
    turns = [{"calls": [{"name": "read", "arguments": {"path": "a.txt"}}]}, "done"]
    script = home.write("script.json", json.dumps(turns * 2))
    home.write("config.jsonc", '{"agents": {"runtime": {"agent": {"id": "w"}, "mode": {"default": "full_access"}}}}')
    async with home.open() as host:
        first = (await host.new_session(home.vault, model=f"script:{script}")).id
    file.unlink() if left is None else file.write_text(left)
    async with home.open() as host:
        resumed = await host.resume(home.vault, first, model=f"script:{script}")
        for session in (resumed, await host.new_session(home.vault, model=f"script:{script}")):
            [denied] = (await session.prompt("hi")).denied
            assert "its file is missing or cannot be read; moryflow agent check" in denied["reason"]
        home.write("agents/w.md", text)
        await host.refresh()
        assert [rule.problem for rule in resumed.agent.rules] == [""]


async def test_a_session_whose_agent_is_lost_is_explained_as_it_acts(home):
    """``permission explain --session`` must not say *allow* where the session asks (D41)."""
    agent = home.write("agents/w.md", '---\n{"id": "w"}\n---\nYou write.\n')
    home.write("config.jsonc", '{"agents": {"runtime": {"agent": {"id": "w"}}}}')
    async with home.open() as host:
        session = (await host.new_session(home.vault, model="script:x")).id
    agent.unlink()
    home.write("config.jsonc", "{}")
    async with home.open() as host:
        acts = (await host.resume(home.vault, session)).agent
        async with host.read_only(home.vault, session=session) as scope:
            assert scope.agent == acts and acts.rules[0].problem


async def test_a_session_follows_an_agent_that_was_away(home):
    """Its file is removed and written anew, as some editors and a checkout do: its rules count again (S0-i, D41)."""
    text = '---\n{{"id": "w", "permission": {}}}\n---\nYou write.\n'
    file, script = home.write("agents/w.md", text.format("[]")), home.write("script.json", '["done"]')
    async with home.open() as host:
        session = await host.new_session(home.vault, agent="w", model=f"script:{script}")
        file.unlink()
        await host.refresh()
        home.write("agents/w.md", text.format('[{"domain": "edit", "pattern": "*", "decision": "deny"}]'))
        await host.refresh()
        await session.prompt("hi")
        assert [rule.decision for rule in session.agent.rules] == ["deny"]


async def test_a_session_takes_the_saved_agent_at_its_next_turn(home):
    """Agent settings reload at a turn boundary (S0-i)."""
    text = '---\n{{"id": "writer", "name": "Writer"}}\n---\nYou write {}.\n'
    home.write("agents/writer.md", text.format("prose"))
    script = home.write("script.json", '["done", "done"]')
    async with home.open() as host:
        session = await host.new_session(home.vault, agent="writer", model=f"script:{script}")
        await session.prompt("hi")
        home.write("agents/writer.md", text.format("verse"))
        await home.report()
        await session.prompt("hi")
        assert session.agent.prompt == "You write verse."


async def test_settings_that_hold_from_the_next_turn_on_and_those_that_take_a_restart(home):
    """Permission rules, truncation, agent and prompt settings reload; the rest says restart (issue, configuration)."""
    rules = '[{"domain": "read", "pattern": "vault:**", "decision": "deny"}]'
    (home.vault / "a.txt").write_text("alpha")
    async with home.open() as host:
        assert (await host.call_tool("read", {"path": "a.txt"}, vault=home.vault)).result.status == "ok"
        settings = '{"agents": {"runtime": {"truncation": {"maxLines": 7}, "permission": {"rules": %s}}}, "profile": "remote"}'
        home.write("config.jsonc", settings % rules)
        said = (await home.report()).lines()[0]
        assert "setting agents.runtime.truncation.maxLines: set" in said
        assert "setting profile: set (takes a restart)" in said
        assert (await host.call_tool("read", {"path": "a.txt"}, vault=home.vault)).result.status == "denied"


async def test_a_half_written_configuration_denies_nothing_less(home):
    """A file that does not parse is named; nothing gets looser than the defaults (D45)."""
    async with home.open() as host:
        home.write("config.jsonc", '{"agents": {"runtime": ')
        await asyncio.wait_for(home.until(lambda: host.config.problems), 300)
        outcome = await host.call_tool("bash", {"command": "true"}, vault=home.vault)
        assert outcome.result.status == "denied"


async def test_a_torn_configuration_keeps_the_settings_before(home):
    """Nothing is reset while somebody types; it says where, a deny holds on, the next good save counts (invariant 5, D44)."""
    home.tool()
    good = '{"agents": {"runtime": {"truncation": {"maxLines": 7}, "permission": {"rules": [%s]}}}}'
    deny = '{"domain": "tool", "pattern": "*", "decision": "deny"}'
    file = home.write("config.jsonc", good % deny)
    async with home.open():
        home.write("config.jsonc", (good % deny)[:40])
        report = await home.report()
        assert report.changed == () and list(report.kept) == [str(file)]
        assert f"{file}:1:" in report.lines()[0] and "the previous settings apply" in report.lines()[0]
        assert home.host.config.get("agents.runtime.truncation.maxLines") == 7
        assert [rule.decision for rule in home.host.config.rules()] == ["deny"]
        home.write("config.jsonc", good.replace("7", "8") % "")
        assert "agents.runtime.truncation.maxLines: changed" in (await home.report()).lines()[0]
        assert home.host.config.problems == () and home.host.config.rules() == []


@pytest.mark.parametrize(("left", "said"), [("", "is empty"), ("// mine\n", "holds only comments")])
async def test_an_emptied_configuration_keeps_the_settings_before(home, left, said):
    """Many editors empty a file before they write it, and a full disk may leave its first lines: no deny is lost (D44)."""
    deny = '{"agents": {"runtime": {"permission": {"rules": [{"domain": "tool", "pattern": "*", "decision": "deny"}]}}}}'
    file = home.write("config.jsonc", deny)
    async with home.open():
        home.write("config.jsonc", left)
        report = await home.report()
        kept = f"the file {said} (write {{}} for no settings; the previous settings apply"
        assert report.changed == () and kept in report.kept[str(file)]
        assert [rule.decision for rule in home.host.config.rules()] == ["deny"]
    async with home.open():
        assert [rule.decision for rule in home.host.config.rules()] == ["deny"]
        assert "write {} for no settings" in str(home.host.config.torn)
        home.write("config.jsonc", "{}")
        await home.report()
        assert home.host.config.rules() == [] and home.host.config.torn is None


async def test_the_settings_before_a_broken_save_hold_over_a_restart_too(home):
    """Nothing is picked out of it, and it is told once (D26, D44)."""
    rules = '{"model": "x", "agents": {"runtime": {"permission": {"rules": [%s]}}}}'
    deny = '{"domain": "bash", "pattern": "rm *", "decision": "deny"}'
    home.write("config.jsonc", rules % deny)
    async with home.open():
        home.write("config.jsonc", (rules % "")[:-1])
        report = await home.report()
        assert report.changed == () and len(report.kept) == 1
        assert [rule.decision for rule in home.host.config.rules()] == ["deny"]
    async with home.open():
        assert [rule.decision for rule in home.host.config.rules()] == ["deny"]


async def test_a_file_of_settings_that_breaks_holds_up_no_other_file(home):
    """The last good version of --config FILE and of the keys goes on; a deny saved in the user's file counts (D44, S0-i)."""
    rules = '{"agents": {"runtime": {"permission": {"rules": [{"domain": "%s", "pattern": "*", "decision": "deny"}]}}}}'
    inline = home.write("inline.jsonc", rules % "web_fetch")
    keys = home.write("secrets.json", '{"plugins": {"mine": {"apiKey": "first-key"}}}')
    async with home.open(config=str(inline)) as host:
        for broken in ("{", ""):
            inline.write_text(broken)
            home.write("secrets.json", broken)
            await home.reloader.settled()
            assert host.config.get("plugins.mine.apiKey") == "first-key"
        home.write("config.jsonc", rules % "bash")
        await home.reloader.settled()
        assert [rule.domain for rule in host.config.rules()] == ["bash", "web_fetch"]
        said = {problem.file.partition(":")[0]: problem.message for problem in host.config.problems}
        assert said == {str(inline): "the file is empty", str(keys): "the keys that were read before apply: the file is empty"}
        home.write("config.jsonc", "{")
        home.write("secrets.json", '{"plugins": {"mine": {"apiKey": "second-key"}}}')
        await home.reloader.settled()
        assert host.config.get("plugins.mine.apiKey") == "second-key"


async def test_a_saved_value_that_is_not_taken_is_said(home):
    """With its line; what was there before is not said again (S0-i)."""
    home.write("config.jsonc", "{}")
    async with home.open():
        file = home.write("config.jsonc", '{"agents": {"runtime": {"mode": {"default": "weird"}}}}')
        assert f"file {file}:1:" in (await home.report()).lines()[0]
        home.write("config.jsonc", '\n{"agents": {"runtime": {"mode": {"default": "weird"}, "truncation": {"maxLines": 7}}}}')
        assert "weird" not in (await home.report()).lines()[0]


async def test_a_configuration_that_begins_torn_counts_once_it_is_mended(home):
    """Until then the defaults hold (D26, D44)."""
    home.write("config.jsonc", '{"agents": ')
    async with home.open():
        assert home.host.config.torn is not None
        home.write("config.jsonc", '{"agents": {"runtime": {"truncation": {"maxLines": 7}}}}')
        await home.report()
        assert home.host.config.torn is None and home.host.config.get("agents.runtime.truncation.maxLines") == 7
