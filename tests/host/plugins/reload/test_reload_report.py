"""A report says in words what a save has changed."""

from __future__ import annotations

import json

import pytest

SOURCE = '''
from moryflow_sdk import hookimpl, tool

@tool(domain="{domain}")
def {name}({parameters}) -> str:
    """{text}"""
    return "x"

@hookimpl
def tools():
    return [{name}]
{more}
'''
BASE = {"domain": "read", "name": "hello", "parameters": "name: str", "text": "Say it.", "more": ""}
HOOK = "\n@hookimpl\ndef chat_params(params): ...\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "greet"}, ["tool hello: removed", "tool greet: added"]),
        ({"parameters": "name: str, times: int = 1"}, ["tool hello: parameters"]),
        ({"domain": "edit"}, ["tool hello: domain"]),
        ({"text": "Shout it."}, ["tool hello: description"]),
        ({"more": HOOK}, ["hook chat.params: added by mine"]),
        ({"more": "# nothing\n"}, ["plugin mine: code"]),
    ],
)
async def test_a_report_names_tools_hooks_and_schemas(home, change, words):
    """Tools and hooks added and removed, schema changes (issue, hot reload: semantic report)."""
    home.write("plugins/mine.py", SOURCE.format(**BASE))
    async with home.open() as host:
        events = []
        host.bus.subscribe(events.append)
        home.write("plugins/mine.py", SOURCE.format(**{**BASE, **change}))
        report = await home.report()
        assert all(word in report.lines()[0] for word in words)
        event = next(event for event in events if event.type == "reload").as_json()
        assert {"changed", "order_changed", "plugin_set", "ms", "kept"} <= event.keys()
        assert event["plugin_set"] == host.plugin_set.id and event["kept"] == []
        assert {"kind", "name", "change"} == event["changed"][0].keys()


async def test_a_save_that_changes_nothing_is_not_worth_a_line(home):
    """Writing the same again reloads nothing."""
    home.write("plugins/mine.py", SOURCE.format(**BASE))
    async with home.open() as host:
        before = host.plugin_set.plugins["mine"].object
        home.write("plugins/mine.py", SOURCE.format(**BASE))
        await home.until(lambda: host.plugin_set.number > 1)
        await home.reloader.settled()
        assert home.reports == [] and host.plugin_set.plugins["mine"].object is before


async def test_a_plugin_that_is_loaded_with_a_problem_says_the_problem(home):
    """The first report on a plugin is the only one until it is saved again (issue, hot reload: semantic report)."""
    home.write("config.jsonc", '{"disabledPlugins": ["mine"]}')
    file = home.write("plugins/mine.py", SOURCE.format(**{**BASE, "name": "ls"}))
    async with home.open():
        home.write("config.jsonc", "{}")
        [line] = (await home.report()).lines()
        assert f"plugin mine: loaded; it has a problem: {file}:" in line
        assert "the name 'ls' is taken by the builtin plugin files" in line and line.count("mine.py") == 1


async def test_a_hook_that_is_taken_away_is_said(home):
    """Removed hooks are reported as well as added ones."""
    home.write("plugins/mine.py", SOURCE.format(**{**BASE, "more": HOOK}))
    async with home.open():
        home.write("plugins/mine.py", SOURCE.format(**BASE))
        assert "hook chat.params: removed from mine" in (await home.report()).lines()[0]


async def test_what_is_ignored_of_a_saved_file_is_said(home):
    """An agent that is taken without one of its fields: the save says which, and in which line (D42)."""
    file = home.write("agents/w.md", "---\nid: w\n---\nHi.\n")
    async with home.open():
        home.write("agents/w.md", "---\nid: w\nmodelSettings:\n  temperature: hot\n---\nHi.\n")
        (line,) = (await home.report()).lines()
        assert f"file {file}:4: modelSettings.temperature: 'hot' cannot be used and is dropped" in line


async def test_a_command_that_is_saved_is_there_at_once(home):
    """Also the first one, in a folder that was not there; as agents and tools are."""
    async with home.open() as host:
        home.write("commands/review.md", "Read $1.\n")
        (line,) = (await home.report()).lines()
        assert line.endswith(": command review: added")
        assert "review" in host.plugin_set.commands


async def test_a_report_of_settings_holds_no_secret(home):
    """``dev`` shows that a key is another one, not what it was and is (D49)."""
    mine = {"api_key": "old9secret", "url": "https://me:old9word@host/", "city": "Rome"}
    home.write("config.jsonc", json.dumps({"plugins": {"mine": mine}}))
    home.write("plugins/mine.py", SOURCE.format(**BASE))
    async with home.open() as host:
        events = []
        host.bus.subscribe(events.append)
        new = {"api_key": "new9secret", "url": "https://me:new9word@host/", "city": "Oslo"}
        home.write("config.jsonc", json.dumps({"plugins": {"mine": new}}))
        (line,) = (await home.report()).lines()
        assert "setting plugins.mine.api_key: changed" in line and "plugins.mine.city: changed" in line
        said = line + json.dumps([event.as_json() for event in events])
        assert not [secret for secret in ("old9", "new9") if secret in said]


async def test_a_remark_that_only_moved_is_not_said_again(home):
    """A line more above it changes its number and nothing else (S0-i)."""
    text = "---\nid: w\n{}colour: red\n---\nYou write.\n"
    home.write("agents/w.md", text.format(""))
    async with home.open():
        home.write("agents/w.md", text.format("name: W\n"))
        assert (await home.report()).lines()[0].endswith(" ms: agent w: name")


async def test_a_changed_command_and_a_changed_list_are_named(home):
    """A save that takes effect is never silent (S0-i)."""
    home.write("commands/look.md", "Look at $1.\n")
    home.write("config.jsonc", '{"disabledPlugins": ["one"]}')
    async with home.open():
        home.write("commands/look.md", "Look at $1.\nTwice.\n")
        home.write("config.jsonc", '{"disabledPlugins": ["two"]}')
        await home.reloader.settled()
        changes = {str(change) for report in home.reports for change in report.changed}
        assert changes == {"command look: text", "setting disabledPlugins: changed"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ('{"models": {"timeout": "soon"}}', "models.timeout: should be a valid number"),
        (
            '{"agents": {"runtime": {"hooks": {"tool": {"after": [{"tool": 5}]}}}}}',
            "tool.after[0].tool: should be a valid string",
        ),
        ('{"modle": "x"}', 'unknown key "modle" (did you mean "model"?)'),
    ],
)
async def test_a_saved_value_that_a_plugin_does_not_take_is_said(home, settings, said):
    """As at a start: the settings of plugins and unknown keys are checked too, and told once (S0-i)."""
    home.write("config.jsonc", "{}")
    async with home.open():
        home.write("config.jsonc", settings)
        assert said in (await home.report()).lines()[0]
        home.write("config.jsonc", f'{{"language": "zh", {settings[1:]}')
        assert said not in (await home.report()).lines()[0]


def test_a_conversation_is_not_told_of_the_rule_that_its_own_answer_stored():
    """And of other changes without the time that they took (issue 41)."""
    from moryflow.plugins.reload_report import PluginChange, ReloadReport

    rule = PluginChange("setting", "agents.runtime.permission.rules", "set")
    other = PluginChange("tool", "words", "code")
    assert ReloadReport((rule,), False, "", 194.0).lines(brief=True) == []
    assert ReloadReport((rule, other), False, "", 194.0).lines(brief=True) == ["reloaded: tool words: code"]
    assert ReloadReport((other,), False, "", 194.0).lines() == ["reloaded in 194 ms: tool words: code"]
