"""Long outputs on a real host: what the model reads, what is stored, and what is said about it."""

from __future__ import annotations

import asyncio
import re
import stat
from pathlib import Path

import pytest
from moryflow_builtins import truncation

BIG = """
    @tool(domain="read")
    def big(lines: int = 3000, word: str = "line") -> str:
        "Many lines."
        return "".join(f"{word} {number}\\n" for number in range(1, lines + 1))
"""


def text_of(lines: int = 3000, word: str = "line") -> str:
    return "".join(f"{word} {number}\n" for number in range(1, lines + 1))


async def one(bench, source=BIG, arguments=None, name="big", **options):
    """Call one tool once; return the tool node and the outcome."""
    bench.tool(source)
    outcome = await bench.run(bench.calls((name, arguments or {})), **options)
    return outcome.tools()[0], outcome


async def test_a_long_output_becomes_preview_path_and_hint(bench):
    """Preview, full path, next step; the whole is in the vault and the record names it (S0.50, S0.52, S0.53, S0.55, D62)."""
    node, outcome = await one(bench)
    path = Path(node["path"])
    preview, _, notice = node["output"].partition("\n\n[Output truncated: ")
    assert text_of().startswith(preview) and preview.count("\n") == 2000
    assert notice.startswith("the first 2,000 of 3,000 lines, ")
    assert f"Full output: {path}\nNext: `read` it with offset 2001 and limit 1800, or search it with `grep`.]" in notice
    assert path.parent == bench.vault / ".agent-output" and path.read_text() == text_of()
    assert node["truncated"] is True
    async with bench.host() as host:
        row = await host.store.artifact(node["output_id"])
    assert (row.path, row.size, row.tool, row.session) == (str(path), len(text_of()), "big", outcome.session)
    assert row.call_id == node["call_id"]


async def test_the_event_says_truncated_and_where(bench):
    """Clients learn of it without parsing text (S0.53, S0.56)."""
    node, outcome = await one(bench)
    event = outcome.named("tool.result")[0]
    assert (event["truncated"], event["output_id"], event["path"]) == (True, node["output_id"], node["path"])


async def test_folder_and_file_are_private_and_out_of_version_control(bench):
    """0700 with a .gitignore of *, files 0600 named time, tool, id (D36)."""
    node, _ = await one(bench)
    path = Path(node["path"])
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700 and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (path.parent / ".gitignore").read_text() == "*\n"
    assert re.fullmatch(r"\d{8}T\d{6}Z-big-" + node["output_id"] + r"\.txt", path.name)


async def test_what_is_within_the_limits_is_left_alone(bench):
    """Exactly 2,000 lines pass untouched and nothing is stored (D40)."""
    node, _ = await one(bench, arguments={"lines": 2000})
    assert node["output"] == text_of(2000) and "truncated" not in node
    assert not (bench.vault / ".agent-output").exists()


@pytest.mark.parametrize(
    "body",
    ['return ["x" * 80] * 1000', 'raise ToolError("x" * 90_000)', 'return ToolResult(status="error", output="x" * 90_000)'],
)
async def test_every_result_of_every_tool_is_cut_errors_too(bench, body):
    """Structured results, failures and crashes pass the same layer (S0.50, S0.2)."""
    source = f"""
        @tool(domain="read")
        def odd() -> str:
            "Odd."
            {body}
    """
    node, _ = await one(bench, source, name="odd")
    assert node["truncated"] is True and len(node["output"].encode()) < 52_000


async def test_a_crash_is_told_in_few_words(bench):
    """What an exception says is shortened where it is caught, long before the limit (S0.50)."""
    source = """
        @tool(domain="read")
        def odd() -> str:
            "Odd."
            raise ValueError("x" * 90_000)
    """
    node, _ = await one(bench, source, name="odd")
    assert node["status"] == "error" and "ValueError: xxx" in node["output"] and len(node["output"]) < 5_000


async def test_a_denial_is_cut_too(bench):
    """A gate's reason can be long as well (S0.50)."""
    bench.plugin(
        "wordy",
        """
        @tool(domain="read")
        def nothing() -> str:
            "Nothing."
            return ""
        @hookimpl
        def tools():
            return [nothing]
        @hookimpl
        def tool_gate(call):
            return Deny(reason="no " * 20_000)
    """,
    )
    outcome = await bench.run(bench.calls(("nothing", {})))
    assert outcome.tools()[0]["truncated"] is True and outcome.tools()[0]["status"] == "denied"


async def test_plugins_see_the_whole_output_before_it_is_cut(bench):
    """Truncation comes last, whatever a plugin adds; appended text is counted too (D54, D9)."""
    bench.plugin(
        "zz_late",
        """
        @hookimpl
        def tool_after(result):
            lines = result.output.count("\\n")
            return result.replace(output=f"{lines} lines seen\\n" + result.output)
    """,
    )
    node, _ = await one(bench)
    assert node["output"].startswith("3000 lines seen\n")
    assert Path(node["path"]).read_text() == "3000 lines seen\n" + text_of()


@pytest.mark.parametrize("lines", [3, 3000])
async def test_appended_text_is_taken_as_it_is(bench, lines):
    """White space that a plugin appends is kept, shown or stored (D53, D54)."""
    bench.plugin(
        "zz_late",
        """
        @hookimpl
        def tool_after(result):
            return result.replace(output=result.output + "\\n \\t\\n\\n")
    """,
    )
    node, _ = await one(bench, arguments={"lines": lines})
    whole = Path(node["path"]).read_text() if "path" in node else node["output"]
    assert whole == text_of(lines) + "\n \t\n\n"


async def test_images_are_untouched(bench):
    """Only text is cut (S0.50)."""
    source = """
        @tool(domain="read")
        def photo() -> str:
            "Photo."
            return ToolResult(output="y\\n" * 3000, images=(Image(media_type="image/png", data="A" * 100_000),))
    """
    node, _ = await one(bench, source, name="photo")
    assert node["truncated"] is True and len(node["images"][0]["data"]) == 100_000


@pytest.mark.parametrize(("direction", "begins", "ends"), [("tail", 1001, 3000), ("both", 1, 3000)])
async def test_the_direction_can_be_chosen(bench, direction, begins, ends):
    """Tail and both show the end (D39)."""
    bench.config(truncation={"tools": {"big": {"direction": direction}}})
    node, _ = await one(bench)
    shown = node["output"].partition("\n\n[Output truncated: ")[0]
    numbers = [int(found) for found in re.findall(r"line (\d+)", shown)]
    assert (numbers[0], numbers[-1], len(numbers)) == (begins, ends, 2000)


async def test_a_tool_can_have_limits_of_its_own(bench):
    """Per tool, by glob (D39)."""
    bench.config(truncation={"tools": {"b*": {"maxLines": 10}}})
    node, _ = await one(bench, arguments={"lines": 20})
    assert "the first 10 of 20 lines" in node["output"]


async def test_switched_off_for_a_tool_still_loses_nothing_to_the_hosts_cap(bench):
    """Off shows up to four times the limit; beyond, the whole is stored, not lost (D39, invariant 11)."""
    bench.config(truncation={"tools": {"big": {"enabled": False}}})
    small, _ = await one(bench, arguments={"lines": 10_000})
    assert small["output"] == text_of(10_000)
    large, _ = await one(bench, arguments={"lines": 100_000})
    assert "cut by the host" not in large["output"] and Path(large["path"]).read_text() == text_of(100_000)


async def test_a_vault_that_cannot_be_written_falls_back_to_the_home(bench):
    """The first place is tried by writing, then the second (S0.52, D37)."""
    (bench.vault / ".agent-output").write_text("in the way")
    node, _ = await one(bench)
    assert Path(node["path"]).parent == bench.home / "agent-output" and Path(node["path"]).read_text() == text_of()


async def test_when_no_place_can_be_written_the_preview_remains_and_an_event_says_so(bench):
    """Preview, a sentence that the rest is lost, an event; the turn goes on (D37)."""
    (bench.vault / ".agent-output").write_text("in the way")
    (bench.home / "agent-output").write_text("in the way")
    node, outcome = await one(bench)
    assert node["output"].startswith("line 1\nline 2\n") and "could not be stored and is lost" in node["output"]
    assert node["truncated"] is True and "path" not in node and "output_id" not in node
    assert outcome.named("plugin.truncation.lost")[0]["tool"] == "big"
    assert outcome.result.end_reason == "completed"


async def test_the_remote_profile_writes_only_below_the_home(bench):
    """Nothing of ours appears in the workspace (S0.57, D71)."""
    bench.options = {"profile": "remote"}
    node, _ = await one(bench)
    assert Path(node["path"]).parent == bench.home / "agent-output"
    assert not (bench.vault / ".agent-output").exists()


async def test_a_link_in_the_place_of_the_folder_is_not_followed(bench, tmp_path):
    """A vault cannot send outputs elsewhere (R12, D36)."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (bench.vault / ".agent-output").symlink_to(elsewhere)
    node, _ = await one(bench)
    assert list(elsewhere.iterdir()) == [] and Path(node["path"]).parent == bench.home / "agent-output"


READ = """
    @tool(domain="read", targets=lambda args: [file_target(args["path"])])
    def read(path: str, limit: int) -> str:
        "Read."
        import pathlib
        return "".join(pathlib.Path(path).read_text().splitlines(keepends=True)[:limit])
"""


async def test_reading_a_stored_output_does_not_store_it_again(bench):
    """A page within the limits passes; one over them is cut, stored nowhere, and says to ask for less (D36)."""
    first, _ = await one(bench)
    bench.tool(READ)
    pages = bench.calls(("read", {"path": first["path"], "limit": 1500}), ("read", {"path": first["path"], "limit": 2500}))
    small, large = (await bench.run(pages)).tools()
    assert small["output"] == text_of(1500) and "truncated" not in small
    assert large["truncated"] is True and (large["path"], large["output_id"]) == (first["path"], first["output_id"])
    assert "a smaller limit" in large["output"]
    assert len(list((bench.vault / ".agent-output").glob("*.txt"))) == 1


@pytest.mark.parametrize("word", ["line", "w" * 300])
async def test_the_real_reader_pages_through_a_stored_output(bench, word):
    """From the hint on, page after page, without a question, a cut or a second file (S0.55, D36)."""
    node, _ = await one(bench, arguments={"word": word})
    bench.builtins = (*bench.builtins, "moryflow_builtins.permission", "moryflow_builtins.files")
    found = re.search(r"offset (\d+) and limit (\d+)", node["output"])
    offset, limit = int(found[1]), int(found[2])
    seen = node["output"].partition("\n\n[Output truncated")[0]
    async with bench.host() as host:
        while seen.count("\n") < 3000:
            arguments = {"path": node["path"], "offset": offset, "limit": limit}
            result = (await host.call_tool("read", arguments, vault=bench.vault)).result
            assert result.status == "ok" and not result.truncated, result.output
            page = "".join(line for line in result.output.splitlines(keepends=True) if line.startswith(word))
            seen, offset = seen + page, offset + page.count("\n")
    assert seen == text_of(word=word)
    assert len(list((bench.vault / ".agent-output").glob("*.txt"))) == 1


async def test_the_hint_gives_a_page_that_fits(bench):
    """Reading on as the hint says gives a page within the limits, for long lines too (S0.55, D36)."""
    word = "w" * 300
    node, _ = await one(bench, arguments={"word": word})
    offset, limit = map(int, re.search(r"offset (\d+) and limit (\d+)", node["output"]).groups())
    page = "".join(Path(node["path"]).read_text().splitlines(keepends=True)[offset - 1 : offset - 1 + limit])
    assert page and len(page.encode()) <= 51200 and page.startswith(f"{word} {offset}\n")
    shown = node["output"].partition("\n\n[")[0]
    assert text_of(word=word).startswith(shown + page)


AGENT = """
    @hookimpl
    def agents():
        return [Agent(id="narrow", tools={tools!r}, deny_tools={deny!r})]
"""


@pytest.mark.parametrize(
    ("tools", "deny", "named", "not_named"),
    [
        (None, ("read",), ["grep"], ["`read`"]),
        (("big", "re*"), (), ["`read`"], ["grep"]),
        (("big",), (), ["ask for less"], ["`read`", "grep"]),
    ],
)
async def test_the_hint_names_only_tools_that_the_agent_has(bench, tools, deny, named, not_named):
    """An agent is not sent to a tool it may not use (S0.53, R23)."""
    bench.tool(BIG)
    bench.plugin("narrow", AGENT.format(tools=tools, deny=deny))
    async with bench.host() as host:
        session = await host.new_session(bench.vault, model=bench.script(*bench.calls(("big", {}))), agent="narrow")
        await session.prompt("go")
        nodes = await host.store.path(session.id)
    hint = next(node for node in nodes if node.kind == "tool").payload["output"].partition("Next: ")[2]
    assert all(word in hint for word in named) and not any(word in hint for word in not_named)


SPOOL = """
    @tool(domain="read")
    def spool(path: str) -> str:
        "Spool."
        return ToolResult(output="(spooled)", spool=path)
"""


async def test_a_spooled_output_is_moved_not_read(bench, tmp_path):
    """What was too large for memory becomes the stored file itself, whose lines are counted (D54)."""
    file = tmp_path / "spool"
    data = ("é" * 99 + "\n").encode() * 200_000
    file.write_bytes(data)
    number = file.stat().st_ino
    node, _ = await one(bench, SPOOL, {"path": str(file)}, name="spool")
    stored = Path(node["path"])
    assert stored.stat().st_ino == number and stored.read_bytes() == data and not file.exists()
    shown, _, told = node["output"].partition("\n\n[")
    assert data.startswith(shown.encode()) and 50_000 < len(shown.encode()) <= 51_200
    assert "of 200,000 lines" in told
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600


@pytest.mark.parametrize("size", range(1000, 1003))
@pytest.mark.parametrize("direction", ["head", "tail", "both"])
async def test_windows_of_a_spooled_output_keep_characters_whole(bench, tmp_path, direction, size):
    """A window of a file may begin or end inside a character (D39, D54)."""
    bench.config(truncation={"direction": direction, "maxBytes": size})
    file = tmp_path / "spool"
    file.write_bytes("漢字😀".encode() * 50_000)
    node, _ = await one(bench, SPOOL, {"path": str(file)}, name="spool")
    shown = node["output"].partition("\n\n[Output")[0].replace("[… left out …]", "").replace("\n", "")
    assert set(shown) == set("漢字😀") and size - 10 < len(shown.encode()) <= size


async def test_a_spooled_output_that_is_short_is_shown_whole(bench, tmp_path):
    """Spooling is the tool's business; the limits decide (D40)."""
    file = tmp_path / "spool"
    file.write_text("short\n")
    node, _ = await one(bench, SPOOL, {"path": str(file)}, name="spool")
    assert node["output"] == "short\n" and not file.exists() and "truncated" not in node


async def test_a_spooled_output_that_is_gone_leaves_what_the_tool_said(bench, tmp_path):
    """A missing spool is not a crash (D54)."""
    node, _ = await one(bench, SPOOL, {"path": str(tmp_path / "gone")}, name="spool")
    assert node["output"] == "(spooled)" and "truncated" not in node


async def test_a_spooled_output_that_no_place_takes_is_not_left_lying_about(bench, tmp_path):
    """Preview, lost, and the temporary file is removed (D37, D54)."""
    (bench.vault / ".agent-output").write_text("in the way")
    (bench.home / "agent-output").write_text("in the way")
    file = tmp_path / "spool"
    file.write_text(text_of())
    node, outcome = await one(bench, SPOOL, {"path": str(file)}, name="spool")
    assert node["output"].startswith("line 1\n") and "is lost" in node["output"] and not file.exists()
    assert outcome.named("plugin.truncation.lost")[0]["bytes"] == len(text_of())


async def test_people_see_a_mark_in_their_language(bench):
    """The mark and the command that shows all of it, in English and Chinese (S0.56, D73)."""
    node, _ = await one(bench)
    marks = node["metadata"]["truncation"]["marks"]
    assert marks["en"].startswith("truncated") and marks["zh"].startswith("已截断")
    assert all(f"moryflow output show {node['output_id']}" in mark for mark in marks.values())


async def test_text_that_no_file_can_hold_is_stored_readably(bench):
    """Lone surrogates come out of broken sources; they must not lose the output (SECURITY §3)."""
    source = """
        @tool(domain="read")
        def broken() -> str:
            "Broken."
            return "\\udcff" + "x\\n" * 3000
    """
    node, _ = await one(bench, source, name="broken")
    assert Path(node["path"]).read_text(encoding="utf-8").startswith("\\udcffx\n")


async def test_twenty_megabytes_do_not_enter_the_context(bench):
    """The three risks, the third: a huge output costs the context less than 60 KB (S0.2, S0.55)."""
    source = """
        @tool(domain="read")
        def huge() -> str:
            "Huge."
            return "0123456789abcdef\\n" * (20 * 1024 * 1024 // 17)
    """
    node, _ = await one(bench, source, name="huge")
    assert len(node["output"].encode()) < 60_000
    assert Path(node["path"]).stat().st_size > 20_000_000


async def test_expired_files_go_when_a_turn_starts_and_their_rows_stay(bench):
    """Seven days, then the file goes; the record says expired (S0.54, D38)."""
    old = bench.vault / ".agent-output" / "20200101T000000Z-big-0123456789ab.txt"
    old.parent.mkdir()
    old.write_text("old")
    strange = old.with_name("notes.txt")
    strange.write_text("not ours")
    bench.config(truncation={"ttlDays": 0.000001})
    node, _ = await one(bench)
    assert not old.exists() and strange.exists()
    async with bench.host() as host:
        await asyncio.sleep(0.1)
        truncation._last_expiry.clear()  # as in a new process
        session = await host.new_session(bench.vault, model=bench.script({"text": "hi"}))
        await session.prompt("go")
        assert (await host.store.artifact(node["output_id"])).state == "expired"
    assert not Path(node["path"]).exists()


async def test_expiry_looks_at_most_once_an_hour(bench, monkeypatch):
    """A busy host does not search its folders at every turn (D38)."""
    old = bench.vault / ".agent-output" / "20200101T000000Z-big-0123456789ab.txt"
    old.parent.mkdir()
    await bench.run([{"text": "first"}])
    old.write_text("old")
    await bench.run([{"text": "second"}])
    assert old.exists()
    monkeypatch.setitem(truncation._last_expiry, bench.home, truncation._last_expiry[bench.home] - 3600)
    await bench.run([{"text": "an hour later"}])
    assert not old.exists()
