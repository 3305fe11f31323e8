"""What must have been read before a risky write, in each mode."""

from __future__ import annotations

import pytest

PATTERNS = "memory-bank/details/patterns.md"
MEMORY = "memory-bank/MEMORY.md"


def call(name, **arguments):
    return {"calls": [{"name": name, "arguments": arguments}]}


READ = call("read", path=PATTERNS)
RISKY = call("write", path="package.json", content='{"a": 1}\n')
HARMLESS = call("write", path="notes.md", content="more\n")


async def test_block_refuses_a_high_risk_write_and_names_one_next_step(project):
    """Refused, nothing written, one step, told as the bank's doing (S3.23, S3.26, S3.28, S3.33)."""
    project.configure(bank={"guardMode": "block"})
    talk = await project.run(RISKY, "sorry")
    assert (talk.last["status"], talk.last["code"]) == ("denied", "memory_bank")
    assert talk.last["output"].endswith(f"Next: read {PATTERNS}") and talk.last["output"].count("Next:") == 1
    assert (project.vault / "package.json").read_text() == "{}\n"
    assert talk.result.exit_code == 0 and talk.events("gate")[0]["action"] == "blocked"


async def test_reading_patterns_lets_the_write_pass(project):
    """The only next step is the right one (S3.26, S3.37, D30)."""
    project.configure(bank={"guardMode": "block"})
    talk = await project.run(READ, RISKY, "done")
    assert [node["status"] for node in talk.tools] == ["ok", "ok"] and "was not read" not in talk.last["output"]
    assert (project.vault / "package.json").read_text() == '{"a": 1}\n'


async def test_reading_memory_md_is_not_enough(project):
    """MEMORY.md counts no longer when there is patterns.md (S3.37)."""
    project.configure(bank={"guardMode": "block"})
    talk = await project.run(call("read", path=MEMORY), RISKY, "done")
    assert talk.last["status"] == "denied" and PATTERNS in talk.last["output"]


async def test_low_risk_passes_in_block_mode_with_a_reminder(project):
    """Block is for high risk alone; what is low is warned about (S3.26, S3.28, D28)."""
    project.configure(bank={"guardMode": "block"})
    talk = await project.run(HARMLESS, "done")
    assert talk.last["status"] == "ok" and f"Next: read {PATTERNS}" in talk.last["output"]
    assert (project.vault / "notes.md").read_text() == "more\n"


async def test_warn_is_the_default_and_never_blocks(project):
    """A high-risk write runs, with a reminder of one step; the next one is not reminded again (S3.28, D28)."""
    talk = await project.run(RISKY, call("write", path="package.json", content="{}"), HARMLESS, "done")
    first, second, third = talk.tools
    assert [node["status"] for node in talk.tools] == ["ok"] * 3
    assert "high-risk write" in first["output"] and first["output"].count("Next:") == 1
    assert "was not read" not in second["output"]
    assert "low-risk write" in third["output"]
    assert [event["action"] for event in talk.events("gate")] == ["warned", "warned"]
    assert "high-risk write to vault:/package.json" in talk.events("notice")[0]["text"], "the person sees it too"


async def test_off_injects_and_protects_only(project):
    """No reminder, no block; the bank is still injected and still not to be written (S3.28)."""
    project.configure(bank={"guardMode": "off"})
    talk = await project.run(RISKY, call("write", path=MEMORY, content="x"), "done")
    assert "memory bank" not in talk.tools[0]["output"] and talk.tools[1]["status"] == "denied"
    assert "# Memory" in (project.vault / MEMORY).read_text()


@pytest.mark.parametrize(("variable", "expected"), [("block", "denied"), (" BLOCK ", "denied"), ("off", "ok"), ("warn", "ok")])
async def test_the_environment_chooses_the_mode(project, variable, expected):
    """MEMORY_BANK_GUARD_MODE stands above the file (S3.28)."""
    project.configure(bank={"guardMode": "block" if variable == "off" else "off"})
    project.environ["MEMORY_BANK_GUARD_MODE"] = variable
    talk = await project.run(RISKY, "done")
    assert talk.last["status"] == expected
    assert ("high-risk" in talk.last["output"]) == (variable != "off")


@pytest.mark.parametrize("filed", [{}, {"guardMode": "block"}, {"guardMode": "of"}])
async def test_a_mode_that_is_none_blocks_and_is_named(project, filed):
    """A wrong value makes the guard no weaker than what may be meant, and does not stop the host (S3.28, R37)."""
    project.configure(bank=filed)
    project.environ["MEMORY_BANK_GUARD_MODE"] = "blok"
    async with project.host() as host:
        record = next(record for record in host.plugin_set.records if record.name == "memory_bank")
        assert record.status == "loaded" and "guardMode" in record.error
        assert host.plugin_set.plugins["memory_bank"].config.guard_mode == "block"


async def test_without_the_folder_nothing_is_gated(bare):
    """Inactive, not even a reminder; the tools are not offered and nothing is kept (S3.29)."""
    bare.configure(bank={"guardMode": "block"})
    async with bare.conversation(RISKY, call("memory_propose", target="a.md", draft="x"), "done") as talk:
        await talk.say("from now on we use tabs")
        assert [node["status"] for node in talk.tools] == ["ok", "error"]
        assert talk.tools[1]["code"] == "unknown_tool" and "memory bank" not in talk.tools[0]["output"]
        assert await talk.state() == {} and await talk.state("turn") == {}


async def test_without_patterns_memory_md_suffices(project):
    """What there is must have been read (S3.25, D30)."""
    project.configure(bank={"guardMode": "block"})
    project.patterns.unlink()
    talk = await project.run(RISKY, call("read", path=MEMORY), RISKY, "done")
    assert [node["status"] for node in talk.tools] == ["denied", "ok", "ok"]
    assert f"Next: read {MEMORY}" in talk.tools[0]["output"]


async def test_with_neither_file_the_gate_is_off_with_one_notice(project):
    """Nothing can be asked for, and that is said once a session (D30)."""
    project.configure(bank={"guardMode": "block"})
    project.patterns.unlink()
    (project.vault / MEMORY).unlink()
    async with project.conversation(RISKY, RISKY, "done", RISKY, "done") as talk:
        await talk.say("go")
        await talk.say("again")
        assert {node["status"] for node in talk.tools} == {"ok"}
        (notice,) = talk.events("notice")
        assert notice["text"].endswith("Next: moryflow memory-bank init")


async def test_each_message_of_a_person_asks_for_the_reading_again(project):
    """State is per message (S3.24, S3.37)."""
    project.configure(bank={"guardMode": "block"})
    async with project.conversation(READ, RISKY, "done", RISKY, "done") as talk:
        await talk.say("go")
        kept = await talk.state("turn")
        assert list(kept["readFiles"]) == [PATTERNS] and kept["contextSatisfied"] is True
        await talk.say("again")
        assert [node["status"] for node in talk.tools] == ["ok", "ok", "denied"]


@pytest.mark.parametrize(
    "look",
    [
        call("glob", pattern="memory-bank/**"),
        call("ls", path="memory-bank/details"),
        call("ls", path=PATTERNS),
        call("grep", pattern="Money", path=PATTERNS),
        call("grep", pattern=".", path=PATTERNS),
        call("read", path=PATTERNS, limit=2),
        call("read", path=PATTERNS, offset=4),
        call("read", path="memory-bank/details/nothing.md"),
    ],
    ids=["glob", "ls folder", "ls file", "grep", "grep every line", "two lines", "from the middle", "missing"],
)
async def test_looking_is_not_reading(project, look):
    """Only what showed the file from its beginning counts (S3.25, D30)."""
    project.configure(bank={"guardMode": "block"})
    talk = await project.run(look, RISKY, "done")
    assert talk.last["status"] == "denied"


async def test_a_read_that_was_refused_or_failed_does_not_count(project):
    """The result decides, not the wish (S3.25, D30)."""
    rules = [{"domain": "read", "pattern": "vault:/memory-bank/**", "decision": "deny"}]
    project.configure(bank={"guardMode": "block"}, runtime={"permission": {"rules": rules}})
    talk = await project.run(READ, RISKY, "done")
    assert [node["status"] for node in talk.tools] == ["denied", "denied"]


async def test_an_error_that_shows_the_file_does_not_count(project):
    """Successful means successful (S3.25, D30)."""
    project.plugin(
        "half",
        """
        @tool(domain="read", targets=lambda args: [file_target(args["path"], "read")])
        def half(path: str) -> ToolResult:
            "Fail after reading."
            return ToolResult(status="error", code="io", output=open(path).read())

        @hookimpl
        def tools():
            return [half]
        """,
    )
    project.configure(bank={"guardMode": "block"})
    talk = await project.run(call("half", path=str(project.patterns)), RISKY, "done")
    assert "Money is kept" in talk.tools[0]["output"] and talk.last["status"] == "denied"


async def test_reads_and_writes_of_one_answer_are_judged_in_order(project):
    """A write beside the read in the same answer comes after it (S3.26)."""
    project.configure(bank={"guardMode": "block"})
    together = {"calls": [READ["calls"][0], RISKY["calls"][0]]}
    talk = await project.run(together, "done")
    assert [node["status"] for node in talk.tools] == ["ok", "ok"]


async def test_numbered_and_external_readings_count_alike(project):
    """Domains and paths count, not the names of tools (S3.25)."""
    project.plugin(
        "reader",
        """
        from pathlib import Path

        def where(args):
            return [file_target(args["path"], "read")]

        @tool(domain="read", targets=where)
        def look(path: str, ctx: ToolContext) -> str:
            "Look."
            return ctx.files.read(ctx.call.targets[0]).decode()

        services = ("files",)

        @hookimpl
        def tools():
            return [look]
        """,
    )
    project.configure(bank={"guardMode": "block"})
    assert (await project.run(call("look", path=PATTERNS), RISKY, "done")).last["status"] == "ok"
    numbered = call("read", path=PATTERNS, line_numbers=True)
    assert (await project.run(numbered, RISKY, "done")).last["status"] == "ok"


async def test_an_external_tool_that_edits_is_gated_too(project):
    """By its domain and resolved path, also through a link (S3.26, S3.27)."""
    (project.vault / "link.json").symlink_to("package.json")
    project.plugin(
        "editor",
        """
        def where(args):
            return [file_target(args["path"], "edit")]

        @tool(domain="edit", targets=where)
        def stamp(path: str) -> str:
            "Stamp."
            open(path, "w").write("stamped")
            return "stamped"

        @hookimpl
        def tools():
            return [stamp]
        """,
    )
    project.configure(bank={"guardMode": "block"})
    path = str(project.vault / "link.json")
    talk = await project.run(call("stamp", path=path), READ, call("stamp", path=path), "done")
    assert [node["status"] for node in talk.tools] == ["denied", "ok", "ok"]
    assert (project.vault / "package.json").read_text() == "stamped"


async def test_neither_rules_nor_full_access_lift_the_gate(project):
    """The guard stands above permission (D32)."""
    project.allow("edit", bank={"guardMode": "block"})
    talk = await project.run(RISKY, "done", mode="full_access")
    assert (talk.last["status"], talk.last["code"]) == ("denied", "memory_bank")
    async with project.host() as host:
        order = [item.plugin for item in host.plugin_set.ordered("tool_gate")]
    assert order.index("memory_bank") < order.index("permission")


async def test_the_trace_shows_who_decided(project):
    """A refusal is in the audit with its cause (S3.32, invariant 10)."""
    project.configure(bank={"guardMode": "block"})
    talk = await project.run(RISKY, "done")
    lines = [line for file in (project.home / "logs" / "agent-audit").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert any('"memory_bank"' in line and "package.json" in line for line in lines) and talk.result.denied


async def test_a_direct_call_is_gated_like_any_other(project):
    """`moryflow tool run` passes the same door (invariant 1, S3.32)."""
    done = project.cli(
        "tool", "run", "write", "--path", "package.json", "--content", "x", "--output", "json", MEMORY_BANK_GUARD_MODE="block"
    )
    assert '"code": "memory_bank"' in done.stdout or '"code":"memory_bank"' in done.stdout
    assert (project.vault / "package.json").read_text() == "{}\n"


async def test_after_a_compaction_the_reading_is_asked_for_again(project):
    """Within one turn: the model does not see the reading any more, but protocol and front page (S3.24, S3.37)."""
    project.configure(bank={"guardMode": "block"})
    long = "x" * 60_000
    async with project.conversation("a", "b", "c", READ, {"error": "context"}, RISKY, "done") as talk:
        for text in ("one ", "two ", "three "):
            await talk.say(text + long)
        await talk.say("write")
        assert "compaction" in [node.kind for node in talk.path]
        assert [node["status"] for node in talk.tools] == ["ok", "denied"]
        assert len(set(talk.systems)) == 1 and "protocol_version: memory-bank/v1" in talk.systems[-1]
        assert (await talk.state("turn"))["summary"]
