"""``permission lint`` and ``config check``: invalid, dead, shadowed and dangerous rules (D4, D26)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow.base.builtins import BUILTINS
from moryflow_builtins.permission.cli.lint import remarks, without_repeats
from moryflow_builtins.permission.presets import PRESETS
from moryflow_sdk import Rule
from moryflow_sdk.support.patterns import compile_rule


@pytest.fixture
def bench(bench):
    """The bench with every built-in plugin."""
    return replace(bench, builtins=BUILTINS)


def made(*rows):
    return [
        Rule.model_validate({"domain": domain, "pattern": pattern, "decision": decision, "index": index})
        for index, (domain, pattern, decision) in enumerate(rows)
    ]


def kinds(*rows):
    """The kinds of remark by the index of the rule."""
    return {(remark.rule.index, remark.kind) for remark in remarks(made(*rows)) if remark.rule}


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (("bash", "git push *", "deny"), ("bash", "git *", "allow")),
        (("bash", "ls", "ask"), ("bash", "*", "allow")),
        (("read", "vault:/src/*.py", "ask"), ("read", "vault:/src/**", "allow")),
        (("read", "vault:**/*.py", "ask"), ("read", "*", "deny")),
        (("bash", "regex:git .*", "ask"), ("bash", "regex:git .*", "deny")),
        (("mcp", "github/*", "deny"), ("mcp", "git*", "allow")),
    ],
)
def test_a_rule_that_a_later_one_covers_is_shadowed(earlier, later):
    """The last match wins, so it never decides (D4)."""
    assert (0, "shadowed") in kinds(earlier, later)
    assert (0, "shadowed") not in kinds(later, earlier) or earlier[1] == later[1]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (("bash", "git *", "deny"), ("bash", "git push *", "allow")),
        (("read", "vault:/src/**", "ask"), ("read", "vault:/src/*", "allow")),
        (("read", "vault:**", "ask"), ("edit", "**", "allow")),
        (("read", "vault:/src/**/a", "ask"), ("read", "vault:/src/?*/**", "allow")),
        (("read", "vault:/**/a", "ask"), ("read", "vault:/?/**", "allow")),
        (("bash", "git *", "deny"), ("bash", "sandbox:commands", "allow")),
        (("read", "**/*.md", "deny"), ("read", "vault:**/*.md", "allow")),
        (("bash", "regex:git", "deny"), ("bash", "regex:git", "allow")),
    ],
)
def test_a_rule_that_still_decides_something_is_not(earlier, later):
    """No false alarm (D4)."""
    assert (0, "shadowed") not in kinds(earlier, later)


@pytest.mark.parametrize(
    ("pattern", "narrow"),
    [
        ("url:https://docs.python.org/*", True),
        ("https://docs.python.org/3/*", True),
        ("https://*.python.org/a*", True),
        ("https://docs.python.org/**", False),
        ("https://*.python.org/**", False),
        ("https://*/x", False),
        ("*", False),
        ("regex:https://a/.*", False),
        ("https://docs.python.org/a\\*", False),
    ],
)
@pytest.mark.parametrize("decision", ["allow", "ask", "deny"])
def test_a_star_that_stops_at_a_slash_is_said(pattern, narrow, decision):
    """An address further down is not matched, and lint says what to write (S0.41, D6)."""
    assert ((0, "narrow") in kinds(("web_fetch", pattern, decision))) == narrow


TEXT = st.text(alphabet="ab *", min_size=1, max_size=6)


@given(earlier=TEXT, later=TEXT, filling=st.text(alphabet="ab ;/", max_size=3))
def test_a_shadowing_rule_matches_all_that_the_other_does(earlier, later, filling):
    """Whatever the star of the earlier pattern stands for, the later one matches it (D4, D6)."""
    rules = made(("bash", earlier, "ask"), ("bash", later, "deny"))
    one, other = map(compile_rule, rules)
    text = "shell:" + earlier.replace("*", filling)
    if any(remark.kind == "shadowed" for remark in remarks(rules)) and one.matches(text):
        assert other.matches(text)


PATH = st.lists(st.sampled_from(["a", "*", "**", "b*", "?", "[ab]"]), min_size=1, max_size=4).map("/".join)


@given(earlier=PATH, later=PATH, target=st.lists(st.sampled_from(["a", "b", "ab", "c"]), min_size=1, max_size=6).map("/".join))
def test_a_shadowing_path_rule_matches_all_that_the_other_does(earlier, later, target):
    """The same for paths, where a star stops at a slash (D4, D6)."""
    rules = made(("read", f"vault:/{earlier}", "ask"), ("read", f"vault:/{later}", "deny"))
    one, other = map(compile_rule, rules)
    if any(remark.kind == "shadowed" for remark in remarks(rules)) and one.matches(f"vault:/{target}"):
        assert other.matches(f"vault:/{target}")


@pytest.mark.parametrize(
    ("domain", "pattern"),
    [
        ("bash", "x{} *"),
        ("bash", "*x{}"),
        ("read", "vault:/d{}/**"),
        ("edit", "same/**"),
        ("web_fetch", "https://h{}.example/**"),
    ],
)
def test_thousands_of_rules_are_looked_at_soon(domain, pattern, expect_linear_growth):
    """The time grows with the number of rules, not with its square, which took more than a minute for so many."""

    def work(count):
        rules = made(*((domain, pattern.format(number), ["allow", "ask"][number % 2]) for number in range(count)))
        return lambda: list(without_repeats(remarks(rules)))

    expect_linear_growth(work, 500)


@pytest.mark.parametrize(
    ("domain", "pattern"),
    [
        ("bash", "cd x && make"), ("bash", "ls | wc"), ("bash", "ls  -l"), ("bash", " ls"), ("bash", "echo x > y"),
        ("bash", "echo $(date)"), ("read", "/notes/"), ("read", "../x"), ("read", "vault:/a//b"), ("read", "./x"),
        ("web_fetch", "example/*"), ("web_fetch", "https://example.com*"), ("web_fetch", "https://example.com/a b"),
        ("web_fetch", "http://192.168.0.1/"), ("mcp", "github"),
    ],
)  # fmt: skip
def test_a_pattern_that_no_target_is_written_like_is_dead(domain, pattern):
    """It can never match (D4, S0.41)."""
    assert (0, "dead") in kinds((domain, pattern, "allow"))


@pytest.mark.parametrize(
    ("domain", "pattern"),
    [
        ("bash", "git status"), ("bash", "echo 'a  b'"), ("bash", "git commit -m *"), ("bash", "sandbox:network"),
        ("read", "/srv/data/**"), ("read", "~/x"), ("read", "vault:/"), ("web_fetch", "https://example.com/**"),
        ("web_fetch", "https://*.example.com/**"), ("web_fetch", "http*://example.com/x"),
        ("web_fetch", "example.com"), ("web_fetch", "*.example.com"), ("web_fetch", "https://Example.com"),
        ("mcp", "github/*"), ("mcp", "git*"),
        ("web_search", "python *"), ("task", "explore"), ("tool", "hello"), ("web_fetch", "http://localhost:7700/**"),
        ("web_fetch", "http://127.0.0.1:7700/search"),
    ],
)  # fmt: skip
def test_a_good_rule_gets_no_remark(domain, pattern):
    """No false alarm (D4)."""
    assert kinds((domain, pattern, "deny")) == set()


def test_a_rule_that_silences_a_sensitive_default_is_named():
    """Also a literal one, and not when a later rule asks again (D4, S0.33, R21)."""
    assert (0, "silences") in kinds(("read", "vault:**", "allow"))
    assert (0, "silences") in kinds(("read", "vault:/.env", "allow"))
    assert (0, "silences") in kinds(("edit", "vault:/.github/**", "allow"))
    assert (0, "silences") in kinds(("edit", "vault:/deploy/**", "allow"))
    assert kinds(("read", "vault:/.env", "allow"), ("read", "vault:/.env", "ask")) == {(0, "shadowed")}
    assert kinds(("read", "vault:/notes.md", "allow"), ("read", "vault:/**", "ask")) == {(0, "shadowed")}


@pytest.mark.parametrize(
    ("domain", "pattern"),
    [
        ("bash", "*"), ("bash", "* --version"), ("bash", "git*"), ("bash", "regex:.*status"), ("edit", "fs:**"), ("edit", "**"),
        ("read", "fs:**"), ("read", "fs:/home/**"), ("mcp", "*"), ("tool", "*"),
    ],
)  # fmt: skip
def test_what_allows_too_much_is_dangerous(domain, pattern):
    """Warned of when it allows, not when it denies (D4)."""
    assert (0, "dangerous") in kinds((domain, pattern, "allow"))
    assert (0, "dangerous") not in kinds((domain, pattern, "deny"))


def test_a_wide_rule_does_not_drown_the_rest():
    """Of many rules that one shadows, three are named and the others counted."""
    rows = [("bash", f"echo {number}", "allow") for number in range(20)]
    told = [remark.message for remark in without_repeats(remarks(made(*rows, ("bash", "*", "ask"))))]
    assert len(told) == 3 and "17 more" in told[-1]


def test_the_presets_are_clean():
    """No preset has an invalid, dead or shadowed rule."""
    for preset in PRESETS.values():
        found = list(remarks([rule.replace(index=i) for i, rule in enumerate(preset.rules)]))
        assert [remark.sentence for remark in found if remark.kind != "dangerous"] == []


def test_lint_fails_for_what_is_invalid_and_says_where(bench):
    """A typo, an unknown domain, an expression that cannot be used: file and line; exit code 3 (D26)."""
    bench.config(permission={"rules": []})
    rows = [
        '{"domain": "bash", "pattern": "regex:(", "decision": "deny"}',
        '{"domain": "bassh", "pattern": "x", "decision": "deny"}',
        '{"domain": "bash", "pattern": "regex:(?=a)b", "decision": "deny"}',
        '{"domain": "bash", "pattern": "*", "decision": "allow"}',
    ]
    text = '{"agents": {"runtime": {"permission": {"rules": [\n' + ",\n".join(rows) + "\n]}}}}"
    file = bench.home / "config.jsonc"
    file.write_text(text, "utf-8")
    done = bench.cli("permission", "lint", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 3 and found["summary"] == {"type": "summary", "rules": 1, "errors": 3, "warnings": 1}
    shown = bench.cli("permission", "lint").stdout
    assert all(f"{file}:{line}" in shown for line in (2, 3, 4, 5)) and "did you mean" in shown
    checked = bench.cli("config", "check")
    assert "any program runs, but not every command" in checked.stdout + checked.stderr


def test_warnings_fail_only_when_asked_to(bench):
    """Exit code 0, and 3 with --strict (D4)."""
    bench.config(permission={"rules": [{"domain": "bash", "pattern": "*", "decision": "allow"}]})
    assert bench.cli("permission", "lint").returncode == 0
    assert bench.cli("permission", "lint", "--strict").returncode == 3
