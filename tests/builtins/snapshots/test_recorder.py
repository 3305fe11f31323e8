"""When the files of a step are recorded, with a git that is held up."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

SLOW_GIT = """#!/bin/sh
case "$*" in *ls-files*)
    echo >>"{folder}/count"
    [ "$(wc -l <"{folder}/count")" -ne {held} ] || until [ -e "{folder}/go" ]; do sleep 0.01; done ;;
esac
exec "{git}" "$@"
"""


@pytest.fixture
def hold_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Hold up the snapshot with a number until the file that is returned is there."""

    def hold(number: int) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        program = folder / "git"
        program.write_text(SLOW_GIT.format(folder=folder, held=number, git=shutil.which("git")))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        return folder / "go"

    return hold


def bash(command: str) -> dict:
    return {"calls": [{"name": "bash", "arguments": {"command": command}}]}


async def test_the_model_is_asked_while_the_files_after_a_command_are_recorded(desk, hold_snapshot):
    """Nobody waits for the snapshot but the next call that may change files, which is recorded by itself (S4.8)."""
    go = hold_snapshot(2)
    order = []

    def watch(event):
        order.append((event.type, event.step))
        if event.type == "message.start" and event.step == 2:
            go.touch()

    session = await desk.turn(bash("echo one > a.txt"), bash("echo two > b.txt"), "done", watch=watch)
    assert go.exists() and order.index(("message.start", 2)) > order.index(("tool.result", 1))
    (desk.vault / "b.txt").write_text("mine\n")
    done = desk.cli("undo", "-y", code=2)
    assert "b.txt changed since" in done.stderr and "a.txt changed since" not in done.stderr
    desk.cli("undo", "-y", "--force")
    assert not (desk.vault / "a.txt").exists() and not (desk.vault / "b.txt").exists() and desk.texts(session) == []


async def test_a_turn_ends_once_the_files_of_its_last_step_are_recorded(desk, hold_snapshot):
    """What is undone right after the turn is complete: also where the last answer came before the snapshot (S4.8)."""
    go = hold_snapshot(2)

    def watch(event):
        if event.type == "turn.finish":
            go.touch()

    await desk.turn(bash("echo one > a.txt"), "done", watch=watch)
    desk.cli("undo", "-y")
    assert not (desk.vault / "a.txt").exists()
