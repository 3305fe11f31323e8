"""``permission preset``: other rules, written down."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from moryflow.base.builtins import BUILTINS


@pytest.fixture
def bench(bench):
    """The bench with every built-in plugin."""
    return replace(bench, builtins=BUILTINS)


async def past(bench, *calls):
    """Make `calls` in a session and return its id."""
    return (await bench.run(bench.calls(*calls))).session


# ------------------------------------------------------------------------------------------------
# preset
# ------------------------------------------------------------------------------------------------


def test_a_preset_shows_what_it_adds_and_writes_nothing_unasked(bench):
    """The diff comes first; without -y and without a person nothing is written (S0.48, R22)."""
    listed = json.loads(bench.cli("permission", "preset", "--json").stdout)
    assert [preset["name"] for preset in listed] == ["readonly", "look", "sandbox", "develop", "trusting"]
    done = bench.cli("permission", "preset", "trusting")
    assert done.returncode == 2 and "+  bash  allow  *" in done.stdout and not (bench.home / "config.jsonc").exists()


def test_a_preset_is_written_after_the_rules_that_are_there(bench):
    """Comments stay, it holds from then on, and a second time there is nothing to do (S0.48, D45)."""
    file = bench.home / "config.jsonc"
    rule = '{"domain": "bash", "pattern": "make", "decision": "deny"} // no'
    mine = f'// mine\n{{"agents": {{"runtime": {{"permission": {{"rules": [\n  {rule}\n]}}}}}}}}\n'
    file.write_text(mine, "utf-8")
    file.chmod(0o600)
    done = bench.cli("permission", "preset", "trusting", "-y")
    assert done.returncode == 0 and "no longer decides" in done.stdout
    text = file.read_text("utf-8")
    assert text.startswith("// mine\n") and "// no" in text
    assert "nothing to do" in bench.cli("permission", "preset", "trusting", "-y").stdout and file.read_text("utf-8") == text
    judged = json.loads(bench.cli("permission", "explain", "bash", "make", "--json").stdout)
    assert judged["decision"] == "allow"


@pytest.mark.parametrize("before", ["trusting", "develop"])
def test_readonly_changes_nothing_whatever_stood_there(bench, before):
    """After any other preset: commands ask, edits are refused, reading commands run (S0.48)."""
    bench.cli("permission", "preset", before, "-y")
    assert bench.cli("permission", "preset", "readonly", "-y").returncode == 0
    file = bench.vault / "examples.jsonl"
    lines = [
        {"tool": "bash", "args": {"command": "git status --short"}, "expect": "allow"},
        {"tool": "bash", "args": {"command": "make"}, "expect": "ask"},
        {"tool": "bash", "args": {"command": "find . -delete"}, "expect": "ask"},
        {"tool": "write", "args": {"path": "a.md", "content": ""}, "expect": "deny"},
        {"tool": "read", "args": {"path": "/etc/hosts"}, "expect": "ask"},
        {"tool": "read", "args": {"path": "a.md"}, "expect": "allow"},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    done = bench.cli("permission", "test", str(file))
    assert done.returncode == 0, done.stdout


def test_trusting_still_asks_about_secrets_and_what_runs_later(bench):
    """Wide, and not blind: secrets anywhere, files that change what runs later, sudo and push (S0.48, R21)."""
    bench.cli("permission", "preset", "trusting", "-y")
    lines = [
        {"tool": "bash", "args": {"command": "make"}, "expect": "allow"},
        {"tool": "bash", "args": {"command": "make && git push origin main"}, "expect": "ask"},
        {"tool": "bash", "args": {"command": "sudo make install"}, "expect": "ask"},
        {"tool": "read", "args": {"path": "/etc/hosts"}, "expect": "allow"},
        {"tool": "read", "args": {"path": "/srv/app/.env"}, "expect": "ask"},
        {"tool": "read", "args": {"path": "/srv/u/.ssh/config"}, "expect": "ask"},
        {"tool": "read", "args": {"path": ".env"}, "expect": "ask"},
        {"tool": "write", "args": {"path": ".git/hooks/pre-commit", "content": ""}, "expect": "ask"},
        {"tool": "write", "args": {"path": "/srv/x", "content": ""}, "expect": "deny"},
    ]
    file = bench.vault / "examples.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    done = bench.cli("permission", "test", str(file))
    assert done.returncode == 0, done.stdout


def test_a_configuration_that_does_not_parse_is_not_written_to(bench):
    """Named, and left as it is (D44)."""
    file = bench.home / "config.jsonc"
    file.write_text("{ broken", "utf-8")
    done = bench.cli("permission", "preset", "develop", "-y")
    assert done.returncode == 2 and str(file) in done.stderr and file.read_text("utf-8") == "{ broken"
    assert "Traceback" not in done.stderr
