"""External tools are ordinary tools: asked about once, judged, changed by hooks, cut (S0.92)."""

from __future__ import annotations

import pytest

SAY = """
from moryflow_sdk import ToolContext, file_target, tool

@tool(domain="read")
def say(text: str = "x") -> str:
    "Say it."
    return text

@tool
def plain() -> str:
    "Declares nothing."
    return "plain"

@tool(domain="edit", targets=lambda args: [file_target(args["path"], "edit")])
async def touch(path: str, ctx: ToolContext) -> str:
    "Write a file."
    ctx.files.write(ctx.call.targets[0], b"touched")
    return "touched"
"""
ALLOW = {"domain": "tool", "pattern": "*", "decision": "allow"}


async def test_the_first_call_asks_once_and_shows_the_path(box):
    """A person who said yes once is not asked again, also in another session (S0.92, D57)."""
    file = box.write("mine", SAY)
    box.enable()
    calls = box.bench.calls(("say", {"text": "a"}), ("say", {"text": "b"}))
    run = await box.bench.run(calls, replies=["once"])
    [asked] = run.named("permission.asked")
    assert asked["reason"] == f"first use of the external tool 'say', from {file}"
    assert asked["remember"] == "tool:say"
    assert [node["output"] for node in run.tools()] == ["a", "b"]
    again = await box.bench.run(calls, replies=[])
    assert again.named("permission.asked") == []


async def test_always_stores_a_rule_for_the_tool(box):
    """The answer goes where every `always` goes, and holds for the next host (S0.44)."""
    box.write("mine", SAY)
    box.enable()
    await box.bench.run(box.bench.calls(("plain", {}), ("plain", {})), replies=["always"])
    assert '"pattern": "tool:plain"' in (box.bench.home / "config.jsonc").read_text(encoding="utf-8")
    run = await box.bench.run(box.bench.calls(("plain", {})), replies=[])
    assert [node["output"] for node in run.tools()] == ["plain"]


async def test_a_refusal_is_not_remembered_as_a_yes(box):
    """Who said no is asked again (D24)."""
    box.write("mine", SAY)
    box.enable()
    run = await box.bench.run(box.bench.calls(("say", {}), ("say", {})), replies=["reject", "once"])
    assert [node["status"] for node in run.tools()] == ["denied", "ok"]


async def test_a_tool_of_the_same_name_from_another_file_is_asked_about(box):
    """What a person agreed to is this tool of this file (R18)."""
    file = box.write("mine", SAY)
    box.enable()
    await box.bench.run(box.bench.calls(("say", {})), replies=["once"])
    file.write_text(SAY.replace("Say it", "Say it again"), encoding="utf-8")
    edited = await box.bench.run(box.bench.calls(("say", {})), replies=[])
    assert edited.named("permission.asked") == []
    file.rename(file.with_name("other.py"))
    moved = await box.bench.run(box.bench.calls(("say", {})), replies=["once"])
    assert "other.py" in moved.named("permission.asked")[0]["reason"]


@pytest.mark.parametrize(
    ("rules", "status"),
    [
        ([{"domain": "tool", "pattern": "tool:say", "decision": "allow"}], "ok"),
        ([{"domain": "tool", "pattern": "say", "decision": "allow"}], "ok"),
        ([ALLOW], "ok"),
        ([ALLOW, {"domain": "tool", "pattern": "tool:say", "decision": "ask"}], "denied"),
        ([{"domain": "tool", "pattern": "tool:plain", "decision": "allow"}], "denied"),
        ([], "denied"),
    ],
)
async def test_a_rule_that_allows_it_is_an_answer(box, rules, status):
    """With nobody to ask, only a rule of the person's own opens the door (S0.92, R23)."""
    box.write("mine", SAY)
    box.enable(*rules)
    assert (await box.call("say", mode="agent")).status == status


def test_nobody_to_ask_means_exit_code_four(box):
    """A question that nobody answers is a denial, as for every tool (CONTRACT §1)."""
    box.write("mine", SAY)
    box.enable()
    done = box.bench.cli("tool", "run", "say")
    assert done.returncode == 4 and "first use of the external tool 'say'" in done.stderr
    assert box.bench.cli("tool", "run", "say", "--mode", "full_access", "-y").stdout == "x\n"


async def test_permission_judges_what_they_touch(box):
    """Their targets are judged like anyone's, and they open what was judged (S0.92, R12)."""
    box.write("mine", SAY)
    box.enable(ALLOW, {"domain": "edit", "pattern": "vault:**/*.lock", "decision": "deny"})
    assert (await box.call("touch", path="a.txt")).output == "touched"
    assert (box.bench.vault / "a.txt").read_bytes() == b"touched"
    denied = await box.call("touch", path="uv.lock")
    assert denied.status == "denied" and not (box.bench.vault / "uv.lock").exists()


async def test_hooks_and_truncation_apply(box):
    """The whole chain, truncation last (S0.92, S0.50)."""
    box.write("mine", SAY)
    hooks = {
        "tool": {"before": [{"tool": "say", "mergeInput": {"text": "y" * 500}}], "after": [{"tool": "say", "prependText": "<"}]}
    }
    box.enable(ALLOW, hooks=hooks, truncation={"maxBytes": 100})
    result = await box.call("say")
    assert result.truncated and result.output.startswith("<yyy") and result.output_id


async def test_every_call_is_audited(box):
    """Also those that full access lets through (S0.76)."""
    box.write("mine", SAY)
    box.enable()
    await box.call("plain")
    [line] = [line for line in box.bench.audit() if line.get("targets") == ["tool:plain"]]
    assert (line["decision"], line["mode"], line["permissionDomain"]) == ("allow", "full_access", "tool")


def test_a_tool_that_is_not_loaded_is_explained(box):
    """The next command switches them on, or says why it was left out (S0.92)."""
    box.write("mine", SAY)
    done = box.bench.cli("tool", "run", "say")
    assert done.returncode == 2 and "moryflow config set agents.runtime.tools.external.enabled true" in done.stderr
    box.write("mine", SAY + "raise ValueError('no')\n")
    box.enable()
    done = box.bench.cli("tool", "run", "say")
    assert done.returncode == 2 and "mine.py:" in done.stderr and "ValueError: no" in done.stderr
