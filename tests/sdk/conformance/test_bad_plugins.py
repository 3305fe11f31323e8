"""Each check of ``pytest --moryflow-plugin`` fails for a plugin that is bad in that way, and says what to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from moryflow.authoring.scaffold import plugin_scaffold
from moryflow.testing.conformance import Subject, hooks, imports, load, tools

HEAD = '"""Does something."""\nimport os, sys, threading, time\nfrom typing import Annotated\nfrom moryflow_sdk import *\n'
TOOL = '''
    @tool(domain="read")
    def {name}({arguments}) -> str:
        """{description}"""
        return "x"

    @hookimpl
    def tools():
        """Offer it."""
        return [{name}]
'''


def hook(name: str, body: str, arguments: str = "", marker: str = "@hookimpl", kind: str = "def") -> str:
    lines = "\n    ".join(body.split("; "))
    return f'{marker}\n{kind} {name}({arguments}):\n    """Say what."""\n    {lines}\n'


def offering(name: str = "look", arguments: str = 'topic: Annotated[str, "What"]', description: str = "Look it up.") -> str:
    return dedent(TOOL).format(name=name, arguments=arguments, description=description)


TARGETS = 'targets=lambda args: [file_target(args["path"])]'
PATHS = offering(arguments='path: Annotated[str, "A file"] = "."').replace('domain="read"', f'domain="read", {TARGETS}')
WRONG_TARGETS = offering().replace('domain="read"', 'domain="read", targets=lambda args: [5]')
SCHEMA = (
    'odd = Tool("odd", "An odd tool.", lambda: "", domain="read", schema={schema})\n'
    "@hookimpl\ndef tools():\n    'Offer it.'\n    return [odd]\n"
)
TICKING = "return result.replace(title=str(time.perf_counter_ns()))"
FORGETFUL = offering().replace("return [look]", "seen.append(1); return [look][len(seen) - 1:]") + "seen = []\n"
STATE = 'turn.session_state["seen"] = {1, 2}'
MUTATION = 'result.__dict__["output"] = "changed"; return None'
VALIDATED = "from pydantic import AfterValidator\n" + offering(
    arguments='kind: Annotated[str, AfterValidator(lambda value: {"a": "b"}[value]), "What kind"]'
)
SETTINGS = "from pydantic import BaseModel, ConfigDict\nclass S(BaseModel):\n    {body}\nconfig_model = S\n" + offering()
SINS = """
import socket, subprocess
listening = socket.socket(); listening.bind(("127.0.0.1", 0)); listening.close()
open({file!r}, "w").close()
subprocess.run(["true"])
print("hello")
threading.Thread(target=time.sleep, args=(30,), name="left", daemon=True).start()
sum(number * number for number in range(15_000_000))

@hookimpl
def plugin_start(ctx):
    "Change what belongs to everyone."
    os.environ["MORYFLOW_CONFORMANCE_TEST"] = "x"
"""
SEEN = [
    (imports.test_it_uses_no_network_when_imported, ("network", "bad.py:7", "socket.bind")),
    (imports.test_it_writes_nothing_when_imported, ("writes", "bad.py:8", "data_dir")),
    (imports.test_it_starts_no_program_when_imported, ("program", "bad.py:9")),
    (imports.test_it_prints_nothing_when_imported, ("prints", "hello", "turn.log")),
    (imports.test_it_leaves_what_is_everyones_alone, ("os.environ", "plugin_start")),
    (imports.test_it_leaves_no_thread_behind, ("thread left", "plugin_start")),
    (imports.test_it_loads_within_its_budget, ("computing", "inside the functions")),
]
CLOCK = "return system.append(SystemBlock(id='t', text=str(time.perf_counter_ns())))"

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
        load.test_it_declares_the_services_it_uses,
        hook("tool_after", "turn.files", "result, turn"),
        ("turn.files", "services"),
    ),
    (load.test_it_uses_the_services_it_declares, "services = ('spawn',)\n" + offering(), ("spawn", "never uses")),
    (load.test_its_settings_cannot_be_changed_by_a_hook, SETTINGS.format(body="a: int = 1"), ("frozen", "ConfigDict")),
    (
        load.test_its_settings_are_json,
        SETTINGS.format(body="model_config = ConfigDict(frozen=True)\n    a: float = float('nan')"),
        ("JSON", "plain types"),
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
    (
        hooks.test_its_results_have_the_types_of_the_hook,
        "@hookimpl\ndef tool_gate(call) -> object:\n    return True\n",
        ("object", "Deny"),
    ),
    (
        hooks.test_its_async_functions_do_not_block,
        hook("tool_after", "time.sleep(0)", "result", kind="async def"),
        ("time.sleep", "to_thread"),
    ),
    (hooks.test_its_hooks_do_not_print, hook("tool_after", "print(result)", "result"), ("prints", "turn.log")),
    (hooks.test_its_hooks_say_what_they_do, "@hookimpl\ndef tool_after(result): ...\n", ("docstring", "bad.py:")),
    (
        hooks.test_its_wishes_for_an_order_can_be_met,
        hook("tool_after", "pass", "result", "@hookimpl(after='truncation')"),
        ("truncation", "drop one"),
    ),
    (hooks.test_its_hooks_change_nothing_in_place, hook("tool_after", MUTATION, "result"), ("replace",)),
    (hooks.test_the_same_question_gets_the_same_answer, hook("tool_after", TICKING, "result"), ("two answers", "clocks")),
    (hooks.test_its_system_prompt_is_the_same_text_twice, hook("chat_system", CLOCK, "system"), ("two texts", "stable=False")),
    (
        hooks.test_its_answers_come_within_the_budget,
        hook("tool_after", "time.sleep(0.6)", "result", "@hookimpl(timeout=1.1)"),
        ("half of its", "plugin_start"),
    ),
    (hooks.test_its_verdicts_say_why, hook("tool_gate", "return Deny('')", "call"), ("no reason",)),
    (
        hooks.test_a_redactor_finds_nothing_more_in_what_it_returned,
        hook("tool_after", "return result.replace(output=result.output + '*')", "result", "@hookimpl(on_failure='withhold')"),
        ("its own result",),
    ),
    (
        hooks.test_its_blocks_have_names_of_their_own,
        hook("system_blocks", "return [SystemBlock(id='a', text='x')] * 2"),
        ("own id",),
    ),
    (hooks.test_what_it_keeps_is_json, hook("tool_after", STATE, "result, turn"), ("session_state", "JSON")),
    (
        hooks.test_its_observer_works_outside_a_turn,
        hook("event", "turn.log", "event, turn"),
        ("outside a turn", "turn is None"),
    ),
    (tools.test_its_tools_have_names_that_models_accept, offering("Look"), ("'Look'", "lower-case letters")),
    (tools.test_its_tools_are_described, offering(description="Looks."), ("what the model reads",)),
    (tools.test_its_parameters_are_described, offering(arguments="topic: str"), ("'topic'", "Annotated")),
    (load.test_python_warns_of_nothing_in_it, offering() + 'DIGITS = "\\d"\n', ("invalid escape", "fix")),
    (load.test_it_does_something, offering().partition("@hookimpl")[0], ("a file with tools", "tool check")),
    (load.test_it_loads, "1/0\n", ("ZeroDivisionError", "bad.py:5")),
    (load.test_it_passes_the_probe, "while True: pass\n", ("did not finish", "bad.py")),
    (load.test_it_passes_the_probe, "os._exit(3)\n", ("exit code 3", "bad.py:5")),
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
    (tools.test_its_tools_cost_little, offering(description="Long words. " * 400), ("every request", "4000")),
    (tools.test_rules_can_judge_its_tools, offering(arguments='path: Annotated[str, "A file"]'), ("needs targets=",)),
    (tools.test_its_targets_can_be_told_for_any_arguments, PATHS, ("KeyError", "args.get")),
    (tools.test_its_targets_can_be_told_for_any_arguments, WRONG_TARGETS, ("targets must give", "file_target")),
    (
        load.test_a_turn_works_with_it,
        hook("tool_before", "raise RuntimeError('never tried')", "call"),
        ("never tried", "bad.py:"),
    ),
    (
        load.test_a_turn_whose_tools_fail_works_with_it,
        hook("tool_before", "call.args['path']", "call"),
        ("KeyError", "bad.py:"),
    ),
    (
        load.test_it_can_be_unloaded_and_loaded_again,
        "assert not hasattr(os, 'once')\nos.once = 1\n" + offering(),
        ("second", "module level"),
    ),
    (load.test_it_survives_a_reload, FORGETFUL, ("after a reload", "same twice")),
    (tools.test_its_tools_refuse_arguments_with_a_sentence, VALIDATED, ("KeyError", "raise ValueError")),
]

ODD = {
    "ordinary": hook("tool_after", "raise RuntimeError('always')", "result"),
    "empty": hook("chat_messages", "messages[0]", "messages"),
    "unicode": hook("tool_after", "result.output.encode('ascii')", "result"),
    "huge": hook("tool_after", "if len(result.output) > 100_000: raise RuntimeError('too much')", "result"),
    "sparse": hook("tool_gate", "call.args['path']", "call"),
    "failed": hook("tool_before", "call.args['command'].strip()", "call"),
}


@pytest.fixture
def subject(tmp_path: Path) -> Iterator[Callable[[str], Subject]]:
    """Makes a subject of a plugin's source, and closes it."""
    made: list[Subject] = []

    def make(source: str) -> Subject:
        if "while True" in source:  # it never ends; the others have as long as they need
            patch.setattr("moryflow.packages.manager.SECONDS", 4.0)
        path = tmp_path / "bad.py"
        path.write_text(source if source.startswith("#") else HEAD + source, encoding="utf-8")
        made.append(Subject(path, tmp_path / "root"))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MORYFLOW_HOME", str(tmp_path / "root" / "home"))
        yield make
        vars(os).pop("once", None)
        for each in made:
            each.close()


@pytest.fixture(scope="module")
def sinner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    """A plugin that does while it is imported all that it should not."""
    folder = tmp_path_factory.mktemp("sinner")
    path = folder / "bad.py"
    path.write_text(HEAD + SINS.format(file=str(folder / "written")) + offering(), encoding="utf-8")
    subject = Subject(path, folder / "root")
    yield subject
    subject.close()
    os.environ.pop("MORYFLOW_CONFORMANCE_TEST", None)


@pytest.mark.parametrize(("check", "words"), SEEN, ids=[check.__name__[5:] for check, _ in SEEN])
def test_what_an_import_does_is_seen(check, words: tuple[str, ...], sinner: Subject) -> None:
    """With the line that does it, from a process of its own (S2.21, R31)."""
    said = failing(check, sinner)
    assert [word for word in words if word not in said] == [], said
    assert "What to do: " in said


def failing(check: Callable[..., None], *arguments: Any) -> str:
    """Return what the check says; one that is skipped has seen nothing, and must not skip the test of it."""
    with pytest.raises((pytest.fail.Exception, pytest.skip.Exception)) as failed:
        check(*arguments)
    assert isinstance(failed.value, pytest.fail.Exception), f"skipped: {failed.value}"
    return str(failed.value)


def test_what_a_plugin_undoes_is_not_left_behind(subject) -> None:
    """Done in plugin_start, undone in what that returns (S2.21, R31)."""
    body = "os.environ['MORYFLOW_CONFORMANCE_TEST'] = 'x'; return lambda: os.environ.pop('MORYFLOW_CONFORMANCE_TEST')"
    made = subject(hook("plugin_start", body, "ctx"))
    assert made.record.status == "loaded"
    imports.test_it_leaves_what_is_everyones_alone(made)


@pytest.mark.filterwarnings("ignore:.*invalid escape")
@pytest.mark.parametrize(
    ("check", "source", "words"), BAD, ids=[f"{check.__name__[5:]}-{number}" for number, (check, *_) in enumerate(BAD)]
)
def test_a_bad_plugin_fails_the_check_for_it(check, source: str, words: tuple[str, ...], subject) -> None:
    """In one sentence: what is wrong, where, and what to do (S2.21, CONTRACT 3)."""
    said = failing(check, subject(source))
    assert [word for word in words if word not in said] == [], said
    assert "What to do: " in said and "bad.py" in said


@pytest.mark.parametrize("kind", ODD)
def test_odd_inputs_are_tried(kind: str, subject) -> None:
    """Empty, Unicode, a megabyte, missing fields, errors: each finds the hook that never thought of it (S2.21)."""
    said = failing(hooks.test_its_hooks_take_what_arrives, subject(ODD[kind]), kind)
    assert "What to do: " in said and "bad.py:" in said


def test_a_plugin_without_a_docstring_is_asked_for_one(subject) -> None:
    source = "# nothing\nfrom moryflow_sdk import hookimpl\n@hookimpl\ndef tool_after(result): ...\n"
    assert "docstring" in failing(load.test_it_says_what_it_is_for, subject(source))


def test_a_path_without_a_plugin_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no plugin here" in failing(load.test_it_is_found, Subject(tmp_path / "empty", tmp_path / "root"))


MANIFESTS = [
    (
        load.test_its_manifest_names_its_hooks,
        'hooks = ["tools", "tool_after"]',
        'hooks = ["tools"]',
        "not named: tool_after",
    ),
    (load.test_its_manifest_names_its_tools, 'tools = ["word_count"]', 'tools = ["other"]', "not there: other"),
    (load.test_its_manifest_names_version_and_contract, 'version = "0.1.0"', 'version = "0.2.0"', "pyproject.toml says"),
    (load.test_its_manifest_names_version_and_contract, "api = 1\n", "", "api = None"),
]


@pytest.mark.parametrize(("check", "old", "new", "words"), MANIFESTS)
def test_a_manifest_that_is_not_true_is_found(check, old: str, new: str, words: str, tmp_path: Path) -> None:
    """What people see before they install is what they get (S2.21, CONTRACT 3)."""
    project = scaffolded(tmp_path)
    manifest = project / "src" / "moryflow_word_count" / "plugin.toml"
    manifest.write_text(manifest.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    assert words in said_of(project, tmp_path, check) and "plugin.toml" in said_of(project, tmp_path, check)


@pytest.mark.parametrize(
    ("check", "file"),
    [(load.test_its_manifest_names_its_hooks, "plugin.toml"), (load.test_it_is_typed, "py.typed")],
)
def test_a_package_without_manifest_or_marker_is_asked_for_it(check, file: str, tmp_path: Path) -> None:
    project = scaffolded(tmp_path)
    (project / "src" / "moryflow_word_count" / file).unlink()
    assert file in said_of(project, tmp_path, check)


def test_a_project_of_one_module_is_told_to_become_a_package(tmp_path: Path) -> None:
    """A module has no room for a manifest or marker; one that is not there is to be written (S2.21)."""
    entry = '[project]\nname = "lone"\nversion = "1"\n[project.entry-points."moryflow.plugins"]\nlone = "lone_module"\n'
    (tmp_path / "pyproject.toml").write_text(entry, encoding="utf-8")
    with pytest.raises(AssertionError, match="skipped: it did not load"):
        said_of(tmp_path, tmp_path / "missing", load.test_it_is_typed)
    assert "correct the entry point" in said_of(tmp_path, tmp_path / "missing", load.test_it_loads)
    (tmp_path / "lone_module.py").write_text(HEAD, encoding="utf-8")
    for check in (load.test_its_manifest_names_its_hooks, load.test_it_is_typed):
        assert "make the module a package" in said_of(tmp_path, tmp_path / "there", check)


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
    tried = {check for check, *_ in (*BAD, *MANIFESTS, *SEEN)} | {
        hooks.test_its_hooks_take_what_arrives,
        load.test_it_says_what_it_is_for,
        load.test_it_is_found,
        load.test_it_is_typed,
    }
    groups = (load, imports, hooks, tools)
    checks = {value for group in groups for name, value in vars(group).items() if name.startswith("test_")}
    assert len(checks) >= 30
    assert sorted(check.__name__ for check in checks - tried) == []
