"""``permission allow|ask|deny`` and ``remove``: one rule, written where *always* writes it, and taken out there."""

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


def test_a_rule_that_trusts_an_unknown_program_says_so(bench):
    """Its options are in no table, so the rule covers them all (R8)."""
    said = bench.cli("permission", "allow", "bash", "mytool *").stderr
    assert "mytool is not known here, so the rule trusts it with all its options" in said
    assert "not known here" not in bench.cli("permission", "allow", "bash", "git log *").stderr


def test_explain_says_of_a_command_what_was_read_what_covers_it_and_what_holds_it(bench):
    """Three lines; every rule in order is in the JSON (S0.48)."""
    bench.cli("permission", "allow", "bash", "git log *")
    lines = bench.cli("permission", "explain", "bash", "git log | head -3 > /tmp/x").stdout.splitlines()
    read, rules, sandbox = (next(line for line in lines if line.startswith(word)) for word in ("read ", "rules ", "sandbox "))
    assert "git log" in read and "head -3" in read and "changes /tmp/x" in read
    assert "git log: allow" in rules and "head -3: ask" in rules and "/tmp/x: deny" in rules
    assert "only this folder" in sandbox or "none works here" in sandbox
    unread = bench.cli("permission", "explain", "bash", "echo `rm x`").stdout
    assert "cannot be read surely: back quotes" in unread


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
        ("bash", "regex:([", "does not compile"),
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


def test_a_rule_is_removed_by_its_number_or_its_words_as_the_list_prints_them(bench):
    """Comments and the other rules stay, and what was removed is said; what a rule is bound to is among its words (S0.48)."""
    file = bench.home / "config.jsonc"
    for added in (("allow", "bash", "make"), ("deny", "read", "a   b"), ("allow", "bash", "make", "--workdir", ".")):
        assert bench.cli("permission", *added).returncode == 0
    listed = bench.cli("permission", "rules").stdout.splitlines()[-1]
    assert listed.startswith("user 4 ")
    for given, said in (
        (["2"], f"removed: allow bash make ({file}:5)\n"),
        ([" ".join(listed.split()[:-1]).replace("user 4 ", "")], f"removed: allow bash make in vault:/ ({file}:6)\n"),
        (["deny", "read", "a b"], f"removed: deny read a   b ({file}:5)\n"),
    ):
        done = bench.cli("permission", "remove", *given)
        assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
    assert file.read_text("utf-8") == MINE
    removed = json.loads(bench.cli("permission", "rm", "bash ask git *", "--json").stdout)["removed"]
    assert [(rule["pattern"], rule["line"]) for rule in removed] == [("git *", 4)] and "// keep" in file.read_text("utf-8")


def test_a_rule_that_is_not_there_is_not_removed(bench):
    """Nothing is guessed: of rules that read alike the number is asked for (S0.48, R22)."""
    contents = ({"vault:/Makefile": f"sha256:{digit * 64}"} for digit in "12")
    rules = [{"domain": "bash", "pattern": "make", "decision": "allow", "contents": each} for each in contents]
    bench.config(permission={"rules": rules})
    file = bench.home / "config.jsonc"
    before = file.read_text("utf-8")
    alike = "allow bash make, while vault:/Makefile stays as it is"
    for given, said in (
        ("3", "'3' is not among your rules"),
        ("allow bash *", "'allow bash *' is not among your rules"),
        (alike, f"2 rules of yours are written {alike!r}; say which by its number"),
    ):
        done = bench.cli("permission", "remove", given)
        assert (done.returncode, done.stderr) == (2, f"moryflow: {said}\n  next: moryflow permission rules\n")
    assert file.read_text("utf-8") == before
    empty = bench.cli("permission", "remove", "2", "--session", "")  # of a script whose variable is empty
    assert empty.returncode == 2 and file.read_text("utf-8") == before
    assert len(bench.cli("permission", "remove", "x" * 10_000).stderr) < 200
    assert bench.cli("permission", "remove", "2").returncode == 0
    bench.config(permission={"rules": [{"domain": "bash", "pattern": "make", "decision": "always"}]})
    assert '(not usable: "always" is not a decision)' in bench.cli("permission", "remove", "1").stdout


async def test_what_was_granted_in_a_session_is_taken_back_there(bench):
    """A session that goes on keeps its grants, so they are removed from the session itself (S0.48, D66)."""
    session = (await bench.run(bench.calls(("read", {"path": "/etc/hosts"})), replies=["always"])).session
    grant = "read allow fs:/etc/hosts"
    assert bench.cli("permission", "remove", grant).returncode == 0
    assert "session" in bench.cli("permission", "rules", "--session", session).stdout
    done = bench.cli("permission", "remove", grant, "--session", session)
    assert (done.returncode, done.stdout) == (0, "removed: allow read fs:/etc/hosts (granted for this session)\n")
    explained = bench.cli("permission", "explain", "read", "/etc/hosts", "--session", session, "--json")
    assert json.loads(explained.stdout)["decision"] == "ask"
