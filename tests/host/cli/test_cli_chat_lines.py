"""What a line in a conversation is: a command, a path, the user's own command; and the keys that answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Begin = Callable[..., Any]


def test_only_a_known_command_is_one_and_a_path_goes_to_the_model(cli: Any, at_prompt: Begin) -> None:
    """An unknown word is said and stays in the input; a second slash, or a place that exists, is a path (D86)."""
    terminal = at_prompt("-m", cli.script("one", "two", "three"))
    terminal.type("/nonsense now\r")
    terminal.expect("there is no /nonsense")
    terminal.expect("> /nonsense now")
    terminal.type("\x15/etc/hosts is what?\r")
    terminal.expect("one")
    terminal.type("/tmp is full\r")
    terminal.expect("two")
    assert terminal.quit() == 0
    assert cli.prompts() == ["/etc/hosts is what?", "/tmp is full"]


def test_a_command_of_the_users_own_runs_and_goes_with_the_next_prompt(cli: Any, at_prompt: Begin) -> None:
    """In the vault, without a model; what it printed is attached once (issue 41)."""
    (cli.vault / "notes.txt").write_text("x")
    terminal = at_prompt("-m", cli.script("seen", "again"))
    terminal.type("!ls; false\r")
    terminal.expect("notes.txt\n[exit code 1]\n")
    terminal.expect("goes with your next prompt")
    terminal.type("what is it?\r")
    terminal.expect("seen")
    terminal.type("and?\r")
    terminal.expect("again")
    assert terminal.quit() == 0
    nodes = json.loads(cli("session", "show", "--json").stdout)["nodes"]
    asked = [node["payload"] for node in nodes if node["kind"] == "user"]
    assert asked[0]["files"] == [{"path": "! ls; false", "text": "notes.txt\n[exit code 1]"}] and "files" not in asked[1]
    [history] = (cli.home / "history").iterdir()
    assert "+!ls; false" in history.read_text()


def test_a_question_mark_on_an_empty_line_shows_the_keys(cli: Any, at_prompt: Begin) -> None:
    """At once; behind a word it is a question mark (issue 41)."""
    terminal = at_prompt("-m", cli.script("so"))
    terminal.type("?")
    terminal.expect("Shift-Tab mode")
    terminal.type("why?\r")
    terminal.expect("so")
    assert terminal.quit() == 0
    assert cli.prompts() == ["why?"]


def test_enter_accepts_what_tab_chose_and_sends(cli: Any, at_prompt: Begin) -> None:
    """No second Enter; of a command that is half typed the first that fits is meant (issue 41)."""
    (cli.vault / "notes.txt").write_text("what it says")
    terminal = at_prompt("-m", cli.script("read"))
    terminal.type("see @not")
    terminal.expect("notes.txt")
    terminal.type("\t")
    terminal.wait_until_it_waits()
    terminal.type("\r")
    terminal.expect("read")
    terminal.type("/cst")
    terminal.expect("/cost")
    terminal.type("\r")
    terminal.expect("1 turn")
    assert terminal.quit() == 0
    assert cli.prompts() == ["see @notes.txt"]


def test_undo_shows_what_it_changes_and_one_key_does_it(cli: Any, at_prompt: Begin) -> None:
    """The diff, then one key; any other leaves all as it is (issue 41)."""
    cli.config(
        disabledPlugins=["search", "shell", "local_model", "litellm_models"],
        agents={"runtime": {"permission": {"rules": [{"domain": "edit", "pattern": "vault:/**", "decision": "allow"}]}}},
    )
    terminal = at_prompt("-m", cli.script(cli.calls("write", path="new.txt", content="one\n"), "written"))
    terminal.type("write\r")
    terminal.expect("written")
    terminal.type("/undo\r")
    terminal.expect("  │ 1 - one")
    terminal.expect("[u]ndo [l]ast step only [n]o")
    terminal.type("n")
    terminal.expect("nothing was done")
    assert (cli.vault / "new.txt").exists()
    terminal.type("/undo\r")
    terminal.expect("[u]ndo")
    terminal.type("u")
    terminal.expect("1 file restored")
    assert terminal.quit() == 0
    assert not (cli.vault / "new.txt").exists()


def test_ctrl_d_during_a_turn_stops_it_and_leaves(cli: Any, at_prompt: Begin) -> None:
    """As Ctrl-C and then Ctrl-D do (issue 41)."""
    terminal = at_prompt("-m", cli.script(cli.holding(), "never"))
    terminal.type("go\r")
    terminal.expect("hold")
    terminal.type("\x04")
    terminal.expect("stopped; what was done so far is kept")
    assert terminal.end() == 0


def test_mode_and_agent_are_picked_and_stand_below_the_input(cli: Any, at_prompt: Begin) -> None:
    """Without an argument they are lists; full access is agreed to with one key (issue 41)."""
    terminal = at_prompt("-m", cli.script("x"))
    terminal.expect("build · asks first")
    terminal.type("/agent\r")
    terminal.expect("agent: type to search")
    terminal.type("plan\r")
    terminal.expect("plan · asks first")
    terminal.type("\x1b[Z")
    terminal.expect("mode: type to search")
    terminal.type("full\r")
    terminal.expect("[y]es [n]o")
    terminal.type("y")
    terminal.expect("plan · full access")
    assert terminal.quit() == 0


def test_what_is_typed_while_plugins_load_is_sent(cli: Any, at_terminal: Begin) -> None:
    """The prompt stands at once; the first line that comes from it is the first prompt (issue 41)."""
    terminal = at_terminal("chat", "-m", cli.script("said"))
    terminal.expect("> ")
    terminal.type("early bird\r")
    terminal.expect("said")
    assert terminal.quit() == 0
    assert cli.prompts() == ["early bird"]


def test_alone_at_a_terminal_it_offers_to_chat(at_terminal: Begin) -> None:
    """One key; no is a no (issue 41)."""
    terminal = at_terminal()
    terminal.expect("Start a chat in this folder?")
    terminal.type("n\r")
    assert terminal.end() == 0


class Watched:
    """A host and a source of lines, as far as a notice needs them."""

    interactive = notifies = True


def test_the_end_of_a_long_turn_rings(monkeypatch: Any, capsys: Any) -> None:
    """And shows a notice; of a short one, or where the user has turned it off, nothing (issue 41)."""
    from moryflow.cli.chat.conversation import NOTIFY_AFTER, Conversation

    monkeypatch.setenv("TERM", "xterm")
    talk: Any = object.__new__(Conversation)
    talk.host, talk._source = Watched(), Watched()
    for began, notifies, rings in ((0.0, True, True), (0.0, False, False), (1.0, True, False)):
        monkeypatch.setattr("moryflow.cli.chat.conversation.time.monotonic", lambda: NOTIFY_AFTER + 0.5)
        talk._began, talk.host.notifies = began, notifies
        talk.notify("the answer is there")
        assert ("\x07\x1b]9;Moryflow: the answer is there\x07" in capsys.readouterr().err) == rings


def test_the_queue_is_seen_and_comes_back_to_be_edited(cli: Any, at_prompt: Begin) -> None:
    """With Up line by line, with /queue all of it, while the turn goes on (issue 41)."""
    terminal = at_prompt("-m", cli.script(cli.holding(), "first", "second"))
    terminal.type("go\r")
    terminal.expect("hold")
    terminal.type("one\r")
    terminal.type("two\r")
    terminal.expect("queued: two · Up edits it")
    terminal.type("/queue\r")
    terminal.wait_until_it_waits()
    terminal.type(" more\r")
    cli.let_go()
    terminal.expect("second")
    assert terminal.quit() == 0
    assert cli.prompts() == ["go", "one more\ntwo"]
