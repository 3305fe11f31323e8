"""What `docs/order.md` says of failures is what happens."""

from __future__ import annotations

from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "order.md").read_text(encoding="utf-8")
FAILING = """
    from moryflow_sdk import hookimpl

    @hookimpl{options}
    def {hook}():
        raise ValueError("broken")
"""


@pytest.fixture
def failing(moryflow):
    """Install a plugin that fails in one hook, and another that works."""

    def install(hook: str, options: str = ""):
        moryflow.plugin(FAILING.format(hook=hook, options=options), "failing")
        (moryflow.vault / "a.md").write_text("whole", encoding="utf-8")
        return moryflow

    return install


def row(hook: str) -> str:
    """The line of the page's table for a hook."""
    return next(line for line in PAGE.splitlines() if line.startswith("| [") and f"[`{hook}`]" in line)


def test_a_transform_that_fails_is_skipped_or_withholds(failing):
    """The value stays as it was; a redactor lets nothing through (invariant 3)."""
    assert "skipped" in row("tool.after") and 'on_failure="withhold"' in row("tool.after")
    assert failing("tool_after").call_tool("read", path="a.md").result.output == "whole"


def test_a_redactor_that_fails_withholds(failing):
    """The result becomes an error and nothing of it is sent (invariant 3)."""
    result = failing("tool_after", '(on_failure="withhold")').call_tool("read", path="a.md").result
    assert (result.status, result.code) == ("error", "withheld") and "whole" not in result.output


@pytest.mark.parametrize("hook", ["tool_gate", "tool_decided"])
def test_a_gate_that_fails_says_no(failing, hook):
    """Deny, or an ask that nobody answers; its cause tells it from a rule (invariant 3)."""
    assert "`hook_failure`" in row(hook.replace("_", "."))
    done = failing(hook).call_tool("read", path="a.md")
    assert done.result.status == "denied"
    assert "failing" in done.result.output


def test_what_observes_changes_nothing_by_failing(failing):
    """A turn goes on without it (invariant 3)."""
    assert "ignored" in row("event")
    assert failing("event").run("hi", ["hello"]).end_reason == "completed"


def test_what_contributes_is_left_out_and_the_rest_is_loaded(failing):
    """The record of the plugin says what is missing (invariant 5)."""
    assert "left out" in row("tools")
    record = next(item for item in failing("tools").host.plugin_set.records if item.name == "failing")
    assert (record.status, record.stage) == ("loaded", "contribute") and "broken" in record.error


def test_a_plugin_whose_start_fails_has_failed(failing):
    """And the host works (invariant 5)."""
    assert "the plugin has failed" in row("plugin.start")
    host = failing("plugin_start")
    record = next(item for item in host.host.plugin_set.records if item.name == "failing")
    assert (record.status, record.stage) == ("failed", "start")
    assert host.call_tool("read", path="a.md").result.output == "whole"


def test_the_page_names_the_limit_of_quarantine():
    """Three failures in a session, as the host counts them (invariant 3)."""
    from moryflow.hooks.ledger import MAX_FAILURES

    assert MAX_FAILURES == 3
    assert "Three failures or three overruns in one session" in PAGE
