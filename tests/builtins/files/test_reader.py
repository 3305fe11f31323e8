"""``read`` and ``ls``."""

from __future__ import annotations

import base64
import os
import struct

import pytest
from moryflow_builtins.files import ls, read
from moryflow_sdk import ModelInfo, ToolError


def code_of(call, *arguments, **options) -> ToolError:
    with pytest.raises(ToolError) as caught:
        call(*arguments, **options)
    return caught.value


def test_a_small_file_comes_as_it_is(toolbox) -> None:
    """Nothing is added to what the file says (D74)."""
    toolbox.fill({"a.md": "one\ntwo\n"})
    result = toolbox.run(read, path="a.md")
    assert (result.output, result.title) == ("one\ntwo", "read a.md (2 lines)")
    assert result.metadata["target"] == "vault:/a.md"


def test_a_page_says_where_to_go_on(toolbox) -> None:
    """``offset`` counts from one; the last page says that it is the last (D74)."""
    toolbox.fill({"a.txt": "".join(f"line {n}\n" for n in range(1, 101))})
    assert toolbox.run(read, path="a.txt", offset=11, limit=2).output == (
        "line 11\nline 12\n[lines 11-12 of 100; continue with offset=13]"
    )
    assert toolbox.run(read, path="a.txt", offset=100).output == "line 100\n[lines 100-100, the end of the file]"
    assert code_of(toolbox.run, read, path="a.txt", offset=101).code == "out_of_range"


def test_all_pages_together_are_the_file(toolbox) -> None:
    """Nothing is lost or doubled between pages, whatever the lines are (D74, D36)."""
    lines = [("x" * (n * 37 % 900)) for n in range(3000)]
    toolbox.fill({"a.txt": "\n".join(lines)})
    seen: list[str] = []
    while len(seen) < len(lines):
        output = toolbox.run(read, path="a.txt", offset=len(seen) + 1).output
        assert len(output.encode()) < 51_200
        page = output.split("\n")
        assert len(page) <= 2000
        seen += [line for line in page if not line.startswith("[")]
    assert seen == lines


def test_line_numbers_are_put_before_the_lines_on_request(toolbox) -> None:
    """They count from the file's beginning (D74)."""
    toolbox.fill({"a.txt": "a\nb\nc\n"})
    assert toolbox.run(read, path="a.txt", offset=2, line_numbers=True).output.startswith("     2\tb\n     3\tc")


@pytest.mark.parametrize(
    ("data", "options", "text", "encoding"),
    [
        ("é".encode(), {}, "é", "utf-8"),
        (b"\xef\xbb\xbfx", {}, "x", "utf-8"),
        ("é\n".encode("utf-16"), {}, "é", "utf-16-le"),
        (b"\xfe\xff" + "é".encode("utf-16-be"), {}, "é", "utf-16-be"),
        ("é".encode("utf-16-le"), {"encoding": "utf-16-le"}, "é", "utf-16-le"),
        (b"caf\xe9", {}, "café\n[not valid utf-8, read as latin-1]", "latin-1"),
        (b"\x82\xa0", {"encoding": "shift_jis"}, "あ", "shift_jis"),
        (b"caf\xe9", {"encoding": "UTF8"}, "café\n[not valid utf-8, read as latin-1]", "latin-1"),
        (b"a\r\nb\r\n", {}, "a\nb", "utf-8"),
        (b"", {}, "[the file is empty]", "utf-8"),
    ],
)
def test_encodings_are_found_or_told(toolbox, data: bytes, options: dict, text: str, encoding: str) -> None:
    """A mark says it, UTF-8 is tried, ``encoding`` helps, and a guess is named (D74)."""
    toolbox.fill({"f": data})
    result = toolbox.run(read, path="f", **options)
    assert (result.output, result.metadata["encoding"]) == (text, encoding)


def test_an_encoding_that_does_not_exist_is_refused(toolbox) -> None:
    """Also one that is not a text encoding (D74)."""
    toolbox.fill({"f": "x"})
    for name in ("nope", "base64", "a" * 500):
        assert code_of(toolbox.run, read, path="f", encoding=name).code == "invalid_args"


@pytest.mark.parametrize("data", [b"\x7fELF\x02\x01\0\0", b"%PDF-1.7\n\0\x01", bytes(range(32)) * 9])
def test_a_binary_file_is_described(toolbox, data: bytes) -> None:
    """The model gets a sentence, not the bytes (D74)."""
    toolbox.fill({"f": data})
    for options in ({}, {"encoding": "utf-8"}):
        result = toolbox.run(read, path="f", **options)
        assert result.truncated
        assert result.output.startswith("f is not text, ")
        assert f"{len(data)} bytes" in result.output


PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 640, 480) + bytes(20)
GIF = b"GIF89a" + struct.pack("<HH", 3, 5) + bytes(9)
JPEG = b"\xff\xd8\xff\xe0\0\x10JFIF"
WEBP = b"RIFF\0\0\0\0WEBPVP8X"


@pytest.mark.parametrize(("data", "kind"), [(PNG, "png"), (GIF, "gif"), (JPEG, "jpeg"), (WEBP, "webp")])
def test_an_image_is_shown_to_the_model(toolbox, data: bytes, kind: str) -> None:
    """A merged ``encoding`` does not get in the way (D74)."""
    toolbox.fill({"pic": data})
    result = toolbox.run(read, path="pic", encoding="utf-8")
    (image,) = result.images
    assert (image.media_type, base64.b64decode(image.data)) == (f"image/{kind}", data)
    assert result.output == f"pic: {kind.upper()} image, {len(data)} bytes"


def test_a_model_without_eyes_gets_the_description_only(toolbox) -> None:
    """Nothing is sent that cannot be seen (D74)."""
    toolbox.fill({"pic": PNG, "cut": PNG[:7]})
    toolbox.model = ModelInfo(id="m", name="m", provider="p", images=False)
    result = toolbox.run(read, path="pic")
    assert not result.images
    assert "PNG image" in result.output
    assert toolbox.run(read, path="cut").metadata["binary"]


def test_a_huge_file_is_paged_and_never_loaded(toolbox) -> None:
    """Over 32 MiB the total is not counted; one endless line is cut (D74)."""
    path = toolbox.vault / "big.log"
    with path.open("wb") as file:
        file.write(b"first\n")
        for _ in range(40):
            file.write(b"x" * 1024 * 1024)
        file.write(b"\nlast\n")
    result = toolbox.run(read, path="big.log", limit=1)
    assert result.output == "first\n[lines 1-1; continue with offset=2]"
    output = toolbox.run(read, path="big.log", offset=2).output
    assert len(output) < 51_200
    assert "41,933,040 more characters in this line" in output
    assert "last" in output


def test_a_folder_and_a_missing_file_say_what_to_do(toolbox) -> None:
    """Errors have a code and a next step (D8)."""
    (toolbox.vault / "d").mkdir()
    folder, missing = code_of(toolbox.run, read, path="d"), code_of(toolbox.run, read, path="none")
    assert (folder.code, folder.next_step) == ("is_directory", "list it with ls")
    assert missing.code == "not_found"
    assert "glob" in missing.next_step


def test_a_stored_output_is_read_without_being_cut_again(toolbox) -> None:
    """A page is smaller than what truncation leaves alone (D36)."""
    toolbox.fill({".agent-output/x.txt": "word " * 20 + "\n" + "".join(f"{n} " + "y" * 100 + "\n" for n in range(5000))})
    output = toolbox.run(read, path=".agent-output/x.txt").output
    assert len(output.encode()) <= 51_200
    assert output.count("\n") < 2000


def test_ls_shows_folders_first_and_leaves_out_what_is_ignored(toolbox) -> None:
    """Names and sizes; the rest is counted and can be asked for (S2.13, S0.34)."""
    toolbox.fill({"b.txt": "12345", "a.log": "", ".gitignore": "*.log\n", "z/x": "", ".git/config": ""})
    (toolbox.vault / "link").symlink_to("b.txt")
    os.mkfifo(toolbox.vault / "pipe")
    result = toolbox.run(ls)
    assert result.output.splitlines() == [
        "z/", ".gitignore (6 bytes)", "b.txt (5 bytes)", "link (link)", "pipe (not a regular file)",
        "[2 ignored by .gitignore or .ignore; all=true shows them]",
    ]  # fmt: skip
    assert "a.log (0 bytes)" in toolbox.run(ls, path=".", all=True).output
    assert ls.domain == "read" == read.domain


def test_a_line_end_in_a_name_is_no_other_entry(toolbox) -> None:
    """Whoever names a file cannot make up another (S2.13)."""
    toolbox.fill({"a\nfake.py": "x"})
    assert toolbox.run(ls, path=".").output == "a\\nfake.py (1 bytes)"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter every folder")
def test_ls_of_a_folder_that_may_be_listed_and_not_entered_gives_names_alone(toolbox) -> None:
    """A size that nobody can see is not 0 bytes (S2.13)."""
    (toolbox.vault / "listed").mkdir()
    (toolbox.vault / "listed/a").write_text("something")
    (toolbox.vault / "listed").chmod(0o444)
    output = toolbox.run(ls, path="listed").output
    (toolbox.vault / "listed").chmod(0o700)
    assert output == "a"


def test_ls_of_a_large_folder_is_bounded(toolbox) -> None:
    """A hundred thousand names do not go to the model (S0.34)."""
    for number in range(1200):
        (toolbox.vault / f"{number:04}").touch()
    assert "[200 more entries; use glob to narrow it down]" in toolbox.run(ls).output
    assert toolbox.run(ls, path="0001/..").title == "ls 0001/.. (1200 entries)"
    assert code_of(toolbox.run, ls, path="0001").code == "not_a_directory"


def test_a_line_of_read_is_a_line_of_grep_and_edit(toolbox) -> None:
    """A lone CR, as a progress bar leaves it, a form feed and U+2028 end no line; CRLF does, also at a cut (S2.13, D74)."""
    toolbox.fill({"log": "1%\r2%\r\na\fb\u2028c\nlast\n", "long": "x" * 10_000 + "\r\ny"})
    assert toolbox.run(read, path="log").output == "1%\r2%\na\fb\u2028c\nlast"
    assert toolbox.run(read, path="log", offset=3).output == "last\n[lines 3-3, the end of the file]"
    assert toolbox.run(read, path="long").output == "x" * 10_000 + "\ny"


def test_an_encoding_that_does_not_fit_is_said(toolbox) -> None:
    """UTF-16 without a mark is not a decoding error to Python, and ended the call as one of the program's own (D74)."""
    toolbox.fill({"a": "one\n", "empty": ""})
    assert toolbox.run(read, path="a", encoding="utf-16").output == "one\n[not valid utf-16, read as latin-1]"
    assert toolbox.run(read, path="empty", offset=2).output == "[the file is empty]"
