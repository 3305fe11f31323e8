"""Files of an editor: its unsaved text is read, a change is made in it, and neither goes past what was judged."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from moryflow.acp.files import COARSE_SECONDS, EditorFiles, EditorTexts

from .conftest import Client, Place, choosing

BOTH = {"readTextFile": True, "writeTextFile": True}


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    """An answer of a model that calls one tool."""
    return {"calls": [{"name": tool, "arguments": arguments}]}


READ = call("read", path="a.txt")
EDIT = call("edit", path="a.txt", old_string="two", new_string="three")


class Editor:
    """An editor with unsaved texts by path; it writes like one that saves in place."""

    def __init__(self, **texts: str) -> None:
        self.texts = texts

    def __call__(self, request: dict[str, Any]) -> Any:
        path, method = Path(request["params"]["path"]), request["method"]
        if method == "fs/read_text_file":
            return {"content": self.texts.get(path.name) or path.read_text()}
        self.texts.pop(path.name, None)
        path.write_text(request["params"]["content"])
        return {}


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
    """What the person has typed is not lost, and what they are shown is the difference to it."""
    (place.vault / "a.txt").write_text("one\n")
    editor = Editor(**{"a.txt": "one\ntwo\n"})
    client, session = started(place, editor, EDIT, "done")
    client.prompt(session)
    assert (place.vault / "a.txt").read_text() == "one\nthree\n"
    assert (methods(client)[-1], editor.texts) == ("fs/write_text_file", {})


def test_line_ends_and_the_mark_of_a_file_stay(place: Place) -> None:
    """A text with returns is written here, as editors would end its lines in their own way."""
    (place.vault / "a.txt").write_bytes("\ufeffone\r\n".encode())
    client, session = started(place, Editor(**{"a.txt": "one\ntwo\n"}), EDIT, "done")
    client.prompt(session)
    assert (place.vault / "a.txt").read_bytes() == "\ufeffone\r\nthree\r\n".encode()
    assert "fs/write_text_file" not in methods(client)


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
    """Each of the two is offered for itself."""
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


def test_a_link_and_a_second_name_are_written_here(place: Place) -> None:
    """An editor would write through another name of the same file, which nobody judged."""
    (place.vault / "a.txt").write_text("two\n")
    other = place.vault.parent / "other"
    os.link(place.vault / "a.txt", other)
    client, session = started(place, Editor(), EDIT, "done")
    client.prompt(session)
    assert ((place.vault / "a.txt").read_text(), other.read_text()) == ("three\n", "two\n")
    assert "fs/write_text_file" not in methods(client)


def test_what_the_editor_saves_is_seen_in_the_file(place: Place) -> None:
    """One that says yes and writes nothing, or something else: the judged text stands in the judged file."""
    (place.vault / "a.txt").write_text("two\n")
    client, session = started(place, lambda one: {"content": "two\n"} if "read" in one["method"] else {}, EDIT, "done")
    client.prompt(session)
    assert (place.vault / "a.txt").read_text() == "three\n"


def test_a_file_that_is_put_in_its_place_meanwhile_is_not_taken_for_it(place: Place) -> None:
    """The change ends as an error, and the other object is left as it is."""
    file, trap = place.vault / "a.txt", place.vault.parent / "trap"
    file.write_text("two\n")
    trap.write_text("precious\n")
    editor = Editor()

    def swap(path: Path) -> None:
        path.rename(path.with_name("old.txt"))
        path.symlink_to(trap)

    client, session = started(place, lambda one: swap(file) or {} if "write" in one["method"] else editor(one), EDIT, "done")
    client.prompt(session)
    assert "saved by the editor as something else" in outputs(client)[0]
    assert (trap.read_text(), file.is_symlink()) == ("precious\n", True)


def test_a_new_file_is_made_here(place: Place) -> None:
    """There is no object yet that an editor could be held against."""
    client, session = started(place, Editor(), call("write", path="new.txt", content="hello\n"), "done")
    client.prompt(session)
    assert (place.vault / "new.txt").read_text() == "hello\n"
    assert "fs/write_text_file" not in methods(client)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("swapped", ["d", "d/a.txt"])
def test_a_link_that_the_editor_follows_gives_the_model_nothing(place: Place, swapped: str, back: bool) -> None:
    """Also where the judged object stands there again by then; and what the editor holds of it is not asked for again."""
    where, out = place.vault / swapped, place.vault.parent / "out"
    (place.vault / "d").mkdir()
    out.mkdir()
    (place.vault / "d" / "a.txt").write_text("two\n")
    (out / "a.txt").write_text("precious\n")

    def swap(request: dict[str, Any]) -> Any:
        old = where.rename(place.vault / "old")
        where.symlink_to(out if swapped == "d" else out / "a.txt")
        text = Path(request["params"]["path"]).read_text()
        if back:
            where.unlink()
            old.rename(where)
        return {"content": text}

    again = [call("read", path="d/a.txt")] if back else []
    client, session = started(place, swap, call("read", path="d/a.txt"), *again, "done")
    client.prompt(session)
    assert "since it was judged" in outputs(client)[0] or "after it was judged" in outputs(client)[0]
    assert ("precious" in str(outputs(client)), methods(client).count("fs/read_text_file")) == (False, 1)


def test_a_turn_that_is_stopped_while_the_editor_saves_writes_nothing_later(place: Place) -> None:
    """The person has read that it was stopped."""
    file = place.vault / "a.txt"
    file.write_text("two\n")

    def stop(request: dict[str, Any]) -> Any:
        if "read" in request["method"]:
            return {"content": "two\n"}
        client.notify("session/cancel", {"sessionId": session})
        return None

    client, session = started(place, stop, EDIT, "done")
    assert client.prompt(session) == "cancelled"
    time.sleep(3)
    assert file.read_text() == "two\n"


def test_of_two_agents_that_change_one_file_the_second_is_told(place: Place) -> None:
    """An editor that saves in place leaves the identity of the file as it was."""
    file = place.vault / "a.txt"
    file.write_text("one\ntwo\n")
    client, first = started(place, lambda _: None, EDIT, "done")
    second = client.session(place.vault, call("edit", path="a.txt", old_string="one", new_string="zero"), "done")
    held: list[dict[str, Any]] = []
    reads: list[str] = []

    def save() -> None:
        file.write_text(held[0]["params"]["content"])
        client._reply(held[0], {})

    def editor(request: dict[str, Any]) -> Any:
        params = request["params"]
        if "read" in request["method"]:
            reads.append(params["sessionId"])
            if reads.count(second) == 2:
                threading.Timer(0.5, save).start()
            return {"content": file.read_text()}
        if params["sessionId"] == first:
            held.append(request)
            client.send_prompt(second)
            return None
        file.write_text(params["content"])
        return {}

    client.files = editor
    client.send_prompt(first)
    ended = 0
    while ended < 2:
        ended += "stopReason" in str(client.until(lambda one: "method" not in one))
    assert file.read_text() == "one\nthree\n"
    assert any("changed after it was judged" in output for output in outputs(client))


def test_an_editor_that_makes_a_new_file_gives_it_to_nobody_else(place: Place) -> None:
    file = place.vault / "a.txt"
    file.write_text("two\n")
    file.chmod(0o600)

    def save(request: dict[str, Any]) -> Any:
        if "read" in request["method"]:
            return {"content": "two\n"}
        new = file.with_name("new")
        new.write_text(request["params"]["content"])
        new.chmod(0o644)
        new.rename(file)
        return {}

    client, session = started(place, save, EDIT, "done")
    client.prompt(session)
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("three\n", 0o600)


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


def test_an_editor_that_tidies_up_what_it_saves_is_asked_again(place: Place) -> None:
    """Some save into a new file and end its last line: that is an error for the model, which reads what stands there now."""
    file = place.vault / "a.txt"
    file.write_text("two\n")

    def save(request: dict[str, Any]) -> Any:
        if "read" in request["method"]:
            return {"content": file.read_text()}
        new = file.with_name("new")
        new.write_text(request["params"]["content"] + "\n")
        new.rename(file)
        return {}

    client, session = started(place, save, EDIT, READ, "done")
    client.prompt(session)
    assert "saved by the editor as something else" in outputs(client)[0]
    assert ("three" in outputs(client)[1], methods(client)[-1]) == (True, "fs/read_text_file")


@pytest.mark.parametrize("anew", [False, True])
def test_an_undo_knows_what_the_editor_has_saved(place: Place, anew: bool) -> None:
    """In the file as it was, or in a new one; what was typed and not saved is in the editor's own undo."""
    file = place.vault / "a.txt"
    file.write_text("one\n")
    buffer = ["one\ntwo\n"]

    def editor(request: dict[str, Any]) -> Any:
        if "read" in request["method"]:
            return {"content": buffer[0]}
        buffer[0] = request["params"]["content"]
        new = file.with_name("new") if anew else file
        new.write_text(buffer[0])
        new.rename(file)
        return {}

    client, session = started(place, editor, EDIT, "done")
    client.prompt(session)
    assert file.read_text() == "one\nthree\n"
    client.prompt(session, "/undo yes")
    assert (file.read_text(), buffer[0]) == ("one\n", "one\n")


class QuickEditor:
    """A connection to an editor that answers at once, and notes when."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def ask(self, _method: str, params: dict[str, str]) -> Any:
        self.asked.append(time.time())
        return {"content": Path(params["path"]).read_text()}


def test_a_file_that_has_just_changed_is_asked_for_a_little_later(tmp_path: Path) -> None:
    """Where the system counts in ticks, a link that came and went within the same one would not show."""
    editor, file = QuickEditor(), tmp_path / "a.txt"

    async def work() -> bytes:
        texts = EditorTexts(cast("Any", editor), BOTH, lambda _: True)
        files = EditorFiles(texts, "s", lambda: False, tmp_path, tmp_path / "home", tmp_path)
        return await asyncio.to_thread(lambda: (file.write_text("two\n"), files.read(files.resolve("a.txt")))[1])

    assert asyncio.run(work()) == b"two\n"
    assert editor.asked[0] - file.stat().st_ctime >= COARSE_SECONDS
