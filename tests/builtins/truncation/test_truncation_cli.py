"""``moryflow output``: stored outputs on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

BIG = """
    @tool(domain="read")
    def big() -> str:
        "Many lines."
        return "".join(f"line {number}\\n" for number in range(1, 3001))
"""
TEXT = "".join(f"line {number}\n" for number in range(1, 3001))


@pytest.fixture
async def stored(bench):
    """Two stored outputs of two sessions."""
    bench.tool(BIG)
    return [(await bench.run(bench.calls(("big", {})))).tools()[0] for _ in range(2)]


async def test_list_shows_the_newest_first(bench, stored):
    """As text, as JSON, of one session, and under its other spellings (S0.56, D62)."""
    text = bench.cli("output", "list")
    assert text.returncode == 0 and [line.split()[0] for line in text.stdout.splitlines()] == [
        node["output_id"] for node in reversed(stored)
    ]
    rows = json.loads(bench.cli("outputs", "ls", "--json").stdout)
    assert [row["path"] for row in rows] == [node["path"] for node in reversed(stored)] and rows[0]["state"] == "stored"
    mine = json.loads(bench.cli("output", "list", "--session", rows[1]["session"], "--json").stdout)
    assert [row["id"] for row in mine] == [stored[0]["output_id"]]


async def test_show_prints_the_whole_and_nothing_else(bench, stored):
    """By id or the beginning of one (S0.56)."""
    assert bench.cli("output", "show", stored[0]["output_id"]).stdout == TEXT
    assert bench.cli("output", "show", stored[0]["output_id"][:8]).stdout == TEXT


async def test_show_gives_parts_by_byte(bench, stored):
    """--offset and --limit, and where to go on in JSON (S0.56)."""
    identity = stored[0]["output_id"]
    assert bench.cli("output", "show", identity, "--offset", "7", "--limit", "7").stdout == "line 2\n"
    part = json.loads(bench.cli("output", "show", identity, "--limit", "14", "--json").stdout)
    assert (part["text"], part["next_offset"], part["size"]) == ("line 1\nline 2\n", 14, len(TEXT))
    rest = json.loads(bench.cli("output", "show", identity, "--offset", str(len(TEXT) - 5), "--json").stdout)
    assert rest["next_offset"] is None


async def test_an_unknown_or_expired_output_is_an_error_with_a_next_step(bench, stored):
    """No traceback, nothing on standard output (S0.54)."""
    unknown = bench.cli("output", "show", "nope")
    assert unknown.returncode != 0 and "nope" in unknown.stderr and "output list" in unknown.stderr and not unknown.stdout
    Path(stored[0]["path"]).unlink()
    gone = bench.cli("output", "show", stored[0]["output_id"])
    assert gone.returncode != 0 and "expired" in gone.stderr and "Traceback" not in gone.stderr


def opener(folder: Path) -> dict[str, str]:
    """A program in the place of the system's opener that writes down its arguments."""
    folder.mkdir()
    for name in ("xdg-open", "open"):
        program = folder / name
        program.write_text('#!/bin/sh\nfor a in "$@"; do echo "$a"; done > "$(dirname "$0")/seen"\n')
        program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


async def test_open_hands_the_path_to_the_system_as_one_argument(bench, tmp_path, stored):
    """An argument list, no shell (S0.56, R25)."""
    environ = opener(tmp_path / "bin")
    assert bench.cli("output", "open", stored[0]["output_id"], **environ).returncode == 0
    assert (tmp_path / "bin" / "seen").read_text() == stored[0]["path"] + "\n"


async def test_open_is_refused_in_the_remote_profile(bench, tmp_path, stored):
    """Such a host never opens files with the system (D71)."""
    environ = opener(tmp_path / "bin")
    refused = bench.cli("--profile", "remote", "output", "open", stored[0]["output_id"], **environ)
    assert refused.returncode != 0 and "remote" in refused.stderr
    assert not (tmp_path / "bin" / "seen").exists()


async def test_open_without_an_opener_says_what_works(bench, tmp_path, stored):
    """A system without a desktop (S0.56)."""
    (tmp_path / "bin").mkdir()
    done = bench.cli("output", "open", stored[0]["output_id"], PATH=str(tmp_path / "bin"))
    assert done.returncode != 0 and "output show" in done.stderr
