"""``moryflow config``, ``plugin``, ``agent``, ``model`` and ``doctor``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def test_explain_prints_which_layer_won_and_where(cli: Any) -> None:
    """Flag over --config over environment over file over default, with file and line (S0.85, CONTRACT §1)."""
    file = cli.home / "config.jsonc"
    file.write_text('{\n  // mine\n  "model": "from-file",\n}\n')
    cli.environ = {"MORYFLOW_MODEL": "from-variable"}
    document = json.loads(cli("config", "explain", "model", "--json", "--config", '{"model": "from-inline"}').stdout)
    found = [(layer["source"], layer["value"], layer["file"], layer["line"]) for layer in document["layers"]]
    assert found == [
        ("inline", "from-inline", "--config", 1),
        ("environment", "from-variable", "MORYFLOW_MODEL", None),
        ("user", "from-file", str(file), 3),
        ("default", None, None, None),
    ]
    text = cli("config", "explain", "model").stdout
    assert '* "from-variable"  environment  MORYFLOW_MODEL' in text.replace("*  ", "* ")
    assert f"user  {file}:3" in text


def test_get_prints_the_default_of_plugins_too(cli: Any) -> None:
    """A key that nobody sets has its default; one that does not exist gets a hint."""
    assert cli("config", "get", "agents.runtime.mode.default").stdout == "agent\n"
    assert cli("config", "get", "agents.runtime.truncation.maxLines").stdout == "2000\n"
    done = cli("config", "get", "agents.runtime.truncation.maxLine")
    assert done.returncode == 2
    assert "did you mean 'agents.runtime.truncation.maxLines'" in done.stderr


def test_set_and_unset_keep_comments(cli: Any) -> None:
    """The file changes where it must and nowhere else (D45)."""
    file = cli.home / "config.jsonc"
    text = '{\n  // mine\n  "language": "en", // for now\n}\n'
    file.write_text(text)
    assert cli("config", "set", "language", "zh").returncode == 0
    assert file.read_text() == text.replace('"en"', '"zh"')
    assert cli("config", "set", "agents.runtime.truncation.maxLines", "100").returncode == 0
    assert cli("config", "get", "agents.runtime.truncation.maxLines").stdout == "100\n"
    assert "has that value already" in cli("config", "set", "language", "zh").stdout
    assert cli("config", "unset", "language").returncode == 0
    assert "// mine" in file.read_text() and "// for now" in file.read_text()
    assert cli("config", "get", "language").stdout == "en\n"


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("language", "de", "should be 'en' or 'zh'"),
        ("modle", "x", 'unknown key "modle"'),
        ("agents.runtime.truncation.maxLines", "0", "maxLines"),
        ("agents.runtime.permission.rules", '[{"domain": "x"}]', "the rule has no"),
        ("agents..x", "1", ""),
    ],
)
def test_a_value_that_is_wrong_is_not_written(cli: Any, key: str, value: str, sentence: str) -> None:
    """Exit code 2, and the file is as it was."""
    before = (cli.home / "config.jsonc").read_bytes()
    done = cli("config", "set", key, value)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert (cli.home / "config.jsonc").read_bytes() == before


@pytest.mark.parametrize("words", ["config set model", "model use"])
def test_a_value_that_a_variable_overrules_is_written_and_told(cli: Any, words: str) -> None:
    """It was called the default from now on, and the next turn asked another model (CONTRACT §1)."""
    cli.environ = {"MORYFLOW_MODEL": cli.script("mine")}
    done = cli(*words.split(), cli.script("other"))
    assert done.returncode == 0
    assert done.stderr.endswith("the variable MORYFLOW_MODEL overrides it\n  next: unset MORYFLOW_MODEL\n")
    cli.environ = {}
    assert "overrides it" not in cli(*words.split(), cli.script("other")).stderr


def test_check_fails_when_a_deny_is_lost(cli: Any) -> None:
    """A warning passes, unless --strict; a deny with a mistake or a file that does not parse is exit code 3 (D26)."""
    file = cli.home / "config.jsonc"
    assert cli("config", "check").returncode == 0
    file.write_text('{"modle": "x"}')
    done = cli("config", "check")
    assert (done.returncode, "warning: " in done.stdout) == (0, True)
    assert cli("config", "check", "--strict").returncode == 3
    file.write_text(
        '{"agents": {"runtime": {"permission": {"rules": [\n{"domain": "bsh", "pattern": "rm *", "decision": "deny"}]}}}}'
    )
    done = cli("config", "check")
    assert done.returncode == 3
    said = '"bsh" is not a domain; meanwhile every call is asked about (did you mean "bash"?)'
    assert f"error: {file}:2:1: {said}" in done.stdout
    file.write_text("{")
    document = json.loads(cli("config", "check", "--json").stdout)
    assert (document["ok"], document["problems"][0]["code"]) == (False, "config_syntax")


def test_check_passes_on_what_plugins_say_of_the_rules(cli: Any) -> None:
    """A plugin's `check_rules` adds warnings with the rule's file and line (D4)."""
    file = cli.home / "config.jsonc"
    cli.plugin("critic", "def check_rules(rules):\n    return [(rule, f'{rule.pattern} is dead') for rule in rules]\n")
    done = cli("config", "check")
    assert done.returncode == 0
    assert f"warning: {file}:" in done.stdout
    assert "* is dead" in done.stdout


def test_a_deny_that_cannot_run_in_linear_time_fails_the_check_and_runs_say_so(cli: Any) -> None:
    """As `permission lint` does; meanwhile every command is asked about (D6, D26)."""
    file = cli.home / "config.jsonc"
    rule = {"domain": "tool", "pattern": r"regex:(a)\1", "decision": "deny"}
    file.write_text(json.dumps({"agents": {"runtime": {"permission": {"rules": [rule]}}}}))
    done = cli("config", "check")
    assert done.returncode == 3 and done.stdout.count("linear time") == 1
    run = cli("tool", "list", "-q")
    assert f"{file}:1:" in run.stderr and "this deny rule cannot be used" in run.stderr


def test_a_plugin_may_make_the_check_fail(cli: Any) -> None:
    """A third value says that a deny is lost (D26)."""
    cli.plugin("critic", "def check_rules(rules):\n    return [(rule, 'lost', True) for rule in rules]\n")
    cli("plugin", "check", "critic")
    done = cli("config", "check")
    assert (done.returncode, "error: " in done.stdout) == (3, True)


def test_check_knows_the_settings_of_plugins(cli: Any) -> None:
    """A wrong value of a plugin is named with its line."""
    file = cli.home / "config.jsonc"
    file.write_text('{"agents": {"runtime": {\n"truncation": {"maxLines": "2000"}}}}')
    done = cli("config", "check")
    assert f"{file}:2:" in done.stdout
    assert "maxLines" in done.stdout


def test_show_path_and_schema(cli: Any) -> None:
    """What holds, where the file is, and the JSON Schema of all of it (S0.87)."""
    cli.config(language="zh")
    assert "language" in cli("config", "show").stdout
    assert json.loads(cli("config", "show", "--json").stdout)["language"] == "zh"
    assert json.loads(cli("config", "show", "--all", "--json").stdout)["agents"]["runtime"]["mode"]["default"] == "agent"
    assert cli("config", "path").stdout == f"{cli.home / 'config.jsonc'}\n"
    schema = json.loads(cli("config", "schema").stdout)
    runtime = schema["properties"]["agents"]["properties"]["runtime"]["properties"]
    assert "maxLines" in runtime["truncation"]["properties"]


def test_plugins_are_listed_disabled_and_enabled(cli: Any) -> None:
    """disabledPlugins in the configuration; one that judges is said to (invariant 4)."""
    cli("tool", "list")  # a list loads no plugin; this does
    rows = {row["name"]: row for row in json.loads(cli("plugin", "list", "--json").stdout)}
    assert (rows["demo"]["tier"], rows["demo"]["status"]) == ("user", "loaded")
    assert "tools" in cli("plugin", "info", "demo").stdout
    assert cli("plugin", "disable", "demo").returncode == 0
    rows = {row["name"]: row for row in json.loads(cli("plugin", "list", "--json").stdout)}
    assert rows["demo"]["status"] == "skipped"
    assert "already" in cli("plugin", "disable", "demo").stdout
    assert cli("plugin", "enable", "demo").returncode == 0
    assert "hello" in cli("tool", "list").stdout
    done = cli("plugin", "info", "dmeo")
    assert (done.returncode, "did you mean 'demo'" in done.stderr) == (2, True)


def test_agents_and_models(cli: Any) -> None:
    """The default agent is marked; a model can be made the default."""
    rows = json.loads(cli("agent", "list", "--json").stdout)
    assert [row["id"] for row in rows if row["default"]] == ["build"]
    assert cli("agent", "show", "build").returncode == 0
    assert cli("agent", "show", "nobody").returncode == 2
    assert json.loads(cli("model", "list", "--json").stdout) is not None
    assert cli("model", "use", "script:/x.json").returncode == 0
    assert cli("config", "get", "model").stdout == "script:/x.json\n"
    assert cli("model", "use", "nope").returncode == 2
    done = cli("model", "install", "nope", "-y")
    assert (done.returncode, "unknown model 'nope'" in done.stderr) == (2, True)


def test_an_unknown_agent_in_the_configuration_is_not_fatal(cli: Any) -> None:
    """It falls back to the default agent with a warning (D43); on the command line it is an error."""
    cli.config(agents={"runtime": {"agent": {"id": "nobody"}}})
    done = cli("run", "-m", cli.script("fine"), "hi")
    assert done.stdout == "fine\n" and "there is no agent 'nobody'" in done.stderr
    check = cli("config", "check")
    assert check.returncode == 0 and f"warning: {cli.home / 'config.jsonc'}:" in check.stdout
    assert cli("run", "-m", cli.script("fine"), "--agent", "nobody", "hi").returncode == 2


def test_doctor_names_what_is_wrong_and_what_fixes_it(cli: Any) -> None:
    """One line per thing, exit code 3 when something is broken (CONTRACT §1)."""
    cli.environ = {"MORYFLOW_MODEL": cli.script("x")}
    done = cli("doctor")
    assert done.returncode == 0, done.stdout
    assert "BAD" not in done.stdout
    cli.plugin("broken", "raise RuntimeError('no')")
    (cli.home / "config.jsonc").write_text("{")
    cli.environ = {}
    done = cli("doctor")
    assert done.returncode == 3
    for wanted in ("broken failed (import)", "config.jsonc:1:2", "no model", "next: "):
        assert wanted in done.stdout
    document = json.loads(cli("doctor", "--json", "--vault", "nowhere").stdout)
    assert {item["name"] for item in document["findings"] if item["state"] == "bad"} >= {"plugin", "config", "model", "vault"}


def test_doctor_warns_of_a_vault_inside_moryflows_own_folder(cli: Any) -> None:
    """Most commands would be refused there (R14)."""
    (cli.home / "work").mkdir(parents=True)
    assert "warn  vault: " in cli("doctor", "--vault", str(cli.home / "work")).stdout


def test_doctor_shows_what_plugins_say_of_themselves(cli: Any) -> None:
    """A plugin's function `doctor` yields (state, text, next step); one that raises is named."""
    cli.plugin("healthy", "def doctor():\n    yield 'warning', 'no sandbox here', 'install one'\n")
    cli.plugin("odd", "def doctor():\n    yield 'note', 'a state of its own', 3\n")
    cli.plugin("ill", "def doctor():\n    raise RuntimeError('oh')\n")
    found = {item["name"]: item for item in json.loads(cli("doctor", "--json").stdout)["findings"]}
    assert found["healthy"]["text"] == "no sandbox here"
    assert found["ill"]["text"] == "its own check failed: oh"
    assert (found["odd"]["state"], found["odd"]["next_step"]) == ("warning", "3")


def test_a_newer_database_is_refused_with_a_sentence(cli: Any) -> None:
    """Exit code 1, the file is named and untouched (ARCHITECTURE §5)."""
    import sqlite3

    cli("run", "-m", cli.script("x"), "hi")
    file: Path = cli.home / "sessions.db"
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 9999")
    connection.close()
    done = cli("session", "list")
    assert done.returncode == 1
    assert "sessions.db" in done.stderr
    assert "Traceback" not in done.stderr
    assert cli("doctor").returncode == 3


def test_the_prompt_in_an_editor(cli: Any, at_terminal: Any) -> None:
    """Without --text the editor opens with the prompt that holds (S0.80)."""
    editor = cli.vault / "editor"
    editor.write_text('#!/bin/sh\ngrep -q "Moryflow" "$1" && printf "From the editor." > "$1"\n')
    editor.chmod(0o700)
    cli.environ = {"EDITOR": str(editor)}
    terminal = at_terminal("config", "prompt", "edit")
    terminal.expect("the prompt is yours now")
    assert terminal.end() == 0
    assert json.loads(cli("config", "prompt", "show", "--json").stdout)["text"] == "From the editor."
    done = cli("config", "prompt", "edit")
    assert (done.returncode, "no editor can be opened here" in done.stderr) == (2, True)
