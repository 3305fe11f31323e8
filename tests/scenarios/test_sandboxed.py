"""``bash`` in the sandbox, through the whole chain."""

from __future__ import annotations

import pytest
from moryflow_sdk.sandbox import COMMANDS, find_sandbox

pytestmark = pytest.mark.skipif(find_sandbox() is None, reason="no working bubblewrap on this machine")


async def test_one_rule_lets_commands_in_the_sandbox_go_unasked(rig):
    """Off by default; with the rule a command runs unasked, but only inside (S0.36)."""
    (rig.vault / "Makefile").write_text("x:\n\techo x > ../outside\n")
    turn = (rig.call("bash", command="echo $((6*7)); make -s x"), {"text": "done"})
    before, _ = await rig.run(*turn)
    assert before.denied[0]["cause"] == "headless"
    rig.config(permission={"rules": [{"domain": "bash", "pattern": COMMANDS, "decision": "allow"}]})
    after, events = await rig.run(*turn)
    assert (after.exit_code, after.denied) == (0, ())
    result = next(event for event in events if event.type == "tool.result")
    assert "42" in result.data["output"] and not (rig.vault.parent / "outside").exists()


async def test_a_rule_that_asks_is_stronger_than_the_sandbox(rig):
    """What a person's own rule asks about is asked, sandbox or not (D2, S0.36)."""
    rules = [
        {"domain": "bash", "pattern": COMMANDS, "decision": "allow"},
        {"domain": "bash", "pattern": "echo*", "decision": "ask"},
    ]
    rig.config(permission={"rules": rules})
    result, _ = await rig.run(rig.call("bash", command="echo hi"), {"text": "done"})
    assert result.denied[0]["cause"] == "headless"
