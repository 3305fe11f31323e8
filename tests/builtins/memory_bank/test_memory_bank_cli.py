"""``moryflow memory-bank init``, ``check`` and ``doctor``, as a person types them."""

from __future__ import annotations

import json

import pytest
from moryflow_builtins.memory_bank import MARKERS, SECTIONS, problem_of, split
from moryflow_builtins.memory_bank.check import check_bank
from moryflow_builtins.memory_bank.cli import diagnose, files, install_skill, make_bank, memory_bank

MEMORY = "memory-bank/MEMORY.md"
PATTERNS = "memory-bank/details/patterns.md"


async def run(project, work, **settings):
    """Call what a command calls, in a host of its own and without a process."""
    if settings:
        project.configure(bank=settings)
    async with project.host() as host, host.read_only(str(project.vault)) as scope:
        return work(scope.view("memory_bank"))


async def checked(project, **settings):
    found, _ = await run(project, check_bank, **settings)
    return found


async def diagnosed(project, **settings):
    return await run(project, diagnose, **settings)


def test_init_check_doctor_and_init_again(bare):
    """A new bank is whole, valid and without drift; doing it again changes nothing (S3.1, S3.34, S3.38, S3.39, S3.40)."""
    made = bare.cli("memory-bank", "init", "--json")
    assert made.returncode == 0 and set(json.loads(made.stdout)["files"].values()) == {"created"}
    page = (bare.vault / MEMORY).read_text()
    assert [page.index(f"## {name}\n") for name in SECTIONS] == sorted(page.index(f"## {name}\n") for name in SECTIONS)
    assert "By what you want to do, not by topic" in page and "Conclusion first, its boundary, a pointer" in page
    assert "mb:write" in page and "memory-reader" in page and not (bare.bank / "details" / "index.md").exists()
    before = bare.tree()
    again = bare.cli("memory-bank", "init", "--json")
    assert set(json.loads(again.stdout)["files"].values()) == {"unchanged"} and bare.tree() == before
    for command in ("check", "doctor"):
        done = bare.cli("memory-bank", command, "--json")
        document = json.loads(done.stdout)
        assert done.returncode == 0 and document["ok"] and document["findings"] == [], done.stdout


def test_check_says_what_is_wrong_with_exit_code_3(project):
    """As text and as JSON: file, line, what, one next step (S3.13)."""
    page = project.vault / MEMORY
    page.write_text(page.read_text().replace("details/tech.md", "details/gone.md"))
    text = project.cli("memory-bank", "check")
    line = next(number for number, line in enumerate(page.read_text().splitlines(), 1) if "gone.md" in line)
    assert text.returncode == 3 and f"{MEMORY}:{line}: details/gone.md is not there. Next: edit {MEMORY}" in text.stdout
    document = json.loads(project.cli("memory-bank", "check", "--json").stdout)
    assert not document["ok"] and document["findings"][0]["code"] == "link" and document["findings"][0]["line"] == line


def test_check_where_there_is_no_bank(bare):
    """Exit code 3 and the command that makes one (S3.29)."""
    done = bare.cli("memory-bank", "check")
    assert done.returncode == 3 and "moryflow memory-bank init" in done.stdout and not bare.bank.exists()


def test_a_folder_that_is_not_there_is_not_made(bare):
    """A slip of the pen is a usage error (CONTRACT 1)."""
    done = bare.cli("memory-bank", "init", "--vault", "nowhere")
    assert done.returncode == 2 and "there is no such folder" in done.stderr and not (bare.vault / "nowhere").exists()


def test_the_command_stands_in_the_help(bare):
    """A person finds it, and all of its verbs (CONTRACT 1)."""
    assert "memory-bank" in bare.cli("--help").stdout
    assert set(memory_bank.commands) == {"init", "check", "doctor"}


async def test_init_leaves_what_is_there(project):
    """Text of a person, in any block, stays to the byte (S3.1)."""
    page = project.vault / MEMORY
    mine = page.read_text().replace("Your own notes. No tool changes this part.", "  mine\r\tever & ever  \n\n## Project")
    page.write_bytes(mine.encode())
    project.patterns.write_text("no blocks at all\n")
    before = project.tree()
    done = await run(project, make_bank)
    assert set(done.values()) == {"unchanged"} and project.tree() == before


async def test_init_adds_missing_sections_to_the_machine_block_only(project):
    """An older front page gets what v7.1 brought; the person's block is untouched (S3.1, S3.40)."""
    page = project.vault / MEMORY
    whole = page.read_text()
    old = whole[: whole.index("## Drill-Down Protocol")] + whole[whole.index("<!-- MACHINE_BLOCK_END -->") :]
    old = old.replace("Your own notes. No tool changes this part.", "mine")
    page.write_text(old)
    done = await run(project, make_bank)
    new = page.read_text()
    assert done[MEMORY] == "extended: Drill-Down Protocol, Write Safety"
    assert split(new).around == split(old).around and "## Write Safety" in split(new).machine
    assert (await run(project, make_bank))[MEMORY] == "unchanged" and await checked(project) == []


async def test_init_without_blocks_leaves_the_file_alone(project):
    """And says so; check names the line (S3.1)."""
    page = project.vault / MEMORY
    page.write_text("# My own memory\n")
    assert "no machine block" in (await run(project, make_bank))[MEMORY] and page.read_text() == "# My own memory\n"


async def test_init_installs_the_skill_and_keeps_a_changed_one(bare):
    """Where the person's own skills are; a changed page is kept until asked for (S3.2, D70)."""
    bare.cli("memory-bank", "init")
    place = bare.home / "skills" / "memory-bank"
    assert {str(path.relative_to(place)) for path in place.rglob("*.md")} == {
        "SKILL.md", "references/reader.md", "references/writer.md", "references/memory-reader-prompt.md",
    }  # fmt: skip
    (place / "SKILL.md").write_text("mine")
    assert install_skill(bare.home, replace=False)[1].startswith("kept") and (place / "SKILL.md").read_text() == "mine"
    assert bare.cli("memory-bank", "doctor").returncode == 3
    assert "installed" in bare.cli("memory-bank", "init", "--skill").stdout
    assert await diagnosed(bare) == []


def page_with(project, name, change):
    page = project.vault / name
    page.write_text(change(page.read_text()))


def spoiled(name, old, new):
    """Return what puts `new` in place of `old` in one page; an empty `old` appends."""
    return lambda project: page_with(project, name, lambda text: text.replace(old, new) if old else text + new)


def swapped(name, one, other):
    """Return what exchanges two texts of a page."""
    return lambda p: page_with(p, name, lambda t: t.replace(one, "@@").replace(other, one).replace("@@", other))


LOST = "memory-bank/details/lost.md"
SPOILED = {
    "no front page": (lambda p: (p.vault / MEMORY).unlink(), "missing", MEMORY),
    "no patterns": (lambda p: p.patterns.unlink(), "missing", PATTERNS),
    "no machine end": (spoiled(PATTERNS, MARKERS[1], ""), "blocks", PATTERNS),
    "two user blocks": (spoiled(PATTERNS, "", MARKERS[2]), "blocks", PATTERNS),
    "blocks in disorder": (swapped(PATTERNS, MARKERS[0], MARKERS[2]), "blocks", PATTERNS),
    "no section": (spoiled(MEMORY, "## Write Safety", "## Other"), "schema", MEMORY),
    "sections in disorder": (swapped(MEMORY, "## Project", "## Write Safety"), "schema", MEMORY),
    "no front matter": (lambda p: page_with(p, MEMORY, lambda t: t.partition("---\n\n")[2]), "schema", MEMORY),
    "other protocol": (spoiled(MEMORY, "memory-bank/v1", "memory-bank/v9"), "schema", MEMORY),
    "broken front matter": (spoiled(MEMORY, "template:", "template: ["), "schema", MEMORY),
    "open front matter": (spoiled(MEMORY, '"7.1"\n---', '"7.1"\n'), "schema", MEMORY),
    "no title": (spoiled(PATTERNS, "# Patterns", "Patterns"), "schema", PATTERNS),
    "no routes": (spoiled(MEMORY, " → ", " : "), "schema", MEMORY),
    "dead link": (spoiled(PATTERNS, "", "[x](nowhere.md)\n"), "link", PATTERNS),
    "link out": (spoiled(PATTERNS, "", "[x](../../../etc/passwd)\n"), "link", PATTERNS),
    "absolute link": (spoiled(PATTERNS, "", "[x](/etc/passwd)\n"), "link", PATTERNS),
    "dead pointer": (spoiled(PATTERNS, "", "see `details/gone.md:9`\n"), "link", PATTERNS),
    "too long": (spoiled(PATTERNS, "", "\n" * 400), "size", PATTERNS),
    "too much to inject": (spoiled(MEMORY, "", "x" * 9000), "size", MEMORY),
    "a secret": (spoiled(PATTERNS, "", "token: abcd1234efgh\n"), "secret", PATTERNS),
    "a secret file": (lambda p: (p.bank / ".env").write_text("A=1"), "secret", "memory-bank/.env"),
    "not markdown": (lambda p: (p.bank / "run.sh").write_text("ls"), "not_markdown", "memory-bank/run.sh"),
    "latin-1": (lambda p: p.patterns.write_bytes("Größe".encode("latin-1")), "encoding", PATTERNS),
    "binary": (lambda p: p.patterns.write_bytes(b"\x00\x01"), "encoding", PATTERNS),
    "huge": (lambda p: p.patterns.write_bytes(b"x" * 2_000_000), "unreadable", PATTERNS),
    "a link": (lambda p: (p.bank / "l.md").symlink_to("MEMORY.md"), "link", "memory-bank/l.md"),
    "nobody leads there": (lambda p: (p.vault / LOST).write_text(files()[PATTERNS]), "unreached", LOST),
}


@pytest.mark.parametrize("case", SPOILED)
async def test_check_finds(project, case):
    """Structure, schema, links, sizes, secrets, reachability (S3.1, S3.13, S3.34, S3.38, S3.39, D31)."""
    spoil, code, file = SPOILED[case]
    assert await checked(project) == []
    spoil(project)
    found = await checked(project)
    assert (code, file) in [(finding.code, finding.file) for finding in found]
    assert all(finding.next and finding.message for finding in found)


async def test_no_index_is_demanded(project):
    """A folder of many files that the front page leads to is fine as it is (S3.38, D31)."""
    folder = project.bank / "details" / "more"
    folder.mkdir()
    for number in range(20):
        (folder / f"n{number}.md").write_text(files()[PATTERNS])
    spoiled(MEMORY, "- anything else", "- more → [more](details/more/)\n- anything else")(project)
    assert await checked(project) == []


DRIFTS = {
    "bank for another protocol": lambda p: page_with(p, MEMORY, lambda t: t.replace("memory-bank/v1", "memory-bank/v2")),
    "bank without protocol": lambda p: page_with(p, MEMORY, lambda t: t.replace("protocol_version: memory-bank/v1", "x: y")),
    "a section less": lambda p: page_with(p, MEMORY, lambda t: t.replace("## Write Safety", "## X")),
}


@pytest.mark.parametrize("case", DRIFTS)
async def test_doctor_reports_drift_between_bank_and_protocol(project, case):
    """The protocol wins, and the person is told what to change (S3.11, S3.13)."""
    assert await diagnosed(project) == []
    DRIFTS[case](project)
    found = await diagnosed(project)
    assert [finding.code for finding in found] == ["drift"] and found[0].next


async def test_doctor_reads_the_installed_skill(project):
    """Another version, a missing page, a changed page (S3.11, D70)."""
    place, done = install_skill(project.home, replace=False)
    assert done == "installed" and await diagnosed(project) == []
    skill = place / "SKILL.md"
    skill.write_text(skill.read_text().replace("memory-bank/v1\n---", "memory-bank/v0\n---"))
    (place / "references" / "writer.md").unlink()
    codes = [finding.code for finding in await diagnosed(project)]
    assert codes == ["drift", "drift"]


def test_blocks_cut_a_file_without_losing_a_byte():
    """head + machine + between + user + tail is the file (S3.1)."""
    for text in (*files().values(), "a" + "".join(f"{marker}x" for marker in MARKERS) + "\r\nz"):
        blocks = split(text)
        assert blocks and blocks.head + blocks.machine + blocks.between + blocks.user + blocks.tail == text
        assert problem_of(text) is None


def test_init_makes_nothing_where_a_file_stands_for_a_folder(bare):
    """The place that is wrong is named, and what to do; nothing is half made (S3.40)."""
    folder = bare.vault / "memory-bank"
    folder.mkdir()
    (folder / "details").write_text("mine")
    before = bare.tree()
    done = bare.cli("memory-bank", "init")
    assert done.returncode == 1 and "memory-bank/details is there and is not a folder" in done.stderr
    assert "moryflow memory-bank init" in done.stderr and bare.tree() == before
