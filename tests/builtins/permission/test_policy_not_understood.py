"""A rule that cannot be understood makes its domain ask, whichever part is wrong and wherever it stands (R37, D26)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent_texts import agent_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from moryflow.config import load_config
from moryflow_builtins.permission.policy import Policy
from moryflow_builtins.permission.verdict import judge_target
from moryflow_sdk import Rule, Target
from moryflow_sdk.support.sandbox import confinement
from moryflow_sdk.verdicts import settle

RELAXED = settings(max_examples=200)
ORDER = {"allow": 0, "ask": 1, "deny": 2}
ALL = {"domain": "bash", "pattern": "*", "decision": "allow"}
RM = {"domain": "bash", "pattern": "rm *", "decision": "deny"}
VALID: tuple[dict[str, Any], ...] = (
    ALL,
    RM,
    {"domain": "bash", "pattern": "git push*", "decision": "ask"},
    {"domain": "edit", "pattern": "private/**", "decision": "deny"},
    {"domain": "read", "pattern": "drafts/**", "decision": "ask"},
    {"domain": "web_fetch", "pattern": "https://example.com/**", "decision": "deny"},
)
CALLS = (
    ("bash", "rm -rf x"),
    ("bash", "git push"),
    ("bash", "echo hi"),
    ("edit", "private/a.md"),
    ("edit", "a.md"),
    ("read", "drafts/a.md"),
    ("read", "a.md"),
    ("web_fetch", "https://example.com/x"),
    ("web_fetch", "https://example.org/x"),
)


def tree(rules: Any) -> dict[str, Any]:
    return {"agents": {"runtime": {"permission": {"rules": rules}}}}


def loaded(home: Path, text: str) -> tuple[list[Rule], list[bool]]:
    (home / "config.jsonc").write_text(text)
    config = load_config(home, environ={}).checked(())
    return config.rules(), [problem.fatal for problem in config.problems]


def decision(policy: Policy, domain: str, given: str, mode: str = "agent") -> str:
    if domain == "bash":
        target = Target(domain="bash", kind="shell", text=f"shell:{given}", given=given)
    elif domain == "web_fetch":
        target = Target(domain=domain, kind="url", text=f"url:{given}", given=given)
    else:
        target = policy.resolve(given, domain, None)
    return settle(judge_target(policy, target).verdict, mode=mode, headless=False)


WRONG: dict[str, Any] = {
    "an unknown key in a deny": {**RM, "unless": "rm -i"},
    "an unknown key in an ask": {**RM, "decision": "ask", "unless": "rm"},
    "an unknown key in an allow": {**ALL, "unless": "rm"},
    "a key in capitals": {"domain": "bash", "pattern": "rm *", "Decision": "deny"},
    "a key twice by case": {**RM, "Pattern": "curl *"},
    "a misspelt deny": {**RM, "decision": "dney"},
    "a misspelt ask": {**RM, "decision": "aks"},
    "a misspelt allow": {**RM, "decision": "alow"},
    "an allow in capitals": {**RM, "decision": "ALLOW"},
    "another word": {**RM, "decision": "block"},
    "a list as the decision": {**RM, "decision": ["deny"]},
    "true as the decision": {**RM, "decision": True},
    "no decision": {"domain": "bash", "pattern": "rm *"},
    "no domain": {"pattern": "rm *", "decision": "deny"},
    "no pattern": {"domain": "bash", "decision": "deny"},
    "a misspelt domain": {**RM, "domain": "bsh"},
    "a misspelt domain of an ask": {**RM, "domain": "bsh", "decision": "ask"},
    "the domain of another system": {**RM, "domain": "shell", "decision": "ask"},
    "a domain that is nothing": {**RM, "domain": "zzz", "decision": "ask"},
    "a list as the domain": {**RM, "domain": ["bash"]},
    "a number as the pattern": {**RM, "pattern": 7},
    "a list as the pattern": {**RM, "pattern": ["rm *", "curl *"]},
    "an empty pattern": {**RM, "pattern": ""},
    "an expression that is none": {**RM, "pattern": "regex:(["},
    "an ask with an expression that is none": {**RM, "pattern": "regex:([", "decision": "ask"},
    "an allow with an expression that is none": {**RM, "pattern": "regex:([", "decision": "allow"},
    "an expression that may run for ever": {**RM, "pattern": r"regex:(a)\1", "decision": "ask"},
    "a long pattern": {**RM, "pattern": "x" * 5000},
    "half a character": {**RM, "pattern": "rm \ud800"},
    "NUL": {**RM, "pattern": "rm \0"},
    **{
        f"U+{ord(char):04X} in the pattern": {**RM, "pattern": f"rm{char} *"}
        for char in "\u200b\u200c\u200d\u200e\u202e\u2060\u2066\ufeff\u00ad\u061c\ufe0f\u180e\U000e0041\x08\x1b"
    },
    "U+200B in an allow": {**ALL, "pattern": "echo\u200b *"},
    "U+202E in an ask": {**RM, "pattern": "\u202erm *", "decision": "ask"},
    "a text": "deny bash rm *",
    "a list in the list": [RM],
    "nothing": None,
    "a number": 5,
    "the shape of another system": {"bash": {"rm *": "deny"}},
}


@pytest.mark.parametrize("rule", WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("first", [False, True], ids=["last", "first"])
def test_a_rule_with_a_mistake_makes_its_domain_ask(make_policy: Any, tmp_path: Path, rule: Any, first: bool) -> None:
    """Before or behind `allow *`: nothing of its domain runs unasked, and `config check` fails (R37)."""
    rules, fatal = loaded(tmp_path, json.dumps(tree([rule, ALL] if first else [ALL, rule])))
    policy = make_policy(rules)
    assert any(fatal)
    assert decision(policy, "bash", "rm -rf x") in ("ask", "deny") and decision(policy, "bash", "echo hi") == "ask"


@pytest.mark.parametrize(
    "name",
    [
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\U0001f469\u200d\U0001f4bb",
        "\u2764\ufe0f",
        "1\ufe0f\u20e3",
        "caf\u00e9",
    ],
)
def test_names_that_are_joined_by_their_script_are_patterns(make_policy: Any, tmp_path: Path, name: str) -> None:
    """A joiner between letters or emoji is a part of the name, and hides nothing (R37)."""
    rules, fatal = loaded(tmp_path, json.dumps(tree([{"domain": "edit", "pattern": f"{name}/**", "decision": "deny"}])))
    assert not any(fatal) and decision(make_policy(rules), "edit", f"{name}/a.md") == "deny"


def test_a_character_that_nobody_sees_is_named(tmp_path: Path) -> None:
    """The report says which it is; full access does not lift the deny that it hides in (R37, D26)."""
    (tmp_path / "config.jsonc").write_text(json.dumps(tree([ALL, {**RM, "pattern": "touch\u200b *"}])))
    config = load_config(tmp_path, environ={}).checked(())
    assert "U+200B ZERO WIDTH SPACE" in config.problems[0].message and config.problems[0].fatal


def test_no_rule_is_stored_that_would_not_be_understood(make_policy: Any) -> None:
    """*Always* for a command with such a character in quotes is not offered (R37)."""
    from moryflow_builtins.permission.shell import judge_command

    policy = make_policy()
    assert judge_command(policy, "echo 'a'").verdict.remember
    assert not getattr(judge_command(policy, "echo 'a\u200b'").verdict, "remember", ())


def test_an_allow_in_a_domain_that_nobody_knows_is_left_out(make_policy: Any, tmp_path: Path) -> None:
    """It could have made nothing stricter: a warning (D26)."""
    rules, fatal = loaded(tmp_path, json.dumps(tree([ALL, {**ALL, "domain": "teleport"}])))
    assert fatal == [False] and decision(make_policy(rules), "bash", "echo hi") == "allow"


def test_a_deny_with_a_word_too_many_still_denies(make_policy: Any, tmp_path: Path) -> None:
    """What can be read of it holds, in full access too; the rest of its domain asks, other domains do not (D26)."""
    policy = make_policy(loaded(tmp_path, json.dumps(tree([ALL, {**RM, "unless": "x"}])))[0])
    assert [decision(policy, "bash", "rm x", mode) for mode in ("agent", "full_access")] == ["deny", "deny"]
    assert decision(policy, "bash", "ls") == "ask"
    assert decision(policy, "read", "a.md") == "allow"


def test_no_mode_lifts_a_rule_that_was_not_understood(make_policy: Any, tmp_path: Path) -> None:
    """Nobody knows what it was to forbid, so that full access asks too (D2, R37)."""
    for said in ("dney", "aks"):
        policy = make_policy(loaded(tmp_path, json.dumps(tree([ALL, {**RM, "decision": said}])))[0])
        assert decision(policy, "bash", "rm x", "full_access") == "ask"


def test_no_always_is_offered_where_it_would_not_help(make_policy: Any, tmp_path: Path) -> None:
    """A stored rule cannot answer the question that a broken one asks (D5)."""
    policy = make_policy(loaded(tmp_path, json.dumps(tree([{**RM, "decision": "aks"}])))[0])
    target = Target(domain="bash", kind="shell", text="shell:ls", given="ls")
    assert judge_target(policy, target).remember == ()


def test_the_sandbox_lets_nothing_run_unasked_while_a_rule_is_broken(tmp_path: Path) -> None:
    """The rule may have been about the sandbox (R37)."""
    commands = {"domain": "bash", "pattern": "sandbox:commands", "decision": "allow"}
    network = {"domain": "bash", "pattern": "sandbox:network", "decision": "allow"}
    assert confinement(loaded(tmp_path, json.dumps(tree([commands, network])))[0]).unasked
    said = confinement(loaded(tmp_path, json.dumps(tree([commands, network, {**network, "decision": "dney"}])))[0])
    assert not said.unasked and not said.network


MISPLACED = {
    "no list": tree({"bash": {"rm *": "deny"}}),
    "a level too high": {"agents": {"runtime": {"permission": [RM]}}},
    "another spelling": {"agents": {"runtime": {"permision": {"rules": [RM]}}}},
    "one rule, one letter": {"agents": {"runtime": {"permission": {"rule": [RM]}}}},
    "at the top": {"permission": {"rules": [RM]}},
    "in another system's words": {"permission": {"bash": {"rm *": "ask"}}},
    "these words at the right place": {"agents": {"runtime": {"permission": {"bash": {"rm *": "deny"}}}}},
    "lists by decision": {"permissions": {"deny": ["Bash(rm *)"]}},
    "a list to ask about": {"permissions": {"allow": ["Bash(*)"], "ask": ["Bash(rm *)"]}},
    "lists by decision at the right place": {"agents": {"runtime": {"permission": {"deny": ["Bash(rm *)"]}}}},
    "a section that is a list": {"agents": [tree([RM])["agents"]]},
}


@pytest.mark.parametrize("settings_", MISPLACED.values(), ids=MISPLACED.keys())
def test_rules_that_stand_where_none_are_read_make_all_ask(make_policy: Any, tmp_path: Path, settings_: Any) -> None:
    """Nobody knows what they were to forbid (R37)."""
    rules, fatal = loaded(tmp_path, json.dumps(settings_))
    assert fatal
    assert {decision(make_policy([*rules, Rule.model_validate(ALL)]), *call) for call in CALLS[:-2]} == {"ask"}


def test_settings_of_plugins_are_theirs(make_policy: Any, tmp_path: Path) -> None:
    """A plugin may call its own settings rules."""
    rules, _ = loaded(tmp_path, json.dumps({"plugins": {"x": {"rules": [RM]}}}))
    assert rules == []


edits = st.tuples(st.integers(0, 10_000), st.sampled_from(["drop", "double", "letter", "quote", "brace", "swap"]))


def edited(text: str, edit: tuple[int, str]) -> str:
    place, how = edit[0] % (len(text) - 1), edit[1]
    before, char, after = text[:place], text[place], text[place + 1 :]
    parts = {
        "drop": "", "double": char * 2, "letter": f"x{char}", "quote": f'"{char}', "brace": f"{{{char}",
        "swap": after[:1] + char,
    }  # fmt: skip
    return before + parts[how] + (after[1:] if how == "swap" else after)


@RELAXED
@given(chosen=st.lists(st.sampled_from(VALID), min_size=1, max_size=6), edit=edits, indent=st.sampled_from([None, 1]))
def test_no_slip_of_the_pen_makes_anything_laxer(make_policy: Any, tmp_path: Path, chosen: Any, edit: Any, indent: Any) -> None:
    """Whatever one slip in the file breaks: what was asked about or denied does not run unasked (R37)."""
    text = json.dumps(tree(chosen), indent=indent)
    before, _ = loaded(tmp_path, text)
    after, fatal = loaded(tmp_path, edited(text, edit))
    assume(any(fatal))  # what is still a valid file says something else, and means it
    old, new = make_policy(before), make_policy(after)
    for call in CALLS:
        assert ORDER[decision(new, *call)] >= min(1, ORDER[decision(old, *call)]), call


junk = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from(["", "dney", "Allow", "block", "bsh", "shell", "regex:(["]),
    st.just(["deny"]), st.just({"deny": "*"}),
)  # fmt: skip


@RELAXED
@given(
    chosen=st.lists(st.sampled_from(VALID), min_size=1, max_size=6),
    place=st.integers(0, 5),
    key=st.sampled_from(["domain", "pattern", "decision", "unless", "Domain", "patterns"]),
    value=junk,
    lost=st.booleans(),
)
def test_no_wrong_part_makes_anything_laxer(
    make_policy: Any, tmp_path: Path, chosen: Any, place: int, key: str, value: Any, lost: bool
) -> None:
    """Of a valid set any part of any rule: its kind, its spelling, one too many, one too few (R37)."""
    rules = [dict(rule) for rule in chosen]
    rule = rules[place % len(rules)]
    if lost:
        rule.pop(key, None)
    rule[key if not lost else f"{key}s"] = value
    before, _ = loaded(tmp_path, json.dumps(tree(chosen)))
    after, fatal = loaded(tmp_path, json.dumps(tree(rules)))
    old, new = make_policy(before), make_policy(after)
    assume(any(fatal))  # a pattern of another text is a pattern
    for call in CALLS:
        assert ORDER[decision(new, *call)] >= min(1, ORDER[decision(old, *call)]), call


# ------------------------------------------------------------------------------------------------
# Agents, and rules that plugins make
# ------------------------------------------------------------------------------------------------


def agent_file(permission: Any, **more: Any) -> bytes:
    head = {"id": "w", "permission": permission, **more}
    return f"---\n{json.dumps({key: value for key, value in head.items() if value is not None})}\n---\nx\n".encode()


@pytest.mark.parametrize("rule", [rule for name, rule in WRONG.items() if name != "half a character"])
def test_an_agents_rule_with_a_mistake_makes_its_domain_ask(make_policy: Any, rule: Any) -> None:
    """The agent is there, with the fault named; the person's `allow *` does not decide for it (R37, D41)."""
    agent, problems = agent_of(agent_file([rule]), "w.md")
    assert agent is not None and problems
    policy = make_policy([ALL], agent=agent.rules)
    assert decision(policy, "bash", "rm x") in ("ask", "deny") and decision(policy, "bash", "ls") == "ask"


def test_an_agent_takes_the_shape_of_the_configuration() -> None:
    """`permission: {rules: […]}` is the list (S0.90)."""
    agent, problems = agent_of(agent_file({"rules": [RM]}), "w.md")
    assert agent is not None and problems == []
    assert [(rule.domain, rule.pattern, rule.decision) for rule in agent.rules] == [("bash", "rm *", "deny")]


@pytest.mark.parametrize("field", ["permission_rules", "Permission", "permision"])
def test_an_agents_rules_under_another_name_make_all_ask(make_policy: Any, field: str) -> None:
    """The field is named, with what was meant (R37)."""
    agent, [problem] = agent_of(agent_file(None, **{field: [RM]}), "w.md")
    assert agent is not None and "meanwhile every call is asked about; did you mean 'permission'?" in problem.message
    policy = make_policy([ALL], agent=agent.rules)
    assert decision(policy, "bash", "ls") == "ask" and decision(policy, "read", "a.md") == "ask"


def test_an_agents_tools_under_another_name_are_none() -> None:
    """A list that would have taken tools away is not read as all of them (R37)."""
    agent, [problem] = agent_of(agent_file(None, tool=["read"]), "w.md")
    assert agent is not None and agent.tools == () and "did you mean 'tools'?" in problem.message


def test_what_another_system_asks_about_is_only_named() -> None:
    """It has permissions for what does not exist here; an agent of its makes nothing else ask (D41)."""
    agent, [problem] = agent_of(agent_file({"edit": "ask", "telepathy": "ask"}), "w.md")
    assert agent is not None and [rule.domain for rule in agent.rules] == ["edit"]
    assert "the rule is ignored" in problem.message


def test_a_rule_that_a_plugin_makes_in_no_domain_makes_all_ask(make_policy: Any) -> None:
    """A plugin's agent is held to the same (R37)."""
    rule = Rule(domain="shell", pattern="rm *", decision="deny", source="agent")
    assert decision(make_policy([ALL], agent=[rule]), "bash", "ls") == "ask"


def test_an_agents_question_is_not_taken_for_a_default_one(make_policy: Any) -> None:
    """The sandbox lifts questions that only a default asks, and *always* answers those of no agent (R4, S0.36)."""
    agent = [Rule(domain="bash", pattern="*", decision="ask", source="agent")]
    worst = judge_target(make_policy([], agent=agent), Target(domain="bash", kind="shell", text="shell:ls", given="ls")).worst
    assert worst.rule is not None and worst.rule.source == "agent" and worst.remember is None
