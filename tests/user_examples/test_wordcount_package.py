"""The whole third-party plugin: installed with pip, seen, run, configured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2] / "user_examples" / "plugins" / "moryflow-wordcount" / "tests"


@pytest.fixture
def installed(shell, wordcount_site):
    """A shell whose Python has the plugin, and a file to count."""
    shell.path = wordcount_site
    (shell.vault / "notes.md").write_text("three short words\n", encoding="utf-8")
    return shell


def test_a_plugin_installed_with_pip_is_seen_by_plugin_list(installed) -> None:
    """Its entry point and its manifest are enough to be found, loaded and described (S2.21)."""

    def listed():
        return next(row for row in installed.json("plugin", "list", "--json") if row["name"] == "wordcount")

    assert (listed()["status"], listed()["tools"]) == ("pending", ["wordcount"])  # from its manifest: a list loads nothing
    installed.run("tool", "list")
    row = listed()
    assert (row["tier"], row["status"], row["version"]) == ("installed", "loaded", "0.1.0")
    assert (row["hooks"], row["tools"], row["services"]) == (["tools", "tool_after"], ["wordcount"], ["files"])


def test_its_tool_runs_under_the_rules_for_files(installed) -> None:
    """A third-party tool opens what was judged: the vault is free, a file outside it is not (S4.9, R12)."""
    assert installed.run("tool", "run", "wordcount", "--path", "notes.md") == "notes.md: 3 words\n"
    outside = installed.vault.parent / "secret.md"
    outside.write_text("not yours", encoding="utf-8")
    assert "words" not in installed.run("tool", "run", "wordcount", "--path", str(outside), exit_code=4)


def test_its_hook_follows_its_settings(installed) -> None:
    """A `tool.after` hook changes what the model reads, for the tools that the configuration names (S0.94)."""
    installed.configure(plugins={"wordcount": {"annotate": ["wordcount"]}})
    assert installed.run("tool", "run", "wordcount", "--path", "notes.md") == "notes.md: 3 words\n[3 words]\n"


def test_a_wrong_setting_is_named_with_its_place_and_stops_nothing(installed) -> None:
    """A plugin with a bad setting becomes a load record; the others go on (invariant 5)."""
    installed.configure(plugins={"wordcount": {"anotate": ["read"]}})
    installed.run("tool", "list")
    rows = {row["name"]: row for row in installed.json("plugin", "list", "--json")}
    assert "anotate" in rows["wordcount"]["error"]
    assert rows["truncation"]["status"] == "loaded"


def test_its_own_tests_pass(wordcount_site) -> None:
    """What a plugin author starts from is green."""
    environ = {**os.environ, "PYTHONPATH": str(wordcount_site)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        f"--rootdir={TESTS}",
        str(TESTS),
    ]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
