"""How long a hook may take that names no time: the numbers of ARCHITECTURE §4, for whoever wrote it."""

from __future__ import annotations

from typing import Any

import pytest
from moryflow.hooks import threads
from moryflow_sdk import HOOKS

SECONDS = {
    "plugin_start": 5.0, "tools": 5.0, "agents": 5.0, "models": 5.0, "commands": 5.0, "system_blocks": 5.0,
    "chat_messages": 1.0, "chat_system": 1.0, "chat_params": 1.0, "tool_before": 1.0, "tool_after": 1.0,
    "tool_gate": 2.0, "tool_decided": 2.0, "compaction": 60.0, "event": 1.0,
}  # fmt: skip
"""Transform 1 s, gate 2 s, observer 1 s, contribute 5 s, ``compaction`` 60 s."""


def test_the_table_says_what_was_agreed():
    """A number that is changed is changed here too, and in the design (invariant 9)."""
    assert {name: info.timeout for name, info in HOOKS.items()} == SECONDS


@pytest.mark.parametrize("tier", ["builtin", "user"])
async def test_a_hook_that_names_no_time_has_that_of_its_kind(bench: Any, tier: str):
    """Every kind of hook has a deadline, a built-in's too; one that names its own has that (invariant 9)."""
    getattr(bench, tier)("plain", "".join(f"@hookimpl\ndef {hook}(): ...\n" for hook in SECONDS))
    getattr(bench, tier)("slow", "".join(f"@hookimpl(timeout=7)\ndef {hook}(): ...\n" for hook in SECONDS))
    started = await bench.start()
    found = {(one.plugin, hook): one.timeout for hook in SECONDS for one in started.ordered(hook)}
    kept = {hook for plugin, hook in found}
    least = 60.0 if tier == "builtin" else 0.0
    usual = {("plain", hook): max(SECONDS[hook], least) for hook in kept}
    assert found == {**usual, **{("slow", hook): 7.0 for hook in kept}}
    assert {"system_blocks", "chat_messages", "tool_gate", "tool_decided", "compaction", "event"} <= kept


@pytest.mark.parametrize("kind", ["", "async "])
async def test_a_timeout_of_the_plugin_itself_is_its_own_while_somebody_debugs(bench: Any, kind: str, monkeypatch):
    """Without deadlines none can have passed: the person reads what the plugin raised, and where."""
    body = "import time\n    time.sleep(0.02)\n    raise TimeoutError('the printer did not answer')"
    bench.user("mine", f"@hookimpl(timeout=0.01)\n{kind}def chat_system(system):\n    {body}\n")
    scope = await bench.scope()
    monkeypatch.setattr(threads, "_lifted", True)
    await bench.dispatcher.transform(scope, "chat_system", ())
    (failure,) = scope.failures
    assert failure.outcome == "failed" and "the printer did not answer" in failure.error
