"""``write``, ``edit`` and ``multiedit``."""

from __future__ import annotations

import codecs
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow_builtins.files import apply_patch, delete, edit, editor, ls, move, multiedit, read, tools, write
from moryflow_builtins.files.match import Edit, apply_edit
from moryflow_sdk import ModelInfo, ToolError


def error_of(call, *arguments, **options) -> ToolError:
    with pytest.raises(ToolError) as caught:
        call(*arguments, **options)
    return caught.value


def came_of(before: str, old: str, new: str) -> str:
    """Return the text after an edit, or the code of its error."""
    try:
        return apply_edit(before, Edit(old, new), "f")[0]
    except ToolError as error:
        return error.code


def test_each_model_is_offered_one_way_to_edit() -> None:
    """GPT models get ``apply_patch``, others ``edit``, ``multiedit`` and ``write``; never both (S4.10)."""
    for family in ("gpt", "claude", ""):
        model = ModelInfo(id="m", name="m", provider="p", family=family)
        offered = {tool.name for tool in tools() if tool.offered is None or tool.offered(model)}
        editing = {"apply_patch"} if family == "gpt" else {"write", "edit", "multiedit"}
        assert offered == {"read", "ls", "move", "delete"} | editing


def test_every_tool_declares_its_domain_and_its_targets() -> None:
    """What is read and what is edited is judged as that (S0.34, S0.35)."""
    assert {tool.domain for tool in (read, ls)} == {"read"}
    assert {tool.domain for tool in (write, edit, multiedit, apply_patch, move, delete)} == {"edit"}
    requests = {
        write: {"path": "a", "content": ""},
        edit: {"path": "a", "old_string": "", "new_string": ""},
        multiedit: {"edits": [{"path": p, "old_string": "", "new_string": ""} for p in ("a", "b", "a")]},
        move: {"path": "a", "to": "b"},
        delete: {"path": "a"},
        apply_patch: {"patch": "*** Begin Patch\n*** Add File: a\n+x\n*** Update File: b\n*** Move to: c\n-x\n*** End Patch"},
    }
    for tool, args in requests.items():
        found = tool.target_requests(args)
        assert {request.domain for request in found} == {"edit"}
        assert [request.value for request in found] == ["a", "b", "c"][: len(found)]
    assert len(move.target_requests(requests[move])) == 2
    assert len(apply_patch.target_requests(requests[apply_patch])) == 3
    assert len(multiedit.target_requests(requests[multiedit])) == 2


def test_write_creates_and_replaces(toolbox) -> None:
    """The result says which, and shows what changed (S0.35)."""
    assert toolbox.run(write, path="new/a.md", content="one\ntwo\n").title == "write new/a.md (+2)"
    result = toolbox.run(write, path="new/a.md", content="one\nTWO\n")
    assert "-two\n+TWO" in result.output
    assert (result.metadata["added"], result.metadata["removed"]) == (1, 1)
    assert (toolbox.vault / "new/a.md").read_text() == "one\nTWO\n"
    assert "already holds" in toolbox.run(write, path="new/a.md", content="one\nTWO\n").output
    toolbox.fill({"bin": b"\0\xff"})
    assert toolbox.run(write, path="bin", content="text").output == "replaced bin"


def test_an_edit_replaces_one_place_and_shows_it(toolbox) -> None:
    """Title, counts and a unified diff with the file's line numbers (S0.35)."""
    toolbox.fill({"a.py": "".join(f"line {n}\n" for n in range(1, 51))})
    result = toolbox.run(edit, path="a.py", old_string="line 30\n", new_string="line thirty\n")
    assert result.title == "edit a.py (+1 -1)"
    assert "@@ -27,7 +27,7 @@" in result.output
    assert "-line 30\n+line thirty" in result.output
    assert (toolbox.vault / "a.py").read_text().splitlines()[29] == "line thirty"


def test_a_text_that_is_there_twice_is_not_replaced(toolbox) -> None:
    """The error counts and names the lines; ``replace_all`` takes them all (S0.35)."""
    toolbox.fill({"a": "x\ny\nx\n"})
    error = error_of(toolbox.run, edit, path="a", old_string="x", new_string="z")
    assert (error.code, error.message) == ("not_unique", "old_string occurs 2 times in a, on lines 1, 3")
    assert (toolbox.vault / "a").read_text() == "x\ny\nx\n"
    toolbox.run(edit, path="a", old_string="x", new_string="z", replace_all=True)
    assert (toolbox.vault / "a").read_text() == "z\ny\nz\n"


def test_places_that_overlap_count_as_two(toolbox) -> None:
    """Which of them is meant nobody knows; replacing all takes what fits, from the left (S0.35)."""
    toolbox.fill({"a": "a\na\na\n"})
    assert error_of(toolbox.run, edit, path="a", old_string="a\na\n", new_string="b\n").code == "not_unique"
    toolbox.run(edit, path="a", old_string="a\na\n", new_string="b\n", replace_all=True)
    assert (toolbox.vault / "a").read_text() == "b\na\n"


@pytest.mark.parametrize("there, asked", [("NFD", "NFC"), ("NFC", "NFD")])
def test_an_accent_is_found_however_it_is_composed(toolbox, there: str, asked: str) -> None:
    """A Mac writes it as two characters; what is put in its place is composed as the file is (S0.35)."""
    toolbox.fill({"a": normalize(there, "un café noir\n")})
    toolbox.run(edit, path="a", old_string=normalize(asked, "café noir"), new_string=normalize(asked, "thé"))
    assert (toolbox.vault / "a").read_text() == normalize(there, "un thé\n")


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ({"old_string": "", "new_string": "x"}, "invalid_args"),
        ({"old_string": "a", "new_string": "a"}, "no_change"),
        ({"old_string": "nope", "new_string": "x"}, "not_found"),
        ({"old_string": "  \n ", "new_string": "x"}, "not_found"),
    ],
)
def test_an_edit_that_cannot_be_meant_is_refused(toolbox, args: dict[str, str], code: str) -> None:
    """Nothing is guessed (S0.35)."""
    toolbox.fill({"a": "a b\n"})
    assert error_of(toolbox.run, edit, path="a", **args).code == code
    assert (toolbox.vault / "a").read_text() == "a b\n"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        ("a\r\nb\r\nc\r\n", "a\nb\n", "a\nx\ny\n", "a\r\nx\r\ny\r\nc\r\n"),
        ("a\r\nb", "b", "c\nd", "a\r\nc\r\nd"),
        ("x  \ny\t\nz\n", "x\ny\nz", "x\nq\nz", "x  \nq\nz\n"),
        ("x  \ny\n", "x\ny\n", "x y\n", "x y\n"),
        ("a  \r\nb\r\nc", "a\nb", "a", "a  \r\nc"),
        ("say “hi”\n", 'say "hi"', "x", "not_found"),
        ("    b()\n    c()\n", "  b()\n  c()", "  d()", "not_found"),
    ],
)  # fmt: skip
def test_small_differences_are_forgiven(before: str, old: str, new: str, after: str) -> None:
    """Line ends and blanks before them; what the edit repeats stays as the file has it (S0.35)."""
    assert came_of(before, old, new) == after


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        ("a\r\nb\r\n", "\nb", "\nx\ny", "a\r\nx\r\ny\r\n"),
        ("a\r\nb\r\n", "\nb", "", "a\r\n"),
        ("a\r\nb", "\n", " ", "a b"),
        ("cafe\u0301s cafe", "cafe", "tea", "cafe\u0301s tea"),
        ("cafe\u0301s", "cafe", "tea", "not_found"),
        ("x \nx \nx \n", "x\nx\n", "y", "not_unique"),
    ],
)
def test_no_edit_takes_half_of_what_belongs_together(before: str, old: str, new: str, after: str) -> None:
    """Neither of a line end, a letter with its accent or a word; nor one of two places that overlap (S0.35)."""
    assert came_of(before, old, new) == after


def test_the_diff_counts_lines_as_editors_do(toolbox) -> None:
    """A form feed, U+2028, U+0085 and a lone CR end no line, neither where the change is nor in what is shown (S0.35)."""
    toolbox.fill({"a": "1\f1\n2\u2028\n3\u0085\n4\r4\n5\n6\n"})
    output = toolbox.run(edit, path="a", old_string="6", new_string="six").output
    assert "@@ -3,4 +3,4 @@" in output and "No newline" not in output


@pytest.mark.parametrize("mark", [codecs.BOM_UTF8, b""])
def test_line_ends_and_the_byte_order_mark_are_kept(toolbox, mark: bytes) -> None:
    """Only the change differs (S0.35)."""
    toolbox.fill({"a": mark + "é\r\nold\r\n".encode()})
    toolbox.run(edit, path="a", old_string="old\n", new_string="new\nlines\n")
    assert (toolbox.vault / "a").read_bytes() == mark + "é\r\nnew\r\nlines\r\n".encode()


def test_other_encodings_come_back_as_they_were(toolbox) -> None:
    """UTF-16 with a mark, and bytes that are not UTF-8; what does not fit in is refused (S0.35)."""
    toolbox.fill({"u16": "häuser\n".encode("utf-16"), "l1": b"caf\xe9 \xff old\n"})
    toolbox.run(edit, path="u16", old_string="häuser", new_string="höfe €")
    assert (toolbox.vault / "u16").read_bytes().decode("utf-16") == "höfe €\n"
    toolbox.run(edit, path="l1", old_string="old", new_string="new")
    assert (toolbox.vault / "l1").read_bytes() == b"caf\xe9 \xff new\n"
    assert error_of(toolbox.run, edit, path="l1", old_string="new", new_string="€").code == "encoding"
    toolbox.fill({"bin": b"\xff\0old"})
    assert error_of(toolbox.run, edit, path="bin", old_string="old", new_string="new").code == "binary"


@pytest.mark.parametrize("data", [b"word\n\0more\n", b"word" + bytes(range(1, 9)) * 3, b"word\n" + b"x\n" * 70_000 + b"\0"])
def test_what_read_calls_binary_is_changed_by_nothing(toolbox, data: bytes) -> None:
    """One rule for every tool: a NUL at the beginning, or many control characters (S2.13, D74)."""
    patch = "*** Begin Patch\n*** Update File: a\n@@\n-word\n+x\n*** End Patch"
    calls = (
        (edit, {"path": "a", "old_string": "word", "new_string": "x"}),
        (multiedit, {"edits": [{"path": "a", "old_string": "word", "new_string": "x"}]}),
        (apply_patch, {"patch": patch}),
    )
    for tool, args in calls:
        toolbox.fill({"a": data})
        assert toolbox.run(read, path="a").metadata["binary"]
        assert error_of(toolbox.run, tool, **args).code == "binary"
        assert (toolbox.vault / "a").read_bytes() == data
    assert "+++" not in toolbox.run(write, path="a", content="x").output


def test_no_text_is_made_binary(toolbox) -> None:
    """A NUL that slipped into what a model writes would keep the file from being read and edited from then on (D74)."""
    patch = "*** Begin Patch\n*** Update File: a\n@@\n-word\n+x\0\n*** End Patch"
    calls = (
        (edit, {"path": "a", "old_string": "word", "new_string": "x\0"}),
        (write, {"path": "a", "content": "x\0"}),
        (write, {"path": "new", "content": "x\0"}),
        (apply_patch, {"patch": patch}),
    )
    for tool, args in calls:
        toolbox.fill({"a": "word\n"})
        assert error_of(toolbox.run, tool, **args).code == "binary"
        assert {path.name: path.read_text() for path in toolbox.vault.iterdir()} == {"a": "word\n"}


def test_a_nul_far_behind_makes_a_log_no_binary(toolbox) -> None:
    """It is read and changed like any text, and keeps its NUL (D74)."""
    toolbox.fill({"log": b"word\n" + b"x\n" * 140_000 + b"\0end"})
    assert toolbox.run(read, path="log", limit=1).output.startswith("word\n")
    toolbox.run(edit, path="log", old_string="word", new_string="x")
    assert (toolbox.vault / "log").read_bytes() == b"x\n" * 140_001 + b"\0end"


def test_several_edits_are_all_made_or_none(toolbox) -> None:
    """Each sees what the one before left; two names of one file are one file (D68)."""
    toolbox.fill({"a": "1\n2\n", "b": "3\n"})

    def change(*edits: tuple[str, str, str]):
        return toolbox.run(multiedit, edits=[{"path": p, "old_string": o, "new_string": n} for p, o, n in edits])

    result = change(("a", "1", "one"), ("b", "3", "three"), ("./a", "one", "uno"))
    assert result.title == "multiedit 2 files (+2 -2)"
    assert ((toolbox.vault / "a").read_text(), (toolbox.vault / "b").read_text()) == ("uno\n2\n", "three\n")
    error = error_of(change, ("a", "uno", "x"), ("b", "nope", "y"))
    assert error.code == "not_found"
    assert error.message.startswith("edit 2 of 2: old_string is not in b; no file was changed")
    assert ((toolbox.vault / "a").read_text(), (toolbox.vault / "b").read_text()) == ("uno\n2\n", "three\n")


def test_a_write_that_fails_puts_the_others_back(toolbox) -> None:
    """The second file cannot be written, so the first is as before (D68)."""
    toolbox.fill({"a": "1", "d/b": "2"})
    call = toolbox.call(
        multiedit, {"edits": [{"path": p, "old_string": o, "new_string": "x"} for p, o in (("a", "1"), ("d/b", "2"))]}
    )
    write_one = toolbox.files.write

    class Failing:
        """The second write meets a full disk."""

        read = staticmethod(toolbox.files.read)
        remove = staticmethod(toolbox.files.remove)

        def write(self, target, data, **_):
            if target.given == "d/b":
                raise ToolError("no space", code="no_space")
            return write_one(target, data)

    toolbox.files = Failing()
    assert error_of(toolbox.body, multiedit, call).code == "no_space"
    assert ((toolbox.vault / "a").read_text(), (toolbox.vault / "d/b").read_text()) == ("1", "2")


def test_a_file_that_another_program_wrote_meanwhile_is_left_alone(toolbox, monkeypatch) -> None:
    """Between reading and writing the content is compared once more (R12)."""
    toolbox.fill({"a": "old\n"})

    def slow(text, one, name):
        (toolbox.vault / "a").write_text("theirs\n")
        return apply_edit(text, one, name)

    monkeypatch.setattr(editor, "apply_edit", slow)
    assert error_of(toolbox.run, edit, path="a", old_string="old", new_string="new").code == "changed"
    assert (toolbox.vault / "a").read_text() == "theirs\n"


@pytest.mark.parametrize("tool", [read, edit, write, delete, move])
def test_a_body_opens_what_was_judged(toolbox, tool) -> None:
    """A swap after the judgement is an error, whatever the tool (R12, D8)."""
    toolbox.fill({"a": "old\n"})
    (toolbox.vault.parent / "secret").write_text("old\n")
    extra = {edit: {"old_string": "old", "new_string": "new"}, write: {"content": "new"}, move: {"to": "b"}}.get(tool, {})
    call = toolbox.call(tool, {"path": "a", **extra})
    (toolbox.vault / "swap").symlink_to("../secret")
    (toolbox.vault / "swap").rename(toolbox.vault / "a")
    assert error_of(toolbox.finish, tool, call).code == "changed"
    assert (toolbox.vault.parent / "secret").read_text() == "old\n"


def test_move_and_delete_say_what_they_did(toolbox) -> None:
    """Folders need ``recursive``; nothing is replaced (S0.35)."""
    toolbox.fill({"a": "1", "b": "2", "d/x": "3"})
    assert toolbox.run(move, path="a", to="d/a").output == "moved a to d/a"
    assert error_of(toolbox.run, move, path="b", to="d/a").code == "exists"
    assert error_of(toolbox.run, move, path="d", to="d/e").code == "invalid_args"
    assert error_of(toolbox.run, move, path="none", to="x").code == "not_found"
    (toolbox.vault / "link").symlink_to("b")
    for name in ("b", "./d/../b", "link"):  # never advice to delete what stands in its own way
        assert "the same file" in error_of(toolbox.run, move, path="b", to=name).message
    (toolbox.vault / "link").unlink()
    refused = error_of(toolbox.run, delete, path="d")
    assert (refused.code, refused.next_step) == ("not_empty", "set recursive=true to delete all that is in it")
    toolbox.run(delete, path="d", recursive=True)
    toolbox.run(delete, path="b")
    assert list(toolbox.vault.iterdir()) == []
    assert error_of(toolbox.run, delete, path="b").code == "not_found"


def test_a_text_that_is_not_there_is_answered_with_the_nearest_lines(toolbox) -> None:
    """The next call can copy them (S0.35)."""
    toolbox.fill({"a.py": "def f():\r\n    say(“hi”)\r\n    return 1\r\n"})
    error = error_of(toolbox.run, edit, path="a.py", old_string='say("hi")\nreturn 1', new_string="x")
    assert error.code == "not_found"
    assert error.message.endswith("the nearest is on line 2:\n    say(“hi”)\n    return 1\n")
    assert "nearest" not in error_of(toolbox.run, edit, path="a.py", old_string="other", new_string="x").message


TEXT = st.text(st.sampled_from('ab \t\n\r“"–-\u00a0é'), max_size=30)


@given(TEXT, TEXT, TEXT)
@settings(max_examples=500)
def test_an_exact_edit_is_exactly_that_or_nothing(text: str, old: str, new: str) -> None:
    """A text that is there once is replaced, and nothing around it differs (S0.35)."""
    try:
        after, count = apply_edit(text, Edit(old, new), "f")
    except ToolError:
        return
    if old in text and "\r" not in text:
        assert (after, count) == (text.replace(old, new), text.count(old))
    assert count == 1


@given(TEXT, TEXT, TEXT, TEXT, st.sampled_from(["\n", "\r\n"]))
@settings(max_examples=500)
def test_a_forgiven_edit_changes_nothing_around_it(before: str, old: str, after: str, new: str, end: str) -> None:
    """Written with line feeds, it finds the same place (S0.35)."""
    before, old, after = (piece.replace("\r", "").replace("\n", end) for piece in ("<" + before, "{" + old + "}", after + ">"))
    new = "[" + new.replace("\r", "") + "]"
    meant = old.replace("\r", "")
    result, _ = apply_edit(before + old + after, Edit(meant, new), "f")
    expected = new if end == "\n" or end not in before + old + after else new.replace("\n", end)
    assert result == before + expected + after


@given(TEXT, TEXT, TEXT)
@settings(max_examples=60)
def test_the_file_is_what_the_edit_says_or_untouched(toolbox, text: str, old: str, new: str) -> None:
    """On disk too, with nothing left beside it (R12)."""
    toolbox.fill({"f": text})
    try:
        toolbox.run(edit, path="f", old_string=old, new_string=new)
        expected = apply_edit(text, Edit(old, new), "f")[0]
    except ToolError:
        expected = text
    assert (toolbox.vault / "f").read_bytes().decode() == expected
    assert [path.name for path in toolbox.vault.iterdir()] == ["f"]
