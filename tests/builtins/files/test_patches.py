"""``apply_patch``."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow_builtins.files import apply_patch
from moryflow_builtins.files.patches import Hunk, apply_hunks, parse_patch
from moryflow_sdk import ToolError


def wrapped(body: str) -> str:
    return f"*** Begin Patch\n{body}*** End Patch\n"


def error_of(call, *arguments, **options) -> ToolError:
    with pytest.raises(ToolError) as caught:
        call(*arguments, **options)
    return caught.value


def tree(toolbox) -> dict[str, str]:
    root = toolbox.vault
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def test_a_patch_adds_updates_moves_and_deletes(toolbox) -> None:
    """One call, several files, one summary (S4.10)."""
    toolbox.fill(
        {"a.py": "def f():\n    return 1\n\n\ndef g():\n    return 1\n", "old.txt": "x\n", "gone": "y\n", "keep": "z\n"}
    )
    result = toolbox.run(apply_patch, patch=wrapped(
        "*** Add File: new/n.txt\n+one\n+\n+two\n"
        "*** Update File: a.py\n@@ def g():\n-    return 1\n+    return 2\n"
        "*** Update File: old.txt\n*** Move to: new/name.txt\n@@\n-x\n+X\n"
        "*** Delete File: gone\n"
    ))  # fmt: skip
    assert tree(toolbox) == {
        "a.py": "def f():\n    return 1\n\n\ndef g():\n    return 2\n", "keep": "z\n",
        "new/n.txt": "one\n\ntwo\n", "new/name.txt": "X\n",
    }  # fmt: skip
    assert result.title == "apply_patch 4 files (+5 -3)"
    assert "moved old.txt to new/name.txt (+1 -1)" in result.output
    assert [line for line in result.metadata["diff"].split("\n") if line[0] not in " +-@…"] == [
        "vault:/new/n.txt: new file, +3 -0 lines", "vault:/a.py: +1 -1 lines",
        "vault:/old.txt → vault:/new/name.txt: +1 -1 lines", "vault:/gone: deleted, +0 -1 lines",
    ]  # fmt: skip


def test_what_a_person_is_shown_of_a_large_patch_is_short(toolbox) -> None:
    """Some lines of each file, some files of all; no line of a file looks like a path (R33)."""
    body = "".join(f"*** Add File: f{n}\n" + "+vault:/x: deleted\n" * 3000 for n in range(30))
    shown = toolbox.run(apply_patch, patch=wrapped(body)).metadata["diff"].split("\n")
    assert len(shown) <= 48 and shown[-1] == "and 22 more files"
    assert [line for line in shown if line.startswith("vault:/")] == [
        f"vault:/f{n}: new file, +3000 -0 lines" for n in range(8)
    ]


def test_a_file_can_be_moved_unchanged(toolbox) -> None:
    """Also one that is not text (S4.10)."""
    toolbox.fill({"a": b"\0\xff"})
    toolbox.run(apply_patch, patch=wrapped("*** Update File: a\n*** Move to: b\n"))
    assert (toolbox.vault / "b").read_bytes() == b"\0\xff"
    assert not (toolbox.vault / "a").exists()


@pytest.mark.parametrize("change", ["", "@@\n-x\n+y\n"])
def test_a_file_that_moves_stays_what_it_is(toolbox, change: str) -> None:
    """Its mode goes with it, its other names stay its names where only the name changed, and a link moves itself (S4.10)."""
    toolbox.fill({"run.sh": "x\n"})
    (toolbox.vault / "run.sh").chmod(0o751)
    (toolbox.vault / "other").hardlink_to(toolbox.vault / "run.sh")
    toolbox.run(apply_patch, patch=wrapped(f"*** Update File: run.sh\n*** Move to: bin/go.sh\n{change}"))
    moved = toolbox.vault / "bin" / "go.sh"
    assert (moved.stat().st_mode & 0o777, moved.read_text()) == (0o751, "y\n" if change else "x\n")
    assert moved.samefile(toolbox.vault / "other") == (not change)
    (toolbox.vault / "link").symlink_to("bin/go.sh")
    toolbox.run(apply_patch, patch=wrapped("*** Update File: link\n*** Move to: name\n@@\n-" + moved.read_text() + "+z\n"))
    assert ((toolbox.vault / "name").is_symlink(), moved.is_file(), moved.read_text()) == (True, True, "z\n")


def test_a_file_that_is_too_large_to_edit_can_be_moved(toolbox) -> None:
    """Nothing of it is read (S4.10)."""
    toolbox.fill({"a": ""})
    os.truncate(toolbox.vault / "a", 33 * 1024 * 1024)
    toolbox.run(apply_patch, patch=wrapped("*** Update File: a\n*** Move to: b\n"))
    assert (toolbox.vault / "b").stat().st_size == 33 * 1024 * 1024


@pytest.mark.parametrize(
    ("before", "body", "after"),
    [
        ("a\nb\nc\n", " a\n-b\n+B\n c\n", "a\nB\nc\n"),
        ("a\r\nb\r\n", "-b\n+c\n+d\n", "a\r\nc\r\nd\r\n"),
        ("a\nb", "-b\n+c\n", "a\nc"),
        ("a\r\nb", " b\n+c\n", "a\r\nb\r\nc"),
        ("", "+a\n", "a\n"),
        ("a\n", "+b\n", "a\nb\n"),
        ("a\n", "-a\n", ""),
        ("x\na\nx\na\n", " x\n-a\n+b\n*** End of File\n", "x\na\nx\nb\n"),
        ("f\nx\ng\nx\n", "@@ g\n-x\n+y\n", "f\nx\ng\ny\n"),
        ("f\nx\n", "@@ f\n+new\n", "f\nnew\nx\n"),
        ("c\n f\n x\nc\n f\n x\n", "@@ c\n@@ c\n@@ f\n- x\n+ y\n", "c\n f\n x\nc\n f\n y\n"),
        ("a\n\nb\n", " a\n\n-b\n+c\n", "a\n\nc\n"),
        ("1\n2\n3\n4\n5\n6\n", "@@ -1,2 +1,2 @@\n-1\n+one\n@@\n-6\n+six\n", "one\n2\n3\n4\n5\nsix\n"),
        ("a\r\nb\r\nc\nd\n", " c\n-d\n+x\n+y\n", "a\r\nb\r\nc\nx\ny\n"),
        ("a\n*** End Patch\nb\n", " a\n *** End Patch\n-b\n+c\n", "a\n*** End Patch\nc\n"),
        ("f\n\ta\n", " f\n-    a\n+b\n", None),
        ("x\na\nx\na\nz\n", " x\n-a\n+b\n*** End of File\n", None),
        ("a\n", "-a\n\\ No newline at end of file\n+b\n", None),
    ],
)
def test_a_change_is_found_by_its_context(toolbox, before: str, body: str, after: str | None) -> None:
    """Line ends and a missing last one are kept; what the patch repeats stays as the file has it (S4.10)."""
    toolbox.fill({"f": before})
    patch = wrapped(f"*** Update File: f\n{body}")
    if after is None:
        assert error_of(toolbox.run, apply_patch, patch=patch).code in ("invalid_patch", "not_found", "not_unique")
        after = before
    else:
        toolbox.run(apply_patch, patch=patch)
    assert (toolbox.vault / "f").read_bytes().decode() == after


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("*** Update File: a\n-nope\n+x\n", "not_found"),
        ("*** Update File: a\n@@ nope\n-1\n+x\n", "not_found"),
        ("*** Update File: a\n-1\n+x\n", "not_unique"),
        ("*** Update File: none\n-1\n+x\n", "not_found"),
        ("*** Add File: a\n+x\n", "exists"),
        ("*** Update File: a\n*** Move to: b\n", "exists"),
        ("*** Delete File: none\n", "not_found"),
        ("*** Update File: ./a\n*** Move to: a\n", "invalid_patch"),
    ],
)
def test_a_patch_that_does_not_fit_changes_nothing(toolbox, body: str, code: str) -> None:
    """Also not the files that came before it (S4.10)."""
    toolbox.fill({"a": "1\n1\n", "b": "2\n"})
    patch = wrapped(f"*** Update File: b\n-2\n+two\n*** Add File: c\n+x\n{body}") if "b" not in body else wrapped(body)
    assert error_of(toolbox.run, apply_patch, patch=patch).code == code
    assert tree(toolbox) == {"a": "1\n1\n", "b": "2\n"}


@pytest.mark.parametrize(
    "patch",
    ["", "x", "*** Begin Patch", "*** End Patch\n*** Begin Patch", wrapped(""), wrapped("+x\n"),
     wrapped("*** Add File: \n+x\n"),
     wrapped("*** Add File: a\nx\n"), wrapped("*** Delete File: a\nx\n"), wrapped("*** Update File: a\nx\n"),
     wrapped("*** Update File: a\n"), wrapped("*** Update File: a\n 1\n"), wrapped("*** Update File: a\n*** End of File\n"),
     wrapped("*** Delete File: a\n*** Delete File: a\n"),
     wrapped("*** Delete File: a\n") + wrapped("*** Delete File: b\n"),
     wrapped("*** Update File: a\n-1\n+2\n") + "\n" + wrapped("*** Update File: b\n-1\n+2\n")],
)  # fmt: skip
def test_a_patch_that_cannot_be_read_says_where(toolbox, patch: str) -> None:
    """It is refused before anything is judged, with the line (S4.10)."""
    error = error_of(toolbox.call, apply_patch, {"patch": patch})
    assert error.code == "invalid_patch"


def test_a_fence_around_the_patch_is_forgiven(toolbox) -> None:
    """Models wrap patches in Markdown or a here-document (S4.10)."""
    toolbox.run(apply_patch, patch="```\n*** Begin Patch\r\n*** Add File: a\r\n+x\r\n*** End Patch\n```")
    assert tree(toolbox) == {"a": "x\n"}


def test_a_write_that_fails_puts_everything_back(toolbox) -> None:
    """A folder stands where the second new file should go (S4.10)."""
    toolbox.fill({"a": "1\n", "gone": "2\n", "d": "3\n", "m": "4\n"})
    for name in ("gone", "m"):
        (toolbox.vault / name).chmod(0o751)
    body = (
        "*** Update File: a\n-1\n+one\n*** Delete File: gone\n*** Update File: m\n*** Move to: e/n\n-4\n+four\n"
        "*** Add File: d/x\n+x\n"
    )
    assert error_of(toolbox.run, apply_patch, patch=wrapped(body)).code == "not_a_directory"
    assert tree(toolbox) == {"a": "1\n", "gone": "2\n", "d": "3\n", "m": "4\n"}
    assert {(toolbox.vault / name).stat().st_mode & 0o777 for name in ("gone", "m")} == {0o751}


LINES = st.lists(st.text(st.sampled_from('ab {}“"'), max_size=4), max_size=12)


@given(LINES, st.data())
@settings(max_examples=400)
def test_a_patch_made_from_two_versions_gives_the_second(lines: list[str], data: st.DataObject) -> None:
    """With all lines as context there is one place; the result is exactly the new version (S4.10)."""
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    hunk, new = Hunk(), []
    for line in lines:
        match data.draw(st.sampled_from(["keep", "drop", "insert", "change"])):
            case "keep":
                hunk.lines.append((" ", line))
                new.append(line)
            case "drop":
                hunk.lines.append(("-", line))
            case "insert":
                hunk.lines += [("+", "new"), (" ", line)]
                new += ["new", line]
            case _:
                hunk.lines += [("-", line), ("+", "changed")]
                new.append("changed")
    text = "".join(line + end for line in lines)
    assert apply_hunks(text, [hunk], "f") == "".join(line + end for line in new)


@given(st.lists(st.sampled_from([
    "*** Begin Patch", "*** End Patch", "*** Add File: x", "*** Update File: f", "*** Delete File: f", "*** Move to: y",
    "@@", "@@ a",
    "+n", "-a", " a", " b", "-b", "", "*** End of File", "junk",
]), max_size=8), st.booleans())  # fmt: skip
@settings(max_examples=300)
def test_any_patch_is_applied_or_leaves_everything(toolbox, lines: list[str], whole: bool) -> None:
    """Never a part of it, never another exception (S4.10)."""
    for path in toolbox.vault.iterdir():
        path.unlink()
    toolbox.fill({"f": "a\nb\n"})
    patch = "\n".join(["*** Begin Patch", *lines, "*** End Patch"] if whole else lines)
    try:
        toolbox.run(apply_patch, patch=patch)
    except ToolError:
        assert tree(toolbox) == {"f": "a\nb\n"}
    else:
        assert parse_patch(patch)
        assert not [name for name in tree(toolbox) if name.endswith(".tmp")]
