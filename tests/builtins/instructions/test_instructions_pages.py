"""Instructions that are named by address: fetched like any page, kept, and bounded."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from moryflow.testing import replies
from moryflow.testing.isolated import IsolatedHost
from moryflow.testing.replies import LoopbackServer
from moryflow_builtins.instructions import Instructions, InstructionSettings, instructions_for
from moryflow_builtins.instructions.pages import AGAIN, fetch_instructions


def page(text: bytes, content_type: str = "text/markdown") -> replies.Reply:
    return replies.Reply(text, content_type=content_type)


async def fetched(folder: Path, *addresses: str, **settings: int) -> list[Instructions]:
    return await fetch_instructions(InstructionSettings(files=addresses, **settings), folder)


def later(folder: Path, seconds: float) -> None:
    """Let what is kept be so much older."""
    for file in (folder / "pages").iterdir():
        kept = json.loads(file.read_text())
        file.write_text(json.dumps({**kept, "tried": kept["tried"] - seconds}))


async def test_a_page_is_fetched_once_and_stands_behind_the_files(tmp_path: Path) -> None:
    """It is kept for an hour (S2.5)."""
    with LoopbackServer(page(b"\xef\xbb\xbfBe kind.\n")) as server:
        address = f"{server.address}/rules.md"
        for _ in range(2):
            (found,) = await fetched(tmp_path / "kept", address, "docs/*.md", address)
            assert (found.text, found.name(tmp_path), found.problems) == ("Be kind.", address, ())
        assert len(server.requests) == 1
    (tmp_path / "AGENTS.md").write_text("mine")
    settings = InstructionSettings(files=(address,), claude=False)
    assert [item.text for item in instructions_for(tmp_path, tmp_path, settings, [found])] == ["mine", "Be kind."]


async def test_what_came_before_is_used_while_a_page_does_not_come(tmp_path: Path) -> None:
    """And it is not asked for at every turn."""
    with LoopbackServer(page(b"Be kind."), replies.failure(500), page(b"Be brief.")) as server:
        address = f"{server.address}/rules.md"
        await fetched(tmp_path, address)
        for _ in range(2):
            later(tmp_path, 4000 if len(server.requests) == 1 else 0)
            (found,) = await fetched(tmp_path, address)
            assert (found.text, len(server.requests)) == ("Be kind.", 2)
            assert found.problems == ("it answered 500; the last fetched text is used",)
        later(tmp_path, AGAIN)
        assert [(item.text, item.problems) for item in await fetched(tmp_path, address)] == [("Be brief.", ())]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (page(b"<h1>x</h1>", "text/html"), "neither plain text"),
        (page(b"a\0b"), "neither plain text"),
        (page(b"x" * 200), "more than the 100 bytes"),
        (replies.failure(404), "answered 404"),
        (replies.Reply(status=302, headers={"location": "http://169.254.169.254/"}), "not a public address"),
        (replies.Reply(end="reset"), "broke off"),
    ],
)
async def test_a_page_that_cannot_be_used_is_left_out_and_named(tmp_path: Path, reply: replies.Reply, said: str) -> None:
    with LoopbackServer(reply) as server:
        (found,) = await fetched(tmp_path, f"{server.address}/x", max_bytes=100)
    assert found.text == "" and said in found.problems[0]


async def test_a_private_place_is_no_place_for_instructions(tmp_path: Path) -> None:
    (found,) = await fetched(tmp_path, "http://10.0.0.1/x.md")
    assert "not a public address" in found.problems[0]


async def test_what_is_kept_may_be_broken_or_not_writable(tmp_path: Path) -> None:
    """Then the page is fetched anew."""
    kept = tmp_path / "kept"
    with LoopbackServer(otherwise=page(b"Be kind.")) as server:
        await fetched(kept, f"{server.address}/x")
        (file,) = (kept / "pages").iterdir()
        for text in ("", "[]", '{"text": 1}', json.dumps({"text": "old", "tried": time.time() + 10**6, "problem": ""})):
            file.write_text(text)
            assert [item.text for item in await fetched(kept, f"{server.address}/x")] == ["Be kind."]
        file.replace(tmp_path / "away")
        (kept / "pages").rmdir()
        (kept / "pages").write_text("in the way")
        assert [item.text for item in await fetched(kept, f"{server.address}/x")] == ["Be kind."]


def test_it_stands_in_the_system_prompt(moryflow: IsolatedHost) -> None:
    """Between tags that name the address, in a whole turn."""
    with LoopbackServer(otherwise=page(b"Always say moo.")) as server:
        moryflow.configure({"agents": {"runtime": {"instructions": {"files": [f"{server.address}/x.md"]}}}})
        moryflow.run("Hello", ["Moo."])
        system = moryflow.model.requests[0].messages[0].text
        assert f'<instructions file="{server.address}/x.md">\nAlways say moo.\n' in system
