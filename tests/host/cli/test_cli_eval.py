"""``moryflow eval CASES.yaml``: graders, with and without a plugin, recorded answers (issue F, CONTRACT §1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

CASES = """
cases:
  - name: greets
    prompt: Greet Ada
    files: {sub/b.txt: old}
    graders:
      - call: {tool: hello, args: {name: Ada}, status: ok}
      - call: danger
        never: true
      - command: grep -q old sub/b.txt
      - file: {path: sub/b.txt, equals: old}
      - file: {path: c.txt, absent: true}
      - answer: "^don"
      - judge: Is it short?
"""
TURNS = [{"calls": [{"name": "hello", "arguments": {"name": "Ada"}}]}, "done"]


def test_cases_are_run_live_recorded_and_run_again_without_a_model(cli: Any, tmp_path: Path) -> None:
    """The recorded run needs no model; without the plugin that brings the tool the case fails."""
    file = tmp_path / "cases.yaml"
    file.write_text(CASES, encoding="utf-8")
    assert "no answers are recorded" in cli("eval", str(file)).stderr
    live = cli("eval", str(file), "--live", "-m", cli.script(*TURNS), "--json")
    # The scripted judge calls a tool and says "done", which is no yes.
    failures = json.loads(live.stdout)["cases"][0]["failures"]
    assert live.returncode == 3 and failures == ["the judge says no: Is it short?"]
    recorded = file.with_suffix(".recorded.json")
    text = recorded.read_text("utf-8").replace("false", "true")
    recorded.write_text(text, encoding="utf-8")
    again = cli("eval", str(file), "--json", "--without", "demo")
    (row,) = json.loads(again.stdout)["cases"]
    assert (again.returncode, row["passed"], row["without"]) == (0, True, False), again.stdout
    assert any("hello" in why for why in row["failures_without"])
    assert json.loads(cli("session", "list", "--all", "--json").stdout) == []
    assert cli("eval", str(file), "-k", "nothing of that name").returncode == 0
    # Recording some cases anew keeps the answers of the others.
    assert cli("eval", str(file), "--live", "-k", "nothing of that name").returncode == 0
    assert json.loads(recorded.read_text("utf-8")) == json.loads(text)
    recorded.write_text("{", encoding="utf-8")
    broken = cli("eval", str(file))
    assert broken.returncode == 2 and "it is not JSON" in broken.stderr and str(recorded) in broken.stderr


def test_each_grader_says_why_it_is_not_content(cli: Any, tmp_path: Path) -> None:
    """One sentence each."""
    file = tmp_path / "cases.yaml"
    graders = [
        {"call": "danger"}, {"call": {"tool": "hello", "args": {"name": "Bob"}}}, {"call": "hello", "never": True},
        {"command": "echo no; exit 3"}, {"file": "c.txt"}, {"answer": "^x"},
    ]  # fmt: skip
    file.write_text(json.dumps({"cases": [{"name": "all", "prompt": "x", "graders": graders}]}), encoding="utf-8")
    done = cli("eval", str(file), "--live", "-m", cli.script(*TURNS), "--json")
    assert json.loads(done.stdout)["cases"][0]["failures"] == [
        "danger was not called",
        "hello was not called with {'name': 'Bob'}",
        "hello was called",
        "echo no; exit 3 ended with 3: no",
        "c.txt is not there",
        "the answer does not match '^x'",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cases: [", "it is not YAML"),
        ("x: 1", "no list `cases`"),
        ("cases: [{name: a}]", "case 1: it needs a prompt"),
        ("cases: [{prompt: a}]", "it needs a list of graders"),
        ("cases: [{prompt: a, graders: [{files: b}]}]", "a grader is one of"),
        ("cases: [{prompt: a, grader: [], graders: [{answer: b}]}]", "there is no field grader"),
        ("cases: [{prompt: a, graders: [{answer: '('}]}]", "'(' is not a regular expression"),
        ("cases: [{prompt: a, files: {../b: c}, graders: [{answer: b}]}]", "outside the case's folder"),
        ("cases: [{name: a, prompt: a, graders: [{answer: b}]}, {name: a, prompt: a, graders: [{answer: b}]}]", "two cases"),
    ],
)
def test_a_file_that_is_wrong_is_named(cli: Any, tmp_path: Path, text: str, problem: str) -> None:
    """With the file, exit code 2."""
    file = tmp_path / "cases.yaml"
    file.write_text(text, encoding="utf-8")
    done = cli("eval", str(file))
    assert done.returncode == 2 and problem in done.stderr and str(file) in done.stderr
