"""``moryflow replay``: a stored session's hook inputs against a changed plugin, without a model and without a tool."""

from __future__ import annotations

import pytest

from .scripts import ANN, BOB, SHOUT, keeping

COUNT = '''
    """Counts."""
    from moryflow_sdk import hookimpl

    @hookimpl
    def tool_after(result, turn):
        turn.session_state["calls"] = turn.session_state.get("calls", 0) + 1
        return result.replace(output=f"{result.output} #{turn.session_state['calls']}")
'''

REDACT = """
    from moryflow_sdk import hookimpl

    @hookimpl(on_failure="withhold")
    def tool_after(result):
        return result.replace(output=result.output.replace("ANN", "***"))
"""
NO_PUSH = """
    from moryflow_sdk import Deny, hookimpl

    services = ("rules",)

    @hookimpl
    def tool_gate(turn):
        return Deny("no push") if "git push" in turn.rules.commands('cd x && sh -c "git push"') else None
"""


@pytest.fixture(scope="module")
def stored(shared_desk):
    """A desk with a session of two turns."""
    desk = keeping(shared_desk)
    desk.plugin("shout", SHOUT)
    assert desk.turn({"calls": [ANN, BOB]}, "done").code == 0
    assert desk.turn("again", again=True).code == 0
    return desk


def replayed(desk, old: str = "", new: str = "", *arguments: str):
    """Replay with the plugin, changed in one place."""
    file = desk.write(desk.vault.parent / "shout.py", SHOUT_TEXT.replace(old, new))
    return desk("replay", "--with", str(file), "--json", *arguments)


SHOUT_TEXT = "\n".join(line[4:] for line in SHOUT.splitlines())
PLANTED = [
    (".upper()", ".lower()", "tool.after", "result.output", "HELLO ANN", "hello ann"),
    (".title()", ".upper()", "tool.before", "call.args.name", "Ann", "ANN"),
    ('"wait"', '"ring"', "tool.gate", "next_step", "wait", "ring"),
    ("(loud)", "(soft)", "chat.messages", "messages.inserted[0].text", "(loud)", "(soft)"),
    ("Be loud.", "Be soft.", "chat.system", "system.blocks[2].text", "Be loud." * 10, "Be soft." * 10),
    ("=0.5", "=0.7", "chat.params", "params.temperature", 0.5, 0.7),
    ('"x" * 400', '"x" * 4', "system.blocks", "blocks[0].chars", 400, 4),
    ("@hookimpl\ndef tool_after", "def tool_aftr", "tool.after", "result.output", "HELLO ANN", None),
]


def test_the_same_plugin_does_the_same(stored) -> None:
    """Every hook gets what it got; exit code 0 (ARCHITECTURE §4, ledger)."""
    done = replayed(stored)
    assert (done.code, done.json["differences"], done.json["skipped"]) == (0, [], [])
    assert done.json["compared"] == 16, "six of chat and six of calls in the first turn, four in the second"


@pytest.mark.parametrize(("old", "new", "hook", "path", "before", "after"), PLANTED)
def test_a_planted_difference_is_found(stored, old, new, hook, path, before, after) -> None:
    """Hook, step, the place in the value, before and after; exit code 3 (invariant 10)."""
    done = replayed(stored, old, new)
    (found,) = done.json["differences"]
    assert (done.code, found["hook"], found["path"], found["before"], found["after"]) == (3, hook, path, before, after)
    assert (found["turn"], found["step"]) == (1, 1) and found["file"].endswith("shout.py")


def test_no_model_and_no_tool_is_called_and_nothing_is_stored(stored, tmp_path) -> None:
    """The tool's body and the model's script leave no trace a second time (invariant 1)."""
    before = stored("session", "export", stored("session", "list", "--json").json[0]["id"]).out
    ran = tmp_path / "ran"
    done = replayed(stored, 'return f"hello', f'open({str(ran)!r}, "w"); return f"hello')
    assert (done.code, ran.exists()) == (0, False)
    assert stored("session", "export", stored("session", "list", "--json").json[0]["id"]).out == before


def test_a_hook_that_fails_now_is_a_difference_with_its_line(stored) -> None:
    """A plugin that breaks is named with file and line, and ends nothing (invariant 3)."""
    found = replayed(stored, "result.output.upper()", "boom").json["differences"][0]
    assert (found["path"], found["before"]) == ("outcome", "worked")
    assert "NameError" in found["after"] and found["line"] > 20


def test_a_plugin_that_does_not_load_says_where(stored) -> None:
    done = replayed(stored, "def chat_params(params)", "def chat_params(params, wind)")
    assert (done.code, "wind" in done.err, "shout.py:" in done.err) == (6, True, True)


def test_one_turn_is_compared_with_the_state_of_those_before(desk) -> None:
    """``turn.session_state`` builds up as it did (S2.13)."""
    keeping(desk)
    file = desk.plugin("count", COUNT)
    desk.plugin("greeter", SHOUT)
    for again in (False, True):
        desk.turn({"calls": [ANN]}, "done", again=again)
    done = desk("replay", "--with", str(file), "--turn", "2", "--json")
    assert (done.code, done.json["compared"]) == (0, 1)


def test_a_gate_is_told_the_commands_of_a_line_again(desk) -> None:
    """That reads nothing but the line; the other services are refused."""
    keeping(desk)
    file = desk.plugin("no_push", NO_PUSH)
    desk.plugin("greeter", SHOUT)
    desk.turn({"calls": [ANN]}, "done")
    done = desk("replay", "--with", str(file), "--json")
    assert (done.code, done.json["compared"], done.json["differences"]) == (0, 1, [])


def test_what_a_redactor_has_yet_to_see_is_not_kept_and_that_is_said(desk) -> None:
    """Secrets are not stored for the sake of replay (S2.20)."""
    keeping(desk).plugin("aloud", SHOUT)
    file = desk.plugin("redact", REDACT)
    desk.turn({"calls": [ANN]}, "done")
    done = desk("replay", "--with", str(file), "--as", "aloud", "--json")
    assert "redactor" in done.json["skipped"][0]["reason"]
    assert b"HELLO ANN" not in b"".join(path.read_bytes() for path in desk.home.glob("sessions.db*"))


def test_without_kept_inputs_the_setting_is_named(desk) -> None:
    """Nothing is kept by default; a command of `dev --run` keeps it (CONTRACT 1)."""
    file = desk.plugin("shout", SHOUT)
    desk.turn({"calls": [ANN]}, "done")
    done = desk("replay", "--with", str(file))
    assert (done.code, "moryflow config set keepInputs true" in done.err) == (2, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MORYFLOW_DEVELOPMENT", "")
        desk.turn({"calls": [ANN]}, "done")
    assert desk("replay", "--with", str(file)).code == 0


def test_a_session_that_is_not_there(desk) -> None:
    file = desk.plugin("count", COUNT)
    assert desk("replay", "nosuch", "--with", str(file)).code == 2


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os\nos._exit(3)\n", "mine.py: import: it ended the process without a message (exit code 3)"),
        ("raise ValueError('no')\n", "mine.py:1: import: ValueError: no"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_no_difference(stored, source, said):
    """The probe has it first: an exit is named, and its exit code is not that of a comparison (SECURITY §3, S0-j)."""
    file = stored.write(stored.vault / "mine.py", source)
    done = stored("replay", "--with", str(file))
    assert (done.code, done.out) == (6, "") and said in done.err
    assert "next: " in done.err
