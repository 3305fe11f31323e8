"""What a tool's ``targets`` may give."""

from __future__ import annotations

import pytest
from moryflow_sdk import file_target, shell_target, tool


def requests_of(domain, given):
    @tool(domain=domain, targets=lambda args: given)
    def it(path: str) -> str:
        """Do it."""
        return path

    return [(r.kind, r.value, r.domain) for r in it.target_requests({"path": "a.md"})]


@pytest.mark.parametrize(
    ("domain", "kind"),
    [("read", "file"), ("edit", "file"), ("bash", "shell"), ("web_fetch", "url"), ("web_search", "query"), ("mcp", "mcp")],
)
def test_a_text_is_what_the_domain_is_about(domain, kind):
    """An author may give the argument itself, one or a list, as with ``permission explain DOMAIN INPUT`` (S0.41)."""
    assert requests_of(domain, ["x/y"]) == requests_of(domain, "x/y") == [(kind, "x/y", domain)]


def test_texts_and_requests_may_stand_side_by_side():
    """A text counts in the tool's domain, a request in its own (S0.41)."""
    given = ["a.md", file_target("b.md", "edit"), shell_target("ls")]
    assert requests_of("read", given) == [("file", "a.md", "read"), ("file", "b.md", "edit"), ("shell", "ls", "bash")]


def test_nothing_to_touch_is_the_tool_itself():
    """Without targets rules speak of the tool (D26)."""
    assert requests_of("read", []) == [("tool", "it", "read")]


def test_anything_else_is_an_error_that_says_what_to_give():
    """The host turns it into an answer for the model; the turn goes on (invariant 5)."""
    with pytest.raises(TypeError, match=r"file_target"):
        requests_of("read", [5])


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (lambda args, settings: f"{settings}/{args['path']}", "base/a.md"),
        (lambda args, prefix="own": f"{prefix}/{args['path']}", "own/a.md"),
        (lambda args: args["path"], "a.md"),
    ],
)
def test_a_function_that_needs_the_settings_is_given_them(targets, expected):
    """A second argument with a default is the author's own, as loops and closures need it."""

    @tool(domain="web_search", targets=targets)
    def it(path: str) -> str:
        """Do it."""
        return path

    assert [request.value for request in it.with_settings("base").target_requests({"path": "a.md"})] == [expected]
