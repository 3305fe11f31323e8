"""What belongs to a step and what does not: children, forks, imports, a person's own saves, and what is not recorded."""

from __future__ import annotations

import pytest


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
    assert "-child" in done.stderr and "+old" in done.stderr
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
    assert "not included: the file changes of 1 of its answers are not recorded here" in done.stderr
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
    assert "the file changes of 1 of its answers are not recorded here" in done.stderr
    assert "undone: before; 0 files restored" in done.stdout and [*desk.vault.iterdir()] == [desk.vault / "old.txt"]
    assert "are not recorded here" in desk.cli("session", "redo", "-y").stderr
    assert "are not recorded here" not in desk.cli("session", "redo", "-y").stderr


# -------------------------------------------------------------------- a person beside the agent


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


# -------------------------------------------------------------------- what no snapshot has


async def test_a_file_that_grows_over_the_limit_is_named_and_stays(desk):
    """Neither its old nor its new content takes the other's place (S4.8)."""
    desk.config(maxFileBytes=100)
    (desk.vault / "log.txt").write_text("small\n")
    (desk.vault / "big.bin").write_bytes(b"x" * 200)
    await desk.turn(call("bash", command="head -c 300 /dev/zero > log.txt; rm big.bin; echo y > ok.txt"), says("done"))
    done = desk.cli("session", "undo", "-y")
    for name in ("log.txt", "big.bin"):
        assert f"not included: {name} is too large, or cannot be read" in done.stderr
    assert (desk.vault / "log.txt").stat().st_size == 300 and not (desk.vault / "ok.txt").exists()


async def test_a_file_that_shrinks_again_is_never_given_the_content_of_long_ago(desk):
    """What was too large before the step cannot be brought back; the version before that is not it (S4.8)."""
    desk.config(maxFileBytes=100)
    (desk.vault / "log.txt").write_text("long ago\n")
    session = await desk.turn(call("bash", command="head -c 300 /dev/zero > log.txt"), says("done"), prompt="grow")
    await desk.turn(call("bash", command="echo new > log.txt"), says("done"), prompt="shrink", session=session)
    done = desk.cli("session", "undo", "-y")
    assert "not included: log.txt" in done.stderr and (desk.vault / "log.txt").read_text() == "new\n"


async def test_changes_in_a_repository_inside_the_vault_are_taken_back(desk):
    """Those of a command and those of a tool that names its file, also where the repository had no files (S4.8)."""
    desk.shell("git init -q inner; git init -q bare; echo old > inner/a.txt; echo old > inner/b.txt")
    command = "echo new > inner/a.txt; rm inner/b.txt; echo new > bare/c.txt"
    write = {"name": "write", "arguments": {"path": "inner/d.txt", "content": "1\n"}}
    await desk.turn(call("bash", command=command), {"calls": [write]}, says("done"))
    done = desk.cli("session", "undo", "-y")
    assert desk.shell("cat inner/a.txt inner/b.txt; ls inner") == "old\nold\na.txt\nb.txt\n"
    assert not (desk.vault / "bare" / "c.txt").exists()
    assert "4 files restored" in done.stdout
