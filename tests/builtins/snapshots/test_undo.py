"""Undo and redo of a turn: conversation and files together, on a real vault with real git."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def call(name: str, **arguments) -> dict:
    """A model's answer that calls one tool."""
    return {"calls": [{"name": name, "arguments": arguments}]}


def write(path: str, content: str) -> dict:
    return call("write", path=path, content=content)


async def test_undo_takes_back_the_conversation_and_the_files_together(desk):
    """A changed, a new and a removed file are as they were; the messages are gone from the path, not from the tree (S4.8)."""
    (desk.vault / "a.txt").write_text("one\n")
    (desk.vault / "gone.txt").write_text("still here\n")
    session = await desk.turn("hello", prompt="first")
    await desk.turn(
        write("a.txt", "two\n"),
        write("new/b.txt", "b\n"),
        call("delete", path="gone.txt"),
        "done",
        prompt="second",
        session=session,
    )
    assert (desk.vault / "a.txt").read_text() == "two\n" and not (desk.vault / "gone.txt").exists()
    done = desk.cli("session", "undo", "-y")
    assert "-two" in done.stderr and "+one" in done.stderr and "undone: second; 3 files restored" in done.stdout
    assert (desk.vault / "a.txt").read_text() == "one\n"
    assert (desk.vault / "gone.txt").read_text() == "still here\n"
    assert not (desk.vault / "new/b.txt").exists()
    assert desk.texts(session) == ["first"]


async def test_a_private_file_comes_back_private(desk):
    """Deleted or moved away, and so is a script; git knows of a mode only whether a file can be run (S4.8, R12)."""
    modes = {"diary": 0o600, "keys": 0o640, "run.sh": 0o700, "open": 0o644}
    for name, mode in modes.items():
        (desk.vault / name).write_text(name)
        (desk.vault / name).chmod(mode)
    moves = [call("move", path=name, to=f"away/{name}") for name in ("keys", "run.sh", "open")]
    await desk.turn(call("delete", path="diary"), *moves, "done")
    desk.cli("session", "undo", "-y")
    assert {name: (desk.vault / name).stat().st_mode & 0o777 for name in modes} == modes
    desk.cli("session", "redo", "-y")
    assert (desk.vault / "away/keys").stat().st_mode & 0o777 == 0o640


async def test_redo_brings_it_back_until_the_conversation_goes_on(desk):
    """What was undone can be done again; after another prompt there is nothing to redo (S4.8)."""
    session = await desk.turn(write("a.txt", "a\n"), "done", prompt="write a")
    desk.cli("undo", "-y")
    assert not (desk.vault / "a.txt").exists() and desk.texts(session) == []
    desk.cli("redo", "-y")
    assert (desk.vault / "a.txt").read_text() == "a\n" and desk.texts(session) == ["write a"]
    desk.cli("undo", "-y")
    await desk.turn("something else", prompt="another", session=session)
    done = desk.cli("redo", "-y", code=1)
    assert "nothing to redo" in done.stderr and "Traceback" not in done.stderr


async def test_a_file_that_the_person_changed_since_is_not_touched_without_asking(desk):
    """It is named and nothing at all is done; --keep takes back the rest (S4.8)."""
    session = await desk.turn(write("a.txt", "agent\n"), write("b.txt", "agent\n"), "done")
    (desk.vault / "a.txt").write_text("mine\n")
    done = desk.cli("session", "undo", "-y", code=2)
    assert "a.txt changed since" in done.stderr and "-y --keep" in done.stderr
    assert (desk.vault / "a.txt").read_text() == "mine\n" and (desk.vault / "b.txt").exists()
    assert desk.texts(session) == ["go"]
    desk.cli("session", "undo", "-y", "--keep")
    assert (desk.vault / "a.txt").read_text() == "mine\n" and not (desk.vault / "b.txt").exists()


async def test_a_file_changed_between_two_steps_counts_as_the_persons(desk):
    """The agent, then a person, then the agent again: what the person wrote is not lost silently (S4.8)."""

    def meanwhile(event):
        if event.type == "step.start" and event.step == 2:
            (desk.vault / "a.txt").write_text("mine\n")

    change = call("bash", command="echo agent > a.txt")
    await desk.turn(write("a.txt", "1\n"), change, "done", watch=meanwhile)
    done = desk.cli("session", "undo", "-y", code=2)
    assert "a.txt changed since" in done.stderr and (desk.vault / "a.txt").read_text() == "agent\n"


async def test_what_a_person_saves_while_the_model_answers_is_theirs(desk):
    """What a command changed ends with it: a file of the next moment is not undone with it (S4.8)."""

    def meanwhile(event):
        if event.type == "message.start" and event.step == 2:
            (desk.vault / "mine.txt").write_text("mine\n")

    await desk.turn(call("bash", command="echo one > a.txt"), "done", watch=meanwhile)
    desk.cli("undo", "-y")
    assert not (desk.vault / "a.txt").exists() and (desk.vault / "mine.txt").read_text() == "mine\n"


async def test_one_step_can_be_undone(desk):
    """Only what the last answer did; the turn's earlier steps stay (S4.8)."""
    session = await desk.turn(write("a.txt", "1\n"), write("b.txt", "2\n"), "done")
    desk.cli("session", "undo", "--step", "-y")
    assert desk.texts(session) == ["go"]
    assert (desk.vault / "a.txt").exists() and not (desk.vault / "b.txt").exists()


async def test_nothing_is_done_where_nobody_can_be_asked(desk):
    """Without a terminal and without -y the diff is shown and the exit code is 2; --dry-run never asks (S4.8)."""
    await desk.turn(write("a.txt", "a\n"), "done")
    done = desk.cli("session", "undo", code=2)
    assert "+++ /dev/null" in done.stderr and "nobody can be asked" in done.stderr
    found = json.loads(desk.cli("session", "undo", "--dry-run", "--json").stdout)
    assert found["done"] is False and found["files"] == ["a.txt"]
    assert (desk.vault / "a.txt").exists()


def test_slash_undo_shows_the_diff_before_it_does_it(desk):
    """In chat the first /undo shows, /undo yes does it, and the conversation goes on from there (S4.8)."""
    script = desk.home.parent / "script.json"
    script.write_text(json.dumps([write("a.txt", "a\n"), "done", "again"]), "utf-8")
    lines = "write it\n/undo\n/undo yes\nhello\n/redo\n"
    done = subprocess.run(
        [sys.executable, "-m", "moryflow", "chat", "-m", f"script:{script}"],
        cwd=desk.vault, env={**os.environ, "MORYFLOW_HOME": str(desk.home)}, input=lines, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert "- a.txt" in done.stderr and "/undo yes: undo" in done.stderr
    assert "undone: write it; 1 file restored" in done.stderr
    assert "nothing to redo" in done.stderr
    assert not (desk.vault / "a.txt").exists()
    shown = json.loads(desk.cli("session", "show", "--json").stdout)["nodes"]
    assert [node["payload"]["text"] for node in shown if node["kind"] in ("user", "assistant")] == ["hello", "again"]


async def test_modes_links_and_names_of_every_kind_come_back(desk):
    """An executable, a link, an empty file, blanks and letters of any script (S4.8)."""
    (desk.vault / "run.sh").write_text("#!/bin/sh\n")
    (desk.vault / "run.sh").chmod(0o755)
    (desk.vault / "link").symlink_to("run.sh")
    (desk.vault / "ein Ärger\n.txt").write_bytes(b"\xff\x00\r\n")
    (desk.vault / "empty").touch()
    await desk.turn(call("bash", command="rm -f run.sh link empty ein*; echo x > link"), "done")
    desk.cli("session", "undo", "-y")
    assert (desk.vault / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (desk.vault / "link").readlink() == Path("run.sh")
    assert (desk.vault / "ein Ärger\n.txt").read_bytes() == b"\xff\x00\r\n" and (desk.vault / "empty").exists()


async def test_without_git_there_is_one_notice_and_the_turn_goes_on(desk, tmp_path):
    """Files cannot be undone then, and that is said once per session (S4.8)."""
    events: list = []
    empty = tmp_path / "bin"
    empty.mkdir()
    old, os.environ["PATH"] = os.environ["PATH"], str(empty)
    try:
        session = await desk.turn(write("a.txt", "1"), write("b.txt", "2"), "done", events=events)
    finally:
        os.environ["PATH"] = old
    notices = [event.data["text"] for event in events if event.type == "plugin.snapshots.notice"]
    assert len(notices) == 1 and "git is not installed" in notices[0]
    desk.cli("session", "undo", "-y")
    assert (desk.vault / "a.txt").exists() and desk.texts(session) == []
