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


def test_one_consent_is_enough(box):
    """`tool allow` is the only step before a tool runs; it covers the content of the file (S0.92, D57, R18)."""
    file = box.write("mine", SAY)
    none = box.bench.cli("tool", "run", "plain")
    assert none.returncode == 2 and "next: read it, then moryflow tool allow mine.py" in none.stderr
    assert box.bench.cli("tool", "allow", "mine").returncode == 0
    assert box.bench.cli("tool", "run", "plain").stdout == "plain\n"
    file.write_text(SAY.replace('"plain"', '"other"'), encoding="utf-8")
    changed = box.bench.cli("tool", "run", "plain")
    assert changed.returncode == 2 and "it has changed since you allowed it" in changed.stderr
    assert box.bench.cli("tool", "allow", "mine").returncode == 0
    assert box.bench.cli("tool", "run", "plain").stdout == "other\n"
    assert box.bench.cli("config", "set", "agents.runtime.tools.external.enabled", "false").returncode == 0
    off = box.bench.cli("tool", "run", "plain")
    assert off.returncode == 2 and "config unset agents.runtime.tools.external.enabled" in off.stderr


async def test_the_model_may_call_it_without_a_question(box):
    """The file was allowed before it was loaded; only a rule asks again (S0.92)."""
    box.write("mine", SAY)
    box.enable()
    run = await box.bench.run(box.bench.calls(("say", {"text": "a"}), ("plain", {})), replies=[])
    assert run.named("permission.asked") == []
    assert [node["output"] for node in run.tools()] == ["a", "plain"]


@pytest.mark.parametrize(
    ("rules", "status"),
    [([], "ok"), ([ALLOW], "ok"), ([ALLOW | {"decision": "ask"}], "denied"), ([ALLOW | {"decision": "deny"}], "denied")],
)
async def test_a_rule_holds_for_it_as_for_every_tool(box, rules, status):
    """A rule of the user's own about tools without a domain asks or denies, whatever was allowed (S0.92, R23)."""
    box.write("mine", SAY)
    box.enable(*rules)
    assert (await box.call("plain", mode="agent")).status == status


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
    """It is said why a file was left out (S0.92)."""
    box.write("mine", SAY + "raise ValueError('no')\n")
    box.enable()
    done = box.bench.cli("tool", "run", "say")
    assert done.returncode == 2 and "mine.py:" in done.stderr and "ValueError: no" in done.stderr
