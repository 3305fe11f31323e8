"""The example paths, against the vault they were written for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from moryflow.services.files import VaultFiles
from moryflow_sdk import Target, ToolError

CORPUS = Path(__file__).parents[2] / "data" / "corpus" / "paths.jsonl"
CASES = [case for line in CORPUS.read_text().splitlines() if (case := json.loads(line))["platform"] != "windows"]
CODES = {"not_regular": "not_a_file", "loop": "invalid_path", "invalid_path": "invalid_path"}


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything in `folder` that must not change."""
    return {str(p): (p.stat().st_ino, p.read_bytes()) for p in sorted(folder.rglob("*")) if p.is_file() and not p.is_symlink()}


def spelled(case: dict[str, Any], base: Path, key: str = "path") -> Any:
    value = case.get(key)
    if not isinstance(value, str):
        return value
    return value.replace("{BASE}", str(base)).replace("{VAULT}", f"{base}/vault").replace("{HOME}", f"{base}/home")


def body(files: VaultFiles, case: dict[str, Any], target: Target, base: Path) -> bytes:
    """Do what the case's tool does with what was judged."""
    match case["tool"]:
        case "read" | "edit":
            return files.read(target)
        case "write":
            files.write(target, b"new")
        case "delete":
            files.remove(target)
        case "move":
            files.move(target, files.resolve(spelled(case, base, "to"), domain="edit"))
        case "glob":
            return b"".join(path.encode() for path, _ in files.walk(target))
        case _:
            return b"".join(files.read(files.resolve(path, base=target.path)) for path, _ in files.walk(target))
    return b""


@pytest.mark.parametrize("case", [case for case in CASES if "race" not in case], ids=lambda case: case["id"])
def test_an_example_never_reaches_further_than_it_should(corpus_files: VaultFiles, base: Path, case: dict[str, Any]) -> None:
    """Inside is ``vault:``, outside is ``fs:`` or an error; literal names stay literal (D8, R5, R12, R20)."""
    before = tree(base / case.get("forbid_change", "outside"))
    target = corpus_files.resolve(spelled(case, base))
    outside = case["cat"] in ("traversal", "symlink") and case["max"] != "allow" and case["tool"] != "glob"
    if outside:
        assert target.error or target.text.startswith("fs:")
    if case["max"] == "allow" and case["kind"] in ("benign", "literal"):
        assert target.error is None and target.text.startswith("vault:/")
    code = ""
    try:
        # What is outside waits for a person; only what is allowed runs on.
        shown = b"" if outside else body(corpus_files, case, target, base)
    except ToolError as error:
        shown, code = str(error).encode(), error.code
    outcome = case.get("outcome", "")
    if outcome.startswith("error:") and not outside and case["cat"] != "invalid":
        wanted = outcome.removeprefix("error:")
        assert code in (CODES.get(wanted, wanted), "invalid_path" if target.error else "")
    if case.get("forbid"):
        assert case["forbid"].encode() not in shown
    if case["kind"] not in ("benign",):
        assert before == tree(base / case.get("forbid_change", "outside"))


RACES = [case for case in CASES if case.get("race")]


@pytest.mark.parametrize("case", RACES, ids=lambda case: case["id"])
def test_a_swap_between_judging_and_doing_is_noticed(corpus_files: VaultFiles, base: Path, case: dict[str, Any]) -> None:
    """The checked object is used, or an error comes back (R12, D8)."""
    race = case["race"]
    before = tree(base / "outside")
    target = corpus_files.resolve(spelled(case, base), domain="edit")
    place = base / race["path"]
    place.rename(place.with_name("moved-away"))
    place.symlink_to(race["target"].replace("{BASE}", str(base)))
    with pytest.raises(ToolError) as caught:
        corpus_files.write(target, b"new")
    assert caught.value.code == "changed"
    assert before == tree(base / "outside")


ATTACKER = """
import os, random, sys, time
place, other, aside, stop = sys.argv[1:]
steps = (
    lambda: os.rename(place, aside), lambda: os.symlink(other, place), lambda: os.unlink(place), lambda: os.rename(aside, place)
)
print("ready", flush=True)
while not os.path.exists(stop):
    for step in steps:
        try:
            step()
        except OSError:
            pass
    until = time.perf_counter() + random.random() * 0.0008
    while time.perf_counter() < until:
        pass
"""


@contextmanager
def attacker(place: Path, other: Path, stop: Path) -> Iterator[None]:
    """A process that swaps `place` for a link to `other` and back, as fast as it can, until `stop` is there."""
    arguments = [str(place), str(other), str(place.with_name("aside")), str(stop)]
    with subprocess.Popen([sys.executable, "-S", "-c", ATTACKER, *arguments], stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            stop.touch()
            process.wait(300)


def _enough(codes: Counter[str], seconds: float) -> bool:
    """A thousand races, fewer on a machine that is busy with other things."""
    return seconds > 20 or bool(codes["written"] and codes["changed"] and (codes["tried"] >= 1000 or seconds > 3))


@pytest.mark.parametrize("swapped", ["notes", "notes/a.md"])
def test_a_thousand_races_change_nothing_outside(corpus_files: VaultFiles, base: Path, swapped: str) -> None:
    """Another process swaps a folder or a file for a link as fast as it can (R12, D8)."""
    (base / "outside" / "a.md").write_text("TOP-SECRET")
    before, place = tree(base / "outside"), base / "vault" / swapped
    codes: Counter[str] = Counter()
    with attacker(place, base / "outside" / ("secret.txt" if place.is_file() else ""), base / "stop"):
        begun = time.monotonic()
        while not _enough(codes, time.monotonic() - begun):
            target = corpus_files.resolve("notes/a.md", domain="edit")
            if target.identity is None or target.text.startswith("fs:"):
                continue  # judged as missing, or as the link that it was at that moment
            codes["tried"] += 1
            try:
                assert b"TOP-SECRET" not in corpus_files.read(target)
                corpus_files.write(target, b"written")
                codes["written"] += 1
            except ToolError as error:
                codes[error.code] += 1
    assert before == tree(base / "outside")
    assert codes["written"] and codes["changed"], codes


def test_the_walk_below_a_folder_follows_no_link(corpus_files: VaultFiles, base: Path) -> None:
    """Search sees what is in the vault and nothing that links lead to (R12)."""
    names = {path for path, _ in corpus_files.walk(corpus_files.resolve("."))}
    assert not {name for name in names if name.startswith(("link", "up", "root", ".git/", ".agent-output/"))}
    assert os.path.lexists(base / "vault" / "linkdir_out")
