"""The examples in one file: tools, plugins, an agent and a configuration."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import frontmatter
import json5
import pytest
from moryflow.config import load_config

EXAMPLES = Path(__file__).resolve().parents[2] / "user_examples"
STUBS = """
from moryflow_sdk import file_target, hookimpl, tool

@tool(domain="read", targets=lambda args: [file_target(".")])
def leak() -> str:
    "Print a key."
    return "the key is sk-abcdefghijklmnopqrstuvwxyz"

@tool(domain="edit", targets=lambda args: [file_target(args["path"], "edit")])
def touch(path: str) -> str:
    "Write a file."
    return f"wrote {path}"

@hookimpl
def tools():
    return [leak, touch]
"""


def test_the_example_plugins_pass_the_checks_for_authors(tmp_path: Path) -> None:
    """What is shown to authors does what authors are asked to do (S2.21)."""
    plugins = sorted(path for path in (EXAMPLES / "plugins").iterdir() if not path.name.startswith((".", "_")))
    options = [word for path in plugins for word in ("--moryflow-plugin", str(path))]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.rpartition(" passed")[0].split()[-1]) >= 15 * len(plugins) > 30


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["hooks", "compaction"])
def test_the_examples_of_the_hook_pages_pass_the_checks_for_authors(folder: str, tmp_path: Path) -> None:
    """They are copied more than any others; each under the name that it says it should have (S2.21)."""
    plugins = [tmp_path / f"my_{path.name}" for path in sorted((EXAMPLES / folder).glob("*.py"))]
    for path in plugins:
        shutil.copyfile(EXAMPLES / folder / path.name.removeprefix("my_"), path)
        path.chmod(0o600)
    options = [word for path in plugins for word in ("--moryflow-plugin", str(path))]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.rpartition(" passed")[0].split()[-1]) >= 15 * len(plugins) > 75


def test_hello_greets(shell) -> None:
    """The sample tool returns a greeting once its file was allowed (S0.93)."""
    shell.install(EXAMPLES / "tools" / "hello.py", "tools")
    assert "tool allow hello.py" in shell.run("tool", "run", "hello", "--name", "you", exit_code=2)
    shell.run("tool", "allow", "hello")
    assert shell.run("tool", "run", "hello", "--name", "you") == "Hello you\n"


@pytest.mark.parametrize("name", ["disk_use.sh", "word_count.js"])
def test_tools_in_other_languages_work(shell, name: str) -> None:
    """Arguments and judged targets arrive, the answer is text or JSON, mistakes are the tool's own words."""
    if name.endswith(".js") and shutil.which("node") is None:
        pytest.skip("node is not installed")
    shell.install(EXAMPLES / "tools" / name, "tools")
    (shell.home / "tools" / name).chmod(0o700)
    rules = [{"domain": "tool", "pattern": "*", "decision": "allow"}]
    shell.configure(agents={"runtime": {"tools": {"external": {"enabled": True}}, "permission": {"rules": rules}}})
    if name == "disk_use.sh":
        (shell.vault / "sub dir").mkdir()
        assert shell.run("tool", "run", "disk_use", "--folder", "sub dir") == f"nothing is in {shell.vault}/sub dir\n"
        (shell.vault / "sub dir" / "-r").write_text("x" * 5000, encoding="utf-8")
        assert shell.run("tool", "run", "disk_use", "--folder", "sub dir").endswith("\t-r\n")
    else:
        found = shell.json("tool", "run", "word_count", "--json", '{"text": "b a – A ünt", "most": 2}')
        assert found == {"words": 4, "most": {"a": 2, "b": 1}}
        assert "the text holds no word" in shell.run("tool", "run", "word_count", "--text", "!", exit_code=1)


def test_the_redactor_hides_keys(shell) -> None:
    """What a tool returns passes a user's `tool.after` hook before anyone reads it (S0.94)."""
    shell.plugin("stubs", STUBS)
    assert "sk-abc" in shell.run("tool", "run", "leak")
    shell.install(EXAMPLES / "plugins" / "redact_keys.py", "plugins")
    assert shell.run("tool", "run", "leak") == "the key is [redacted]\n"


def test_the_gate_keeps_lock_files_from_being_written(shell) -> None:
    """A user's gate denies by the resolved target, with its reason and the next step (S2.11)."""
    shell.plugin("stubs", STUBS)
    shell.install(EXAMPLES / "plugins" / "lockfile_gate.py", "plugins")
    (shell.vault / "link").symlink_to("uv.lock")
    assert shell.run("tool", "run", "touch", "--path", "a.txt") == "wrote a.txt\n"
    for spelling in ("uv.lock", "./sub/../uv.lock", "link"):
        denied = shell.json("tool", "run", "touch", "--path", spelling, "--output", "json")
        assert denied["status"] == "denied"
        assert "uv.lock is generated" in denied["output"]


def test_the_plugin_of_the_front_page_holds_every_tool_and_passes_the_checks(shell, tmp_path: Path) -> None:
    """It judges by target, so that `edit`, `move` and a link meet it as `write` does (README, S2.11)."""
    text = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    code = re.search(r"<!-- file: ~/.moryflow/plugins/lockfile_gate.py -->\n```python\n(.*?)```", text, re.DOTALL)
    plugin = tmp_path / "lockfile_gate.py"
    plugin.write_text(code[1], encoding="utf-8")
    plugin.chmod(0o600)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--moryflow-plugin", str(plugin)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    shell.install(plugin, "plugins")
    (shell.vault / "poetry.lock").write_text("a\n", encoding="utf-8")
    (shell.vault / "note").symlink_to("poetry.lock")
    patch = "*** Begin Patch\n*** Delete File: poetry.lock\n*** End Patch"
    calls = (
        ("edit", {"path": "poetry.lock", "old_string": "a", "new_string": "b"}),
        ("multiedit", {"edits": [{"path": "note", "old_string": "a", "new_string": "b"}]}),
        ("move", {"path": "poetry.lock", "to": "b"}),
        ("delete", {"path": "poetry.lock"}),
        ("apply_patch", {"patch": patch}),
    )
    for tool, args in calls:
        result = shell.json("tool", "run", tool, "--args", json.dumps(args), "--output", "json")
        assert (result["status"], "lock files are generated" in result["output"]) == ("denied", True), (tool, result)


def test_the_agent_loads_as_it_stands() -> None:
    """Single quotes and a trailing comma in the frontmatter are fine (S0.91)."""
    text = (EXAMPLES / "agents" / "writer.md").read_text(encoding="utf-8")
    head, body = frontmatter.YAMLHandler().split(text)
    assert json5.loads(head)["modelSettings"] == {"temperature": 0.2, "maxTokens": 512}
    assert body.startswith("\n\nYou are a concise writing assistant.") or body.strip().startswith("You are a concise")


def test_the_configuration_loads_without_a_complaint(tmp_path) -> None:
    """Comments and trailing commas are read; every key is known (D56)."""
    home = tmp_path / ".moryflow"
    home.mkdir(mode=0o700)
    shutil.copyfile(EXAMPLES / "config.jsonc", home / "config.jsonc")
    (home / "config.jsonc").chmod(0o600)
    config = load_config(home, environ={})
    assert config.problems == ()
    assert config.get("agents.runtime.agent.id") == "writer"
    assert [rule.decision for rule in config.rules()] == ["allow", "ask", "ask"]


def test_a_tool_that_raises_is_named_with_its_line(shell) -> None:
    """What was raised, in which tool of which plugin, in which line of its file (S0.92)."""
    raising = """
        raise ValueError("no such greeting")
    return f"wrote {path}"
"""
    shell.plugin("stubs", STUBS.replace('    return f"wrote {path}"\n', '    if path == "a":' + raising))
    line = STUBS.splitlines().index('    return f"wrote {path}"') + 2
    said = shell.run("tool", "run", "touch", "--path", "a", exit_code=1)
    assert f"touch (plugin stubs) failed: ValueError: no such greeting (stubs.py:{line})" in said
