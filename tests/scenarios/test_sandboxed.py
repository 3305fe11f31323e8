"""``bash`` in the sandbox, through the whole chain."""

from __future__ import annotations

import asyncio

import pytest
from moryflow import RunOptions
from moryflow_sdk.support import sandbox
from moryflow_sdk.support.sandbox import COMMANDS, find_sandbox

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


UNASKED = {"domain": "bash", "pattern": COMMANDS, "decision": "allow"}


@pytest.mark.parametrize(
    ("command", "asks"),
    [
        ("cat .env", True),
        ("cp .env x", True),
        ("echo x > .vscode/tasks.json", True),
        ("cat .e*", False),
        ("grep -r TOK . || true", False),
        ("mkdir -p sub && echo x > sub/a && git status --short", False),
    ],
)
async def test_what_a_command_names_is_asked_about_and_what_it_reads_besides_is_hidden(rig, command, asks):
    """A rule for the sandbox answers no question about a file that holds secrets or runs later (R21, R36, S0.36)."""
    rig.config(permission={"rules": [UNASKED]})
    (rig.vault / ".env").write_text("TOK=1")
    (rig.vault / ".git").mkdir()
    result, events = await rig.run(rig.call("bash", command=command), {"text": "done"})
    assert bool(result.denied) == asks
    assert not any("TOK" in event.data["output"] for event in events if event.type == "tool.result")


async def test_what_a_person_agreed_to_is_shown_and_written(rig):
    """An answer to a question that names a file opens that file for the call (S0.36, R33)."""
    rig.config(permission={"rules": [UNASKED]})
    (rig.vault / ".env").write_text("TOK=1")
    async with rig.host() as host:
        replies = []

        def answer(event):
            if event.type == "permission.asked":
                replies.append(asyncio.ensure_future(host.approvals.reply(event.data["approval_id"], "once")))

        host.bus.subscribe(answer)
        script = rig.script(rig.call("bash", command="cat .env; mkdir .vscode; echo x > .vscode/tasks.json"), "done")
        session = await host.new_session(rig.vault, model=script)
        await session.prompt("go", options=RunOptions(on_ask="prompt"))
        outputs = [node.payload["output"] for node in await host.store.path(session.id) if node.kind == "tool"]
    assert outputs == ["TOK=1"] and (rig.vault / ".vscode/tasks.json").read_text() == "x\n"
    assert len(replies) == 1


async def test_the_gate_starts_no_program(rig, monkeypatch):
    """The sandbox is looked for once, before the gate, and a gate that finds nothing yet asks (S0.36, invariant 9)."""
    from moryflow_builtins.permission import verdict

    looked = []
    starts = sandbox._starts
    monkeypatch.setattr(sandbox, "_found", [])
    monkeypatch.setattr(sandbox, "_starts", lambda program: looked.append(verdict) or starts(program))
    in_sandbox = verdict.in_sandbox
    monkeypatch.setattr(verdict, "in_sandbox", lambda *given: looked.append("gate") or in_sandbox(*given))
    rig.config(permission={"rules": [UNASKED]})
    calls = [rig.call("bash", command="echo 1"), rig.call("bash", command="echo 2")]
    result, _ = await rig.run(*calls, {"text": "done"})
    assert looked == [verdict, "gate", "gate"] and not result.denied


async def test_without_anybody_to_ask_it_stays_put_back(rig):
    """Headless is never looser, and the model is told once what became of it (R21, R23)."""
    rig.config(permission={"rules": [UNASKED]})
    (rig.vault / "Makefile").write_text("x:\n\tmkdir .vscode\n")
    _, events = await rig.run(rig.call("bash", command="make -s x"), {"text": "done"})
    (output,) = [event.data["output"] for event in events if event.type == "tool.result"]
    assert "They were set aside; nobody could be asked. What it made is kept in" in output and output.count("run later") == 1
    assert not (rig.vault / ".vscode").exists()
