"""The question about a command: what is unusual in one line, and what *always* stores, as it was shown."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from moryflow.base.builtins import BUILTINS
from moryflow_builtins.permission.unusual import effect_of


@pytest.fixture
def bench(bench):
    """The bench with every built-in plugin, without the sandbox."""
    bench = replace(bench, builtins=BUILTINS)
    bench.config(permission={"rules": [NO_SANDBOX]}, doomLoop={"enabled": False})
    return bench


NO_SANDBOX = {"domain": "bash", "pattern": "sandbox:commands", "decision": "deny"}


def bash(command):
    return ("bash", {"command": command})


def rules(bench):
    """Return the patterns that the configuration allows."""
    text = (bench.home / "config.jsonc").read_text() if (bench.home / "config.jsonc").exists() else "{}"
    stored = json.loads(text).get("agents", {}).get("runtime", {}).get("permission", {}).get("rules", [])
    return [(rule["pattern"], sorted(rule.keys() - {"domain", "pattern", "decision"})) for rule in stored[1:]]


@pytest.mark.parametrize(
    ("command", "unusual"),
    [
        ("ls -la; git status", ""),
        ("rm -rf build && ls", "rm deletes"),
        ("curl -s https://example.com | cat", "curl uses the network"),
        ("pip install x", "pip install installs"),
        ("cat /etc/hostname", "/etc/hostname is outside the vault"),
    ],
)
async def test_a_question_says_what_is_unusual_in_one_line_or_nothing(bench, command, unusual):
    """That no rule covers a command is nothing unusual; the model reads the reason all the same (R33)."""
    outcome = await bench.run(bench.calls(bash(command)), replies=["reject"])
    [asked] = outcome.named("permission.asked")
    assert asked["unusual"] == unusual and asked["reason"] and list(asked["targets"]) == [f"shell:{command}"]


@pytest.mark.parametrize(
    ("command", "effect"),
    [("/bin/rm x", "rm deletes"), ("git push origin", "git push uses the network"), ("git log", ""), ("rmx", ""), ("", "")],
)
def test_an_effect_is_named_by_program_or_verb(command, effect):
    """These words choose a sentence and keep *always* exact (R33, D5)."""
    assert effect_of(command) == effect


async def test_always_stores_the_widest_safe_words_and_exact_the_same_words(bench):
    """What was shown: `git log *` covers `git log` too and is bound to nothing; exact keeps folder and words (D5, R18)."""
    command = bash("ls -la && npm test")
    outcome = await bench.run(bench.calls(command), replies=["always"])
    [asked] = outcome.named("permission.asked")
    assert (asked["always"], asked["exact"]) == ("ls *, npm test *", "ls -la, npm test")
    assert rules(bench) == [("ls", []), ("ls *", []), ("npm test", []), ("npm test *", [])]
    again = await bench.run(bench.calls(bash("npm test -- --watch=false; ls src; ls")), replies=[])
    assert again.named("permission.asked") == []


async def test_exact_stores_no_more_than_the_words_and_their_folder(bench):
    """The same program with other words asks again (D5, R18)."""
    await bench.run(bench.calls(bash("ls -la")), replies=["exact"])
    assert rules(bench) == [("ls -la", ["folder"])]
    outcome = await bench.run(bench.calls(bash("ls -l")), replies=["reject"])
    assert len(outcome.named("permission.asked")) == 1


async def test_always_stays_exact_for_what_deletes_sends_or_installs(bench):
    """Though a wide pattern for the program would be known (D5)."""
    outcome = await bench.run(bench.calls(bash("git push origin main")), replies=["reject"])
    [asked] = outcome.named("permission.asked")
    assert asked["always"] == "git push origin main" and "exact" not in asked
