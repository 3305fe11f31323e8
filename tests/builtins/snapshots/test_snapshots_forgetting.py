"""A deleted session leaves nothing behind that nothing else leads to."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest


def call(name: str, *, purpose: str = "main", **arguments) -> dict:
    """A model's answer that calls one tool."""
    return {"purpose": purpose, "calls": [{"name": name, "arguments": arguments}]}


def stored(desk) -> bytes:
    """Everything that the shadow repository holds, unpacked."""
    [folder] = (desk.home / "data" / "snapshots").iterdir()
    output = subprocess.run(
        ["git", "-C", str(folder / "git"), "cat-file", "--batch-all-objects", "--batch"], capture_output=True, check=True
    )
    return output.stdout + b"".join(file.read_bytes() for file in (folder / "sessions").iterdir())


async def test_deleting_a_session_removes_what_undo_had_recorded_of_it(desk):
    """Contents of files, names and sub-agents' changes go; what another session needs for its undo stays (S4.8)."""
    child = [call("write", purpose="child", path="child.txt", content="word-of-child"), {"purpose": "child", "text": "ok"}]
    first = await desk.turn(
        call("write", path="secret.txt", content="word-of-first"), call("task", agent="general", prompt="x"), *child, "done"
    )
    desk.shell("rm secret.txt child.txt")
    second = await desk.turn(call("write", path="other.txt", content="word-of-second"), "done")
    before = stored(desk)
    assert all(f"word-of-{one}".encode() in before for one in ("first", "child", "second")) and b"secret.txt" in before
    desk.cli("session", "delete", first, "-y")
    after = stored(desk)
    assert b"word-of-second" in after
    assert not [word for word in (b"word-of-first", b"word-of-child", b"secret.txt", first.encode()) if word in after]
    desk.cli("session", "undo", second, "-y")
    assert not (desk.vault / "other.txt").exists()
    desk.cli("session", "redo", second, "-y")
    await desk.turn(call("write", path="third.txt", content="3"), "done", session=second)
    desk.cli("session", "undo", second, "-y")
    assert sorted(file.name for file in desk.vault.iterdir()) == ["other.txt"]


@pytest.mark.parametrize("order", ["original first", "middle first"])
async def test_a_fork_keeps_the_undo_of_what_it_was_made_with(desk, order):
    """Also of a sub-agent's changes, also a fork of a fork, whichever is deleted first; later turns are forgotten (S4.8)."""
    child = [call("write", purpose="child", path="child.txt", content="word-of-child"), {"purpose": "child", "text": "ok"}]
    first = await desk.turn(
        call("write", path="a.txt", content="word-of-first"), call("task", agent="general", prompt="x"), *child, "done"
    )
    middle = json.loads(desk.cli("session", "fork", first, "--json").stdout)["id"]
    last = json.loads(desk.cli("session", "fork", middle, "--json").stdout)["id"]
    await desk.turn(call("write", path="b.txt", content="word-of-later"), "done", session=first)
    for gone in (first, middle) if order == "original first" else (middle, first):
        desk.cli("session", "delete", gone, "-y")
    assert b"word-of-later" not in stored(desk)
    done = desk.cli("session", "undo", last, "-y")
    assert "not recorded here" not in done.stderr
    assert sorted(file.name for file in desk.vault.iterdir()) == ["b.txt"]
    desk.cli("session", "redo", last, "-y")
    assert sorted(file.name for file in desk.vault.iterdir()) == ["a.txt", "b.txt", "child.txt"]


async def test_stored_outputs_go_with_their_session_but_not_while_a_fork_leads_to_them(desk):
    """The whole of a long output is a file in the vault; a fork's answers name it (D62, D38)."""
    long = call("bash", command="seq 100000")
    first, second = [await desk.turn(long, "done") for _ in range(2)]
    outputs = desk.vault / ".agent-output"
    assert len(list(outputs.glob("*.txt"))) == 2
    desk.cli("session", "fork", second)
    desk.cli("session", "delete", first, second, "-y")
    assert len(list(outputs.glob("*.txt"))) == 1


async def test_a_vault_that_is_gone_can_be_forgotten(desk, tmp_path: Path):
    """Neither the folder nor git's view of it is needed (S4.8)."""
    first = await desk.turn(call("write", path="a.txt", content="word-of-first"), "done")
    desk.vault.rename(tmp_path / "moved")
    desk.vault.mkdir()
    desk.cli("session", "delete", first, "-y")
    assert b"word-of-first" not in stored(desk)
