"""``moryflow new``: what it writes works as it is, and nothing is overwritten or switched on without a yes."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from moryflow.authoring.scaffold import agent_scaffold, plugin_scaffold, tool_scaffold
from moryflow.config import load_config
from moryflow.plugins.consent import Consents
from moryflow_sdk import ConfigError

SWITCH = "agents.runtime.tools.external.enabled"


def test_a_new_tool_passes_its_own_test_and_is_named_with_what_to_type_next(desk) -> None:
    """Three commands from nothing to a tool that ran; the file is a test of itself (S0-j)."""
    done = desk("new", "tool", "hello", "-y")
    file = desk.home / "tools" / "hello.py"
    assert (done.code, f"wrote {file}" in done.out) == (0, True)
    assert "moryflow tool run hello --name Ada" in done.out
    assert file.stat().st_mode & 0o022 == 0 and desk.home.stat().st_mode & 0o077 == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={file.parent}"]
    passed = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
    assert passed.returncode == 0 and "1 passed" in passed.stdout, passed.stdout


@pytest.mark.parametrize("language", ["bash", "javascript"])
def test_a_new_tool_in_another_language_works_as_it_is(desk, language: str) -> None:
    """It is executable, loads without a complaint, and greets."""
    if language == "javascript" and shutil.which("node") is None:
        pytest.skip("node is not installed")
    done = desk("new", "tool", "hello", "--language", language, "-y")
    [file] = (desk.home / "tools").iterdir()
    assert done.code == 0 and file.stat().st_mode & 0o122 == 0o100
    assert "ok (hello)" in desk("tool", "check").out
    assert desk("tool", "run", "hello", "--name", "Ada", "--mode", "full_access", "-y").out == "Hello, Ada!\n"


def test_changes_of_a_tool_are_taken_with_a_yes_and_never_silently(desk) -> None:
    """Without a terminal and without -y the setting stays, and the command for it is shown (D71)."""
    shown = desk("new", "tool", "hello")
    assert load_config(desk.home).get(SWITCH) in (None, False)
    assert "moryflow tool allow hello" in shown.out
    said = desk("new", "tool", "hello", "-y")
    assert load_config(desk.home).get(SWITCH) is True
    assert SWITCH in said.err and str(desk.home / "config.jsonc") in said.err


def test_nothing_is_overwritten_without_asking(desk) -> None:
    """Without a terminal the answer is no, with exit code 2 and the way to say yes (CONTRACT 1)."""
    assert desk("new", "agent", "reviewer").code == 0
    file = desk.home / "agents" / "reviewer.md"
    assert desk("new", "agent", "reviewer").code == 0, "the same content is nothing to ask about"
    file.write_text("mine", encoding="utf-8")
    refused = desk("new", "agent", "reviewer")
    assert (refused.code, file.read_text(encoding="utf-8")) == (2, "mine")
    assert str(file) in refused.err and "-y" in refused.err
    assert desk("new", "agent", "reviewer", "-y").code == 0
    assert file.read_text(encoding="utf-8") != "mine"


def test_a_new_agent_is_accepted_by_agent_check(desk) -> None:
    """The scaffold is what the checker asks for (D41)."""
    desk("new", "agent", "code-reviewer")
    done = desk("agent", "check", "--json")
    assert (done.code, [(row["id"], row["problems"]) for row in done.json]) == (0, [("code-reviewer", [])])


def test_a_new_tool_needs_no_further_yes_while_a_host_runs(desk) -> None:
    """Typing the command is the consent, also when a running host noticed the file first (R18)."""
    consents = Consents(desk.home)
    consents.hold(desk.home / "tools" / "hello.py")
    desk("new", "tool", "hello", "-y")
    assert not consents.is_waiting(desk.home / "tools" / "hello.py")


@pytest.mark.parametrize(
    ("make", "name", "near"),
    [
        (tool_scaffold, "My Tool", "my_tool"),
        (tool_scaffold, "class", "my_class"),
        (tool_scaffold, "../x", "x"),
        (tool_scaffold, "wörter", "worter"),
        (tool_scaffold, "create_tools", "my_create_tools"),
        (tool_scaffold, "str", "my_str"),
        (tool_scaffold, "7", "hello"),
        (agent_scaffold, "my agent", "my-agent"),
        (agent_scaffold, "build", "my-build"),
        (agent_scaffold, "../../etc", "etc"),
        (plugin_scaffold, "Word_Count", "word-count"),
        (plugin_scaffold, "x" * 60, "x" * 12),
    ],
)
def test_a_name_that_will_not_do_is_refused_with_one_that_will(make, name: str, near: str, tmp_path: Path) -> None:
    """The next command is one that works (CONTRACT 1)."""
    with pytest.raises(ConfigError) as refused:
        make(name, tmp_path)
    assert refused.value.next_step.endswith(f" {near}")
    kind = make.__name__.partition("_")[0]
    assert refused.value.next_step.startswith(f"moryflow new {kind} ")


def test_the_name_of_a_tool_of_ours_is_taken(desk) -> None:
    """A second `read` would be refused later, with less explanation."""
    refused = desk("new", "tool", "read")
    assert (refused.code, "my_read" in refused.err) == (2, True)


def test_json_names_files_and_next_commands(desk) -> None:
    """For scripts (CONTRACT 1)."""
    done = desk("new", "agent", "reviewer", "--json")
    assert done.json["files"] == [str(desk.home / "agents" / "reviewer.md")]
    assert "moryflow agent check" in done.json["next"]


@pytest.mark.parametrize("name", ["word-count", "class", "a", "x" * 40])
def test_a_new_plugin_is_well_formed_whatever_its_name(name: str, tmp_path: Path) -> None:
    """ruff finds nothing, not even a line to format; nothing of a template is left (CONTRACT 1)."""
    scaffold = plugin_scaffold(name, tmp_path)
    scaffold.write()
    project = tmp_path / f"moryflow-{name}"
    ruff = [sys.executable, "-m", "ruff"]
    for command in ([*ruff, "check", "--no-cache", "."], [*ruff, "format", "--no-cache", "--check", "."]):
        done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert not any("$" in text.replace("$EDITOR", "") for text in scaffold.files.values())
    assert (project / "src" / f"moryflow_{name.replace('-', '_')}" / "py.typed").exists()


def test_a_new_plugin_passes_the_probe_and_the_checks_for_authors(desk) -> None:
    """`plugin check` and `pytest --moryflow-plugin` find nothing (S2.21, CONTRACT 1)."""
    assert desk("new", "plugin", "word-count").code == 0
    project = desk.vault / "moryflow-word-count"
    checked = desk("plugin", "check", str(project), "--json")
    assert (checked.code, checked.json["ok"]) == (0, True)
    command = [sys.executable, "-W", "error", "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "--moryflow-plugin", "."]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout


@pytest.mark.parametrize("name", ["grep", "tools", "hookimpl", "str"])
def test_a_new_plugin_works_whatever_its_name_means(desk, name: str) -> None:
    """A name that a tool of ours has, or a word of the file itself: its own tool is called otherwise (CONTRACT 1)."""
    made = desk("new", "plugin", name)
    assert made.code == 0 and f"moryflow tool run {name}_tool --name Ada" in made.out
    checked = desk("plugin", "check", f"./moryflow-{name}", "--json")
    assert (checked.code, checked.json["tools"], checked.json["notes"]) == (0, [f"{name}_tool"], [])


def test_the_name_of_an_agent_of_ours_is_taken(desk) -> None:
    """`plan` is one, and a file of that name would be left out (D41)."""
    refused = desk("new", "agent", "plan")
    assert (refused.code, "moryflow new agent my-plan" in refused.err) == (2, True)


def test_a_path_that_is_to_be_typed_is_quoted(tmp_path: Path) -> None:
    """A folder with a space in its name (CONTRACT 1)."""
    assert tool_scaffold("words", tmp_path / "a b").following[1] == f"$EDITOR '{tmp_path}/a b/words.py'"
    assert plugin_scaffold("words", tmp_path / "a b").following[0] == f"cd '{tmp_path}/a b/moryflow-words'"


def test_a_new_plugin_passes_its_tests_and_strict_type_checking(tmp_path: Path) -> None:
    """As it is, without being installed first, and without a warning (CONTRACT 1)."""
    plugin_scaffold("word-count", tmp_path).write()
    project = tmp_path / "moryflow-word-count"
    environ = {**os.environ, "MORYFLOW_HOME": str(tmp_path / "real-home")}
    tests = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    done = subprocess.run(tests, cwd=project, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout
    assert "warning" not in (done.stdout + done.stderr).lower()
    assert not (tmp_path / "real-home").exists()
    pytest.importorskip("pyright")
    types = [sys.executable, "-m", "pyright", "-p", ".", "--pythonpath", sys.executable]
    done = subprocess.run(types, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_new_plugin_says_on_which_pythons_it_runs(tmp_path: Path) -> None:
    """The versions that Moryflow itself runs on, in the metadata that an index reads (CONTRACT 1)."""
    host = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))["project"]
    plugin_scaffold("word-count", tmp_path).write()
    new = tomllib.loads((tmp_path / "moryflow-word-count" / "pyproject.toml").read_text("utf-8"))["project"]
    pythons = [each for each in host["classifiers"] if each.startswith("Programming Language :: Python :: 3.")]
    assert (new["requires-python"], new["classifiers"][: len(pythons)]) == (host["requires-python"], pythons)


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path: Path) -> None:
    """On a full disk: the file there was stands, half a new one would be complained about from then on (D46)."""
    for name in ("old", "new"):
        scaffold = agent_scaffold(name, tmp_path)
        [path] = scaffold.files
        if name == "old":
            path.write_text("mine")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
        try:
            with pytest.raises(OSError, match="large") as caught:
                scaffold.write()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert caught.value.filename == str(path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old.md", "mine")]


def test_nobody_can_lead_a_new_file_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder that others may write to, a link of theirs is never what is written to (R12)."""
    (mine := tmp_path / "mine").write_text("mine")
    (tmp_path / ".guessed.new.md").symlink_to(mine)
    monkeypatch.setattr("tempfile._get_candidate_names", lambda: iter(["guessed", "another"]))
    agent_scaffold("new", tmp_path).write()
    assert mine.read_text() == "mine" and not (tmp_path / "new.md").is_symlink()
