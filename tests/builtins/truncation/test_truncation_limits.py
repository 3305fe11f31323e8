"""What `agents.runtime.truncation` means for a tool."""

from __future__ import annotations

import sys

import pytest
from moryflow_builtins.truncation import Limits, TruncationSettings


def settings(**values):
    return TruncationSettings.model_validate(values)


def test_the_defaults_are_those_of_the_requirements():
    """2,000 lines, 50 KB, seven days; the head, but the tail of a shell (S0.51, D39)."""
    chosen = settings()
    assert chosen.limits("read") == Limits(2000, 51200, "head")
    assert chosen.limits("bash") == Limits(2000, 51200, "tail")
    assert chosen.ttl_days == 7


def test_a_direction_for_all_tools_is_for_the_shell_too():
    """What a person writes beats our own exception (D39)."""
    assert settings(direction="both").limits("bash").direction == "both"


def test_limits_can_be_set_per_tool_and_by_glob_and_an_exact_name_wins():
    """Per tool, by name or glob, key by key (D39)."""
    tools = {"mcp_exact": {"maxLines": 5}, "mcp_*": {"maxLines": 50, "direction": "both"}, "*_exact": {"maxBytes": 900}}
    chosen = settings(maxLines=100, tools=tools)
    assert chosen.limits("mcp_exact") == Limits(5, 900, "both")
    assert chosen.limits("mcp_other") == Limits(50, 51200, "both")
    assert chosen.limits("read") == Limits(100, 51200, "head")


def test_switched_off_leaves_only_what_the_host_caps_anyway():
    """Off means off, but what would be lost at four times the limit is stored instead (D39, invariant 11)."""
    chosen = settings(enabled=False, tools={"grep": {"enabled": True, "maxLines": 3}})
    assert chosen.limits("read").lines == sys.maxsize
    assert 3 * 51200 < chosen.limits("read").bytes < 4 * 51200
    assert chosen.limits("grep") == Limits(3, 51200, "head")


@pytest.mark.parametrize("key", ["maxLines", "maxBytes", "ttlDays"])
@pytest.mark.parametrize("value", [0, -1, "2000", True, None, "NaN", []])
async def test_an_unusable_limit_is_named_and_its_default_holds(bench, key, value):
    """Zero, negative, not a number: a warning with the line, and everything else in the section counts (D40)."""
    bench.config(truncation={key: value, "direction": "both"})
    async with bench.host() as host:
        loaded = host.plugin_set.plugins["truncation"].config
        said = [str(problem) for problem in host.config.problems]
        said += [f"{r.file}:{r.line} {r.error}" for r in host.plugin_set.records if r.name == "truncation"]
    default = TruncationSettings()
    assert (loaded.max_lines, loaded.max_bytes, loaded.ttl_days) == (default.max_lines, default.max_bytes, default.ttl_days)
    assert loaded.direction == "both"
    assert any(f"truncation.{key}" in text and "config.jsonc:" in text for text in said)


async def test_a_wrong_limit_of_one_tool_leaves_its_others(bench):
    """One typo does not switch the rest off (D40)."""
    bench.config(truncation={"maxLines": 50, "tools": {"bash": {"maxLines": 0, "maxBytes": 100}}})
    async with bench.host() as host:
        assert host.plugin_set.plugins["truncation"].config.limits("bash") == Limits(50, 100, "tail")
