"""Files of an editor: its unsaved text is read and edited, and that does not go past what was judged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Client, Place, choosing

BOTH = {"readTextFile": True, "writeTextFile": True}


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    """An answer of a model that calls one tool."""
    return {"calls": [{"name": tool, "arguments": arguments}]}


READ = call("read", path="a.txt")
EDIT = call("edit", path="a.txt", old_string="two", new_string="three")


class Editor:
    """An editor with unsaved texts by path."""

    def __init__(self, **texts: str) -> None:
        self.texts = texts

    def __call__(self, request: dict[str, Any]) -> Any:
        path = Path(request["params"]["path"])
        return {"content": self.texts.get(path.name) or path.read_text()}


def started(place: Place, editor: Callable[[dict[str, Any]], Any], *answers: Any, fs: Any = BOTH) -> tuple[Client, str]:
    """An agent whose client has files, and says yes to every question."""
    client, session = place.ready(*answers, fs=fs)
    client.answer, client.files = choosing("allow_once"), editor
    return client, session


def outputs(client: Client) -> list[str]:
    """What each call gave, or why it failed."""
    done = [one for one in client.updates("tool_call_update") if one.get("status") in ("completed", "failed")]
    return [str(one["content"]) for one in done]


def methods(client: Client) -> list[str]:
    return [one["method"] for one in client.asked]


def test_the_unsaved_text_is_read_and_named(place: Place) -> None:
    """A person asks about what they see."""
    (place.vault / "a.txt").write_text("one\n")
    client, session = started(place, Editor(**{"a.txt": "one\ntwo\n"}), READ, "done")
    client.prompt(session)
    [output] = outputs(client)
    assert ("two" in output, "not saved" in output) == (True, True)
    [asked] = client.asked
    assert asked["params"] == {"sessionId": session, "path": str(place.vault / "a.txt")}


@pytest.mark.parametrize("text", ["one\ntwo\n", "one\r\ntwo\r\n", "\ufeffone\ntwo\n"])
def test_a_saved_text_is_that_of_the_disk(place: Place, text: str) -> None:
    """Editors hold texts without their mark, and with one kind of line end."""
    (place.vault / "a.txt").write_bytes(text.encode())
    client, session = started(place, Editor(**{"a.txt": "one\ntwo\n"}), READ, "done")
    client.prompt(session)
    [output] = outputs(client)
    assert ("two" in output, "not saved" in output) == (True, False)


def test_an_edit_is_made_in_the_unsaved_text(place: Place) -> None:
    """What the person has typed is not lost. It is written by us, whatever the editor offers."""
    (place.vault / "a.txt").write_text("one\n")
    editor = Editor(**{"a.txt": "one\ntwo\n"})
    client, session = started(place, editor, EDIT, "done")
    client.prompt(session)
    assert (place.vault / "a.txt").read_text() == "one\nthree\n"
    assert "fs/write_text_file" not in methods(client)


def test_what_the_editor_holds_counts_no_more_after_a_change_until_it_is_saved(place: Place) -> None:
    """Its text is older then, and a second edit in it would take the first one back."""
    file = place.vault / "a.txt"
    file.write_text("one\n")
    editor = Editor(**{"a.txt": "one\ntwo\n"})
    second = call("edit", path="a.txt", old_string="one", new_string="zero")
    client, session = started(place, editor, EDIT, second, "done")
    client.prompt(session)
    assert file.read_text() == "zero\nthree\n"


def test_line_ends_and_the_mark_of_a_file_stay(place: Place) -> None:
    """Editors hold a text without them."""
    (place.vault / "a.txt").write_bytes("\ufeffone\r\n".encode())
    client, session = started(place, Editor(**{"a.txt": "one\ntwo\n"}), EDIT, "done")
    client.prompt(session)
    assert (place.vault / "a.txt").read_bytes() == "\ufeffone\r\nthree\r\n".encode()


@pytest.mark.parametrize(
    "answer", [Exception("no"), {"content": 3, "x": 1}, {"content": "half \ud800"}, {"content": "a\0b"}, None]
)
def test_an_editor_that_does_not_answer_as_it_should_costs_nothing(place: Place, answer: Any) -> None:
    """The disk holds; one that was silent is not asked again."""
    (place.vault / "a.txt").write_text("one\ntwo\n")
    client, session = started(place, lambda _: answer, READ, EDIT, "done", fs=BOTH)
    client._reply = lambda message, result: _unchecked(client, message, result)  # type: ignore[method-assign]
    client.prompt(session)
    assert "two" in outputs(client)[0]
    assert (place.vault / "a.txt").read_text() == "one\nthree\n"
    if answer is None:
        assert len([one for one in methods(client) if one.startswith("fs/")]) == 1


def _unchecked(client: Client, message: dict[str, Any], result: Any) -> None:
    said = {"error": {"code": 1, "message": "no"}} if isinstance(result, Exception) else {"result": result}
    if result is not None:
        client.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}).encode() + b"\n")


def test_nothing_is_asked_without_the_capability(place: Place) -> None:
    """An editor that only takes texts is never asked."""
    (place.vault / "a.txt").write_text("one\ntwo\n")
    for fs, wanted in ((None, []), ({"readTextFile": True}, ["fs/read_text_file"]), ({"writeTextFile": 1}, [])):
        client, session = started(place, Editor(), READ, "done", fs=fs)
        client.prompt(session)
        assert methods(client) == wanted


def test_what_a_gate_forbids_is_not_asked_of_the_editor(place: Place) -> None:
    """The editor opens a path by itself, so a path that is refused never reaches it."""
    place.vault.joinpath(".env").write_text("KEY=1\n")
    outside = place.vault.parent / "outside.txt"
    outside.write_text("two\n")
    client, session = started(place, Editor(), call("read", path=".env"), call("read", path=str(outside)), "done")
    client.answer = choosing("reject_once")
    client.prompt(session)
    assert {*methods(client)} <= {"session/request_permission"}


@pytest.mark.parametrize("swapped", ["d", "d/a.txt"])
def test_a_link_that_the_editor_follows_gives_the_model_nothing(place: Place, swapped: str) -> None:
    """A command in the sandbox may put it there while the editor is asked."""
    where, out = place.vault / swapped, place.vault.parent / "out"
    (place.vault / "d").mkdir()
    out.mkdir()
    (place.vault / "d" / "a.txt").write_text("two\n")
    (out / "a.txt").write_text("precious\n")

    def swap(request: dict[str, Any]) -> Any:
        where.rename(place.vault / "old")
        where.symlink_to(out if swapped == "d" else out / "a.txt")
        return {"content": Path(request["params"]["path"]).read_text()}

    client, session = started(place, swap, call("read", path="d/a.txt"), "done")
    client.prompt(session)
    assert "since it was judged" in outputs(client)[0] or "after it was judged" in outputs(client)[0]
    assert "precious" not in str(outputs(client))


def test_what_only_the_editor_holds_is_saved_by_a_write_of_the_same(place: Place) -> None:
    """A command that follows sees the disk."""
    (place.vault / "a.txt").write_text("one\n")
    client, session = started(place, Editor(**{"a.txt": "two\n"}), call("write", path="a.txt", content="two\n"), "done")
    client.prompt(session)
    assert (place.vault / "a.txt").read_text() == "two\n"


def test_the_editor_is_not_asked_about_our_own_folder(place: Place) -> None:
    """What it says would stand in for what is stored there."""
    (place.home / "moryflow.jsonc").write_text("{}\n")
    client, session = started(place, Editor(), call("read", path=str(place.home / "moryflow.jsonc")), "done")
    client.prompt(session)
    assert "fs/read_text_file" not in methods(client)
