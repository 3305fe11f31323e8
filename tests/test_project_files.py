"""The files for whoever picks the project up: tasks, hooks before a commit, continuous integration."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
RECIPE = re.compile(r"^(\w+)(?: [^:\n]*)?:\n((?:    .+\n)+)", re.MULTILINE)


def recipes() -> dict[str, list[str]]:
    """The tasks of the justfile with their commands, without the arguments of the caller."""
    text = re.sub(r" ?\{\{ [A-Z]+ \}\}", "", (ROOT / "justfile").read_text(encoding="utf-8")).replace("{{ python }}", "python3")
    return {name: [line.strip() for line in body.splitlines()] for name, body in RECIPE.findall(text)}


@pytest.mark.parametrize("task", ["setup", "test", "lint", "docs", "bench", "pins", "ci"])
def test_a_task_types_what_the_page_for_contributors_says(task: str) -> None:
    """Who has no just finds the same command in CONTRIBUTING.md, or a check of ``.ci/run``."""
    known = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8") + (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert [command for command in recipes()[task] if command not in known] == []


def test_the_workflow_runs_what_a_developer_runs() -> None:
    """There is one list of checks, and it is ``.ci/run``."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert commands == [".ci/run"]


def test_hooks_before_a_commit_fetch_nothing() -> None:
    """They are the programs that are installed, with the settings of the project."""
    settings = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert {entry["repo"] for entry in settings["repos"]} == {"local"}
    assert {hook["language"] for entry in settings["repos"] for hook in entry["hooks"]} == {"system"}
