"""Each check of ``pytest --moryflow-plugin`` fails for a plugin that is bad in that way, and says what to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from moryflow.authoring.scaffold import plugin_scaffold
from moryflow.testing.conformance import Subject, hooks, load, tools

HEAD = '"""Does something."""\nimport os, sys, threading, time\nfrom typing import Annotated\nfrom moryflow_sdk import *\n'
TOOL = '''
    @tool(domain="read")
    def {name}({arguments}) -> str:
        """Look it up."""
        return "x"

    @hookimpl
    def tools():
        """Offer it."""
        return [{name}]
'''


def hook(name: str, body: str, arguments: str = "") -> str:
    lines = "\n    ".join(body.split("; "))
    return f'@hookimpl\ndef {name}({arguments}):\n    """Say what."""\n    {lines}\n'


def offering(name: str = "look", arguments: str = 'topic: Annotated[str, "What"]') -> str:
    return dedent(TOOL).format(name=name, arguments=arguments)


TARGETS = 'targets=lambda args: [file_target(args["path"])]'
PATHS = offering(arguments='path: Annotated[str, "A file"] = "."').replace('domain="read"', f'domain="read", {TARGETS}')
WRONG_TARGETS = offering().replace('domain="read"', 'domain="read", targets=lambda args: [5]')
SCHEMA = (
    'odd = Tool("odd", "An odd tool.", lambda: "", domain="read", schema={schema})\n'
    "@hookimpl\ndef tools():\n    'Offer it.'\n    return [odd]\n"
)
FORGETFUL = offering().replace("return [look]", "seen.append(1); return [look][len(seen) - 1:]") + "seen = []\n"
LEAVING = "threading.Thread(target=time.sleep, args=(30,), name='left', daemon=True).start()\n"

BAD: list[tuple[Callable[[Any], None], str, tuple[str, ...]]] = [
    (load.test_it_loads, "import nothing_of_that_name", ("import", "nothing_of_that_name", "bad.py:5")),
    (load.test_it_loads, hook("tool_before", "pass", "call, wind"), ("register", "wind", "bad.py:")),
    (load.test_nothing_of_it_is_left_out, "@hookimpl\ndef tools():\n    return ['no tool']", ("leaves something out",)),
    (load.test_it_does_something, "def help(): ...", ("@hookimpl", "tool_gate")),
    (
        load.test_no_function_is_nearly_a_hook,
        offering() + "def tool_befor(call): ...\n",
        ("nearly", "tool_before", "bad.py:"),
    ),
    (
        hooks.test_its_arguments_have_the_types_of_the_hook,
        hook("tool_after", "pass", "result: ToolCall"),
        ("ToolResult", "result: ToolResult"),
    ),
    (
        hooks.test_its_arguments_have_the_types_of_the_hook,
        hook("tool_after", "pass", "result: 'Nowhere'"),
        ("Nowhere", "import"),
    ),
    (tools.test_its_tools_have_names_that_models_accept, offering("Look"), ("'Look'", "lower-case letters")),
    (load.test_it_does_something, offering().partition("@hookimpl")[0], ("a file with tools", "tool check")),
    (load.test_it_loads, "1/0\n", ("ZeroDivisionError", "bad.py:5")),
    (load.test_it_passes_the_probe, "while True: pass\n", ("did not finish", "bad.py")),
    (load.test_it_passes_the_probe, "os._exit(3)\n", ("exit code 3", "bad.py")),
    (load.test_nothing_of_it_is_left_out, SCHEMA.format(schema='{"type": "array"}'), ("schema", "object")),
    (
        tools.test_its_schemas_are_json_schema,
        SCHEMA.format(schema='{"type": "object", "required": ["x"]}'),
        ("not a property",),
    ),
    (
        load.test_nothing_of_it_is_left_out,
        SCHEMA.format(schema='{"type": "object", "properties": {"x": {"type": "str"}}}'),
        ("'str'", "schema"),
    ),
    (tools.test_rules_can_judge_its_tools, offering(arguments='path: Annotated[str, "A file"]'), ("needs targets=",)),
    (tools.test_rules_can_judge_its_tools, PATHS, ("KeyError", "args.get")),
    (tools.test_rules_can_judge_its_tools, WRONG_TARGETS, ("targets must give", "file_target")),
    (
        load.test_a_turn_works_with_it,
        hook("tool_before", "raise RuntimeError('never tried')", "call"),
        ("never tried", "bad.py:"),
    ),
    (
        load.test_a_turn_works_with_it,
        hook("tool_before", "call.args['path']", "call"),
        ("KeyError", "bad.py:"),
    ),
    (
        load.test_it_can_be_unloaded_and_loaded_again,
        "assert not hasattr(os, 'once')\nos.once = 1\n" + offering(),
        ("second", "module level"),
    ),
    (load.test_it_can_be_unloaded_and_loaded_again, LEAVING + offering(), ("thread left", "plugin_start")),
    (load.test_it_survives_a_reload, FORGETFUL, ("after a reload", "same twice")),
]

ODD = {
    "ordinary input: RuntimeError": hook("tool_after", "raise RuntimeError('always')", "result"),
    "ordinary input: UnicodeEncodeError": hook("tool_after", "result.output.encode('ascii')", "result"),
    "ordinary input: InvalidHookResult": hook("chat_params", "return 5", "params"),
    "empty input: IndexError": hook("chat_messages", "messages[0]", "messages"),
    "empty input: KeyError": hook("tool_gate", "call.args['path']", "call"),
    "failed input: AttributeError": hook("tool_before", "call.args.get('command', '').strip()", "call"),
    "failed input: ValueError": hook("tool_after", "if result.status == 'error': raise ValueError('no')", "result"),
}


@pytest.fixture
def subject(tmp_path: Path) -> Iterator[Callable[[str], Subject]]:
    """Makes a subject of a plugin's source, and closes it."""
    made: list[Subject] = []

    def make(source: str) -> Subject:
        if "while True" in source:  # it never ends; the others have as long as they need
            patch.setattr("moryflow.packages.manager.PROBE_TIMEOUT", 4.0)
        path = tmp_path / "bad.py"
        path.write_text(HEAD + source, encoding="utf-8")
        made.append(Subject(path, tmp_path / "root"))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MORYFLOW_HOME", str(tmp_path / "root" / "home"))
        yield make
        vars(os).pop("once", None)
        for each in made:
            each.close()


def failing(check: Callable[..., None], *arguments: Any) -> str:
    """Return what the check says; one that is skipped has seen nothing, and must not skip the test of it."""
    with pytest.raises((pytest.fail.Exception, pytest.skip.Exception)) as failed:
        check(*arguments)
    assert isinstance(failed.value, pytest.fail.Exception), f"skipped: {failed.value}"
    return str(failed.value)


@pytest.mark.parametrize(
    ("check", "source", "words"), BAD, ids=[f"{check.__name__[5:]}-{number}" for number, (check, *_) in enumerate(BAD)]
)
def test_a_bad_plugin_fails_the_check_for_it(check, source: str, words: tuple[str, ...], subject) -> None:
    """In one sentence: what is wrong, where, and what to do (S2.21, CONTRACT 3)."""
    said = failing(check, subject(source))
    assert [word for word in words if word not in said] == [], said
    assert "What to do: " in said and "bad.py" in said


@pytest.mark.parametrize("words", ODD)
def test_odd_inputs_are_tried(words: str, subject) -> None:
    """Missing fields, errors, letters beyond ASCII: each finds the hook that never thought of it (S2.21)."""
    said = failing(hooks.test_its_hooks_take_what_arrives, subject(ODD[words]))
    assert words in said and "What to do: " in said and "bad.py:" in said, said


def test_a_path_without_a_plugin_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no plugin here" in failing(load.test_it_is_found, Subject(tmp_path / "empty", tmp_path / "root"))


MANIFESTS = [
    ("api = 1\n", 'api = 1\nhooks = ["tools"]\n', "not named: tool_after"),
    ("api = 1\n", 'api = 1\ntools = ["other"]\n', "not there: other"),
    ("api = 1\n", 'api = 1\nversion = "0.2.0"\n', "pyproject.toml says"),
    ("api = 1\n", "", "api = None"),
]


@pytest.mark.parametrize(("old", "new", "words"), MANIFESTS)
def test_a_manifest_that_is_not_true_is_found(old: str, new: str, words: str, tmp_path: Path) -> None:
    """What people see before they install is what they get (S2.21, CONTRACT 3)."""
    project = scaffolded(tmp_path)
    manifest = project / "src" / "moryflow_word_count" / "plugin.toml"
    manifest.write_text(manifest.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    said = said_of(project, tmp_path, load.test_its_manifest_agrees)
    assert words in said and "plugin.toml" in said


def test_a_package_without_a_manifest_is_asked_for_it(tmp_path: Path) -> None:
    project = scaffolded(tmp_path)
    (project / "src" / "moryflow_word_count" / "plugin.toml").unlink()
    assert "has no plugin.toml" in said_of(project, tmp_path, load.test_its_manifest_agrees)


def test_a_project_of_one_module_is_told_to_become_a_package(tmp_path: Path) -> None:
    """A module has no room for a manifest or marker; one that is not there is to be written (S2.21)."""
    entry = '[project]\nname = "lone"\nversion = "1"\n[project.entry-points."moryflow.plugins"]\nlone = "lone_module"\n'
    (tmp_path / "pyproject.toml").write_text(entry, encoding="utf-8")
    with pytest.raises(AssertionError, match="skipped: it did not load"):
        said_of(tmp_path, tmp_path / "missing", load.test_its_manifest_agrees)
    assert "correct the entry point" in said_of(tmp_path, tmp_path / "missing", load.test_it_loads)
    (tmp_path / "lone_module.py").write_text(HEAD, encoding="utf-8")
    assert "make the module a package" in said_of(tmp_path, tmp_path / "there", load.test_its_manifest_agrees)


def scaffolded(folder: Path) -> Path:
    plugin_scaffold("word-count", folder).write()
    return folder / "moryflow-word-count"


def said_of(project: Path, folder: Path, check: Callable[..., None]) -> str:
    subject = Subject(project, folder / "root")
    try:
        return failing(check, subject)
    finally:
        subject.close()


def test_every_check_has_a_bad_plugin() -> None:
    """A check that cannot fail is none."""
    tried = {check for check, *_ in BAD} | {
        hooks.test_its_hooks_take_what_arrives,
        load.test_it_is_found,
        load.test_its_manifest_agrees,
    }
    checks = {value for group in (load, hooks, tools) for name, value in vars(group).items() if name.startswith("test_")}
    assert len(checks) == 15
    assert sorted(check.__name__ for check in checks - tried) == []
