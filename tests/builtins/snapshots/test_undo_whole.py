"""What belongs to a step and what does not: children, forks, imports, a person's own saves, and what is not recorded."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from moryflow_builtins.snapshots import recorder


def call(name: str, *, purpose: str = "main", delay: float = 0, **arguments) -> dict:
    """A model's answer that calls one tool."""
    return {"purpose": purpose, "delay": delay, "calls": [{"name": name, "arguments": arguments}]}


def says(text: str, purpose: str = "main") -> dict:
    return {"purpose": purpose, "text": text}


def child_writes(path: str, content: str, *, background: bool, delay: float = 0.0) -> list[dict]:
    """A task that writes a file, as the answers of parent and child."""
    return [
        call("task", agent="general", prompt="x", background=background),
        call("write", purpose="child", delay=delay, path=path, content=content),
        says("child done", "child"),
    ]


# -------------------------------------------------------------------- children


@pytest.mark.parametrize("background", [False, True])
async def test_undo_takes_the_changes_of_children_along(desk, background):
    """A child in the foreground, or one that wrote after the step that started it had ended (S4.8, S2.3)."""
    (desk.vault / "a.txt").write_text("old\n")
    turns = child_writes("a.txt", "child\n", background=background, delay=0.3)
    await desk.turn(*turns, says("main done"), says("heard"), prompt="go", settle=True)
    assert (desk.vault / "a.txt").read_text() == "child\n"
    done = desk.cli("session", "undo", "-y")
    assert "-child" in done.stderr and "+old" in done.stderr and "by it, or by you" not in done.stderr
    assert (desk.vault / "a.txt").read_text() == "old\n"
    desk.cli("session", "redo", "-y")
    assert (desk.vault / "a.txt").read_text() == "child\n"


async def test_the_step_of_another_turn_takes_no_child_along(desk):
    """Undo of the last turn leaves what a child of an earlier turn did meanwhile, and names it (S4.8)."""
    started = child_writes("child.txt", "c\n", background=True, delay=0.3)[0:1]
    later = call("write", delay=0.8, path="main.txt", content="m\n")
    rest = [call("write", purpose="child", delay=0.3, path="child.txt", content="c\n"), says("child done", "child")]
    session = await desk.turn(*started, *rest, says("one"), says("heard"), prompt="first", settle=True)
    await desk.turn(later, says("two"), prompt="second", session=session)
    desk.cli("session", "undo", "-y")
    assert (desk.vault / "child.txt").exists() and not (desk.vault / "main.txt").exists()
    desk.cli("session", "undo", "-y")
    assert not (desk.vault / "child.txt").exists()


async def test_a_child_that_still_works_is_named_and_nothing_is_done(desk):
    """Its turn would go on writing behind the undo's back (S4.8)."""
    from moryflow_builtins.snapshots.journal import add, changes_in

    await desk.turn(*child_writes("a.txt", "c\n", background=False), says("done"), prompt="go")
    [folder] = (desk.home / "data" / "snapshots").iterdir()
    [(file, turn)] = [(file, one) for file in (folder / "sessions").iterdir() for one in changes_in(file).values() if one.agent]
    assert turn.pid == 0 and not turn.running
    add(file, turn._replace(pid=os.getpid()))
    done = desk.cli("session", "undo", "-y", code=1)
    assert "general" in done.stderr and "is still running" in done.stderr and (desk.vault / "a.txt").exists()
    add(file, turn._replace(pid=2**22 - 1))
    desk.cli("session", "undo", "-y")
    assert not (desk.vault / "a.txt").exists()


# -------------------------------------------------------------------- forks, imports, sessions without records


async def test_a_fork_takes_back_what_its_original_did(desk):
    """The copied turns changed the same files; the fork's undo brings them back (S4.8, S2.14)."""
    await desk.turn(call("write", path="a.txt", content="1\n"), says("done"), prompt="go")
    fork = desk.cli("session", "fork").stdout.strip()
    done = desk.cli("session", "undo", fork, "-y")
    assert "1 file restored" in done.stdout and not (desk.vault / "a.txt").exists()


async def test_an_imported_session_takes_back_what_was_recorded_here_or_says_that_it_was_not(desk, tmp_path):
    """Where it ran its files come back; elsewhere the undo says that they do not (S4.8, S2.14)."""
    session = await desk.turn(call("write", path="a.txt", content="1\n"), says("done"), prompt="go")
    file = tmp_path / "s.jsonl"
    desk.cli("session", "export", session, "-o", str(file))
    copy = desk.cli("session", "import", str(file)).stdout.split()[0]
    desk.cli("session", "undo", copy, "-y")
    assert copy != session and not (desk.vault / "a.txt").exists()
    (desk.vault / "a.txt").write_text("1\n")
    other = {"MORYFLOW_HOME": str(tmp_path / "other")}
    there = desk.cli("session", "import", str(file), **other).stdout.split()[0]
    done = desk.cli("session", "undo", there, "-y", **other)
    assert "not included: the file changes of an answer are not recorded here" in done.stderr
    assert (desk.vault / "a.txt").exists()


@pytest.mark.parametrize("who", ["the agent", "its sub-agent"])
async def test_what_went_with_a_deleted_session_is_told_at_the_undo_of_those_turns_alone(desk, tmp_path, who):
    """Deleted and imported again, and it has gone on: its old turns say why files stay, its new ones are undone (S4.8)."""
    mine = [call("write", path="old.txt", content="1\n")]
    old = mine if who == "the agent" else child_writes("old.txt", "1\n", background=False)
    session = await desk.turn(*old, says("done"), prompt="before")
    file = tmp_path / "s.jsonl"
    desk.cli("session", "export", session, "-o", str(file))
    desk.cli("session", "delete", session, "-y")
    desk.cli("session", "import", str(file))
    await desk.turn(call("write", path="new.txt", content="2\n"), says("done"), prompt="after", session=session)
    done = desk.cli("session", "undo", "-y")
    assert "are not recorded here" not in done.stderr and "undone: after; 1 file restored" in done.stdout
    done = desk.cli("session", "undo", "-y")
    assert "the file changes of an answer are not recorded here" in done.stderr
    assert "undone: before; 0 files restored" in done.stdout and [*desk.vault.iterdir()] == [desk.vault / "old.txt"]
    assert "are not recorded here" in desk.cli("session", "redo", "-y").stderr
    assert "are not recorded here" not in desk.cli("session", "redo", "-y").stderr


async def test_changes_that_were_not_recorded_are_named_at_the_undo(desk):
    """Recording was switched off: the undo says so, and of which setting (S4.8)."""
    desk.config(enabled=False)
    session = await desk.turn(call("write", path="a.txt", content="1\n"), says("done"), prompt="go")
    desk.config()
    done = desk.cli("session", "undo", session, "-y")
    assert "not included: changes to files were not recorded: agents.runtime.snapshots.enabled was false" in done.stderr
    assert (desk.vault / "a.txt").exists()


# -------------------------------------------------------------------- a person beside the agent


async def test_what_a_person_saves_during_a_step_is_left_alone_and_named(desk):
    """The calls name what they write; anything else that changed meanwhile is not theirs (S4.8)."""
    (desk.vault / "mine.txt").write_text("before\n")

    def save(event):
        if event.type == "tool.result":
            (desk.vault / "mine.txt").write_text("saved while it worked\n")

    await desk.turn(call("write", path="a.txt", content="1\n"), says("done"), prompt="go", watch=save)
    done = desk.cli("session", "undo", "-y")
    assert "left alone: mine.txt was changed by somebody else" in done.stderr
    assert (desk.vault / "mine.txt").read_text() == "saved while it worked\n" and not (desk.vault / "a.txt").exists()


async def test_the_agents_own_file_saved_by_a_person_before_the_step_ended_is_asked_about(desk):
    """It is no longer as the call left it (S4.8)."""

    def save(event):
        if event.type == "step.finish" and event.step == 1:
            (desk.vault / "a.txt").write_text("mine\n")

    def both():
        return {"calls": [{"name": "write", "arguments": {"path": name, "content": "1\n"}} for name in ("a.txt", "b.txt")]}

    await desk.turn(both(), says("done"), prompt="go", watch=save)
    done = desk.cli("session", "undo", "-y", code=2)
    assert "a.txt changed since" in done.stderr and "--keep" in done.stderr
    desk.cli("session", "undo", "-y", "--keep")
    assert (desk.vault / "a.txt").read_text() == "mine\n" and not (desk.vault / "b.txt").exists()


async def test_what_changed_while_a_command_ran_says_so_before_it_is_restored(desk):
    """A command may have written it, or a person: nobody can tell, and the plan says that (S4.8)."""
    await desk.turn(call("bash", command="echo x > made.txt"), says("done"), prompt="go")
    shown = desk.cli("session", "undo", "--dry-run").stdout
    assert "- made.txt  (while bash ran; by it, or by you)" in shown
    assert "not included: what bash did outside this folder" in shown


async def test_what_is_overwritten_by_force_can_still_be_seen(desk):
    """The command that shows it is printed, and works (S4.8)."""
    await desk.turn(call("write", path="a.txt", content="agent\n"), says("done"), prompt="go")
    (desk.vault / "a.txt").write_text("mine\n")
    done = desk.cli("session", "undo", "-y", "--force")
    command = done.stderr.split("what was overwritten is kept: ")[1].splitlines()[0]
    assert desk.shell(command) == "mine\n" and not (desk.vault / "a.txt").exists()


# -------------------------------------------------------------------- what no snapshot has


async def test_a_file_that_grows_over_the_limit_is_named_and_stays(desk):
    """Neither its old nor its new content takes the other's place (S4.8)."""
    desk.config(maxFileBytes=100)
    (desk.vault / "log.txt").write_text("small\n")
    (desk.vault / "big.bin").write_bytes(b"x" * 200)
    await desk.turn(call("bash", command="head -c 300 /dev/zero > log.txt; rm big.bin; echo y > ok.txt"), says("done"))
    done = desk.cli("session", "undo", "-y")
    for name in ("log.txt", "big.bin"):
        assert f"not included: {name}: it is larger than agents.runtime.snapshots.maxFileBytes (100)" in done.stderr
    assert (desk.vault / "log.txt").stat().st_size == 300 and not (desk.vault / "ok.txt").exists()


async def test_a_file_that_shrinks_again_is_never_given_the_content_of_long_ago(desk):
    """What was too large before the step cannot be brought back; the version before that is not it (S4.8)."""
    desk.config(maxFileBytes=100)
    (desk.vault / "log.txt").write_text("long ago\n")
    session = await desk.turn(call("bash", command="head -c 300 /dev/zero > log.txt"), says("done"), prompt="grow")
    await desk.turn(call("bash", command="echo new > log.txt"), says("done"), prompt="shrink", session=session)
    done = desk.cli("session", "undo", "-y")
    assert "not included: log.txt" in done.stderr and (desk.vault / "log.txt").read_text() == "new\n"


async def test_named_files_that_no_snapshot_has_are_named_with_the_reason(desk):
    """Ignored, and outside of the vault (S4.8)."""
    (desk.vault / ".gitignore").write_text("secret/\n")
    outside = desk.home.parent / "outside.txt"
    names = ("secret/a.txt", str(outside))
    calls = [{"name": "write", "arguments": {"path": name, "content": "1\n"}} for name in names]
    await desk.turn({"calls": calls}, says("done"), prompt="go")
    done = desk.cli("session", "undo", "-y")
    assert "not included: secret/a.txt: .gitignore names it" in done.stderr
    if outside.exists():
        assert f"not included: {outside}: it is outside this folder" in done.stderr


async def test_a_snapshot_that_takes_long_says_so_and_says_it_again(desk, monkeypatch):
    """With the number of files, so that nobody takes the host for stuck (S4.8)."""
    monkeypatch.setattr(recorder, "_SAID_AGAIN", 0.1)
    slow = desk.home.parent / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\ncase "$*" in *update-index*) sleep 2;; esac\nexec {shutil.which("git")} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    for number in range(1200):
        (desk.vault / f"{number}.txt").write_text("x")
    seen = []
    await desk.turn({"calls": [{"name": "write", "arguments": {"path": "a.txt", "content": "1"}}]}, says("done"), events=seen)
    texts = [event.data["text"] for event in seen if event.type == "plugin.snapshots.notice"]
    assert texts[0] == f"recording 1,200 files of {desk.vault}, so that changes can be undone"
    assert texts[1].startswith(f"still {texts[0]} (")


async def test_changes_in_a_repository_inside_the_vault_are_taken_back(desk):
    """Those of a command and those of a tool that names its file, also where the repository had no files (S4.8)."""
    desk.shell("git init -q inner; git init -q bare; echo old > inner/a.txt; echo old > inner/b.txt")
    command = "echo new > inner/a.txt; rm inner/b.txt; echo new > bare/c.txt"
    write = {"name": "write", "arguments": {"path": "inner/d.txt", "content": "1\n"}}
    await desk.turn(call("bash", command=command), {"calls": [write]}, says("done"))
    done = desk.cli("session", "undo", "-y")
    assert desk.shell("cat inner/a.txt inner/b.txt; ls inner") == "old\nold\na.txt\nb.txt\n"
    assert not (desk.vault / "bare" / "c.txt").exists()
    assert "4 files restored" in done.stdout and "inside .git" in done.stderr


def test_a_step_that_was_killed_is_not_undone_without_a_word(desk):
    """What changed since its call began may be its own: it is asked about (S4.8, SECURITY §3)."""
    script = desk.home.parent / "script.json"
    script.write_text(json.dumps([call("bash", command="echo 1 > a.txt; echo > begun; sleep 60"), says("no")]), "utf-8")
    environ = {**os.environ, "MORYFLOW_HOME": str(desk.home)}
    process = subprocess.Popen(
        [sys.executable, "-m", "moryflow", "run", "-m", f"script:{script}", "go"], cwd=desk.vault, env=environ,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not (desk.vault / "begun").exists():
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = desk.cli("session", "undo", "-y", code=2)
    assert "a.txt, begun changed since" in done.stderr
    desk.cli("session", "undo", "-y", "--force")
    assert not (desk.vault / "a.txt").exists()
