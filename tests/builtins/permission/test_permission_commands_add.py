"""``permission allow|ask|deny``: one rule, written where *always* writes it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from moryflow.base.builtins import BUILTINS
from moryflow_builtins.permission.cli.lint import STILL_ASKED
from moryflow_sdk.support.sandbox import COMMANDS

MINE = """{
  // mine
  "agents": {"runtime": {"permission": {"rules": [
    {"domain": "bash", "pattern": "git *", "decision": "ask"}, // keep
  ]}}}
}
"""


@pytest.fixture
def bench(bench):
    """The bench with every built-in plugin, and a file with comments."""
    made = replace(bench, builtins=BUILTINS)
    (made.home / "config.jsonc").write_text(MINE, "utf-8")
    return made


def test_a_rule_is_added_at_the_end_and_its_line_is_said(bench):
    """Comments stay, the last match decides, and what holds already is not written twice (S0.48, D5, D45)."""
    file = bench.home / "config.jsonc"
    first = bench.cli("permission", "allow", "bash", "git status *")
    assert (first.returncode, first.stdout, first.stderr) == (0, f"added: allow bash git status * ({file}:5)\n", "")
    again = bench.cli("permission", "allow", "bash", "git status *", "--json")
    added = {"domain": "bash", "pattern": "git status *", "decision": "allow"}
    assert json.loads(again.stdout) == {
        "v": 1, "type": "rule", "added": False, "rule": added, "where": f"{file}:5", "warnings": []
    }  # fmt: skip
    lines = file.read_text("utf-8").splitlines()
    assert lines[:4] == MINE.splitlines()[:4] and len(lines) == len(MINE.splitlines()) + 1
    explained = json.loads(bench.cli("permission", "explain", "bash", "git status -s", "--json").stdout)
    assert explained["decision"] == "allow" and explained["targets"][0]["rule"]["line"] == 5


def test_what_a_rule_silences_is_said(bench):
    """Not refused: it is the person's own file (D4)."""
    assert "asks about vault:/.env" in bench.cli("permission", "allow", "read", "**/.env").stderr
    wide = bench.cli("permission", "allow", "bash", "*")
    assert wide.returncode == 0 and "any program runs, but not every command goes unasked. Still asked: words" in wide.stderr


def test_what_a_rule_for_every_command_leaves_open_is_said_truly(bench):
    """Each kind that the remark names is still asked about, and a plain command is not (S0.48, R24, R8)."""
    (bench.vault / ".env").write_text("KEY=1\n")
    for name in ("objects", "refs"):
        (bench.vault / "other" / name).mkdir(parents=True)
    (bench.vault / "other" / "HEAD").write_text("ref: refs/heads/x\n")
    bench.cli("permission", "deny", "bash", COMMANDS)
    said = bench.cli("permission", "allow", "bash", "*").stderr
    assert "without a question" not in said
    assert [what for what, example in STILL_ASKED if f"{what} ({example})" not in said] == []

    def decided(command):
        return json.loads(bench.cli("permission", "explain", "bash", command, "--json").stdout)["decision"]

    assert {example: decided(example) for _, example in STILL_ASKED} == {example: "ask" for _, example in STILL_ASKED}
    assert decided("make all") == "allow"


def test_a_rule_lifts_no_hard_limit(bench):
    """Moryflow's own files stay out of reach, whatever a rule says (R14)."""
    bench.cli("permission", "allow", "edit", "*")
    explained = bench.cli("permission", "explain", "edit", str(bench.home / "config.jsonc"), "--json")
    assert json.loads(explained.stdout)["decision"] == "deny"


@pytest.mark.parametrize(
    ("domain", "pattern", "said"),
    [
        ("bash", "", "1 to 4096 characters"),
        pytest.param("bash", "regex:([", "does not compile", marks=pytest.mark.re2),
        ("read", "../x", "has . or .. in it"),
        ("bash", "ls && rm", "every command of a line is judged alone"),
        ("mail", "*", "'mail' is not one of"),
    ],
)
def test_a_rule_that_can_never_match_is_not_written(bench, domain, pattern, said):
    """Exit code 2, the reason, and the file as it was (D26)."""
    done = bench.cli("permission", "deny", domain, pattern)
    assert done.returncode == 2 and said in done.stderr and "next: " in done.stderr
    assert (bench.home / "config.jsonc").read_text("utf-8") == MINE


def test_a_file_that_does_not_parse_is_not_touched(bench):
    """The person is told where it breaks (D44)."""
    file = bench.home / "config.jsonc"
    file.write_text('{"agents": \n[', "utf-8")
    done = bench.cli("permission", "deny", "bash", "rm *")
    assert done.returncode == 2 and "does not parse, so nothing was written" in done.stderr
    assert file.read_text("utf-8") == '{"agents": \n['
