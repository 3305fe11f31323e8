"""The question about a command: what is unusual in one line, and what *always* stores, as it was shown."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from moryflow.base.builtins import BUILTINS
from moryflow_builtins.permission.presets import PRESETS, offer
from moryflow_sdk.support.sandbox import find_sandbox


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


async def test_the_first_question_of_a_folder_offers_read_only_commands_once(bench):
    """Where no sandbox is used; the next session is not offered it again, and another kind of question never (S0.48, R33)."""
    outcome = await bench.run(bench.calls(bash("ls"), bash("make")), replies=["reject", "reject"])
    first, second = outcome.named("permission.asked")
    assert first["preset"]["name"] == "look" and "read-only" in first["preset"]["says"] and "preset" not in second
    again = await bench.run(bench.calls(bash("ls")), replies=["reject"])
    assert "preset" not in again.named("permission.asked")[0]


async def test_from_now_on_adds_the_preset_and_the_call_runs(bench):
    """Its rules stand in the configuration, and what they cover is not asked about again (S0.48)."""
    outcome = await bench.run(bench.calls(bash("echo hi")), replies=["preset"])
    assert [tool["status"] for tool in outcome.tools()] == ["ok"]
    assert [pattern for pattern, _ in rules(bench)] == [rule.pattern for rule in PRESETS["look"].rules]
    again = await bench.run(bench.calls(bash("ls -la; git status; grep -rn x . | head -3")), replies=[])
    assert again.named("permission.asked") == []


async def test_a_preset_that_was_not_offered_only_runs_the_call(bench):
    """An answer stores nothing that was not shown (R33)."""
    await bench.run(bench.calls(bash("echo hi")), replies=["reject"])
    outcome = await bench.run(bench.calls(bash("echo hi")), replies=["preset"])
    assert [tool["status"] for tool in outcome.tools()] == ["ok"] and rules(bench) == []


async def test_a_question_with_something_that_no_preset_lifts_offers_none(bench):
    """A rule of the person asks, or the command names a guarded file (R33)."""
    outcome = await bench.run(bench.calls(bash("cat .env")), replies=["reject"])
    assert "preset" not in outcome.named("permission.asked")[0]


@pytest.mark.skipif(find_sandbox() is None, reason="no sandbox works here")
async def test_where_the_sandbox_works_it_is_what_is_offered(bench):
    """One key, and commands run in it without a question (S0.48)."""
    bench.config(permission={"rules": []}, doomLoop={"enabled": False})
    outcome = await bench.run(bench.calls(bash("make"), bash("touch a")), replies=["preset"])
    [asked] = outcome.named("permission.asked")
    assert asked["preset"]["name"] == "sandbox" and (bench.vault / "a").exists()


def test_the_offer_is_the_sandbox_where_it_works_and_nothing_where_all_is_allowed():
    """The presets have the same names as the offers (S0.48)."""
    assert [offer((), sandbox=True).name, offer((), sandbox=False).name] == ["sandbox", "look"]
    assert offer(PRESETS["sandbox"].rules, sandbox=True) is None and offer(PRESETS["look"].rules, sandbox=False) is None


async def test_undo_takes_back_every_rule_of_the_newest_answer(bench):
    """Two answers, taken back one by one; the rules that the person wrote stay (S0.45, D5)."""
    await bench.run(bench.calls(bash("ls -la && git status")), replies=["always"])
    await bench.run(bench.calls(bash("make all")), replies=["always"])
    assert bench.cli("permission", "undo").stdout.startswith("removed: allow bash make all")
    assert bench.cli("permission", "undo").stdout.count("removed: ") == 4
    assert rules(bench) == []
    assert "no rule that an answer stored" in bench.cli("permission", "undo").stderr
