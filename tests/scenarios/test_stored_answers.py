"""An answer that comes later holds for the very thing that was shown, whoever asked; for nothing else (R11, R12, R18, R22)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from moryflow import RunOptions

LATER = RunOptions(on_ask="fail")
SECRET = "TOPSECRET"


def to_a_link_out(vault: Path):
    (vault / "a.txt").unlink()
    (vault / "a.txt").symlink_to(vault.parent / "outside" / "id_rsa")


def to_a_link_inside(vault: Path):
    (vault / "a.txt").unlink()
    (vault / "a.txt").symlink_to(vault / "other" / "b.txt")


def to_another_file(vault: Path):
    (vault / "new.txt").write_text(SECRET)
    (vault / "new.txt").replace(vault / "a.txt")


def to_a_hard_link(vault: Path):
    (vault / "a.txt").unlink()
    os.link(vault.parent / "outside" / "id_rsa", vault / "a.txt")


def to_nothing(vault: Path):
    (vault / "a.txt").unlink()


SWAPS = (to_a_link_out, to_a_link_inside, to_another_file, to_a_hard_link, to_nothing)


def rule(rig):
    rig.config(permission={"rules": [{"domain": d, "pattern": "*", "decision": "ask"} for d in ("read", "edit")]})


def _plugin(rig, hook):
    rig.allow_all()
    rig.plugin("asks", f"@hookimpl\ndef {hook}(call):\n    return Ask('please', remember=(Remember(scope='session'),))\n")


def gate(rig):
    _plugin(rig, "tool_gate")


def decided(rig):
    _plugin(rig, "tool_decided")


@pytest.fixture
def files(rig):
    """A file in the vault, and others that it may be swapped for."""
    (rig.vault / "a.txt").write_text("harmless")
    for folder, name in ((rig.vault / "other", "b.txt"), (rig.vault.parent / "outside", "id_rsa")):
        folder.mkdir()
        (folder / name).write_text(SECRET)
    return rig


async def asked(rig, call):
    """Let the model make `call`, which ends in a question; return that."""
    async with rig.host() as host:
        session = await host.new_session(rig.vault, model=rig.script(call, {"text": "done"}))
        assert (await session.prompt("go", options=LATER)).end_reason == "approval_required"
        [question] = await host.store.approvals(state="pending")
    return question


async def answered(rig, question, reply, session=None):
    """Answer and go on; return the end reason, the results, and the open questions."""
    async with rig.host() as host:
        await host.approvals.reply(question.id, reply)
        session = await host.resume(rig.vault, session, model=rig.script({"text": "done"}))
        result = await session.resume(LATER)
        results = [node.payload for node in await host.store.path(session.id) if node.kind == "tool"]
        return result.end_reason, results, await host.store.approvals(state="pending")


@pytest.mark.parametrize("asks", [rule, gate, decided], ids=lambda asks: asks.__name__)
async def test_an_answer_holds_for_what_was_shown(files, asks):
    """Nothing has changed, so nothing is asked again (D65)."""
    asks(files)
    question = await asked(files, files.call("read", path="a.txt"))
    end, results, still_open = await answered(files, question, "once")
    assert (end, results[0]["status"], still_open) == ("completed", "ok", [])
    assert "harmless" in results[0]["output"]


@pytest.mark.parametrize("reply", ["once", "always", "reject", "stop"])
@pytest.mark.parametrize("asks", [rule, gate, decided], ids=lambda asks: asks.__name__)
async def test_an_answer_does_not_hold_for_another_file(files, asks, reply):
    """The call is asked about again, whoever asked and whatever was answered (R11, R18)."""
    asks(files)
    question = await asked(files, files.call("read", path="a.txt"))
    to_a_link_out(files.vault)
    end, results, [again] = await answered(files, question, reply)
    assert (end, results) == ("approval_required", [])
    assert again.request["targets"] == (f"fs:{files.vault.parent}/outside/id_rsa",)


@pytest.mark.parametrize("swap", SWAPS, ids=lambda swap: swap.__name__)
async def test_the_new_question_says_what_the_path_leads_to_now(files, swap):
    """The resolved target; its own answer holds (R12, R22)."""
    rule(files)
    question = await asked(files, files.call("read", path="a.txt"))
    swap(files.vault)
    end, results, [again] = await answered(files, question, "once")
    assert (end, results) == ("approval_required", []) and again.id != question.id
    end, results, still_open = await answered(files, again, "once")
    assert (end, len(results), still_open) == ("completed", 1, [])
    assert results[0].get("code") == "not_found" if swap is to_nothing else SECRET in results[0]["output"]


@pytest.mark.parametrize("swapped", ["its folder became a link", "it has come into being"])
async def test_nothing_is_written_where_nobody_saw_that_it_would_be(files, swapped):
    """The file outside, or the one that has come meanwhile, stays as it is (R12, R22)."""
    rule(files)
    (files.vault / "sub").mkdir()
    question = await asked(files, files.call("write", path="sub/id_rsa", content="X"))
    place = files.vault / "sub" / "id_rsa"
    if swapped == "it has come into being":
        place.write_text(SECRET)
    else:
        (files.vault / "sub").rmdir()
        (files.vault / "sub").symlink_to(files.vault.parent / "outside")
    end, results, [_again] = await answered(files, question, "always")
    assert (end, results, place.read_text()) == ("approval_required", [], SECRET)
    assert '"allow"' not in (files.home / "config.jsonc").read_text()


async def test_always_stores_what_was_shown_and_nothing_wider(files):
    """A plugin that would have more stored by now asks again (R18, D5)."""
    files.allow_all()
    remember = "Remember(scope='user', domain='read', pattern={!r})"
    source = f"@hookimpl\ndef tool_gate(call):\n    return Ask('please', remember=({remember},))\n"
    files.plugin("asks", source.format("vault:/a.txt"))
    question = await asked(files, files.call("read", path="a.txt"))
    files.plugin("asks", source.format("*"))
    _, results, [again] = await answered(files, question, "always")
    assert (results, again.request["remember"]) == ([], "*")


async def test_an_answer_does_not_hold_in_another_folder_of_the_same_name(files):
    """The vault itself may become a link (R12)."""
    rule(files)
    around, files.vault = files.vault, files.vault / "project"
    files.vault.mkdir()
    question = await asked(files, files.call("write", path="new.txt", content="X"))
    files.vault.rmdir()
    files.vault.symlink_to(around / "other")
    _, results, [again] = await answered(files, question, "once", session=question.session)
    assert results == [] and again.id != question.id


async def test_a_command_is_asked_about_again_when_its_operand_leads_elsewhere(files):
    """The question of a command names the file that a rule asks about, so its answer holds for that one (R9, R22)."""
    rules = [{"domain": "bash", "pattern": "cat *", "decision": "allow"}, {"domain": "read", "pattern": "*", "decision": "ask"}]
    files.config(permission={"rules": rules})
    question = await asked(files, files.call("bash", command="cat a.txt"))
    assert question.request["reason"].startswith("vault:/a.txt: rule ask '*'")
    to_a_link_inside(files.vault)
    end, results, [again] = await answered(files, question, "once")
    assert (end, results) == ("approval_required", []) and again.request["reason"].startswith("vault:/other/b.txt: ")


async def test_nobody_is_asked_two_things_about_one_call(files):
    """What was open gives way to what is asked now; answering it says so (D65)."""
    rule(files)
    first = await asked(files, files.call("read", path="a.txt"))
    to_a_link_inside(files.vault)
    async with files.host() as host:
        session = await host.resume(files.vault, model=files.script({"text": "done"}))
        await session.resume(LATER)
        [now] = await host.store.approvals(state="pending")
        assert (await host.approvals.reply(first.id, "once")).state == "expired"
    assert now.id != first.id and "before" not in now.request["reason"]


async def test_a_childs_stored_answer_does_not_hold_for_another_file(files):
    """A sub-agent's question is bound as its parent's is (R18, D66)."""
    rule(files)
    script = files.home.parent / "reader.json"
    script.write_text(json.dumps([files.call("read", path="a.txt"), {"text": "read"}]))
    agent = files.home / "agents" / "reader.md"
    agent.parent.mkdir(mode=0o700)
    agent.write_text(f"---\n{json.dumps({'id': 'reader', 'mode': 'subagent', 'model': f'script:{script}'})}\n---\nRead.\n")
    agent.chmod(0o600)
    question = await asked(files, files.call("task", agent="reader", prompt="x"))
    to_a_link_out(files.vault)
    script.write_text(json.dumps([{"text": "read"}]))
    end, _, [again] = await answered(files, question, "once")
    assert end == "approval_required" and again.session == question.session
    assert again.request["targets"] == (f"fs:{files.vault.parent}/outside/id_rsa",)


async def test_an_answer_given_once_counts_once(rig):
    """A tool that asks the same twice is answered twice (S0.9)."""
    rig.allow_all()
    rig.plugin(
        "twice",
        """
        @tool(domain="read")
        async def twice(ctx: ToolContext) -> str:
            "Ask twice."
            await ctx.ask(Ask("sure?"))
            await ctx.ask(Ask("sure?"))
            return "both"

        @hookimpl
        def tools():
            return [twice]
    """,
    )
    replies = iter(["once", "reject"])

    def answer(host, event):
        if event.type == "permission.asked":
            import asyncio

            asyncio.get_running_loop().create_task(host.approvals.reply(event.data["approval_id"], next(replies)))

    await rig.run(rig.call("twice"), {"text": "done"}, on_ask="prompt", watch=answer)
    assert [node.payload["status"] for node in rig.path if node.kind == "tool"] == ["denied"]
