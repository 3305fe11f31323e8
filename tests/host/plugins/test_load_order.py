"""Order: built-in, installed, user; before and after within a tier; then by name; never by registration."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow.hooks.plugin_set import TIERS, Implementation
from moryflow.hooks.threads import PluginThreads
from moryflow.plugins.load import OrderCycle, call_order
from moryflow_sdk import HookOptions


def hook(result: Any) -> None: ...


def implementation(name: str, tier: Any = "user", before: Any = (), after: Any = ()) -> Implementation:
    options = HookOptions(before=tuple(before), after=tuple(after))
    return Implementation(name, tier, "tool_after", hook, ("result",), options, False, 1.0, PluginThreads(name))


def names(implementations: Any, final: str = "") -> list[str]:
    return [item.plugin for item in call_order(implementations, final)]


NAMES = st.sampled_from("abcdefgh")
WISHES = st.lists(NAMES, max_size=2)


@given(st.dictionaries(NAMES, st.tuples(st.sampled_from(TIERS), WISHES, WISHES)), st.randoms())
def test_order_does_not_depend_on_registration(plugins: dict[str, Any], random: Any):
    """Never by registration time (ARCHITECTURE §4)."""
    made = [implementation(name, tier, before, after) for name, (tier, before, after) in plugins.items()]
    shuffled = list(made)
    random.shuffle(shuffled)
    try:
        first = names(made)
    except OrderCycle as cycle:
        with pytest.raises(OrderCycle) as again:
            names(shuffled)
        assert again.value.plugins == cycle.plugins
        return
    assert names(shuffled) == first


@given(st.dictionaries(NAMES, st.tuples(st.sampled_from(TIERS), WISHES, WISHES)))
def test_tiers_and_wishes_hold(plugins: dict[str, Any]):
    """Built-in before installed before user, and within a tier what was declared (S0.95)."""
    made = [implementation(name, tier, before, after) for name, (tier, before, after) in plugins.items()]
    try:
        result = call_order(made)
    except OrderCycle as cycle:
        assert set(cycle.plugins) <= set(plugins)
        return
    tiers = [TIERS.index(item.tier) for item in result]
    assert tiers == sorted(tiers)
    place = {item.plugin: item for item in result}
    for name, (tier, before, after) in plugins.items():
        for other in before:
            assert other not in place or place[other].tier != tier or place[name].position < place[other].position
        for other in after:
            assert other not in place or place[other].tier != tier or place[name].position > place[other].position


def test_without_wishes_the_name_decides():
    assert names([implementation(name) for name in ("c", "a", "b")]) == ["a", "b", "c"]


def test_the_final_phase_has_one_occupant_and_it_is_last():
    """Truncation is after every plugin, whatever they ask for (D9)."""
    made = [
        implementation("truncation", "builtin"),
        implementation("zeal", "user", after=["truncation"]),
        implementation("zz", "builtin"),
    ]
    assert names(made, "truncation") == ["zz", "zeal", "truncation"]


def test_a_third_party_plugin_cannot_take_the_final_phase():
    made = [implementation("truncation", "user"), implementation("zeal", "user")]
    assert names(made, "truncation") == ["truncation", "zeal"]


def test_a_cycle_names_the_plugins_in_it():
    """A cycle is a load error naming both (ARCHITECTURE §4)."""
    made = [
        implementation("a"),
        implementation("b", before=["c"]),
        implementation("c", before=["b"]),
        implementation("d", after=["c"]),
    ]
    with pytest.raises(OrderCycle, match="b and c"):
        names(made)


def test_plugins_that_contradict_each_other_fail_and_the_others_work(bench: Any):
    """Both of a cycle fail at load, named; what does not depend on them goes on (invariant 5)."""
    source = "@hookimpl({})\ndef tool_after(result): ...\n"
    bench.user("one", source.format("before='two'"))
    bench.user("two", source.format("before='one'"))
    bench.user("three", source.format("after='one'"))
    bench.user("self", source.format("after='self'"))
    loaded = bench.load()
    assert [item.plugin for item in loaded.ordered("tool_after")] == ["three"]
    for name in ("one", "two"):
        found = bench.record(name, loaded)
        assert (found.status, found.stage) == ("failed", "register")
        assert "one and two" in found.error and found.file.endswith(f"{name}.py")
    assert bench.record("self", loaded).status == "failed"


async def test_built_in_comes_before_user_and_a_failing_hook_interrupts_nothing(bench: Any):
    """Order built-in → user; a failing hook never interrupts the main flow (S0.95, D9)."""
    from moryflow_sdk import ToolCall, ToolResult

    add = "@hookimpl\ndef tool_after(result):\n    return result.replace(output=result.output + '{}')\n"
    bench.user("aaa", add.format("user "))
    bench.user("bad", "@hookimpl\ndef tool_after(result):\n    raise ValueError('bad')\n")
    bench.installed("mid", add.format("installed "))
    bench.builtin("zzz", add.format("builtin "))
    scope = await bench.scope()
    call = ToolCall(id="c", tool="t", args={})
    result = await bench.dispatcher.transform(scope, "tool_after", ToolResult(output=""), call=call)
    assert result.output == "builtin installed user "
    assert [(failure.plugin, failure.action) for failure in scope.failures] == [("bad", "skipped")]
