"""What holds for any rules, commands and paths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from moryflow.services.paths import PathResolver
from moryflow_builtins.permission.policy import Decision, Policy
from moryflow_builtins.permission.verdict import judge_target
from moryflow_sdk import Rule, Target
from moryflow_sdk.verdicts import settle

ORDER = {"allow": 0, "ask": 1, "deny": 2, "stop": 3}
RELAXED = settings(max_examples=150)

COMMANDS = r"""
ls | ls -la | git status | git push | git -C src push | rm -rf x | /bin/rm x | echo hi | cat a.md | cat /etc/passwd | npm test
echo $(rm x) | ls; rm x | env A=1 git push | A=1 ls | cat .env | echo x > /etc/x | echo x > a.md | find . -delete | $x y
bash -c 'rm x' | timeout 5 ls | cd src && ls | for i in a; do ls; done | echo 'a b' | xargs rm | unknown rm x | RM x | ls "
"""
COMMAND_PATTERNS = r"""
* | ls | ls * | git * | git status | git push* | rm * | cat * | echo * | env * | timeout * | npm test | regex:rm | bash *
cd * | xargs * | find * | regex:^git (status)?$ | regex:([ | * x | unknown * | A=1 ls
"""
PATHS = r"""
a.md | notes/b.md | .env | keys/x.pem | ../x | /etc/passwd | ~/c | .git/config | .vscode/x.json | ~/.moryflow/config.jsonc
"""
PATH_PATTERNS = r"""
* | vault:** | fs:** | vault:**/*.md | vault:/notes/** | fs:/etc/* | vault:**/.env | regex:env | fs:**/*.env* | **/*.md
"""


def table(text: str) -> list[str]:
    return [entry for line in text.strip().splitlines() for entry in line.split(" | ")]


decisions = st.sampled_from(["allow", "ask", "deny"])


def rule_lists(domain: st.SearchStrategy[str], patterns: list[str]) -> st.SearchStrategy[list[dict[str, Any]]]:
    fields = {"domain": domain, "pattern": st.sampled_from(patterns), "decision": decisions}
    return st.lists(st.fixed_dictionaries(fields), max_size=6)


bash_rules = rule_lists(st.just("bash"), table(COMMAND_PATTERNS))
file_rules = rule_lists(st.sampled_from(["read", "edit"]), table(PATH_PATTERNS))


def bash(policy: Policy, command: str) -> Decision:
    return judge_target(policy, Target(domain="bash", kind="shell", text=f"shell:{command}", given=command))


def file(policy: Policy, path: str, domain: str) -> Decision:
    return judge_target(policy, policy.resolve(path, domain, None))


def severity(decision: Decision, *, mode: str = "agent", headless: bool = False) -> int:
    return ORDER[settle(decision.verdict, mode=mode, headless=headless)]


@RELAXED
@given(
    rules=bash_rules,
    command=st.sampled_from(table(COMMANDS)),
    pattern=st.sampled_from(table(COMMAND_PATTERNS)),
    place=st.integers(0, 6),
)
def test_adding_a_deny_never_allows_more_commands(make_policy, rules, command, pattern, place) -> None:
    """Wherever a deny is put, nothing that it touches or leaves alone becomes freer, in any mode (S0.40, D26)."""
    more = [*rules[:place], {"domain": "bash", "pattern": pattern, "decision": "deny"}, *rules[place:]]
    before, after = bash(make_policy(rules), command), bash(make_policy(more), command)
    for mode in ("agent", "full_access"):
        assert severity(after, mode=mode) >= severity(before, mode=mode)


@RELAXED
@given(
    rules=file_rules,
    path=st.sampled_from(table(PATHS)),
    pattern=st.sampled_from(table(PATH_PATTERNS)),
    place=st.integers(0, 6),
    domain=st.sampled_from(["read", "edit"]),
)
def test_adding_a_deny_never_allows_more_files(make_policy, rules, path, pattern, place, domain) -> None:
    """The same for files (S0.40, R10)."""
    more = [*rules[:place], {"domain": domain, "pattern": pattern, "decision": "deny"}, *rules[place:]]
    assert severity(file(make_policy(more), path, domain)) >= severity(file(make_policy(rules), path, domain))


@RELAXED
@given(rules=file_rules, path=st.sampled_from(table(PATHS)[:9]), domain=st.sampled_from(["read", "edit"]), last=decisions)
def test_the_last_match_wins(make_policy, rules, path, domain, last) -> None:
    """A rule that matches everything decides when it is written last (S0.40, D4)."""
    policy = make_policy([*rules, {"domain": domain, "pattern": "*", "decision": last}])
    assert file(policy, path, domain).worst.decision == last


@RELAXED
@given(parent=bash_rules, child=bash_rules, user=bash_rules, command=st.sampled_from(table(COMMANDS)))
def test_a_child_never_may_what_its_parent_may_not(make_policy, parent, child, user, command) -> None:
    """An agent's rules, and those of the agents that started it, only narrow (R4, D66)."""
    layers = [Rule(source=f"agent:{name}", **row) for name, rows in (("parent", parent), ("child", child)) for row in rows]
    by_parent = [rule for rule in layers if rule.source == "agent:parent"]
    alone = bash(make_policy(user), command)
    with_parent = bash(make_policy(user, agent=by_parent), command)
    with_both = bash(make_policy(user, agent=layers), command)
    for mode in ("agent", "full_access"):
        assert severity(with_both, mode=mode) >= severity(with_parent, mode=mode) >= severity(alone, mode=mode)


@RELAXED
@given(rules=bash_rules, command=st.sampled_from(table(COMMANDS)))
def test_headless_is_never_looser_and_full_access_never_stricter(make_policy, rules, command) -> None:
    """With nobody to ask an ask is a deny; a mode lifts and never adds (R23, D2, D27)."""
    decision = bash(make_policy(rules), command)
    for mode in ("agent", "full_access"):
        assert severity(decision, mode=mode, headless=True) >= severity(decision, mode=mode)
    assert severity(decision, mode="full_access") <= severity(decision)
    explicit = [part for part in decision.parts if part.decision == "deny" and part.rule and part.rule.source != "default"]
    if explicit:
        assert severity(decision, mode="full_access") == ORDER["deny"]


@RELAXED
@given(rules=bash_rules, command=st.sampled_from(table(COMMANDS)))
def test_what_always_stores_answers_the_question(make_policy, rules, command) -> None:
    """After `always` the same command is not asked about again, and nothing that was denied is allowed (D5, S0.44)."""
    before = bash(make_policy(rules), command)
    stored = [{"domain": item.domain, "pattern": item.pattern, "decision": "allow"} for item in before.remember]
    after = bash(make_policy([*rules, *stored]), command)
    assume(before.worst.decision == "ask" and stored)
    assert after.worst.decision == "allow"


@RELAXED
@given(rules=bash_rules, command=st.sampled_from(table(COMMANDS)), other=st.sampled_from(table(COMMANDS)))
def test_what_always_stores_covers_nothing_else(make_policy, rules, command, other) -> None:
    """The stored pattern is literal: it opens the one command that was shown, and a change asks again (D5, R18)."""
    before = bash(make_policy(rules), command)
    stored = [{"domain": i.domain, "pattern": i.pattern, "decision": "allow"} for i in before.remember if i.domain == "bash"]
    assume(other != command and stored)
    parts = {item["pattern"] for item in stored}
    plain = bash(make_policy(rules), other)
    assume(not any(part.target.removeprefix("shell:") in parts for part in plain.parts))
    assert severity(bash(make_policy([*rules, *stored]), other)) == severity(plain)


# ------------------------------------------------------------------------------------------------
# Spelling of paths, on real folders with real links
# ------------------------------------------------------------------------------------------------

_NAMES = ["a.md", "notes/b.md", ".env", "keys/x.pem", ".git/config", "missing.md", "notes/missing/x.md", "../outside/s.txt"]
_DETOURS = [
    "./{}",
    "notes/../{}",
    ".//{}",
    "notes/./../{}",
    "{vault}/{}",
    "{vault}/notes/..//{}",
    "linked/{}",
    "{vault}/linked/./{}",
    "missing/../{}",
]


@RELAXED
@given(
    name=st.sampled_from(_NAMES),
    detours=st.lists(st.sampled_from(_DETOURS), min_size=1, max_size=3),
    domain=st.sampled_from(["read", "edit"]),
    rules=file_rules,
)
def test_a_decision_does_not_depend_on_how_a_path_is_spelled(
    tmp_path_factory, make_policy, name, detours, domain, rules
) -> None:
    """Dots, doubled slashes, absolute forms and links to the same place are judged alike (R5, R10, D8)."""
    vault = _vault(tmp_path_factory.getbasetemp())
    policy = make_policy(rules, vault=vault, user_home=vault.parent / "home")
    spelled = name
    for detour in detours:
        if not spelled.startswith("/") or detour == "{vault}/{}":
            spelled = detour.replace("{vault}", str(vault)).replace("{}", spelled.lstrip("/") if "{}" in detour else "")
            if spelled.startswith(str(vault) + str(vault)):
                spelled = spelled[len(str(vault)) :]
    resolver = PathResolver(vault, vault.parent / "home")
    assume(resolver.resolve(spelled).path == resolver.resolve(name).path)
    plain, other = file(policy, name, domain), file(policy, spelled, domain)
    assert plain.worst.target == other.worst.target
    if resolver.resolve(spelled).lexical is None:
        assert plain.worst.decision == other.worst.decision
    else:  # reached through a link: the name of the link is judged too, and can only make it stricter
        assert ORDER[other.worst.decision] >= ORDER[plain.worst.decision]


def _vault(base: Path) -> Path:
    vault = base / "spelling" / "vault"
    if not vault.exists():
        for folder in ("notes", "keys", ".git"):
            (vault / folder).mkdir(parents=True)
        for existing in ("a.md", "notes/b.md", ".env", "keys/x.pem", ".git/config"):
            (vault / existing).write_text("x")
        (vault.parent / "outside").mkdir()
        (vault.parent / "outside" / "s.txt").write_text("x")
        (vault / "linked").symlink_to(".")
    return vault.resolve()


PLAIN = ["git push --force", "npm  publish x", "/bin/rm -rf x", "env make install", "ls; rm -rf x", "curl 'a b' c"]


@RELAXED
@given(st.sampled_from(PLAIN), st.integers(0, 12), st.integers(1, 12), st.sampled_from(["{}", "^{}", "{}$"]))
def test_a_regex_that_forbids_is_searched_for_wherever_it_stands(
    make_policy: Any, command: str, start: int, length: int, form: str
) -> None:
    """What a regular expression without ``^`` forbids need not begin the command (D6, S0.42)."""
    shown = command.replace("  ", " ").replace("'", "")
    wanted = form.format(re.escape(shown[start : start + length]))
    parts = ["rm -rf x"] if ";" in shown else []
    assume(re.search(wanted, shown) and shown[start : start + length].strip() and ";" not in wanted)
    assume(not parts or re.search(wanted, parts[0]))
    rules = [{"domain": "bash", "pattern": "*", "decision": "allow"}]
    policy = make_policy([*rules, {"domain": "bash", "pattern": f"regex:{wanted}", "decision": "deny"}])
    target = Target(domain="bash", kind="shell", text=f"shell:{command}", given=command)
    assert judge_target(policy, target).worst.decision == "deny"
