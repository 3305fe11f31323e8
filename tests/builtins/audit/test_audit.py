"""The audit log on a real host: every decision, before the body runs, without secrets."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import resource
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow import RunOptions
from moryflow_builtins import audit
from moryflow_builtins.audit import append, file_of, parse
from moryflow_sdk import Agent, Ruling, ToolCall

EIGHT = ["eventId", "sessionId", "mode", "decision", "permissionDomain", "targets", "rulePattern", "timestamp"]
PEEK = """
    import pathlib

    @tool(domain="read", targets=lambda args: [file_target(args["path"])])
    def peek(path: str, ctx: ToolContext) -> str:
        "Say what the audit log holds while the body runs."
        return "".join(file.read_text() for file in (ctx.home / "logs" / "agent-audit").glob("*.jsonl"))
"""
FOLDER = ("logs", "agent-audit")


def gate(verdict: str) -> str:
    return f"@hookimpl\ndef tool_gate(call):\n    return {verdict}\n"


def decisions(lines):
    return [line for line in lines if line["type"] == "decision"]


async def test_an_allowed_call_has_its_line_before_the_body_runs(bench):
    """One JSON line per decision, allowed ones too, written first (S0.72, S0.73, S0.74, invariant 10)."""
    bench.tool(PEEK)
    outcome = await bench.run(bench.calls(("peek", {"path": "a.md"})))
    node = outcome.tools()[0]
    seen = json.loads(node["output"])
    assert list(seen)[:8] == EIGHT
    assert (seen["decision"], seen["callId"], seen["tool"]) == ("allow", node["call_id"], "peek")
    assert (seen["sessionId"], seen["mode"], seen["permissionDomain"]) == (outcome.session, "agent", "read")
    assert (seen["targets"], seen["rulePattern"], seen["ruleSource"]) == (["vault:/a.md"], "*", "default")
    calls = hashlib.sha256(b'{"path":"a.md"}').hexdigest()
    assert seen["argsHash"] == calls and seen["type"] == "decision" and seen["latencyUs"] > 0
    assert {"ruleFile", "ruleLine", "cause", "by", "agent", "parent", "turn"} <= seen.keys()


async def test_targets_are_the_resolved_ones(bench, tmp_path):
    """A link out of the vault is shown as what it leads to (R22)."""
    outside = tmp_path / "outside.md"
    outside.write_text("x")
    (bench.vault / "link.md").symlink_to(outside)
    bench.tool(PEEK)
    await bench.run(bench.calls(("peek", {"path": "link.md"})))
    assert decisions(bench.audit())[0]["targets"] == [f"fs:{outside}"]


async def test_rule_file_and_line_are_named(bench):
    """Which rule, which file, which line (invariant 10)."""
    rule = 'Rule(domain="read", pattern="vault:/**", decision="deny", source="user", file="/c.jsonc", line=7)'
    bench.tool(PEEK, allow=False)
    bench.plugin("rules", gate(f'Deny(reason="no", rule={rule})'))
    await bench.run(bench.calls(("peek", {"path": "a.md"})))
    line = decisions(bench.audit())[0]
    assert (line["decision"], line["rulePattern"]) == ("deny", "vault:/**")
    assert (line["ruleSource"], line["ruleFile"], line["ruleLine"]) == ("user", "/c.jsonc", 7)


async def test_a_denial_and_an_answer_say_who_decided(bench):
    """``by`` tells a rule, a person and nobody apart (S0.73)."""
    bench.tool(PEEK, allow=False)
    bench.plugin("asks", gate('Ask(reason="sure?")'))
    turns = bench.calls(("peek", {"path": "a.md"}), ("peek", {"path": "b.md"}))
    answered = await bench.run(turns, replies=["once", "reject"])
    nobody = await bench.run(turns)
    assert [(line["decision"], line["by"]) for line in decisions(bench.audit(answered.session))] == [
        ("allow", "user"),
        ("deny", "user"),
    ]
    assert {(line["decision"], line["by"]) for line in decisions(bench.audit(nobody.session))} == {("deny", "headless")}


async def test_an_answer_says_once_or_always_and_each_rule_has_a_line(bench):
    """Also a rule that a command adds or removes outside of a session, and no line if it holds already (S0.55, S0.73)."""
    bench.tool(PEEK, allow=False)
    remember = 'remember=(Remember(scope="user", domain="read", pattern="vault:/b.md"),)'
    bench.plugin("asks", gate(f'Ask(reason="sure?", {remember}) if call.args["path"] != "c.md" else Ask(reason="sure?")'))
    calls = bench.calls(*(("peek", {"path": path}) for path in ("a.md", "b.md", "c.md")))
    outcome = await bench.run(calls, replies=["once", "always", "reject"])
    lines = bench.audit(outcome.session)
    assert [(line["decision"], line["by"], line["reply"]) for line in decisions(lines)] == [
        ("allow", "user", "once"),
        ("allow", "user", "always"),
        ("deny", "user", "reject"),
    ]
    stored = [line for line in lines if line["type"] == "rule"]
    assert [(line["change"], line["scope"], line["decision"], line["rulePattern"]) for line in stored] == [
        ("stored", "user", "allow", "vault:/b.md")
    ]
    assert list(stored[0])[:8] == EIGHT and lines.index(stored[0]) < lines.index(decisions(lines)[1])
    for words in ("allow bash ls", "allow bash ls", "remove 2"):
        assert bench.cli("permission", *words.split()).returncode == 0
    shown = bench.cli("audit", "--session", "no-session").stdout.splitlines()
    assert [line.split("  ", 1)[1] for line in shown] == [
        "rule   stored  allow bash ls  (user)",
        "rule   removed  allow bash ls  (user)",
    ]


@pytest.mark.parametrize("child", [False, True])
async def test_a_switch_to_full_access_that_answers_a_question_is_recorded_before_the_call(bench, child):
    """The call is recorded as allowed in full access by the mode, also that of a sub-agent (S0.76, S0.77)."""
    bench.tool(PEEK, allow=False)
    bench.plugin("asks", gate('Ask(reason="sure?") if call.tool == "peek" else Allow()'))
    calls = bench.calls(("peek", {"path": "a.md"}))
    if child:
        task = {"purpose": "main", "calls": [{"name": "task", "arguments": {"agent": "general", "prompt": "x"}}]}
        calls = [task, *({**one, "purpose": "child"} for one in calls), {"purpose": "main", "text": "end"}]
    switching = []

    def switch(session, event):
        if event.type == "permission.asked":
            switching.append(asyncio.ensure_future(session.set_mode("full_access")))

    bench.builtins = (*bench.builtins, "moryflow_builtins.tasks", "moryflow_builtins.agents")
    async with bench.host() as host:
        session = await host.new_session(bench.vault, model=bench.script(*calls))
        host.bus.subscribe(lambda event: switch(session, event))
        await session.prompt("go", options=RunOptions(on_ask="prompt"))
        await asyncio.gather(*switching)
    lines = bench.audit(session.id)
    mode = next(at for at, line in enumerate(lines) if line["type"] == "mode")
    call = next(at for at, line in enumerate(lines) if line.get("tool") == "peek")
    assert mode < call and [line["type"] for line in lines].count("mode") == 1
    assert (lines[call]["decision"], lines[call]["mode"], lines[call]["by"]) == ("allow", "full_access", "mode")
    assert lines[call]["reply"] is None


async def test_full_access_is_recorded_with_its_mode(bench):
    """Silent approvals leave their line (S0.72, S0.76)."""
    bench.tool(PEEK, allow=False)
    bench.plugin("asks", gate('Ask(reason="sure?")'))
    outcome = await bench.run(bench.calls(("peek", {"path": "a.md"})), mode="full_access")
    line = decisions(bench.audit(outcome.session))[0]
    assert (line["decision"], line["by"], line["mode"]) == ("allow", "mode", "full_access")


async def test_a_session_that_begins_in_full_access_says_so_once(bench):
    """The confirmation at the start is a line of its own (S0.69, S0.77)."""
    async with bench.host() as host:
        session = await host.new_session(bench.vault, model=bench.script({"text": "a"}, {"text": "b"}), mode="full_access")
        await session.prompt("one")
        await session.prompt("two")
    modes = [(line["from"], line["to"], line["confirmed"], line["by"]) for line in bench.audit(session.id)]
    assert modes == [(None, "full_access", True, "start")]


async def test_every_switch_of_mode_is_recorded(bench):
    """From, to and by whom, with the eight fields (S0.69, S0.77)."""
    async with bench.host() as host:
        session = await host.new_session(bench.vault, model=bench.script({"text": "a"}))
        await session.set_mode("full_access", by="user")
        await session.set_mode("agent", by="server")
        await session.prompt("go")
    lines = bench.audit(session.id)
    assert [(line["type"], line["from"], line["to"], line["by"]) for line in lines] == [
        ("mode", "agent", "full_access", "user"),
        ("mode", "full_access", "agent", "server"),
    ]
    assert all(list(line)[:8] == EIGHT for line in lines) and lines[0]["mode"] == "full_access"


async def test_secrets_are_redacted_and_a_hash_keeps_targets_comparable(bench):
    """No key in the log; equal targets have equal hashes (D49)."""
    source = """
        @tool(targets=lambda args: [shell_target(args["command"])])
        def shell(command: str) -> str:
            "Shell."
            return "ok"
    """
    bench.tool(source)
    secret = "curl -H 'Authorization: Bearer sk-abcdefghijklmnop' https://user:hunter22@example.org"
    await bench.run(bench.calls(("shell", {"command": secret}), ("shell", {"command": "ls"}), ("shell", {"command": secret})))
    text = next((bench.home.joinpath(*FOLDER)).iterdir()).read_text()
    assert "sk-abcdefghijklmnop" not in text and "hunter22" not in text and "[redacted]" in text
    hashes = [line["targetHashes"] for line in decisions(bench.audit())]
    assert hashes[0] == hashes[2] != hashes[1]
    assert hashes[0] == [hashlib.sha256(f"shell:{secret}".encode()).hexdigest()[:16]]


async def test_one_private_file_per_session(bench):
    """Named by session and hash, 0600 in a folder 0700 (S0.75, D47)."""
    bench.tool(PEEK)
    sessions = [(await bench.run(bench.calls(("peek", {"path": "a.md"})))).session for _ in range(2)]
    folder = bench.home.joinpath(*FOLDER)
    assert {file.name.rpartition("-")[0] for file in folder.iterdir()} == set(sessions)
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}


async def test_deleting_a_session_keeps_its_audit_file(bench):
    """What happened stays on record (D48)."""
    bench.tool(PEEK)
    outcome = await bench.run(bench.calls(("peek", {"path": "a.md"})))
    async with bench.host() as host:
        await host.store.delete(outcome.session)
    assert len(decisions(bench.audit(outcome.session))) == 1


async def test_a_refusal_that_comes_after_the_line_is_recorded_too(bench):
    """A stricter plugin, or a question inside a tool, changes the outcome; the log says so (invariant 10)."""
    bench.tool(PEEK)
    bench.plugin("late", "@hookimpl\ndef tool_decided(call):\n    return Deny(reason='second thoughts')\n")
    await bench.run(bench.calls(("peek", {"path": "a.md"})))
    lines = decisions(bench.audit())
    assert [(line["decision"], line["by"]) for line in lines] == [("allow", "rule"), ("deny", "tool_decided")]
    assert "second thoughts" in lines[1]["reason"] and lines[0]["eventId"] != lines[1]["eventId"]
    assert lines[0]["callId"] == lines[1]["callId"]


async def test_a_childs_calls_stand_in_its_parents_file_too(bench):
    """Audited under both sessions, as one event (D66)."""
    bench.tool(PEEK)
    async with bench.host() as host:
        parent = await host.new_session(bench.vault, model=bench.script({"text": "x"}))
        child = await host.new_session(
            bench.vault, model=bench.script(*bench.calls(("peek", {"path": "a.md"}))), parent=parent.id
        )
        await child.prompt("go")
    own, theirs = decisions(bench.audit(child.id)), decisions(bench.audit(parent.id))
    assert own == theirs and (own[0]["sessionId"], own[0]["parent"]) == (child.id, parent.id)


# ---------------------------------------------------------------- a log that cannot be written


def block(bench):
    """Put a file where the folder of the log should be."""
    (bench.home / "logs").mkdir(exist_ok=True)
    bench.home.joinpath(*FOLDER).write_text("in the way")


async def test_full_access_falls_back_to_asking_and_headless_to_no(bench):
    """Nothing runs unrecorded with nobody looking; path and reason are named (SECURITY §3)."""
    bench.tool(PEEK, allow=False)
    bench.plugin("asks", gate('Ask(reason="sure?")'))
    block(bench)
    turns = bench.calls(("peek", {"path": "a.md"}))
    headless = await bench.run(turns, mode="full_access")
    assert headless.tools()[0]["status"] == "denied"
    person = await bench.run(turns, mode="full_access", replies=["once"])
    question = person.named("permission.asked")[0]
    assert str(bench.home.joinpath(*FOLDER)) in question["reason"] and "errno" in question["reason"]
    assert person.tools()[0]["status"] == "ok"
    assert len(person.named("plugin.audit.unwritable")) == 1


@pytest.mark.parametrize(
    ("mode", "source", "status"),
    [
        ("agent", "default", "ok"),
        ("agent", "user", "denied"),
        ("agent", "session", "denied"),
        ("full_access", "default", "denied"),
    ],
)
async def test_in_agent_mode_the_defaults_hold_and_nothing_looser(bench, mode, source, status):
    """What the defaults allow goes on with a notice; a person's own allow asks instead (SECURITY §3)."""
    rule = f'Rule(domain="read", pattern="*", decision="allow", source="{source}")'
    bench.tool('@tool(domain="read")\ndef ping() -> str:\n    "Ping."\n    return "pong"\n', allow=False)
    bench.plugin("rules", gate(f"Allow(rule={rule})"))
    block(bench)
    outcome = await bench.run(bench.calls(("ping", {}), ("ping", {})), mode=mode)
    assert [node["status"] for node in outcome.tools()] == [status] * 2
    notice = outcome.named("plugin.audit.unwritable")
    assert len(notice) == 1 and notice[0]["path"].startswith(str(bench.home)) and notice[0]["reason"]


async def test_a_person_who_has_just_agreed_is_not_asked_twice(bench):
    """An answer given by a person stands without a record (SECURITY §3)."""
    bench.tool(PEEK, allow=False)
    bench.plugin("asks", gate('Ask(reason="sure?")'))
    block(bench)
    outcome = await bench.run(bench.calls(("peek", {"path": "a.md"})), replies=["once"])
    assert len(outcome.named("permission.asked")) == 1 and outcome.tools()[0]["status"] == "ok"


def test_only_an_allow_that_nobody_answered_is_tightened(bench):
    """The plugin asks for nothing else (SECURITY §3)."""
    block(bench)
    turn = SimpleNamespace(
        home=bench.home, session="s", parent=None, id="t", agent=Agent(id="a"), state={},
        emit=lambda kind, **data: None, log=logging.getLogger(),
    )  # fmt: skip
    rulings = [Ruling(decision="allow"), Ruling(decision="allow", by="user"), Ruling(decision="deny"), Ruling(decision="stop")]
    verdicts = [audit.tool_decided(ToolCall(id="c", tool="t", args={}), ruling, turn) for ruling in rulings]
    assert [getattr(verdict, "decision", None) for verdict in verdicts] == ["ask", None, None, None]


async def test_a_deny_stays_a_deny_when_it_cannot_be_recorded(bench):
    """Never a lost deny (SECURITY §3)."""
    bench.tool(PEEK, allow=False)
    bench.plugin("no", gate('Deny(reason="no")'))
    block(bench)
    outcome = await bench.run(bench.calls(("peek", {"path": "a.md"})), replies=[])
    assert outcome.named("permission.asked") == [] and outcome.tools()[0]["status"] == "denied"


async def test_a_link_in_the_place_of_the_file_is_not_written_through(bench, tmp_path):
    """The log cannot be aimed at another file (R12)."""
    victim = tmp_path / "victim"
    victim.write_text("keep")
    bench.tool(PEEK)
    async with bench.host() as host:
        session = await host.new_session(bench.vault, model=bench.script(*bench.calls(("peek", {"path": "a.md"}))))
        file = file_of(bench.home, session.id)
        file.parent.mkdir(parents=True)
        file.symlink_to(victim)
        await session.prompt("go")
    assert victim.read_text() == "keep"


# ---------------------------------------------------------------- the files themselves


@given(st.lists(st.text(min_size=1, max_size=80), min_size=2, max_size=2, unique=True))
def test_different_sessions_never_share_a_file_and_never_leave_the_folder(ids):
    """Sanitised id plus hash (D47)."""
    one, two = (file_of(Path("/h"), session) for session in ids)
    assert one != two and one.parent == two.parent == Path("/h/logs/agent-audit")
    assert all(c.isalnum() or c in "_-." for c in one.name) and one.name.isascii()


WRITES = """
import json, sys
from pathlib import Path
from moryflow_builtins.audit import append
for number in range(200):
    append(Path(sys.argv[1]), json.dumps({"eventId": f"{sys.argv[2]}{number}", "pad": "x" * 9000}).encode() + b"\\n")
"""


def test_lines_of_several_processes_are_never_torn(tmp_path):
    """One write per line on an appending descriptor (D47)."""
    file = tmp_path / "a" / "log.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITES, str(file), mark]) for mark in "abcd"]
    assert [each.wait(60) for each in writers] == [0] * 4
    lines = file.read_text().splitlines()
    assert len({json.loads(line)["eventId"] for line in lines}) == len(lines) == 800


def test_a_line_after_a_torn_one_is_still_read():
    """What a full disk tore does not take the next record with it (SECURITY §3)."""
    assert parse(b'{"eventId":"1","targets":["x{"eventId":"2","n":2}') == {"eventId": "2", "n": 2}
    assert parse(b'{"eventId":"1","targets":["x') is None and parse(b"[1]") is None


def test_a_line_that_only_fits_in_part_is_an_error_and_the_next_one_is_readable(tmp_path):
    """Disk full in the middle of a line: said, and no later record is lost to it (D47, SECURITY §3)."""
    file = tmp_path / "log.jsonl"
    append(file, b'{"eventId":"1"}\n')
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (24, before[1]))
    try:
        with pytest.raises(OSError, match="only a part") as caught:
            append(file, b'{"eventId":"2"}\n')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.filename == str(file)
    append(file, b'{"eventId":"3"}\n')
    assert [parse(line) for line in file.read_bytes().splitlines()] == [{"eventId": "1"}, {"eventId": "3"}]


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_plain_file_is_not_written_to(tmp_path, kind):
    """Neither a folder nor a pipe that somebody listens at (R12)."""
    file = tmp_path / "log.jsonl"
    if kind == "folder":
        file.mkdir()
    else:
        os.mkfifo(file)
        listener = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError):
        append(file, b"{}\n")
    if kind == "pipe":
        assert os.read(listener, 10) == b""
        os.close(listener)


async def test_a_home_whose_logs_are_removed_gets_new_ones(bench):
    """A folder that vanishes while running is made again (SECURITY §3)."""
    bench.tool(PEEK)
    async with bench.host() as host:
        session = await host.new_session(
            bench.vault, model=bench.script(*bench.calls(("peek", {"path": "a"}), ("peek", {"path": "b"})))
        )

        def remove(event):
            if event.type == "tool.result" and event.data["call_id"] == "call_1_1":
                shutil.rmtree(bench.home / "logs")

        host.bus.subscribe(remove)
        await session.prompt("go")
    assert [line["callId"] for line in decisions(bench.audit())] == ["call_2_1"]
