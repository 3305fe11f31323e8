"""The examples: not one command may do more than it should, and hardly a harmless one may be asked about."""

from __future__ import annotations

import json
import random
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from moryflow_builtins.permission.policy import Policy
from moryflow_builtins.permission.shell import judge_command
from moryflow_sdk.verdicts import settle

DATA = Path(__file__).parents[2] / "data"
RULESETS = json.loads((DATA / "corpus" / "shell_rulesets.json").read_text("utf-8"))
FILES = (
    DATA / "corpus" / "shell.jsonl",
    DATA / "permission" / "shell_extra.jsonl",
    DATA / "permission" / "shell_adversary.jsonl",
)
ORDER = {"allow": 0, "ask": 1, "deny": 2, "stop": 2}
TASKS = ("hard", "soft", "false asks")


def cases(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text("utf-8").splitlines():
        case = json.loads(line)
        if "gen" in case:
            gen = case["gen"]
            body = gen.get("join", "").join([gen["repeat"]] * gen["n"])
            case["command"] = gen["prefix"] + body + gen.get("tail", "") + gen.get("close", "") * gen["n"]
        yield case


def decision_of(case: dict[str, Any], policy: Policy) -> str:
    mode = case.get("mode", "agent")
    verdict = judge_command(policy, case["command"]).verdict
    return settle(verdict, mode="full_access" if mode == "full_access" else "agent", headless=mode == "headless")


def fault_of(case: dict[str, Any], decision: str) -> str | None:
    if ORDER[decision] < ORDER[case["max"]]:
        return "hard" if decision == "allow" else "soft"
    return "false asks" if case["kind"] == "benign" and decision != "allow" else None


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_example_commands_get_no_more_than_they_may(file: Path, make_policy: Callable[..., Policy]) -> None:
    """No hard bypass, at most 5 soft ones, at most 9 % false asks (SECURITY §4, R6–R9, R19, R24, D2, D6, S0.36)."""
    policies = {name: make_policy(ruleset["rules"]) for name, ruleset in RULESETS.items()}
    faults: dict[str, list[str]] = {task: [] for task in TASKS}
    table: Counter[tuple[str, str]] = Counter()
    benign = 0
    for case in cases(file):
        decision = decision_of(case, policies[case["ruleset"]])
        fault = fault_of(case, decision)
        benign += case["kind"] == "benign"
        table[case["cat"], fault or "fine"] += 1
        if fault:
            faults[fault].append(f"{case['id']} {case['ruleset']} {case['command'][:100]!r}: {decision}, {case['why']}")
    shown = "\n".join(f"{category:14} {fault:11} {count}" for (category, fault), count in sorted(table.items()))
    counts = ", ".join(f"{task} {len(faults[task])}" for task in TASKS)
    print(f"\n{file.name}\n{shown}\n{counts} of {benign} harmless ones")
    assert faults["hard"] == []
    assert len(faults["soft"]) <= 5, faults["soft"]
    assert len(faults["false asks"]) <= 0.09 * benign, faults["false asks"]


NOT_READ = frozenset(["case", "test", "process", "here-document", "function"])
"""Surroundings that are not read: they ask, and deny what a rule denies."""

AROUND = {
    "list": "ls; {}",
    "lines": "{}\nls",
    "subshell": "( {}\n)",
    "group": "{{ {}\n}}",
    "condition": "if {}\nthen ls; fi",
    "branch": "if ls; then {}\nfi",
    "loop": "while {}\ndo ls; done",
    "case": "case a in a) {}\n;; esac",
    "substitution": "echo $( {}\n)",
    "quoted substitution": 'echo "$( {}\n)"',
    "assignment": "x=$( {}\n)",
    "test": "[[ -n $( {}\n) ]]",
    "process": "cat <( {}\n)",
    "here-document": "cat <<END\n$( {}\n)\nEND",
    "after and": "ls && {}",
    "after or": "ls || {}",
    "timed": "time {}",
    "function": "f() {{ {}\n}}",
    "text": "bash -c {}",
    "evaluated": "eval {}",
}


@pytest.fixture(scope="module")
def alone() -> dict[str, str]:
    """How an example is judged by itself, by its id: found once for all that is put around it."""
    return {}


@pytest.mark.parametrize("form", AROUND)
def test_no_surroundings_make_a_command_freer(form: str, make_policy: Callable[..., Policy], alone: dict[str, str]) -> None:
    """Whatever is put around an attack, it is judged at least as severely (R6, SECURITY §2.1)."""
    policies = {name: make_policy(ruleset["rules"]) for name, ruleset in RULESETS.items()}
    skipped = ("quoting", "unicode", "limit", "mode")
    place = list(AROUND).index(form)
    turns = (case for number, case in enumerate(cases(FILES[2])) if number % len(AROUND) == place)
    for case in (*cases(FILES[0]), *cases(FILES[1]), *turns):
        command, policy = case["command"], policies[case["ruleset"]]
        if case["kind"] != "attack" or case["cat"] in skipped or "<<" in command or "#" in command or command.startswith("("):
            continue
        if "\\\n" in command and form == "here-document":
            continue  # a line that goes on in a here-document is never read
        text = shlex.quote(command) if form in ("text", "evaluated") else command
        after = judge_command(policy, AROUND[form].format(text)).worst.decision
        if case["id"] not in alone:
            alone[case["id"]] = judge_command(policy, command).worst.decision
        least = min(ORDER[alone[case["id"]]], 1) if form in NOT_READ else ORDER[alone[case["id"]]]
        assert ORDER[after] >= least, (case["id"], AROUND[form].format(text))


@pytest.mark.parametrize("seed", range(3))
def test_any_recombination_of_the_examples_gets_an_answer(seed: int, make_policy: Callable[..., Policy]) -> None:
    """Words of all examples, shuffled: nothing crashes, and a denied command among them is found (R6)."""
    chance = random.Random(seed)
    words = sorted({word for case in cases(FILES[1]) for word in case["command"].split(" ") if len(word) < 40})
    policy = make_policy(RULESETS["readonly_deny"]["rules"])
    for _ in range(400):
        joined = (
            (chance.choice(words), chance.choice(["  ", " ", " ", "", "\n", ";", "|", "&&"]))
            for _ in range(chance.randint(1, 10))
        )
        text = "".join(part for pair in joined for part in pair)
        assert judge_command(policy, text).verdict.decision in ORDER
        assert judge_command(policy, f"rm x\n{text}").worst.decision == "deny", text


@pytest.mark.parametrize("size", [1, 1000, 43_000])
def test_separators_in_any_number_are_all_looked_at(size: int, make_policy: Callable[..., Policy]) -> None:
    """There is no number of commands after which one is no longer judged (R6)."""
    policy = make_policy(RULESETS["readonly_deny"]["rules"])
    head = ";".join(["ls"] * size)
    assert judge_command(policy, head).verdict.decision == "allow"
    assert judge_command(policy, f"{head};rm x").verdict.decision == "deny"


def test_a_command_that_is_too_long_is_refused_before_it_is_parsed(make_policy: Callable[..., Policy]) -> None:
    """Over 128 KiB is refused in every mode, and nobody reads it (SECURITY §2.7)."""
    policy = make_policy([{"domain": "bash", "pattern": "*", "decision": "allow"}])
    verdict = judge_command(policy, "echo " + "A" * 2**20).verdict
    assert (verdict.decision, getattr(verdict, "cause", "")) == ("deny", "invalid_input")
    assert settle(verdict, mode="full_access", headless=False) == "deny"
