"""Walking a folder as ripgrep would."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow.services.files import VaultFiles

RG = shutil.which("rg") or shutil.which("rg", path=str(Path(sys.executable).parent))
LIKE_US = ("--files", "--hidden", "--no-config", "--no-require-git", "--no-ignore-global", "--no-ignore-exclude",
           "-g", "!.git", "-g", "!.agent-output")  # fmt: skip


def walked(files: VaultFiles, path: str = ".") -> set[str]:
    return {name for name, _ in files.walk(files.resolve(path))}


def fill(vault: Path, content: dict[str, str]) -> None:
    for name, text in content.items():
        (vault / name).parent.mkdir(parents=True, exist_ok=True)
        (vault / name).write_text(text)


def test_ignore_files_are_read_as_git_and_ripgrep_do(files: VaultFiles, vault: Path) -> None:
    """Nested files, negation, anchors, folders, and ``.ignore`` before ``.gitignore`` (S2.13)."""
    fill(vault, {
        ".gitignore": "*.log\n/build/\nnode_modules\n!keep.log\ntmp/**\n# comment\n",
        "a.log": "", "keep.log": "", "build/x": "", "src/build/y": "", "src/node_modules/z": "", "src/a.py": "",
        "src/.gitignore": "!a.log\n*.tmp\n", "src/a.log": "", "src/b.tmp": "", "tmp/x": "",
        ".ignore": "!wanted.log\nsecret.txt\n", "wanted.log": "", "secret.txt": "",
        ".git/config": "", ".agent-output/x.txt": "", "sub/.agent-output/y.txt": "", ".github/w.yml": "",
    })  # fmt: skip
    expected = {
        ".gitignore", ".ignore", "keep.log", "src/build/y", "src/a.py", "src/.gitignore", "src/a.log", "wanted.log",
        ".github/w.yml",
    }  # fmt: skip
    assert expected == walked(files)


def test_folders_above_the_one_that_is_walked_count_too(files: VaultFiles, vault: Path) -> None:
    """A search that starts deeper sees no more (S2.13)."""
    fill(vault, {".gitignore": "*.log\n/src/gen\n", "src/a.log": "", "src/a.py": "", "src/gen/x.py": "", "gen/y.py": ""})
    assert {"a.py"} == walked(files, "src")
    assert {"x.py"} == walked(files, "src/gen")


def test_everything_is_there_when_nothing_is_ignored(files: VaultFiles, vault: Path) -> None:
    """Without ``ignore`` the walk is complete, links aside (S2.13)."""
    fill(vault, {".gitignore": "*.log\n", "a.log": "", ".git/config": ""})
    (vault / "link").symlink_to("a.log")
    assert {".gitignore", "a.log", ".git/config"} == {name for name, _ in files.walk(files.resolve("."), ignore=False)}


def test_a_hostile_ignore_file_does_not_stop_the_walk(files: VaultFiles, vault: Path) -> None:
    """A line that would take a pattern engine for ever is not used (S2.13)."""
    fill(vault, {".gitignore": "*a" * 40 + "b\n*.log\n[\n\\\n!\n**/**/**\x00\n", "a" * 200: "", "x.log": ""})
    (vault / ".ignore").mkdir()
    assert "a" * 200 in walked(files)
    assert "x.log" not in walked(files)


def test_deep_folders_and_strange_names_are_survived(files: VaultFiles, vault: Path) -> None:
    """Names that are not Unicode are shown with a replacement character (R12)."""
    (vault / ("d/" * 150)).mkdir(parents=True)
    (vault / "d/x").write_text("")
    (Path(bytes(vault).decode()) / b"\xff\n".decode("utf-8", "surrogateescape")).write_text("")
    names = walked(files)
    assert "d/x" in names
    assert all(name.encode() for name in names)


ODD = ("***", "a**", "b**", "x**", "?**", "]**", "**a", "**b", "**?", "**.", "**[", "//")


def odd(line: str) -> bool:
    """Lines that git itself does not explain, and that tools read differently."""
    return any(part in line for part in ODD) or "!" in line[1:] or not line.strip("!/")


LINES = st.lists(
    st.lists(st.sampled_from(["a", "b", "*", "**", "/", "a/", "!", "?", ".x", "[ab]"]), min_size=1, max_size=4).map("".join),
    max_size=4,
)
FILES = st.sets(st.lists(st.sampled_from(["a", "b", "ab", "a.x", "b.x"]), min_size=1, max_size=3).map("/".join), max_size=8)


@given(LINES, LINES, FILES)
@settings(max_examples=60)
def test_the_walk_agrees_with_ripgrep(
    files: VaultFiles, vault: Path, top: list[str], nested: list[str], names: set[str]
) -> None:
    """Random ignore files, the same files (S2.13)."""
    assert RG
    shutil.rmtree(vault)
    (vault / "a").mkdir(parents=True)
    for name in sorted(names, key=len, reverse=True):
        if not (vault / name).exists() and not any((vault / name).parents[i].is_file() for i in range(3)):
            fill(vault, {name: ""})
    (vault / ".gitignore").write_text("".join(f"{line}\n" for line in top if not odd(line)))
    (vault / "a" / ".ignore").write_text("".join(f"{line}\n" for line in nested if not odd(line)))
    found = subprocess.run([RG, *LIKE_US], cwd=vault, capture_output=True, text=True, check=False).stdout.split()
    assert set(found) == walked(files)
