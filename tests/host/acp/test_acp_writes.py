"""Changes that the editor writes, where a person has chosen that: ``acp.editorWrites``."""

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
from moryflow.acp import files as editor_files
from moryflow.acp.files import EditorFiles, EditorTexts
from moryflow_sdk import ToolError

from .conftest import Client, Place, choosing
from .test_acp_files import BOTH, EDIT, READ, Editor, call, methods, outputs

SAVE = "fs/write_text_file"
ON = {"acp": {"editorWrites": True}}


class Saving(Editor):
    """An editor that saves what it is told to; `before` is done first."""

    def __init__(self, before: Callable[[Path], Any] = lambda path: None, text: str = "") -> None:
        super().__init__(**({"a.txt": text} if text else {}))
        self.before = before

    def __call__(self, request: dict[str, Any]) -> Any:
        if request["method"] != SAVE:
            return super().__call__(request)
        path = Path(request["params"]["path"])
        if (said := self.before(path)) is not None:
            return said
        self.texts[path.name] = request["params"]["content"]
        path.write_text(request["params"]["content"])
        return {}


def begun(
    place: Place, editor: Callable[[dict[str, Any]], Any], *answers: Any, fs: Any = BOTH, config: Any = ON
) -> tuple[Client, str]:
    """An agent whose client has files and says yes to every question; `config` is what the person has set."""
    (place.home / "config.jsonc").write_text(json.dumps(config))
    client, session = place.ready(*answers, fs=fs)
    client.answer, client.files = choosing("allow_once"), editor
    return client, session


@pytest.fixture
def file(place: Place) -> Path:
    """A file to change."""
    path = place.vault / "a.txt"
    path.write_text("one\ntwo\n")
    return path


def test_a_change_is_written_by_the_editor(place: Place, file: Path) -> None:
    """With what the person had typed; the diff is shown as for any change."""
    client, session = begun(place, Saving(text="zero\ntwo\n"), EDIT, READ, "done")
    client.prompt(session)
    assert file.read_text() == "zero\nthree\n"
    [asked] = [one["params"] for one in client.asked if one["method"] == SAVE]
    assert asked == {"sessionId": session, "path": str(file), "content": "zero\nthree\n"}
    assert "'type': 'diff'" in outputs(client)[0] and "not saved" not in outputs(client)[1]


@pytest.mark.parametrize("config", [{}, {"acp": {"editorWrites": False}}, {"acp": {"editorWrites": "yes"}}])
def test_nobody_gets_it_who_has_not_chosen_it(place: Place, file: Path, config: Any) -> None:
    """Off is the default, and a value that is none is off."""
    client, session = begun(place, Saving(), EDIT, "done", config=config)
    client.prompt(session)
    assert (file.read_text(), methods(client).count(SAVE)) == ("one\nthree\n", 0)


@pytest.mark.parametrize("where", ["config.jsonc", ".moryflow/config.jsonc", "moryflow.jsonc", ".moryflow.jsonc"])
def test_a_project_cannot_choose_it(place: Place, file: Path, where: str) -> None:
    """Nothing in a folder that is worked in sets anything (R13)."""
    (place.vault / where).parent.mkdir(exist_ok=True)
    (place.vault / where).write_text(json.dumps(ON))
    client, session = begun(place, Saving(), EDIT, "done", config={})
    client.prompt(session)
    assert (file.read_text(), methods(client).count(SAVE)) == ("one\nthree\n", 0)


def test_a_configuration_that_others_may_write_does_not_choose_it(place: Place, file: Path) -> None:
    """It loosens nothing (R17)."""
    (place.home / "config.jsonc").touch()
    (place.home / "config.jsonc").chmod(0o666)
    client, session = begun(place, Saving(), EDIT, "done")
    client.prompt(session)
    assert (file.read_text(), methods(client).count(SAVE)) == ("one\nthree\n", 0)


def test_an_editor_that_does_not_offer_it_is_not_told(place: Place, file: Path) -> None:
    client, session = begun(place, Saving(), EDIT, "done", fs={"readTextFile": True, "writeTextFile": "yes"})
    client.prompt(session)
    assert (file.read_text(), methods(client).count(SAVE)) == ("one\nthree\n", 0)


def test_a_change_that_is_refused_reaches_no_editor(place: Place, file: Path) -> None:
    """By a rule, and by a person."""
    rules = [{"domain": "edit", "pattern": "vault:/a.txt", "decision": "deny"}]
    config = {**ON, "agents": {"runtime": {"permission": {"rules": rules}}}}
    (place.vault / ".env").write_text("two\n")
    ask = call("edit", path=".env", old_string="two", new_string="three")
    client, session = begun(place, Saving(), EDIT, ask, "done", config=config)
    client.answer = choosing("reject_once")
    client.prompt(session)
    assert (file.read_text(), methods(client).count(SAVE)) == ("one\ntwo\n", 0)
    assert (place.vault / ".env").read_text() == "two\n"


@pytest.mark.parametrize("held", [b"a\0two", b"caf\xe9 two\n", b"two\r\n", "\ufefftwo\n".encode(), b"two\n" + b"x" * (1 << 20)])
def test_what_an_editor_would_not_save_as_it_is_is_written_here(place: Place, file: Path, held: bytes) -> None:
    """Binary, another encoding, other line ends, a mark, large."""
    file.write_bytes(held)
    client, session = begun(place, Saving(), call("write", path="a.txt", content="three\n"), "done")
    client.prompt(session)
    assert (b"three" in file.read_bytes(), methods(client).count(SAVE)) == (True, 0)


def test_new_files_moves_and_second_names_are_ours(place: Place, file: Path) -> None:
    """There is no judged object that the editor could be held against, or it has a name that nobody judged."""
    other = place.vault.parent / "other"
    os.link(file, other)
    calls = [call("write", path="new.txt", content="hello\n"), call("move", path="new.txt", to="b.txt"), EDIT]
    client, session = begun(place, Saving(), *calls, "done")
    client.prompt(session)
    assert (place.vault / "b.txt").read_text() == "hello\n"
    assert (file.read_text(), other.read_text()) == ("one\nthree\n", "one\ntwo\n")
    assert SAVE not in methods(client)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("swapped", ["d", "d/a.txt"])
def test_a_link_that_the_editor_follows_is_an_error_that_says_so(place: Place, swapped: str, back: bool) -> None:
    """Also where the judged object stands there again by then. The next change of the file is not given to the editor."""
    where, out = place.vault / swapped, place.vault.parent / "out"
    (place.vault / "d").mkdir()
    out.mkdir()
    (place.vault / "d" / "a.txt").write_text("two\n")
    (out / "a.txt").write_text("precious\n")

    def swap(path: Path) -> Any:
        old = where.rename(place.vault / "old")
        where.symlink_to(out if swapped == "d" else out / "a.txt")
        path.write_text("three\n")
        if back:
            where.unlink()
            old.rename(where)
        return {}

    edit = call("edit", path="d/a.txt", old_string="two", new_string="three")
    client, session = begun(place, Saving(swap), edit, *([edit] if back else []), "done")
    client.prompt(session)
    assert "did not save d/a.txt as it was told" in outputs(client)[0] and "link" in outputs(client)[0]
    assert (out / "a.txt").read_text() == "three\n"  # what the documentation says of it
    assert methods(client).count(SAVE) == 1
    if back:
        assert (place.vault / "d" / "a.txt").read_text() == "three\n"


def test_an_error_of_the_editor_is_one_of_the_call(place: Place, file: Path) -> None:
    """With its words, and what became of the file; nothing is written behind its back, and a second try is ours."""
    client, session = begun(place, Saving(lambda path: Exception("the disk is read-only")), EDIT, EDIT, "done")
    client.prompt(session)
    assert "the disk is read-only. The file is as it was" in outputs(client)[0]
    assert (file.read_text(), methods(client).count(SAVE)) == ("one\nthree\n", 1)


def test_an_error_beside_a_text_that_stands_there_is_an_error_too(place: Place, file: Path) -> None:
    client, session = begun(place, Saving(lambda path: path.write_text("one\nthree\n") and Exception("oh")), EDIT, "done")
    client.prompt(session)
    assert "oh. The file may hold another text by now" in outputs(client)[0]


def test_an_editor_that_tidies_up_what_it_saves_is_told_of(place: Place, file: Path) -> None:
    """What was judged is not what stands there."""
    client, session = begun(place, Saving(lambda path: [path.write_text("one\nthree\n\n"), {}][1]), EDIT, "done")
    client.prompt(session)
    assert "a formatter" in outputs(client)[0] and "may hold another text" in outputs(client)[0]


def test_all_of_several_files_or_none(place: Place, file: Path) -> None:
    """Where the editor fails at the second, the first is put back."""
    (place.vault / "b.txt").write_text("two\n")
    edits = [{"path": name, "old_string": "two", "new_string": "three"} for name in ("a.txt", "b.txt")]
    editor = Saving(lambda path: Exception("no") if path.name == "b.txt" else None)
    client, session = begun(place, editor, call("multiedit", edits=edits), "done")
    client.prompt(session)
    assert (file.read_text(), (place.vault / "b.txt").read_text()) == ("one\ntwo\n", "two\n")
    assert editor.texts["a.txt"] == "one\ntwo\n"


def test_a_new_file_of_the_editor_has_the_mode_of_the_old_one(place: Place, file: Path) -> None:
    """A file for one person is not given to others."""
    file.chmod(0o600)

    def save(path: Path) -> Any:
        new = path.with_name("new")
        new.write_text("one\nthree\n")
        new.chmod(0o644)
        new.rename(path)
        return {}

    client, session = begun(place, Saving(save), EDIT, "done")
    client.prompt(session)
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("one\nthree\n", 0o600)


def test_a_turn_that_is_stopped_while_the_editor_saves_writes_nothing_later(place: Place, file: Path) -> None:
    """The person has read that it was stopped."""

    def stop(request: dict[str, Any]) -> Any:
        if request["method"] != SAVE:
            return {"content": file.read_text()}
        client.notify("session/cancel", {"sessionId": session})
        return None

    client, session = begun(place, stop, EDIT, "done")
    assert client.prompt(session) == "cancelled"
    time.sleep(1)
    assert file.read_text() == "one\ntwo\n"


def test_of_two_agents_that_change_one_file_the_second_is_told(place: Place, file: Path) -> None:
    """An editor that saves in place leaves the identity of the file as it was."""
    client, first = begun(place, lambda _: None, EDIT, "done")
    second = client.session(place.vault, call("edit", path="a.txt", old_string="one", new_string="zero"), "done")
    held: list[dict[str, Any]] = []
    reads: list[str] = []

    def save() -> None:
        file.write_text(held[0]["params"]["content"])
        client._reply(held[0], {})

    def editor(request: dict[str, Any]) -> Any:
        params = request["params"]
        if request["method"] != SAVE:
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


@pytest.mark.parametrize("anew", [False, True])
def test_an_undo_brings_back_what_the_disk_held(place: Place, file: Path, anew: bool) -> None:
    """In the file as it was, or in a new one."""

    def save(path: Path) -> Any:
        if anew:
            path.with_name("new").write_bytes(path.read_bytes())
            path.with_name("new").rename(path)

    client, session = begun(place, Saving(save), EDIT, "done")
    client.prompt(session)
    assert file.read_text() == "one\nthree\n"
    client.prompt(session, "/undo yes")
    assert file.read_text() == "one\ntwo\n" and methods(client).count(SAVE) == 1


def test_a_file_with_attributes_of_its_own_is_written_here(place: Place, file: Path) -> None:
    """An editor would put a new file there, without them."""
    try:
        os.setxattr(file, "user.note", b"mine")
    except (AttributeError, OSError) as error:
        pytest.skip(f"no attributes can be set here: {error}")
    client, session = begun(place, Saving(), EDIT, "done")
    client.prompt(session)
    assert (file.read_text(), methods(client).count(SAVE)) == ("one\nthree\n", 0)
    assert os.getxattr(file, "user.note") == b"mine"


class SilentEditor:
    """A connection to an editor that never answers."""

    async def ask(self, _method: str, _params: dict[str, str]) -> Any:
        await asyncio.Event().wait()


def test_the_silence_of_an_editor_ends_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After that nothing is given to it: it may be late, and what comes after is ours."""
    monkeypatch.setattr(editor_files, "SAVE_SECONDS", 0.2)
    (tmp_path / "a.txt").write_text("two\n")

    async def work() -> EditorFiles:
        texts = EditorTexts(cast("Any", SilentEditor()), {"writeTextFile": True}, lambda _: True)
        files = EditorFiles(texts, "s", tmp_path, tmp_path / "home", tmp_path, writes=True)
        with pytest.raises(ToolError, match=r"did not answer within 0.2 s.*The file is as it was"):
            await asyncio.to_thread(files.write, files.resolve("a.txt"), b"three\n")
        await asyncio.to_thread(files.write, files.resolve("a.txt"), b"four\n")
        return files

    asyncio.run(work())
    assert (tmp_path / "a.txt").read_text() == "four\n"
