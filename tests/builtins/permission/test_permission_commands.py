"""``permission explain``, ``rules`` and ``test``: what is predicted is what happens."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from moryflow.base.builtins import BUILTINS
from moryflow_sdk.support.sandbox import find_sandbox


@pytest.fixture
def bench(bench):
    """The bench with every built-in plugin."""
    return replace(bench, builtins=BUILTINS)


def rules(bench, *rows):
    bench.config(permission={"rules": [dict(zip(("domain", "pattern", "decision"), row, strict=True)) for row in rows]})


def examples(bench, *lines):
    file = bench.vault / "examples.jsonl"
    file.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines), "utf-8")
    return str(file)


def results(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


# ------------------------------------------------------------------------------------------------
# explain
# ------------------------------------------------------------------------------------------------


def test_explain_shows_the_whole_chain_with_file_and_line(bench):
    """Every rule of the domain in order, which matched, and where each stands (R22, D4, D8)."""
    rules(bench, ("read", "fs:/etc/**", "allow"), ("read", "fs:/etc/shadow", "deny"), ("bash", "*", "allow"))
    found = json.loads(bench.cli("permission", "explain", "read", "/etc/../etc/shadow", "--json").stdout)
    assert (found["v"], found["type"], found["decision"], found["cause"]) == (1, "decision", "deny", "policy")
    assert [(part["target"], part["decision"], part["rule"]["line"]) for part in found["targets"]] == [
        ("fs:/etc/shadow", "deny", 1)
    ]
    mine = [entry for entry in found["chain"] if entry["source"] == "user"]
    assert [(entry["pattern"], entry["matched"]) for entry in mine] == [("fs:/etc/**", True), ("fs:/etc/shadow", True)]
    assert all(entry["file"].endswith("config.jsonc") and entry["index"] in (0, 1) for entry in mine)
    assert {entry["domain"] for entry in found["chain"]} == {"read"}
    assert found["chain"][0]["source"] == "default" and "file" not in found["chain"][0]


def test_explain_says_what_changes_in_full_access_and_headless(bench):
    """Ask becomes allow in full_access and deny with nobody to ask; an explicit deny stays (D2, D27)."""
    rules(bench, ("bash", "rm *", "deny"))
    asked = json.loads(bench.cli("permission", "explain", "bash", "make", "--json").stdout)["otherwise"]
    assert asked["full_access"] == {"decision": "allow", "cause": "mode"}
    assert asked["headless"] == {"decision": "deny", "cause": "headless"}
    denied = bench.cli("permission", "explain", "bash", "git status && /bin/rm -r x", "--mode", "full_access")
    assert denied.stdout.startswith("deny  (policy, mode full_access)\n")
    assert "full_access  deny  (policy)" in denied.stdout and "rule deny 'rm *'" in denied.stdout


@pytest.mark.parametrize(
    ("domain", "given", "decision", "target"),
    [
        ("edit", "~/home/config.jsonc", "deny", None),
        ("read", ".ENV", "ask", "vault:/.ENV"),
        ("web_fetch", "https://Example.com", "allow", "url:https://example.com/"),
        ("web_fetch", "http://127.1/", "deny", None),
        ("mcp", "github/create_issue", "ask", "mcp:github/create_issue"),
    ],
)
def test_explain_takes_what_the_tool_would_get(bench, domain, given, decision, target):
    """Paths, addresses and server/tool are resolved as the host does (D7, D8, R14, R16)."""
    found = json.loads(bench.cli("permission", "explain", domain, given, "--json", HOME=str(bench.home.parent)).stdout)
    assert found["decision"] == decision
    if target is not None:
        assert found["targets"][0]["target"] == target


@pytest.mark.parametrize(
    ("path", "part"),
    [(".env", "*.env"), ("a/.ENV.local~", "*.env"), (".ssh/config", ".envs,.ssh,"), (".ssh/id_rsa", ".envs,.ssh,")],
)
def test_explain_names_the_very_rule_that_guards_a_secret(bench, path, part):
    """Names and folders are two rules; the one that is shown is the one a person would change (S0.33, R22)."""
    (target,) = json.loads(bench.cli("permission", "explain", "read", path, "--json").stdout)["targets"]
    assert target["rule"]["pattern"].startswith(f"vault:**/{{{part}")


def test_explain_knows_of_the_sandbox(bench):
    """What a rule lets run unasked inside is explained as it happens on this machine (S0.36)."""
    rules(bench, ("bash", "sandbox:commands", "allow"))
    found = json.loads(bench.cli("permission", "explain", "bash", "make", "--json").stdout)
    assert found["decision"] == ("allow" if find_sandbox() else "ask")


def test_explain_shows_no_control_characters(bench):
    """What a command holds cannot move the terminal's cursor (R3)."""
    shown = bench.cli("permission", "explain", "bash", "echo '\x1b[2J\u202e' done").stdout
    assert "\x1b" not in shown and "\u202e" not in shown and "\\x1b[2J\\u202e" in shown


def test_wrong_input_is_a_usage_error(bench):
    """An unknown domain and half a server's tool name (exit code 2)."""
    for arguments in (("reed", "x"), ("mcp", "github")):
        done = bench.cli("permission", "explain", *arguments)
        assert done.returncode == 2 and "Traceback" not in done.stderr


def test_rules_lists_all_that_holds_and_where_it_stands(bench):
    """Defaults first, then the person's, then inline ones (S0.33, S0.40, D56)."""
    rules(bench, ("bash", "ls", "allow"))
    denial = {"domain": "bash", "pattern": "pwd", "decision": "deny"}
    inline = json.dumps({"agents": {"runtime": {"permission": {"rules": [denial]}}}})
    shown = json.loads(bench.cli("--config", inline, "permission", "rules", "--domain", "bash", "--json").stdout)
    listed = [(rule["source"], rule["pattern"], rule["decision"]) for rule in shown]
    assert listed == [("default", "*", "ask"), ("user", "ls", "allow"), ("inline", "pwd", "deny")]
    assert [rule.get("line") for rule in shown if rule["source"] == "user"] == [1]
    text = bench.cli("permission", "rules").stdout
    assert f"{bench.home / 'config.jsonc'}:1" in text and "vault:**" in text


# ------------------------------------------------------------------------------------------------
# test
# ------------------------------------------------------------------------------------------------


def test_examples_are_judged_and_compared(bench):
    """One line each and a summary; exit code 3 when one comes out otherwise (CONTRACT §2)."""
    allow = [{"domain": "bash", "pattern": "ls", "decision": "allow"}]
    file = examples(
        bench,
        {"id": "a", "tool": "bash", "args": {"command": "ls"}, "rules": allow, "expect": "allow"},
        {"id": "b", "tool": "bash", "args": {"command": "ls"}, "rules": [], "expect": "allow"},
        {"id": "c", "tool": "read", "args": {"path": "a.md"}},
    )
    done = bench.cli("permission", "test", file, "--json")
    assert results(done) == [
        {"id": "a", "decision": "allow", "cause": "policy", "expect": "allow", "ok": True},
        {"id": "b", "decision": "ask", "cause": "policy", "expect": "allow", "ok": False},
        {"id": "c", "decision": "allow", "cause": "policy", "expect": None, "ok": True},
        {"type": "summary", "passed": 2, "failed": 1},
    ]
    assert done.returncode == 3
    assert "FAILED  b" in bench.cli("permission", "test", file).stdout


def test_rules_of_a_line_stand_in_for_the_configured_ones(bench):
    """With `rules` the configuration does not count, the defaults do; without, it does."""
    rules(bench, ("bash", "*", "allow"), ("read", "*", "deny"))
    file = examples(
        bench,
        {"id": "mine", "tool": "bash", "args": {"command": "ls"}, "expect": "allow"},
        {"id": "none", "tool": "bash", "args": {"command": "ls"}, "rules": [], "expect": "ask"},
        {"id": "default", "tool": "read", "args": {"path": "x"}, "rules": [], "expect": "allow"},
    )
    assert bench.cli("permission", "test", file).returncode == 0


def test_vault_and_home_are_names(bench):
    """Neither has to exist; ``~`` and Moryflow's own folder are those of the given home (R14)."""
    place = {"vault": "/no/such/vault", "home": "/no/such/home"}
    home_rule = [{"domain": "read", "pattern": "~/notes/**", "decision": "allow"}]
    file = examples(
        bench,
        {"id": "in", "tool": "read", "args": {"path": "/no/such/vault/a"}, "expect": "allow", **place},
        {"id": "out", "tool": "read", "args": {"path": "/no/such/a"}, "expect": "ask", **place},
        {"id": "~", "tool": "read", "args": {"path": "~/notes/a"}, "rules": home_rule, "expect": "allow", **place},
        {"id": "cat", "tool": "bash", "args": {"command": "cat ~/notes/a > ~/.moryflow/x"}, "expect": "deny", **place},
        {
            "id": "own",
            "tool": "write",
            "args": {"path": "~/.moryflow/x", "content": ""},
            "mode": "full_access",
            "expect": "deny",
            **place,
        },
        {
            "id": "output",
            "tool": "read",
            "args": {"path": "~/.moryflow/agent-output/x"},
            "rules": [],
            "expect": "allow",
            **place,
        },
    )
    done = bench.cli("permission", "test", file, "--json")
    assert done.returncode == 0, done.stdout
    assert {line["id"]: line["cause"] for line in results(done)[:-1]}["own"] == "hard_limit"


def test_mode_and_headless_are_applied(bench):
    """full_access lifts an ask and a default denial, not an explicit one; headless denies (D2, D27, R23)."""
    deny = [{"domain": "bash", "pattern": "rm *", "decision": "deny"}]
    outside = {"tool": "write", "args": {"path": "/srv/x", "content": ""}}
    file = examples(
        bench,
        {"id": 1, "tool": "bash", "args": {"command": "make"}, "mode": "full_access", "expect": "allow"},
        {"id": 2, **outside, "expect": "deny"},
        {"id": 3, **outside, "mode": "full_access", "expect": "allow"},
        {"id": 4, "tool": "bash", "args": {"command": "rm x"}, "rules": deny, "mode": "full_access", "expect": "deny"},
        {"id": 5, "tool": "bash", "args": {"command": "make"}, "headless": True, "expect": "deny"},
        {"id": 6, "tool": "bash", "args": {"command": "make"}, "headless": True, "mode": "full_access", "expect": "allow"},
    )
    done = bench.cli("permission", "test", file, "--json")
    assert done.returncode == 0, done.stdout
    assert [line["cause"] for line in results(done)[:-1]] == ["mode", "policy", "mode", "policy", "headless", "mode"]


def test_input_that_no_tool_would_accept_is_denied(bench):
    """NUL, half a character, a command over 128 KiB, arguments of the wrong kind: invalid_input (CONTRACT §2)."""
    bad = [
        ("bash", {"command": "ls\0"}),
        ("bash", {"command": "echo " + "A" * 131_072}),
        ("read", {"path": "a\0b"}),
        ("read", {"path": "\ud800"}),
        ("read", {"path": True}),
        ("read", {}),
        ("read", {"path": "a", "nonsense": 1}),
    ]
    lines = [
        {"id": n, "tool": tool, "args": args, "mode": "full_access", "expect": "deny"} for n, (tool, args) in enumerate(bad)
    ]
    done = bench.cli("permission", "test", examples(bench, *lines), "--json")
    assert done.returncode == 0, done.stdout
    assert {line["cause"] for line in results(done)[:-1]} == {"invalid_input"}


def test_a_bad_line_is_named_and_the_others_still_count(bench):
    """With its file and number; exit code 3 and never a traceback."""
    good = {"tool": "read", "args": {"path": "x"}, "expect": "allow"}
    bad = [
        "{not json\n", "[]\n", '"text"\n', {"args": {}}, {"tool": "nope", "args": {}}, {**good, "mode": "root"},
        {**good, "expect": "maybe"}, {**good, "rules": [{"domain": "read"}]}, {**good, "rules": 5}, {**good, "args": []},
        {**good, "vault": "relative"}, {**good, "headless": "yes"},
    ]  # fmt: skip
    done = bench.cli("permission", "test", examples(bench, *bad, "\n", {"id": "good", **good}), "--json")
    *lines, last, summary = results(done)
    assert [line["line"] for line in lines] == list(range(1, len(bad) + 1))
    assert all(line["where"].endswith(f".jsonl:{line['line']}") for line in lines)
    assert {(line["cause"], line["ok"], line["decision"]) for line in lines} == {("bad_line", False, None)} and all(
        line["error"] for line in lines
    )
    assert last == {"id": "good", "decision": "allow", "cause": "policy", "expect": "allow", "ok": True}
    assert summary == {"type": "summary", "passed": 1, "failed": len(bad)} and done.returncode == 3
    assert "Traceback" not in done.stderr


async def test_what_is_predicted_is_what_happens(bench, monkeypatch):
    """The gate of a real call and the commands give the same ruling (R11)."""
    rules(bench, ("bash", "echo *", "allow"), ("read", "fs:/etc/hosts", "allow"), ("edit", "vault:/locked/**", "deny"))
    calls = [
        ("bash", {"command": "echo hi"}),
        ("bash", {"command": "echo hi > /srv/x"}),
        ("bash", {"command": "ls"}),
        ("read", {"path": "/etc/hosts"}),
        ("read", {"path": ".env"}),
        ("write", {"path": "locked/x", "content": "1"}),
        ("write", {"path": "free/x", "content": "1"}),
    ]
    file = examples(bench, *({"id": n, "tool": tool, "args": args, "headless": True} for n, (tool, args) in enumerate(calls)))
    predicted = [line["decision"] for line in results(bench.cli("permission", "test", file, "--json"))[:-1]]
    async with bench.host() as host:
        outcomes = [await host.call_tool(tool, args, vault=bench.vault) for tool, args in calls]
    assert [outcome.ruling.decision for outcome in outcomes] == predicted == [
        "allow", "deny", "deny", "allow", "deny", "deny", "allow",
    ]  # fmt: skip
