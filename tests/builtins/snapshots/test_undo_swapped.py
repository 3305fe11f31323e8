"""Undo and redo where files, folders and links took each other's names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SWAPS = {
    "a folder moved, and a link to it left": "mv d d2; ln -s d2 d",
    "a folder replaced by a link that leads to the vault": "rm -r d; ln -s ../vault d",
    "a folder replaced by a file": "rm -r d; echo a file > d",
    "a file replaced by a folder": "rm f; mkdir f; echo in > f/in",
    "a file replaced by an empty folder": "rm f; mkdir -p f/a/b",
    "a link replaced by a folder": "rm ld; mkdir ld; echo in > ld/in",
    "a file and a folder changed places": "mv d/x d/x2; mkdir -p d/x/z; echo p > d/x/z/p; rm -r d/e; echo > d/e",
    "a file and a link changed places": "rm f; ln -s d f; mv ld f2; rm -r d; ln -s nowhere d",
    "a folder that held only a link": "rm -r d/x d/e; ln -s ../f d/l; mkdir -p n/m; ln -s nowhere n/m/l; rm ld; mv d d3",
    "a file replaced by a link to itself": "rm f; ln -s f f",
    "a file replaced by a link to a device": "rm f; ln -s /dev/null f",
    "links whose text can be shortened": "rm f ld; ln -s ./d/x f; ln -s d// ld; ln -s .//d/../d/. l3",
}


def state(vault: Path) -> dict[str, tuple]:
    """Files and links with content and mode; empty folders are not recorded."""
    found: dict[str, tuple] = {}
    for folder, folders, files in os.walk(vault):
        for name in (*files, *folders):
            place = Path(folder, name)
            key = place.relative_to(vault).as_posix()
            if place.is_symlink():
                found[key] = ("link", os.readlink(place))  # noqa: PTH115  Path.readlink shortens it
            elif place.is_file():
                found[key] = ("file", place.read_bytes(), place.stat().st_mode & 0o111)
    return found


@pytest.mark.parametrize("command", SWAPS.values(), ids=SWAPS)
async def test_undo_and_redo_bring_back_what_took_the_place_of_another_kind(desk, command):
    """Nothing is lost and nobody is asked about what the command itself did (S4.8)."""
    desk.shell("mkdir -p d/e; echo 1 > d/x; echo 2 > d/e/y; echo 3 > f; chmod +x f; ln -s d ld")
    before = state(desk.vault)
    await desk.turn({"calls": [{"name": "bash", "arguments": {"command": command}}]}, "done")
    after = state(desk.vault)
    assert after != before
    for verb, wanted in (("undo", before), ("redo", after), ("undo", before)):
        desk.cli(verb, "-y")
        assert state(desk.vault) == wanted


async def test_what_a_person_put_into_the_place_of_a_file_stays(desk):
    """Nothing at all is done; --keep takes back the rest (S4.8)."""
    (desk.vault / "f").write_text("3\n")
    (desk.vault / "z").write_text("z\n")
    command = "rm f z; mkdir f; echo in > f/in"
    await desk.turn({"calls": [{"name": "bash", "arguments": {"command": command}}]}, "done")
    (desk.vault / "f" / "mine").write_text("mine\n")
    assert "f changed since" in desk.cli("undo", "-y", code=2).stderr
    desk.cli("undo", "-y", "--keep")
    assert state(desk.vault) == {"f/mine": ("file", b"mine\n", 0), "z": ("file", b"z\n", 0)}


async def test_a_file_that_a_turn_made_and_removed_again_is_not_its_own(desk):
    """A person's file of the same name stays, and nobody is asked about it (S4.8)."""
    await desk.turn({"calls": [{"name": "bash", "arguments": {"command": "echo 1 > tmp; mv tmp f"}}]}, "done")
    await desk.turn(
        {"calls": [{"name": "bash", "arguments": {"command": "echo 2 > tmp"}}]},
        {"calls": [{"name": "bash", "arguments": {"command": "mv tmp f"}}]},
        "done",
    )
    (desk.vault / "tmp").write_text("mine")
    desk.cli("undo", "-y")
    assert state(desk.vault) == {"f": ("file", b"1\n", 0), "tmp": ("file", b"mine", 0)}
    desk.cli("redo", "-y")
    assert state(desk.vault) == {"f": ("file", b"2\n", 0), "tmp": ("file", b"mine", 0)}
