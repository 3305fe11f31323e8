"""Patterns of rules: globs, regular expressions, and that none of them can hang the gate."""

from __future__ import annotations

from typing import Any, Literal
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow_sdk import Rule
from moryflow_sdk.support.patterns import MAX_ALTERNATIVES, MAX_PATTERN, braces, compile_rule, escape

Form = Literal["NFC", "NFD"]


def matches(domain: str, pattern: str, text: str, decision: str = "allow") -> bool:
    rule = Rule.model_validate({"domain": domain, "pattern": pattern, "decision": decision})
    return compile_rule(rule).matches(text)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("vault:**/*.md", "vault:/a.md", True),
        ("vault:**/*.md", "vault:/x/y/a.md", True),
        ("vault:**/*.md", "fs:/a.md", False),
        ("vault:/*.md", "vault:/x/a.md", False),
        ("vault:/src/**", "vault:/src/a/b", True),
        ("vault:/src/**", "vault:/src", False),
        ("vault:/src/**/x", "vault:/src/x", True),
        ("vault:/src/**/x", "vault:/src/a/b/x", True),
        ("vault:/src/**/x", "vault:/src/ax", False),
        ("vault:a**b", "vault:/ax/yb", True),
        ("vault:/{a,b/c}.md", "vault:/b/c.md", True),
        ("vault:/a?c", "vault:/a/c", False),
        ("vault:/a[!b]c", "vault:/a/c", False),
        ("vault:/a[bc]d", "vault:/abd", True),
        ("vault:/a\\*b", "vault:/a*b", True),
        ("vault:/a\\*b", "vault:/axb", False),
        ("fs:**/*.env*", "fs:/x/.env.local", True),
        ("*", "fs:/anything", True),
        ("notes/**", "vault:/notes/x", True),
        ("/etc/**", "fs:/etc/passwd", True),
        ("shell:ls", "vault:/shell:ls", False),
    ],
)
def test_path_globs(pattern: str, text: str, expected: bool) -> None:
    """In paths `*` stops at a slash and `**` does not; globs match whole targets (D6, S0.41, S0.42, S0.43)."""
    assert matches("read", pattern, text) is expected


def test_a_folder_is_protected_with_what_is_in_it() -> None:
    """A deny for everything in a folder holds for moving the folder too; an allow does not grow (D6)."""
    assert matches("edit", "vault:/keys/**", "vault:/keys", "deny")
    assert not matches("edit", "vault:/keys/**", "vault:/keys", "allow")


@pytest.mark.parametrize(
    "pattern",
    ["vault:/privé/**", "regex:/privé/", "privé/*.md"],
)
@pytest.mark.parametrize(("written", "stored"), [("NFC", "NFD"), ("NFD", "NFC"), ("NFD", "NFD")])
def test_what_guards_a_file_holds_however_its_name_is_composed(pattern: str, written: Form, stored: Form) -> None:
    """Both are one text to a person; an allow opens what it says and nothing else (R10)."""
    pattern, text = normalize(written, pattern), normalize(stored, "vault:/privé/a.md")
    assert matches("read", pattern, text, "deny") and matches("edit", pattern, text, "ask")
    if not pattern.startswith("regex:"):
        assert matches("read", pattern, text, "allow") is (written == stored)


@pytest.mark.parametrize(
    ("domain", "pattern", "text", "expected"),
    [
        ("bash", "git status*", "shell:git status --short", True),
        ("bash", "shell:git status*", "shell:git status", True),
        ("bash", "git *", "shell:git", False),
        ("bash", "echo \\*", "shell:echo *", True),
        ("bash", "echo \\*", "shell:echo x", False),
        ("bash", "a*b*c", "shell:a\nb\nc", True),
        ("web_search", "*secret*", "query:my\nsecret plan", True),
        ("bash", "*rm*", "shell:rm -r build", True),
        ("bash", "*rm*x*", "shell:rm x", True),
        ("bash", "a*ab*", "shell:ab", False),
        ("mcp", "mcp:github/*", "mcp:github/a/b", True),
        ("mcp", "github/*", "mcp:gitlab/a", False),
        ("tool", "hello", "tool:hello", True),
        ("web_fetch", "url:https://docs.python.org/*", "url:https://docs.python.org/3/x", False),
        ("web_fetch", "url:https://docs.python.org/**", "url:https://docs.python.org/3/x", True),
        ("web_fetch", "url:https://docs.python.org/**", "url:https://docs.python.org.evil.test/", False),
        ("web_fetch", "docs.python.org", "url:https://docs.python.org/3/x?q=1", True),
        ("web_fetch", "docs.python.org", "url:http://docs.python.org/", True),
        ("web_fetch", "docs.python.org", "url:https://docs.python.org.evil.test/", False),
        ("web_fetch", "docs.python.org", "url:https://evil.test/docs.python.org/x", False),
        ("web_fetch", "docs.python.org", "url:https://docs.python.org:8443/x", False),
        ("web_fetch", "Docs.Python.org", "url:https://docs.python.org/", True),
        ("web_fetch", "https://docs.python.org", "url:https://docs.python.org/3/x", True),
        ("web_fetch", "https://docs.python.org", "url:http://docs.python.org/3/x", False),
        ("web_fetch", "docs.python.org/3/**", "url:https://docs.python.org/3/x/y", True),
        ("web_fetch", "docs.python.org/3/**", "url:https://docs.python.org/2/x", False),
        ("web_fetch", "*.github.com", "url:https://api.github.com/repos/a/b", True),
        ("web_fetch", "*.github.com", "url:https://github.com/", False),
        ("web_fetch", "*.github.com", "url:https://evil.test/x.github.com/", False),
        ("web_fetch", "*.github.com", "url:https://evil.test/?x.github.com", False),
        ("web_fetch", "https://api.github.com/repos/**", "url:https://api.github.com/repos/a/b", True),
        ("web_fetch", "{a,b}.test", "url:https://b.test/x", True),
        ("web_fetch", "example.com*", "url:https://example.com.evil.test/", False),
    ],
)
def test_text_globs(domain: str, pattern: str, text: str, expected: bool) -> None:
    """In commands, queries and names `*` is any text, newlines included; in addresses it stops at a slash (D6)."""
    assert matches(domain, pattern, text) is expected


@pytest.mark.parametrize(
    ("decision", "text", "expected"),
    [
        ("allow", "shell:git status", True),
        ("allow", "shell:git status; rm x", False),
        ("allow", "shell:x git status", False),
        ("deny", "shell:x; git status y", True),
        ("ask", "shell:sudo git status", True),
    ],
)
def test_a_regex_must_match_all_to_allow_and_is_searched_to_deny(decision: str, text: str, expected: bool) -> None:
    """`regex:` covers the whole target in an allow and is searched in ask and deny rules (D6, S0.42)."""
    assert matches("bash", "regex:git status", text, decision) is expected


@pytest.mark.parametrize("expression", ["git status)|(?:rm x", "a)|(b", "git status)\\z|(?:\\Arm x", "(?x)rm # "])
def test_no_expression_gets_out_of_the_whole_that_it_must_match(expression: str) -> None:
    """What does not compile alone allows nothing, and a comment does not hide the end (D6)."""
    for text in ("rm x", "a", "b", "ab", "xb", "rmx"):
        assert not matches("bash", f"regex:{expression}", f"shell:{text}")


@pytest.mark.parametrize(
    ("expression", "literal"),
    [
        ("git (status|diff)", "git "), (r"git (a|b) (c|d)", "git "), (r"git [|] x", "git "), (r"git \| x", "git | x"),
        ("git a|rm b", ""), ("git (a|(b|c))|rm", ""), ("git ((a|b)|c)", ""), (r"git \(a|rm b\)", ""), ("git [(]a|rm[)]", ""),
        ("(git|rm) x", ""), (r"\<git x", ""), ("git [a(]|rm", ""), ("git (a[)]|b)|rm x", ""),
    ],
)  # fmt: skip
def test_only_what_every_match_begins_with_counts_as_its_beginning(expression: str, literal: str) -> None:
    """An alternative within a group changes nothing before the group; one outside changes all (S0.40)."""
    rule = Rule.model_validate({"domain": "bash", "pattern": f"regex:{expression}", "decision": "allow"})
    assert compile_rule(rule).literal == literal


@pytest.mark.parametrize("text", ["url:http://a.test:8080/x", "url:https://a.test:8443/", "url:https://a.test/x/y"])
def test_a_host_is_denied_on_every_port(text: str) -> None:
    """Whoever names a site to forbid it means all of it; an allow opens the usual ports (D6)."""
    assert matches("web_fetch", "a.test", text, "deny") and matches("web_fetch", "a.test", text, "ask")
    assert matches("web_fetch", "a.test", text, "allow") is (":8" not in text)


@pytest.mark.parametrize(
    "pattern",
    ["regex:([", "regex:(a)\\1", "regex:(?=a)b", "regex:a{9999}{99}", "regex:" + "(" * 2000, "", "x" * (MAX_PATTERN + 1)],
)
def test_a_pattern_that_cannot_be_used_matches_nothing_and_says_why(pattern: str) -> None:
    """An invalid pattern matches nothing and is reported (D6, D26)."""
    for decision in ("allow", "deny"):
        compiled = compile_rule(Rule.model_validate({"domain": "bash", "pattern": pattern, "decision": decision}))
        assert compiled.problem
        assert not compiled.matches("shell:a")


def test_braces_have_a_limit() -> None:
    """A pattern that stands for too many patterns is refused (D6)."""
    assert sorted(braces("a{b,{c,d}e}f")) == ["abf", "acef", "adef"]
    bomb = compile_rule(Rule(domain="read", pattern="vault:/" + "{a,b}" * 12, decision="allow"))
    assert str(MAX_ALTERNATIVES) in bomb.problem


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("regex:^(a+)+$", "a"),
        ("regex:(a|a)*(a|aa)*c", "a"),
        ("regex:.*a.*b.*c.*d", "abc"),
        ("regex:(.*a){20}", "ab"),
        ("*a*a*a*a*a*b", "aaa"),
    ],
)
def test_no_pattern_takes_longer_than_its_text_deserves(pattern: str, text: str, expect_linear_growth: Any) -> None:
    """What hangs other engines is answered (D6, SECURITY §4)."""
    expect_linear_growth(lambda count: lambda: matches("bash", pattern, f"shell:{text * count}x", "deny"), 2_500)


@pytest.mark.parametrize("pattern", ["vault:/" + "*a" * 60, "vault:" + "**/a/" * 60 + "b", "vault:**" + "a**" * 60 + "b"])
def test_no_glob_blows_up(pattern: str, expect_linear_growth: Any) -> None:
    """Stars do not multiply each other's work (D6)."""
    expect_linear_growth(lambda count: lambda: matches("read", pattern, "vault:" + "/a" * count), 5_000)
    expect_linear_growth(lambda count: lambda: matches("read", pattern, "vault:/" + "a" * count), 10_000)


@given(st.text())
def test_an_escaped_text_matches_itself_alone(text: str) -> None:
    """What `always` stores matches the one thing that was shown (D5)."""
    if not text or len(text) > 1000:
        return
    pattern = escape(text)
    assert matches("bash", pattern, f"shell:{text}")
    assert not matches("bash", pattern, f"shell:{text}x")


@pytest.mark.parametrize(("decision", "expected"), [("allow", True), ("deny", True)])
def test_a_regex_is_matched_against_names_that_are_no_text(decision: str, expected: bool) -> None:
    """A byte that is not text is one character like another, so that no deny is passed by it (D6, R10)."""
    assert matches("read", r"regex:vault:/private/.*\.md", "vault:/private/a\udcff.md", decision) is expected
    assert not matches("read", r"regex:vault:/private/a\?\.md", "vault:/private/a\udcff.md", decision)


def _naive(glob: str, text: str) -> bool:
    """Match a glob of letters, slashes, ``*`` and ``**`` by trying everything."""
    if not glob:
        return not text
    if glob.startswith("**"):
        rest = glob.lstrip("*")
        return any(_naive(rest, text[cut:]) for cut in range(len(text) + 1))
    if glob[0] == "*":
        stop = (text + "/").index("/")
        return any(_naive(glob[1:], text[cut:]) for cut in range(stop + 1))
    return text[:1] == glob[0] and _naive(glob[1:], text[1:])


@settings(max_examples=500)
@given(st.text("ab*", max_size=5), st.lists(st.text("ab*", max_size=4), max_size=3), st.text("ab/", max_size=8))
def test_path_globs_agree_with_a_matcher_that_tries_everything(head: str, rest: list[str], text: str) -> None:
    """The translation to atomic expressions loses no match and finds none too many (D6)."""
    glob = "/" + "/".join((head, *rest))
    parts = glob.split("/")
    if any(len(part) > 1 and not part.strip("*") for part in parts):
        return  # `a/**/b` (and `a/***/b`) also matches `a/b`, which a plain reading of the stars does not say
    assert matches("read", f"vault:{glob}", f"vault:/{text}") == _naive(glob, f"/{text}")
